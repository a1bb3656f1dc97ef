"""When requests are due. The whole schedule is fixed before the first send."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from traffic.errors import UsageError
from traffic.randomness import CHUNK, stream
from traffic.traces import Trace


class Arrivals(Protocol):
    """An arrival process."""

    @property
    def name(self) -> str:
        """What a person reads: the process and its parameters."""
        ...

    def due_s(self, rate_rps: float, seed: int, repeat: int, horizon_s: float) -> npt.NDArray[np.float64]:
        """Due times in seconds, ascending, all below horizon_s, at `rate_rps` requests a second on average.

        The draw comes from (seed, repeat) and is scaled to the rate: every rate and every arm sees the same, and a
        longer horizon only appends. Raises ValueError for a rate that is not positive.
        """
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users: exponential gaps.

    The number of arrivals is left random: forcing it to rate x horizon would take the tail out of the load.
    """

    name: str = "Poisson arrivals"

    def due_s(self, rate_rps: float, seed: int, repeat: int, horizon_s: float) -> npt.NDArray[np.float64]:
        """Due times in seconds."""
        generator = stream("arrivals", seed, repeat)
        return _summed(generator.standard_exponential, rate_rps, horizon_s)


POISSON = Poisson()

LEAST_BURSTINESS = 0.01
"""A hundred requests at a time, on average; below it a schedule is a few lumps and says nothing about a rate."""


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gaps from a gamma distribution of shape `burstiness`, as `vllm bench serve --burstiness` has it.

    1 is Poisson, less comes in bursts, more is steadier: the gaps' squared coefficient of variation is 1 / burstiness,
    and so is, over long bins, the variance of counts over their mean.
    """

    burstiness: float

    def __post_init__(self) -> None:
        """Raise UsageError for a burstiness too small to be a load, or not a number."""
        if not LEAST_BURSTINESS <= self.burstiness < math.inf:
            raise UsageError(f"the burstiness must be at least {LEAST_BURSTINESS:g}, not {self.burstiness:g}")

    @property
    def name(self) -> str:
        """With the parameter."""
        return f"gamma arrivals of burstiness {self.burstiness:g}"

    def due_s(self, rate_rps: float, seed: int, repeat: int, horizon_s: float) -> npt.NDArray[np.float64]:
        """Due times in seconds; at a burstiness of 1 those of Poisson."""
        generator = stream("arrivals", seed, repeat)
        return _summed(lambda n: generator.standard_gamma(self.burstiness, n) / self.burstiness, rate_rps, horizon_s)


@dataclass(frozen=True, slots=True)
class Constant:
    """One request every 1 / rate seconds; no service's users do this.

    The first comes at a random place inside the first gap: whole seconds would be in step with everybody's clocks.
    """

    name: str = "constant arrivals"

    def due_s(self, rate_rps: float, seed: int, repeat: int, horizon_s: float) -> npt.NDArray[np.float64]:
        """Due times in seconds."""
        _check_rate(rate_rps)
        count = math.ceil(rate_rps * horizon_s) + 1
        due_s: npt.NDArray[np.float64] = np.arange(count, dtype=np.float64)
        due_s = (due_s + stream("arrivals", seed, repeat).random()) / rate_rps
        return due_s[due_s < horizon_s]


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace's own times, stretched or squeezed to the rate on average, from a moment that (seed, repeat) chooses.

    The trace begins again after its end. A service's rate changes from minute to minute, so the rate inside one window
    is not the nominal one. Requests of one moment stay so.
    """

    trace: Trace

    @property
    def name(self) -> str:
        """With the trace."""
        return f"arrivals of {self.trace.name}"

    def due_s(self, rate_rps: float, seed: int, repeat: int, horizon_s: float) -> npt.NDArray[np.float64]:
        """Due times in seconds. Raises UsageError for a trace whose requests all come at one moment."""
        _check_rate(rate_rps)
        squeeze = rate_rps / self.trace.mean_rate_rps
        moment_s, row = self.trace.start(seed, repeat)
        count = len(self.trace.times_s)
        laps = math.ceil(horizon_s * squeeze / self.trace.period_s) + 1
        places = np.arange(row, count * (laps + 1))
        passed_s = self.trace.times_s[places % count] + self.trace.period_s * (places // count) - moment_s
        due_s: npt.NDArray[np.float64] = passed_s / squeeze
        return due_s[due_s < horizon_s]


def _summed(
    draw_gaps: Callable[[int], npt.NDArray[np.float64]], rate_rps: float, horizon_s: float
) -> npt.NDArray[np.float64]:
    """Due times from gaps of mean 1, drawn until the horizon is passed."""
    _check_rate(rate_rps)
    due = np.cumsum(draw_gaps(CHUNK))
    while due[-1] / rate_rps < horizon_s:
        due = np.concatenate([due, due[-1] + np.cumsum(draw_gaps(CHUNK))])
    due_s = due / rate_rps
    return due_s[due_s < horizon_s]


def _check_rate(rate_rps: float) -> None:
    if not rate_rps > 0:
        raise ValueError(f"a request rate must be positive, not {rate_rps}")
