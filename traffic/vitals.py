"""How a client fares under its own load: whether its loop stands still, its clock steps, its core is full."""

from __future__ import annotations

from traffic.clock import Clock


class Vitals:
    """Watches one process, from its making on. `look` belongs into a tick of a fraction of a second.

    stall_max_s: the longest that the loop was late for a tick. clock_step_s: the largest that UTC minus monotonic time
    was ever away from its value at the start, with its sign; a step that is taken back is seen all the same.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = clock.utc_s() - clock.now_s()
        self._began_s = clock.now_s()
        self._began_cpu_s = clock.cpu_s()
        self.stall_max_s = 0.0
        self.clock_step_s = 0.0

    def look(self, moment_s: float) -> None:
        """A tick that was meant for this loop time has come."""
        now_s = self._clock.now_s()
        self.stall_max_s = max(self.stall_max_s, now_s - moment_s)
        step_s = self._clock.utc_s() - now_s - self._offset_s
        if abs(step_s) > abs(self.clock_step_s):
            self.clock_step_s = step_s

    @property
    def cpu_share(self) -> float | None:
        """CPU time of the process / time, since the start: 1 is a whole core. None under virtual time."""
        cpu_s, now_s = self._clock.cpu_s(), self._clock.now_s()
        if cpu_s is None or self._began_cpu_s is None or now_s <= self._began_s:
            return None
        return (cpu_s - self._began_cpu_s) / (now_s - self._began_s)
