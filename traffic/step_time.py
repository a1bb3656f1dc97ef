"""How long a step of the simulated engine takes: its settings, its noise, and the batch shapes that cost extra once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from traffic.errors import UsageError
from traffic.randomness import CHUNK, stream

_WANDER_CHUNK = 256
_WANDER_CELL_S = 1.0
"""The slow noise changes once a second of the caller's time, however many steps that is."""

# vLLM captures CUDA graphs for 1, 2, 4, 8, then every 8 up to 256, then every 16 sequences.
_SMALL_GRAPH_SEQS = 8
_FINE_GRAPH_SEQS = 256
_FINE_PREFILL_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the simulated server is; the defaults resemble one H100 with a 30B-A3B mixture of experts in FP8.

    A step takes max(weights read, compute) + KV read + overhead: the roofline, with attention beside it.
    dense_read_s: reading the weights that every token uses. expert_read_s: reading all experts; of num_experts, those
    are read that a token was routed to, E * (1 - (1 - k/E) ** tokens) under even routing. compute_s_per_token: the
    inverse of the prefill rate. step_time_factor multiplies all of it: a better kernel is 0.97.

    Noise, as shares of the step time: step_noise_share (sd, lognormal, per step), wander_share (sd) and wander_time_s
    (correlation time of a slow AR(1) walk: equal 20-second blocks differ), start_offset_share (sd of the offset of one
    server start), drift_share_per_hour (the same for every server at one moment). first_shape_cost_s: paid once per
    start for each batch shape that was not seen before.
    """

    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    max_model_len: int = 16_384
    kv_cache_tokens: int = 240_000
    overhead_s: float = 0.0066
    dense_read_s: float = 0.001
    expert_read_s: float = 0.012
    num_experts: int = 128
    experts_per_token: int = 8
    kv_read_s_per_token: float = 4e-8
    compute_s_per_token: float = 3e-5
    step_time_factor: float = 1.0
    step_noise_share: float = 0.01
    wander_share: float = 0.009
    wander_time_s: float = 20.0
    start_offset_share: float = 0.0
    drift_share_per_hour: float = 0.0
    first_shape_cost_s: float = 0.1

    def __post_init__(self) -> None:
        """Refuse what could never run; vLLM refuses the same at start-up."""
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError("max_num_batched_tokens must be at least max_num_seqs, and that at least 1")
        if self.kv_cache_tokens < self.max_model_len:
            raise UsageError("kv_cache_tokens must hold at least one request of max_model_len")
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise UsageError("experts_per_token must be from 1 to num_experts")
        if self.overhead_s <= 0 or self.step_time_factor <= 0 or self.wander_time_s <= 0:
            raise UsageError("overhead_s, step_time_factor and wander_time_s must be above 0")

    def step_s(self, tokens: int, kv_tokens: int) -> float:
        """Seconds of a step over `tokens` tokens while `kv_tokens` are in the cache, without noise."""
        missed = (1.0 - self.experts_per_token / self.num_experts) ** tokens
        weights_s = self.dense_read_s + self.expert_read_s * (1.0 - missed)
        compute_s = self.compute_s_per_token * tokens
        busy_s = max(weights_s, compute_s)
        return (busy_s + self.kv_read_s_per_token * kv_tokens + self.overhead_s) * self.step_time_factor


class Pace:
    """The factor on a step's time: offset of this start, noise per step, wander, and drift since origin_s."""

    def __init__(self, settings: EngineSettings, seed: int, start: int, origin_s: float) -> None:
        self._settings = settings
        self._origin_s = origin_s
        self._step_draws = stream("engine step", seed, start)
        self._wander_draws = stream("engine wander", seed, start)
        offset = stream("engine offset", seed, start).standard_normal()
        self._offset_factor = math.exp(settings.start_offset_share * offset)
        self._steps: list[float] = []
        self._next = 0
        self._wander: list[float] = []
        self._wander_state = float(self._wander_draws.standard_normal())
        self._wander_from_s: float | None = None

    def factor(self, now_s: float) -> float:
        """The factor for the next step, which starts at now_s."""
        if self._next == len(self._steps):
            sd = self._settings.step_noise_share
            self._steps = np.exp(sd * self._step_draws.standard_normal(CHUNK) - sd * sd / 2).tolist()
            self._next = 0
        noise = self._steps[self._next]
        self._next += 1
        if self._wander_from_s is None:
            self._wander_from_s = now_s
        cell = int((now_s - self._wander_from_s) / _WANDER_CELL_S)
        while cell >= len(self._wander):
            self._extend_wander()
        drift = 1.0 + self._settings.drift_share_per_hour * (now_s - self._origin_s) / 3600.0
        return self._offset_factor * noise * self._wander[cell] * drift

    def _extend_wander(self) -> None:
        keep = math.exp(-_WANDER_CELL_S / self._settings.wander_time_s)
        fresh = math.sqrt(1.0 - keep * keep)
        state, share = self._wander_state, self._settings.wander_share
        for draw in self._wander_draws.standard_normal(_WANDER_CHUNK).tolist():
            self._wander.append(math.exp(share * state))
            state = keep * state + fresh * draw
        self._wander_state = state


def batch_shape(tokens: int, prefill_tokens: int) -> int:
    """The shape that a batch runs as: a CUDA graph's size when it only decodes, else its rounded total, negative."""
    if prefill_tokens:
        return -_round_up(tokens, 256 if tokens <= _FINE_PREFILL_TOKENS else 1024)
    if tokens <= _SMALL_GRAPH_SEQS:
        return 1 << (tokens - 1).bit_length()
    return _round_up(tokens, 8 if tokens <= _FINE_GRAPH_SEQS else 16)


def _round_up(tokens: int, grain: int) -> int:
    return -(-tokens // grain) * grain
