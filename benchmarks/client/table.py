"""Runs as a Markdown table: medians per client and rate, with the CPU cost beside a peer's at the same rate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

from runs import Failed, Run

BESIDE = "vllm bench serve"
"""The ratio column's client."""

HEAD = (
    "client",
    "req/s",
    "runs",
    "achieved",
    "finished",
    "CV / KS (5 %) / D",
    "lag p50 / p99 ms",
    "TTFT p50 / p99 ms (true)",
    "TTFT error p50 / p99 ms",
    "TPOT p50 / p99 ms (true)",
    "TPOT error p50 / p99 ms",
    "CPU s per 1k tokens",
    f"ratio to {BESIDE}",
    "core use",
    "RSS MiB",
    "server late p99 ms",
    "others on the core",
)
_LEFT = ("client",)
DISTURBED = "*"
"""Stands behind the number of runs where none was quiet."""

NOTHING = "n/a"


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of the quiet runs of a client at a rate; of all, and marked, where none was quiet."""

    client: str
    rate_rps: float
    runs: int
    is_disturbed: bool
    of: dict[str, float | None]

    def minus(self, said: str, true: str) -> float | None:
        """An error; None where either side is not known."""
        one, other = self.of[said], self.of[true]
        return None if one is None or other is None else one - other


def rows(runs: Sequence[Run]) -> list[Row]:
    """One of each client and rate, in the order of the runs."""
    found = []
    for client, rate_rps in dict.fromkeys((run.client, run.rate_rps) for run in runs):
        group = [run for run in runs if (run.client, run.rate_rps) == (client, rate_rps)]
        quiet = [run for run in group if not run.is_disturbed]
        found.append(Row(client, rate_rps, len(quiet or group), not quiet, _medians(quiet or group)))
    return found


def _medians(group: Sequence[Run]) -> dict[str, float | None]:
    names = [each.name for each in fields(Run) if each.name != "client"]
    medians: dict[str, float | None] = {}
    for name in names:
        values = [value for run in group if (value := getattr(run, name)) is not None]
        medians[name] = statistics.median(values) if values else None
    return medians


def table(runs: Sequence[Run], failed: Sequence[Failed]) -> str:
    """Every client at every rate has a row: figures, or why there are none."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "|".join("---" if name in _LEFT else "--:" for name in HEAD) + "|"]
    summary = rows(runs)
    peers = {row.rate_rps: row.of["cpu_s_per_1k"] for row in summary if row.client == BESIDE}
    lines += [f"| {' | '.join(_cells(row, peers.get(row.rate_rps)))} |" for row in summary]
    for each in failed:
        reason = each.reason.replace("|", "/")
        lines.append(f"| {each.client} | {each.rate_rps:g} | 0 | {reason} |{' |' * (len(HEAD) - 4)}")
    return "\n".join(lines)


def _cells(row: Row, peer_cpu_s: float | None) -> list[str]:
    of = row.of
    cpu_s = of["cpu_s_per_1k"]
    ratio = cpu_s / peer_cpu_s if cpu_s is not None and peer_cpu_s else None

    def pair(quantity: str, digits: int) -> str:
        said, true = (
            f"{_number(of[f'{side}{quantity}_p50_ms'], digits)} / {_number(of[f'{side}{quantity}_p99_ms'], digits)}"
            for side in ("", "true_")
        )
        return f"{said} ({true})"

    def error(quantity: str, digits: int) -> str:
        ends = (row.minus(f"{quantity}_{end}_ms", f"true_{quantity}_{end}_ms") for end in ("p50", "p99"))
        return " / ".join(_number(each, digits) for each in ends)

    return [
        row.client,
        f"{row.rate_rps:g}",
        f"{row.runs}{DISTURBED if row.is_disturbed else ''}",
        _number(of["achieved"], 4),
        _number(of["finished_share"], 4),
        f"{_number(of['gap_cv'], 2)} / {_number(of['gap_ks'], 3)} ({_number(of['ks_critical'], 3)}) / "
        + _number(of["dispersion"], 2),
        f"{_number(of['lag_p50_ms'], 2)} / {_number(of['lag_p99_ms'], 2)}",
        pair("ttft", 1),
        error("ttft", 2),
        pair("tpot", 2),
        error("tpot", 3),
        _number(cpu_s, 4),
        _number(ratio, 2),
        _number(of["core_share"], 2),
        _number(of["rss_mib"], 0),
        _number(of["server_late_p99_ms"], 2),
        _number(of["other_share"], 2),
    ]


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"
