"""What a window would have shown of a load that goes on for hours, and not by chance lighter or heavier.

Two minutes of Poisson arrivals differ from each other by more than most changes of a server do. But the client knows
what it offered: how many requests were under way and how many prompt tokens came in, moment by moment, if every token
took the usual time. The logarithm of a latency is fitted to these by least squares over the window's requests; the fit
is then applied to a long draw of the same load, and the window's own residuals are added (a control variate). A window
of which the fit explains nothing stays what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traffic.arrivals import Arrivals
from traffic.conversations import Conversations
from traffic.workload import Workload

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CELL_S = 0.5
"""What is offered is counted in cells of this length."""

LONG_SEED = 20_231_111
LONG_REQUESTS = 200_000
EVERY = 6
"""All of them load the server; the latencies of every sixth are computed. Their percentiles are within 1 % of those of
an endless draw."""

LONGEST_S = 400_000.0
"""At low rates the draw ends here, so that its cells fit into memory."""

LEAST_LONG = 1_000
"""Of a shorter draw no percentile is known."""

EDGE_S = 60.0
"""Dropped at both ends of the long draw: the server of the fit is empty there."""

LEAST_REQUESTS = 60
"""Ten for each number that is fitted."""

LEAST_EXPLAINED = 0.1
"""A fit that explains a smaller share of the variance explains nothing."""

NEIGHBOURS = 61
"""A residual is taken from this many requests with the most similar fit: a busier server varies more."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Requests in the order of their due times (s); arrays of shape (n,)."""

    due_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray


class LongDraw:
    """A long draw of a load; made when first needed, and the same for every rate but for its scale."""

    def __init__(self, workload: Workload, arrivals: Arrivals, length_scale: float = 1.0) -> None:
        self._workload = workload
        self._arrivals = arrivals
        self._length_scale = length_scale
        self._drawn: Offered | None = None

    def at(self, rate_rps: float) -> Offered:
        """The draw at a rate (requests a second)."""
        if self._drawn is None:
            due_s = self._arrivals.due_s(1.0, LONG_SEED, 0, float(LONG_REQUESTS))
            lengths = self._workload.draw(LONG_SEED, 0, len(due_s), self._length_scale)
            self._drawn = Offered(due_s, lengths.input_tokens, lengths.output_tokens)
        count = int(np.searchsorted(self._drawn.due_s, LONGEST_S * rate_rps))
        drawn = self._drawn
        return Offered(drawn.due_s[:count] / rate_rps, drawn.input_tokens[:count], drawn.output_tokens[:count])


def long_draw(workload: Workload, arrivals: Arrivals, length_scale: float = 1.0) -> LongDraw | None:
    """A long draw of a load; None for conversations, whose later turns wait for the server."""
    return None if isinstance(workload, Conversations) else LongDraw(workload, arrivals, length_scale)


def features(offered: Offered, token_s: float, every: int = 1) -> FloatArray:
    """What each request, or every so many-th, meets if a token takes token_s: (n / every, 6).

    A constant; the logarithm of the requests under way, prompt tokens a second and their square, means over its own
    life; its own lengths.
    """
    first = (offered.due_s / CELL_S).astype(np.int64)
    last = ((offered.due_s + offered.output_tokens * token_s) / CELL_S).astype(np.int64)
    cells = int(last.max()) + 2
    under_way = np.cumsum(np.bincount(first, minlength=cells) - np.bincount(last + 1, minlength=cells))
    prompt_rate = np.bincount(first, offered.input_tokens, cells) / CELL_S
    first, last = first[::every], last[::every]

    def life_mean(values: FloatArray) -> FloatArray:
        total = np.concatenate([[0.0], np.cumsum(values)])
        mean: FloatArray = (total[last + 1] - total[first]) / (last + 1 - first)
        return mean

    prompts = life_mean(prompt_rate) / 1e4
    return np.column_stack(
        [
            np.ones(len(first)),
            np.log1p(life_mean(under_way.astype(np.float64))),
            prompts,
            prompts * prompts,
            offered.input_tokens[::every] / 1e3,
            np.log(offered.output_tokens[::every]),
        ]
    )


class LongRun:
    """A window of a load at one rate, and a long draw of the same load at the same rate.

    token_s: the usual time of a token. The features are computed when first needed: short windows need none.
    """

    def __init__(self, window: Offered, long: LongDraw, rate_rps: float, token_s: float) -> None:
        self._window = window
        self._long = long
        self._rate_rps = rate_rps
        self._token_s = token_s
        self._features: tuple[FloatArray, FloatArray] | None = None

    def _both(self) -> tuple[FloatArray, FloatArray]:
        if self._features is None:
            long = self._long.at(self._rate_rps)
            due_s = long.due_s[::EVERY]
            inside = (due_s >= EDGE_S) & (due_s < due_s.max(initial=0.0) - EDGE_S)
            self._features = features(self._window, self._token_s), features(long, self._token_s, EVERY)[inside]
        return self._features

    def carry(self, members: IntArray, logs: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """The logarithms of a metric in the long run, and what is fitted to the window's.

        None with too few requests in either, or where the fit explains nothing.
        members: indices in the window's requests of those that have the metric, logs: theirs.
        """
        if len(members) < LEAST_REQUESTS:
            return None
        window, long = self._both()
        if len(long) < LEAST_LONG:
            return None
        weights, *_ = np.linalg.lstsq(window[members], logs, rcond=None)
        fitted = window[members] @ weights
        if fitted.var() < LEAST_EXPLAINED * logs.var():
            return None
        carried = long @ weights
        by_fit = np.argsort(fitted, kind="stable")
        place = np.searchsorted(fitted[by_fit], carried) + np.arange(len(carried)) % NEIGHBOURS - NEIGHBOURS // 2
        near = by_fit[np.clip(place, 0, len(members) - 1)]
        return carried + (logs - fitted)[near], fitted
