"""The step model's whole loop, compiled by numba: queue, limits and preemption, one probe on an idle server.

    pip install numba

The same steps in the same order with the same draws as `traffic.step_model.StepModel.drive` of a fresh model; a test
holds both against each other, bit by bit (tests/benchmarks/test_search.py).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from traffic.randomness import stream
from traffic.step_model import EngineSettings

try:
    import numba
except ImportError:
    numba = None

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_RING = 65_536
"""More steps than any answer has tokens."""

_SHORTEST_STEP_S = 0.004
"""No step of the benchmark's engines is shorter, so that so many draws are enough."""


def is_compiled() -> bool:
    """Whether numba is there."""
    return numba is not None


def drive(
    settings: EngineSettings,
    noise: tuple[int, int],
    origin_s: float,
    load: tuple[FloatArray, IntArray, IntArray],
    until_s: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """First token, last token and end of each request (s), NaN where there is none.

    noise: its seed and start. origin_s: when drift began, on the load's clock. load: due times (s, ascending), prompt
    and answer tokens. Raises ValueError for settings that the compiled loop does not know.
    """
    seed, start = noise
    if settings.first_shape_cost_s:
        raise ValueError("the compiled loop knows no first use of a batch shape")
    offset = math.exp(settings.start_offset_share * stream("engine offset", seed, start).standard_normal())
    found: tuple[FloatArray, FloatArray, FloatArray] = _drive(
        *load,
        until_s,
        (_busy_s(settings), _step_noise(settings, seed, start, until_s), _wander(settings, seed, start, until_s)),
        (settings.max_num_seqs, settings.max_num_batched_tokens, settings.kv_cache_tokens),
        (
            settings.kv_read_s_per_token,
            settings.overhead_s,
            settings.step_time_factor,
            offset,
            settings.drift_share_per_hour,
            origin_s,
        ),
    )
    return found


@lru_cache(maxsize=16)
def _busy_s(settings: EngineSettings) -> FloatArray:
    """Weights and compute by the tokens of a step: numba's own power function differs in the last bit."""

    def busy_s(tokens: int) -> float:
        missed = (1.0 - settings.experts_per_token / settings.num_experts) ** tokens
        weights_s = settings.dense_read_s + settings.expert_read_s * (1.0 - missed)
        return max(weights_s, settings.compute_s_per_token * tokens)

    most = settings.max_num_batched_tokens + settings.max_num_seqs + 1
    return np.array([0.0, *(busy_s(tokens) for tokens in range(1, most))])


def _step_noise(settings: EngineSettings, seed: int, start: int, until_s: float) -> FloatArray:
    draws = stream("engine step", seed, start).standard_normal(int(until_s / _SHORTEST_STEP_S) + 2)
    sd = settings.step_noise_share
    return np.asarray(np.exp(sd * draws - sd * sd / 2))


def _wander(settings: EngineSettings, seed: int, start: int, until_s: float) -> FloatArray:
    draws = stream("engine wander", seed, start)
    state = float(draws.standard_normal())
    keep = math.exp(-1.0 / settings.wander_time_s)
    fresh = math.sqrt(1.0 - keep * keep)
    cells = []
    for draw in draws.standard_normal(int(until_s) + 3).tolist():
        cells.append(math.exp(settings.wander_share * state))
        state = keep * state + fresh * draw
    return np.array(cells)


def _loop(  # noqa: C901, PLR0912, PLR0915, PLR0917 - one loop, as compiled code wants it
    due_s: FloatArray,
    inputs: IntArray,
    outputs: IntArray,
    until_s: float,
    tables: tuple[FloatArray, FloatArray, FloatArray],
    limits: tuple[int, int, int],
    rates: tuple[float, float, float, float, float, float],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    busy_s, noise, wander = tables
    most_seqs, most_tokens, most_kv = limits
    kv_read_s, overhead_s, step_factor, offset, drift_share, origin_s = rates
    n = len(due_s)
    first_s, last_s, ended_s = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    decodes = np.zeros(n, np.bool_)
    done = np.zeros(n, np.int64)  # tokens before the present stretch
    computed = np.zeros(n, np.int64)
    stretch = np.full(n, -1, np.int64)  # the step that began it
    finish = np.full(n, -1, np.int64)
    newer, older, newest = np.full(n, -1, np.int64), np.full(n, -1, np.int64), -1  # those that run, by admission
    ending = np.full(_RING, -1, np.int64)  # the first of those that end with a step, by step
    after, before = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    waiting = np.empty(4 * n + 16, np.int64)
    head = tail = 2 * n + 8
    completing = np.empty(n, np.int64)
    running = decoding = kv = step = completed = submitted = 0
    partial = -1
    now_s, wander_from_s, end_s = -1e300, 0.0, -1e300
    while now_s < until_s:
        while submitted < n and due_s[submitted] <= now_s:
            waiting[tail] = submitted
            tail += 1
            submitted += 1
        while True:  # preempt the newest while the cache is short
            is_short = kv + decoding > most_kv
            chunk = 0
            if not is_short and partial >= 0:
                chunk = min(inputs[partial] + done[partial] - computed[partial], most_tokens - decoding)
                is_short = kv + decoding + chunk > most_kv
                if is_short:
                    completed = -1  # nobody is admitted in this step
            if not is_short:
                break
            job = newest
            newest = older[job]
            if newest >= 0:
                newer[newest] = -1
            older[job] = -1
            running -= 1
            if partial == job:
                partial = -1
            if decodes[job]:
                kv -= computed[job] + (step - 1) - stretch[job]
                decoding -= 1
                done[job] += step - stretch[job]
                last_s[job] = end_s
                if before[job] >= 0:
                    after[before[job]] = after[job]
                else:
                    ending[finish[job] % _RING] = after[job]
                if after[job] >= 0:
                    before[after[job]] = before[job]
                after[job] = before[job] = -1
            else:
                kv -= computed[job]
            computed[job] = 0
            finish[job] = -1
            decodes[job] = False
            head -= 1
            waiting[head] = job
            if completed < 0:
                break
        is_closed = completed < 0
        completed = 0
        kv += decoding
        prefill = 0
        budget = most_tokens - decoding
        if not is_closed:
            if partial >= 0:
                job = partial
                chunk = min(inputs[job] + done[job] - computed[job], budget)
                kv += chunk
                computed[job] += chunk
                prefill = chunk
                if computed[job] == inputs[job] + done[job]:
                    completing[completed] = job
                    completed += 1
                    partial = -1
            while head < tail and prefill < budget and running < most_seqs:
                job = waiting[head]
                need = inputs[job] + done[job]
                if kv + need > most_kv:
                    break
                head += 1
                older[job] = newest
                newer[job] = -1
                if newest >= 0:
                    newer[newest] = job
                newest = job
                running += 1
                chunk = min(need, budget - prefill)
                kv += chunk
                computed[job] += chunk
                prefill += chunk
                if computed[job] == need:
                    completing[completed] = job
                    completed += 1
                else:
                    partial = job
        tokens = decoding + prefill
        if tokens == 0:
            if submitted < n:
                now_s = due_s[submitted]
                continue
            break
        if step == 0:
            wander_from_s = now_s
        drift = 1.0 + drift_share * (now_s - origin_s) / 3600.0
        factor = offset * noise[step] * wander[int((now_s - wander_from_s) / 1.0)] * drift
        end_s = now_s + (busy_s[tokens] + kv_read_s * kv + overhead_s) * step_factor * factor
        job = ending[step % _RING]
        ending[step % _RING] = -1
        now = step
        step += 1
        for index in range(completed):
            new = completing[index]
            if math.isnan(first_s[new]):
                first_s[new] = end_s
            decoding += 1
            decodes[new] = True
            stretch[new] = now
            finish[new] = now + outputs[new] - done[new] - 1
            follower = job if finish[new] == now else ending[finish[new] % _RING]
            after[new] = follower
            before[new] = -1
            if follower >= 0:
                before[follower] = new
            if finish[new] == now:
                job = new
            else:
                ending[finish[new] % _RING] = new
        completed = 0
        while job >= 0:
            follower = after[job]
            if older[job] >= 0:
                newer[older[job]] = newer[job]
            if newer[job] >= 0:
                older[newer[job]] = older[job]
            else:
                newest = older[job]
            running -= 1
            kv -= computed[job] + (step - 1) - stretch[job]
            decoding -= 1
            last_s[job] = ended_s[job] = end_s
            decodes[job] = False
            after[job] = before[job] = -1
            job = follower
        now_s = end_s
    return first_s, last_s, ended_s


_drive: Any = None if numba is None else numba.njit(cache=True)(_loop)
