"""Traces every number of a note to the files of its run directory, by a derivation of its own.

Allowed is what the rounding module makes of: every number in a document; means, sums and extremes over an arm's whole
windows at the anchor rate; effects with their t intervals, computed here again from the rows; kernel changes and what
they predict; tokens per step. Exempt are constants of the method (`CONSTANTS`), digits inside words (p99, gsm8k), and
targets of links.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy import stats

from reports import numbers

CONSTANTS = frozenset(("95", "90", "80", "3.0", "1"))
"""Confidence of intervals, of an estimate's, the power of a design, what a change is worth, the least unit."""

_NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])")
_FORMS: tuple[Callable[[float], str], ...] = (
    *(numbers.ms, numbers.limit_ms, numbers.seconds, numbers.rate, numbers.tokens_per_s, numbers.watts),
    *(numbers.joules, numbers.usd, numbers.count, numbers.share, numbers.signed_share, str),
)
_METRICS = ("tpot_mean_s", "ttft_mean_s", "tpot_p99_s", "ttft_p99_s", "power_mean_w", "joules_per_output_token")
_MEANS = (*_METRICS, "ttft_p50_s", "tpot_p50_s", "goodput_rps", "output_tokens_per_s", "output_tokens_mean")


def numbers_of(text: str) -> set[str]:
    """Every number of a text, without sign and escapes; targets of links are no text."""
    plain = re.sub(r"\]\([^)]*\)", "]", text).replace("\\", "").replace("~~", " ").replace("`", " ")
    return {found.rstrip(",") for found in _NUMBER.findall(plain)}


def untraced(note: str, directory: Path) -> set[str]:
    """The numbers of a note that no file of its directory explains."""
    return numbers_of(note) - allowed(directory)


def allowed(directory: Path) -> set[str]:
    """Every number that the files allow, as it would be written."""
    leaves = [leaf for path in directory.rglob("*.json") for leaf in _leaves(json.loads(path.read_bytes()))]
    texts = {leaf for leaf in leaves if isinstance(leaf, str)}
    values = {leaf for leaf in leaves if not isinstance(leaf, str)}.union(_derived(directory))
    shown = (form(value) for value in values for form in _FORMS)
    return set(CONSTANTS).union(*map(numbers_of, chain(texts, shown)))


def _leaves(document: Any) -> Iterator[Any]:
    if isinstance(document, dict):
        yield from chain.from_iterable(map(_leaves, document.values()))
    elif isinstance(document, list):
        yield len(document)
        yield from chain.from_iterable(map(_leaves, document))
    elif document is not None and not isinstance(document, bool):
        yield document


def _derived(directory: Path) -> Iterator[float]:
    experiment = json.loads((directory / "experiment.json").read_bytes())
    arms = {label: json.loads((directory / "arms" / label / "sweep.json").read_bytes()) for label in experiment["arms"]}
    rate_rps = experiment["anchor_rps"]
    for label, sweep in arms.items():
        rows = _whole(sweep, rate_rps)
        yield sweep["load_s"] / 60
        yield sum(row["n"] for row in rows)
        yield sum(row["failed"] for row in rows)
        yield sum(not row["is_valid"] for row in sweep["probes"])
        by_start = Counter(row.get("server_start", 0) for row in sweep["probes"])
        yield from (len(by_start), *by_start.values())
        yield from (mean for name in _MEANS if (mean := _mean([row.get(name) for row in rows])) is not None)
        yield from _lengths_apart(_whole(arms[experiment["baseline"]], rate_rps), rows)
        yield from _kernels(directory / "arms" / label / "kernels.json", directory, experiment)
        yield from _steps(directory / "arms" / label / "metrics.parquet", rows)
    if rate_rps is not None:
        yield from _effects(arms, experiment, rate_rps)
    yield from _gains_of_comparisons(directory)
    yield from _money(directory, experiment)
    yield from _accuracy(directory, experiment)


