"""What this client can send: the rule that keeps a search from measuring the client in place of the server.

Two measured points, one with short answers and one with long ones, give the share of a load worker that a request and
that a token take; any load between them is their sum. Pure: nothing here measures or reads a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gates.capacity import rate_text
from slo_bench.search import SearchSettings, round_rate
from traffic.errors import UsageError


@dataclass(frozen=True, slots=True)
class Held:
    """The highest request rate that one load worker held with answers of that many tokens."""

    rate_rps: float
    output_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Its token rate."""
        return self.rate_rps * self.output_tokens


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What one load worker holds. cores: how many the client may use, since workers share them."""

    short: Held
    long: Held
    cores: int = 1

    def _costs_s(self) -> tuple[float, float]:
        """Shares of a worker, in seconds: of a request, and of each of its tokens.

        From 1 = rate x (request + tokens x token) at both points. Where noise made one of the two negative, the whole
        cost is laid on the other: that refuses too early rather than too late.
        """
        short, long = self.short, self.long
        token_s = (1 / long.rate_rps - 1 / short.rate_rps) / (long.output_tokens - short.output_tokens)
        request_s = 1 / short.rate_rps - short.output_tokens * token_s
        if token_s <= 0 or request_s < 0:
            return 0.0, 1 / min(short.tokens_per_s, long.tokens_per_s)
        return request_s, token_s

    def highest_rps(self, mean_output_tokens: float, load_workers: int) -> float:
        """The highest rate of answers of that mean length that so many load workers hold together."""
        request_s, token_s = self._costs_s()
        return min(load_workers, self.cores) / (request_s + mean_output_tokens * token_s)


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """A ceiling applied to one load. mean_output_tokens: of its answers. load_workers: that will send it."""

    ceiling: Ceiling
    mean_output_tokens: float
    load_workers: int = 1

    @property
    def highest_rps(self) -> float:
        """The highest rate that can be sent, rounded down to what a search would try."""
        exact = self.ceiling.highest_rps(self.mean_output_tokens, self.load_workers)
        rounded = round_rate(exact)
        return rounded if rounded <= exact else round_rate(exact * (1 - 1e-5))

    def check(self, rate_rps: float) -> None:
        """Raise UsageError for a rate that this client cannot send, with what would help."""
        highest = self.highest_rps
        if rate_rps <= highest:
            return
        needed = math.ceil(rate_rps / self.ceiling.highest_rps(self.mean_output_tokens, 1))
        remedy = f"give --load-workers {needed}" if needed <= self.ceiling.cores else "use a machine with more cores"
        raise UsageError(
            f"{rate_text(rate_rps)} req/s with answers of {self.mean_output_tokens:.0f} tokens is above what "
            f"{self.load_workers} load worker{'s' if self.load_workers > 1 else ''} of this host can send, "
            f"{rate_text(highest)} req/s (slo-bench doctor): {remedy}, or lower the rate"
        )

    def cap(self, search: SearchSettings) -> SearchSettings:
        """The search up to this limit at most. Raises UsageError when even its start is above."""
        self.check(min(search.start_rps, search.ceiling_rps))
        return replace(search, highest_rps=min(search.ceiling_rps, self.highest_rps))
