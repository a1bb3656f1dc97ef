"""The step model's loop, compiled by numba, for a server that never runs short of KV cache or of places in its batch.

    pip install numba

The same steps in the same order with the same draws: `same_as_step_model` holds both against each other, bit by bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from traffic.randomness import CHUNK, stream
from traffic.step_model import EngineSettings

try:
    import numba
except ImportError:
    numba = None

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_WANDER_CHUNK = 256
_RING = 2048
"""More steps than any answer has tokens."""


class Noise:
    """What `traffic.step_time.Pace` draws for one start, as arrays that grow."""

    def __init__(self, settings: EngineSettings, seed: int, start: int) -> None:
        self.settings = settings
        self.offset = math.exp(settings.start_offset_share * stream("engine offset", seed, start).standard_normal())
        self.steps: FloatArray = np.empty(0)
        self.wander: FloatArray = np.empty(0)
        self._step_draws = stream("engine step", seed, start)
        self._wander_draws = stream("engine wander", seed, start)
        self._state = float(self._wander_draws.standard_normal())

    def reach(self, steps: int, seconds: int) -> None:
        """Draw for so many steps, and so many seconds."""
        while len(self.steps) < steps:
            sd = self.settings.step_noise_share
            drawn = np.exp(sd * self._step_draws.standard_normal(CHUNK) - sd * sd / 2)
            self.steps = np.concatenate([self.steps, drawn])
        while len(self.wander) < seconds:
            keep = math.exp(-1.0 / self.settings.wander_time_s)
            fresh = math.sqrt(1.0 - keep * keep)
            cells = []
            for draw in self._wander_draws.standard_normal(_WANDER_CHUNK).tolist():
                cells.append(math.exp(self.settings.wander_share * self._state))
                self._state = keep * self._state + fresh * draw
            self.wander = np.concatenate([self.wander, cells])


class CompiledServer:
    """One start, driven block by block. Raises ValueError for settings that the compiled loop does not know."""

    def __init__(self, settings: EngineSettings, seed: int, start: int) -> None:
        if settings.first_shape_cost_s:
            raise ValueError("the compiled loop knows no first use of a batch shape")
        self.settings = settings
        self.noise = Noise(settings, seed, start)
        self.steps_done = 0
        self.wander_from_s = math.nan
        most = settings.max_num_batched_tokens + settings.max_num_seqs + 1
        self.busy_s: FloatArray = np.array([0.0, *(_busy_s(settings, tokens) for tokens in range(1, most))])

    def drive(
        self, due_s: FloatArray, inputs: IntArray, outputs: IntArray, cohort: tuple[int, int]
    ) -> tuple[FloatArray, FloatArray, int]:
        """Run until the cohort (first and last index) has ended: first and last token times, requests submitted."""
        if math.isnan(self.wander_from_s):
            self.wander_from_s = float(due_s[0])
        settings, noise = self.settings, self.noise
        horizon_s = float(due_s[-1]) + 60.0 - self.wander_from_s
        noise.reach(self.steps_done + 20_000, int(horizon_s) + 2)
        first_s, last_s = np.full(len(due_s), np.nan), np.full(len(due_s), np.nan)
        steps, submitted = _drive(
            due_s,
            inputs,
            outputs,
            cohort,
            (self.busy_s, noise.steps[self.steps_done :], noise.wander),
            (
                settings.kv_read_s_per_token,
                settings.overhead_s,
                settings.step_time_factor,
                noise.offset,
                settings.drift_share_per_hour,
                self.wander_from_s,
            ),
            (settings.max_num_batched_tokens, settings.max_num_seqs, settings.kv_cache_tokens),
            (first_s, last_s),
        )
        if steps < 0:
            raise ValueError("the server ran short of KV cache or places, which the compiled loop does not know")
        self.steps_done += steps
        return first_s, last_s, submitted


def _busy_s(settings: EngineSettings, tokens: int) -> float:
    missed = (1.0 - settings.experts_per_token / settings.num_experts) ** tokens
    return max(settings.dense_read_s + settings.expert_read_s * (1.0 - missed), settings.compute_s_per_token * tokens)


def _loop(  # noqa: C901, PLR0912, PLR0915, PLR0917 - one loop, as compiled code wants it
    due_s: FloatArray,
    inputs: IntArray,
    outputs: IntArray,
    cohort: tuple[int, int],
    tables: tuple[FloatArray, FloatArray, FloatArray],
    rates: tuple[float, float, float, float, float, float],
    limits: tuple[int, int, int],
    times: tuple[FloatArray, FloatArray],
) -> tuple[int, int]:
    """Steps done and requests submitted; -1 steps where a limit was met."""
    busy_s, noise, wander = tables
    kv_read_s, overhead_s, step_factor, offset, drift_share, wander_from_s = rates
    most_tokens, most_seqs, most_kv = limits
    first_s, last_s = times
    count = len(due_s)
    computed = np.zeros(count, dtype=np.int64)
    begun_step = np.zeros(count, dtype=np.int64)
    following = np.full(count, -1, dtype=np.int64)
    ending = np.full(_RING, -1, dtype=np.int64)  # the first of the requests that end with a step, by step
    completing = np.zeros(count, dtype=np.int64)
    submitted = head = decoding = kv = step = 0
    partial = -1
    running = 0
    open_cohort = cohort[1] - cohort[0] + 1
    now_s = due_s[0]
    while open_cohort > 0:
        while due_s[submitted] <= now_s:
            submitted += 1
        kv += decoding
        prefill = 0
        done = 0
        budget = most_tokens - decoding
        if partial >= 0:
            chunk = min(inputs[partial] - computed[partial], budget)
            computed[partial] += chunk
            prefill += chunk
            if computed[partial] == inputs[partial]:
                completing[done] = partial
                done += 1
                partial = -1
        while head < submitted and prefill < budget:
            if running >= most_seqs or kv + prefill + inputs[head] > most_kv:
                return -1, submitted
            chunk = min(inputs[head], budget - prefill)
            computed[head] = chunk
            prefill += chunk
            running += 1
            if chunk == inputs[head]:
                completing[done] = head
                done += 1
            else:
                partial = head
            head += 1
        kv += prefill
        tokens = decoding + prefill
        if kv > most_kv:
            return -1, submitted
        if tokens == 0:
            now_s = due_s[submitted]
            continue
        cell = int((now_s - wander_from_s) / 1.0)
        drift = 1.0 + drift_share * now_s / 3600.0
        factor = offset * noise[step] * wander[cell] * drift
        now_s += (busy_s[tokens] + kv_read_s * kv + overhead_s) * step_factor * factor
        job = ending[step % _RING]
        ending[step % _RING] = -1
        while job >= 0:
            last_s[job] = now_s
            kv -= computed[job] + step - begun_step[job]
            decoding -= 1
            running -= 1
            open_cohort -= cohort[0] <= job <= cohort[1]
            job = following[job]
        for index in range(done):
            job = completing[index]
            first_s[job] = now_s
            begun_step[job] = step
            if outputs[job] == 1:
                last_s[job] = now_s
                kv -= computed[job]
                running -= 1
                open_cohort -= cohort[0] <= job <= cohort[1]
            else:
                decoding += 1
                place = (step + outputs[job] - 1) % _RING
                following[job] = ending[place]
                ending[place] = job
        step += 1
    return step, submitted


_drive: Any = None if numba is None else numba.njit(_loop)


def is_compiled() -> bool:
    """Whether numba is there."""
    return numba is not None