def _whole(sweep: dict[str, Any], rate_rps: float | None) -> list[dict[str, Any]]:
    best = {}
    for row in sweep["probes"]:
        is_early = row["stop"] not in ("every request of the cohort ended", "drain limit is over")
        if row["is_valid"] and row["rate_rps"] == rate_rps and not is_early:
            best[row["repeat"]] = row
    return [best[repeat] for repeat in sorted(best)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _lengths_apart(base: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Iterator[float]:
    lengths = [_mean([row["output_tokens_mean"] for row in each]) for each in (base, rows)]
    if lengths[0] and lengths[1]:
        yield lengths[1] / lengths[0] - 1


def _effect(base: Iterable[dict[str, Any]], other: Iterable[dict[str, Any]], name: str) -> list[float]:
    """Share and, with two pairs or more, the ends of its t interval."""
    values = [{row["repeat"]: row[name] for row in rows if row.get(name)} for rows in (base, other)]
    ratios = [np.log(values[1][each] / values[0][each]) for each in sorted(values[0].keys() & values[1].keys())]
    if not ratios:
        return []
    centre = float(np.mean(ratios))
    if len(ratios) == 1:
        return [np.expm1(centre), 1]
    half = stats.t.ppf(0.975, len(ratios) - 1) * np.std(ratios, ddof=1) / len(ratios) ** 0.5
    return [float(np.expm1(end)) for end in (centre, centre - half, centre + half)] + [len(ratios)]


def _effects(arms: dict[str, Any], experiment: dict[str, Any], rate_rps: float) -> Iterator[float]:
    base = _whole(arms[experiment["baseline"]], rate_rps)
    for name in _METRICS:
        found = {label: _effect(base, _whole(sweep, rate_rps), name) for label, sweep in arms.items()}
        drift = found.get(experiment["drift_arm"] or "", [])
        reach = max(map(abs, drift[1:3]), default=0.0) if len(drift) == 4 else 0.0
        for share in found.values():
            yield from share
            if len(share) == 4:
                yield (share[2] - share[1]) / 2 + reach
                yield reach - share[1]


def _gains_of_comparisons(directory: Path) -> Iterator[float]:
    """Largest gain by interval; half sizes of effects stand in the documents."""
    for path in directory.glob("compare/*/effect.json"):
        primary = json.loads(path.read_bytes())["effects"][0]
        yield -primary["interval"][0]
        for tuned in directory.glob("arms/*/kernels.json"):
            yield json.loads(tuned.read_bytes())["tuning_s"] / -primary["share"] / 3600


def _kernels(path: Path, directory: Path, experiment: dict[str, Any]) -> Iterator[float]:
    if not path.exists():
        return
    document = json.loads(path.read_bytes())
    yield document["tuning_s"] / 60
    metrics = directory / "arms" / experiment["baseline"] / "metrics.parquet"
    for routing in {row["routing"] for row in document["rows"]}:
        changes = {
            row["tokens"]: row["after_s"] / row["before_s"] - 1 for row in document["rows"] if row["routing"] == routing
        }
        yield from changes.values()
        yield float(np.median(list(changes.values())))
        if metrics.exists():
            last = pq.read_table(metrics).to_pylist()[-1]
            counts = np.diff([0, *last["step_tokens_counts"]])
            nearest = [min(changes, key=lambda size: abs(size - edge)) for edge in last["step_tokens_bounds"]]
            shares = counts / last["step_tokens_count"]
            yield float(document["moe_share"] * sum(shares * np.array([changes[size] for size in nearest])))


def _steps(path: Path, rows: list[dict[str, Any]]) -> Iterator[float]:
    """Mean tokens per step, the median's upper edge, steps: between the first and the last look of each window."""
    if not path.exists():
        return
    looks = pq.read_table(path).to_pylist()
    total, steps = 0.0, 0
    for row in rows:
        begin_s = np.datetime64(row["started_utc"].removesuffix("+00:00")).astype("datetime64[ms]").astype(float) / 1000
        inside = [look for look in looks if begin_s <= look["utc_s"] <= begin_s + row["load_s"]]
        total += inside[-1]["step_tokens_sum"] - inside[0]["step_tokens_sum"]
        steps += inside[-1]["step_tokens_count"] - inside[0]["step_tokens_count"]
    yield total / steps
    yield steps
    yield from looks[0]["step_tokens_bounds"]


def _money(directory: Path, experiment: dict[str, Any]) -> Iterator[float]:
    """The session, and the effect on dollars with the ends that the brackets allow."""
    costs = {path.parent.name: json.loads(path.read_bytes()) for path in sorted(directory.glob("arms/*/cost.json"))}
    base = costs.get(experiment["baseline"])
    if base is None or base["per_million_output_usd"] is None:
        return
    began, ended = (np.datetime64(experiment[name].removesuffix("+00:00")) for name in ("started_utc", "ended_utc"))
    yield base["usd_per_hour"] * float((ended - began) / np.timedelta64(1, "s")) / 3600
    for cost in costs.values():
        low, high = cost["per_million_interval_usd"]
        yield cost["per_million_output_usd"] / base["per_million_output_usd"] - 1
        yield low / base["per_million_interval_usd"][1] - 1
        yield high / base["per_million_interval_usd"][0] - 1
        drift = [low / base["per_million_interval_usd"][1] - 1, high / base["per_million_interval_usd"][0] - 1]
        for other in costs.values():
            ends = (
                other["per_million_interval_usd"][0] / base["per_million_interval_usd"][1] - 1,
                other["per_million_interval_usd"][1] / base["per_million_interval_usd"][0] - 1,
            )
            yield (ends[1] - ends[0]) / 2 + max(map(abs, drift))


def _accuracy(directory: Path, experiment: dict[str, Any]) -> Iterator[float]:
    """Differences of accuracy by the items of each arm, adjusted Wald intervals, and what they could have shown."""
    paths = {label: directory / "arms" / label / "gates.json" for label in experiment["arms"]}
    right = {
        label: [row["grade"] == "right" for row in json.loads(path.read_bytes())["items"]]
        for label, path in paths.items()
        if path.exists()
    }
    base, found = right.get(experiment["baseline"], []), {}
    for label, own in right.items():
        steps = [int(is_right) - int(was) for was, is_right in zip(base, own, strict=True)]
        padded = np.array([*steps, 1, -1])
        half = stats.norm.ppf(0.975) * padded.std() / len(padded) ** 0.5
        found[label] = [float(np.mean(steps)), float(padded.mean() - half), float(padded.mean() + half)]
    reach = max(map(abs, found.get(experiment["drift_arm"] or "", [0.0])))
    for share in found.values():
        yield from share
        yield (share[2] - share[1]) / 2 + reach
