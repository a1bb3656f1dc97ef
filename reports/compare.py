"""effect.md: one comparison as a short note, from effect.json alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gates.block_order import Order
from gates.comparison import Claim
from gates.log_ratio import CONFIDENCE
from gates.starts import MIN_STARTS
from reports import numbers
from reports.compare_words import (
    SIMULATED,
    arm_text,
    load_text,
    outlook_lines,
    sentence,
    spent_lines,
    trend_lines,
    value,
)
from reports.effect_document import ARM_NAMES, ArmName, ArmRow, BlockRow, EffectDocument, PairRow
from reports.markdown import bullets, code, code_block, details, escape, heading, table

_PLACES = {
    "coresident": "All servers were up side by side; one of them had load at a time",
    "restart": "One server was up at a time; each start of one arm ran next to a start of the other",
    "attached": "Both servers belong to somebody else; one of them had load at a time",
}
_ORDERS = {
    Order.ABBA: "in the order A B B A",
    Order.RANDOM: "in a drawn order in which each arm comes first equally often",
}


def compare_note(document: EffectDocument) -> str:
    """The note as Markdown."""
    parts = (
        *_head(document),
        *_result(document),
        *_setting(document),
        *_differences(document),
        *_limits(document),
        *_pairs(document),
        *_sources(document),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _marked(document: EffectDocument, text: str) -> str:
    return f"{text} ({SIMULATED})" if document.is_simulated else text


def _head(document: EffectDocument) -> Iterator[str]:
    mark = f"{SIMULATED}: " if document.is_simulated else ""
    a, b = document.a.label, document.b.label
    yield heading(f"{mark}{escape(b)} against {escape(a)} at {load_text(document)}", 1)
    yield f"**{mark}{escape(sentence(document))}**"


def _result(document: EffectDocument) -> Iterator[str]:
    yield heading(_marked(document, "Effects"), 2)
    yield table(
        [
            *("metric", escape(document.a.label), escape(document.b.label), "effect"),
            *(f"{numbers.confidence(CONFIDENCE)} interval", "pairs", "smallest visible", "finding"),
        ],
        [
            [
                each.metric.value,
                value(each.metric, each.a_value),
                value(each.metric, each.b_value),
                numbers.signed_share(each.share),
                numbers.signed_interval(each.interval),
                numbers.count(each.n_pairs),
                numbers.share(each.smallest_visible_share),
                each.claim.value,
            ]
            for each in document.effects
        ],
        ["left", "right", "right", "right", "right", "right", "right", "left"],
    )
    yield "Mean TPOT is what was asked for. Each other metric has its own interval, and one in twenty differs by luck."
    claims = {each.claim for each in document.effects}
    yield bullets([f"{claim.value}: {claim.meaning}" for claim in Claim if claim in claims])
    lines = [*outlook_lines(document), *trend_lines(document), *_order_lines(document)]
    lines += [*spent_lines(document), *document.faults]
    yield bullets([escape(f"{line[:1].upper()}{line[1:]}.") for line in lines])


def _order_lines(document: EffectDocument) -> list[str]:
    if document.order_share is None:
        return []
    interval = f" ({numbers.signed_interval(document.order_interval)})" if document.order_interval else ""
    order = f"{numbers.signed_share(document.order_share)}{interval}"
    return [f"whoever ran second of two partners read {order}; both orders count alike, so it is not in the effects"]


def _setting(document: EffectDocument) -> Iterator[str]:
    yield heading("What was compared", 2)
    slo = ", ".join(document.slo)
    starts = numbers.plural(document.starts_per_arm, "start")
    load = f"{load_text(document)}, {escape(document.workload)}, {escape(document.arrivals)}"
    yield bullets(
        [
            *(_arm_line(document, name) for name in ARM_NAMES),
            f"{_PLACES[document.placement]}; {starts} of each arm{_control(document)}.",
            f"Load: {load}, length scale {document.length_scale:g}, seed {document.seed}.",
            f"Goodput counts requests within {escape(slo)} (ms).",
            _blocks_line(document),
            *(_warm_line(arm) for arm in (document.a, document.b)),
        ]
    )


def _control(document: EffectDocument) -> str:
    return ", and a second one of A as a control" if document.primary.control_share is not None else ""


def _blocks_line(document: EffectDocument) -> str:
    ramp, window = numbers.seconds(document.ramp_s), numbers.seconds(document.window_s)
    pairs = numbers.plural(len(document.pairs), "pair")
    return (
        f"{pairs} of blocks {_ORDERS[document.order]}. A block is a ramp of {ramp} that is dropped, "
        f"a window of {window} whose requests are followed to their end, and a wait until the server is idle. "
        "Partners share due times and lengths, different pairs never do. "
        f"{numbers.seconds(document.load_s)} of load in all."
    )


def _arm_line(document: EffectDocument, name: ArmName) -> str:
    arm = document.a if name == "A" else document.b
    kind = "SIMULATED engine" if arm.engine == "simulated" else f"{arm.engine} server"
    models = sorted({f"{row.model}, version {row.version or 'not known'}" for row in arm.starts})
    return f"{name}: {code(arm_text(document, name))}, {kind}, {escape('; '.join(models)) or 'never started'}."


def _warm_line(arm: ArmRow) -> str:
    parts = []
    for row in arm.starts:
        warm = row.warm_up
        if warm is not None:
            means = ", ".join(numbers.ms(each) for each in warm.tpot_mean_s)
            parts.append(f"start {row.start + 1} {'warm' if warm.is_warm else 'NOT warm'} ({means})")
    return f"Warm-up of {code(arm.label)}, mean TPOT of one replayed schedule: {'; '.join(parts) or 'none'}."


def _differences(document: EffectDocument) -> Iterator[str]:
    yield heading("In what the servers differ", 2)
    if not document.differences:
        yield "In nothing that they tell of themselves."
        return
    yield (
        "All that the first servers of the arms tell of themselves and that is not the same. "
        "What nobody meant to change is a second change."
    )
    yield table(
        ["fact", escape(document.a.label), escape(document.b.label)],
        [[code(row.what), _cell(row.a), _cell(row.b)] for row in document.differences],
        ["left", "left", "left"],
    )


def _cell(text: str | None) -> str:
    return "not said" if text is None else code(text)


def _limits(document: EffectDocument) -> Iterator[str]:
    yield heading("What cannot be concluded", 2)
    lines = []
    if document.primary.claim is not Claim.REAL:
        lines.append(
            f"That the change itself does it: nothing is called real with fewer than {MIN_STARTS} starts of each arm "
            f"({document.starts_per_arm} here), since two starts of one configuration differ too."
        )
    lines += [
        "That there is no effect, where none was found: one below the smallest visible is often missed.",
        f"Anything at another load: the effect is that at {load_text(document)}.",
        "Capacity: at a fixed load both arms answer the same requests; a sweep says what each carries.",
        "Accuracy: answers were not read.",
    ]
    if document.is_simulated:
        lines.append(f"Anything about a GPU: the engine is {SIMULATED}.")
    yield bullets(lines)
    if document.unproven:
        yield "The servers belong to somebody else. Nobody could check:"
        yield bullets(escape(line) for line in document.unproven)


def _pairs(document: EffectDocument) -> Iterator[str]:
    yield heading(_marked(document, "Every pair"), 2)
    a, b = escape(document.a.label), escape(document.b.label)
    rows = [_pair_cells(row, document) for row in document.pairs]
    header = [
        "pair",
        "first",
        "starts",
        f"n {a}",
        f"n {b}",
        f"mean TPOT {a}",
        f"mean TPOT {b}",
        "B / A",
        "send lag p99",
    ]
    summary = numbers.plural(len(document.pairs), "pair")
    yield details(
        _marked(document, summary),
        table(header, rows, ["right", "left", "left", "right", "right", "right", "right", "right", "right"]),
    )
    if document.discarded:
        yield "Measured again, and used for nothing:"
        yield bullets(
            f"pair {row.number + 1}, {row.arm}: {escape('; '.join(row.block.invalid_reasons)) or 'its partner was so'}"
            for row in document.discarded
        )


def _pair_cells(row: PairRow, document: EffectDocument) -> list[str]:
    a, b = row.a.tpot_mean_s, row.b.tpot_mean_s
    lags = [lag for block in (row.a, row.b) if (lag := block.send_lag_p99_s) is not None]
    return [
        str(row.number + 1),
        escape(document.a.label if row.a_first else document.b.label),
        f"{_start(row.a)} and {_start(row.b)}",
        numbers.count(row.a.n),
        numbers.count(row.b.n),
        numbers.ms(a),
        numbers.ms(b),
        numbers.signed_share(b / a - 1 if a and b else None),
        numbers.ms(max(lags, default=None)),
    ]


def _start(block: BlockRow) -> str:
    return str(block.start + 1)


def _sources(document: EffectDocument) -> Iterator[str]:
    if document.command:
        yield heading("Reproduce", 2)
        yield code_block(shlex.join(document.command), "sh")
    ended = f"ended {escape(document.ended_utc)}" if document.ended_utc else "not ended yet"
    yield (
        f"Started {escape(document.started_utc)}, {ended}. Beside this note: `effect.json`, a row per request in "
        "`blocks`, and what each server told in `starts`."
    )
