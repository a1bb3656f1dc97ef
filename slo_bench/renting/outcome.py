"""What came of a session: the lab note, the last lines, the exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloud.budget import cost_usd
from cloud.kit import SessionOutcome
from cloud.session_file import SessionRecord, read_record
from reports.tuning_document import TUNING_NAME
from slo_bench.report.command import report
from slo_bench.report.options import ReportOptions
from traffic.errors import SloBenchError

NOTE = "note.md"
_TROUBLE = 4
_TOOK = re.compile(r"^(?P<what>.*); took (?P<seconds>\d+) s$")


async def told(home: Path, outcome: SessionOutcome) -> int:
    """Write the note and print the last lines; the exit code."""
    record = read_record(home)
    lines = [*_runs(home, outcome), *await _noted(home, [each.name for each in outcome.runs])]
    lines += [*_set_up(home, record), *_end(record, outcome)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return exit_code(outcome)


def exit_code(outcome: SessionOutcome) -> int:
    """0 when every run ended well and is home; else the first other code of a run, and 4 for trouble of the session."""
    if outcome.trouble is not None:
        return _TROUBLE
    failed = [each for each in outcome.runs if not each.is_done]
    codes = [each.rc for each in failed if each.rc in range(1, 7)]
    return (codes[0] or _TROUBLE) if codes else _TROUBLE if failed else 0


def _runs(home: Path, outcome: SessionOutcome) -> Iterator[str]:
    for each in outcome.runs:
        place = f": {home / each.name}" if (home / each.name).is_dir() else ""
        yield f"{each.name}: {each.reason or 'done'}{place}"


async def _noted(home: Path, labels: Sequence[str]) -> list[str]:
    """One note over what can stand together, else one for each sweep; lines that say where."""
    sweeps = [home / label for label in labels if (home / label / "sweep.json").exists()]
    searches = [home / label for label in labels if (home / label / TUNING_NAME).exists()]
    own = [home / label / NOTE for label in labels if (home / label / "experiment.json").exists()]
    lines = [f"note: {path}" for path in own if path.exists()]
    if not sweeps:
        return lines
    try:
        await report(ReportOptions(run_dir=[*sweeps, *searches], output=home / NOTE))
    except SloBenchError as error:
        lines.append(f"no common note: {error}")
        for each in sweeps if len(sweeps) > 1 else ():
            try:
                await report(ReportOptions(run_dir=[each], output=each / NOTE))
                lines.append(f"note: {each / NOTE}")
            except SloBenchError as fault:
                lines.append(f"no note of {each.name}: {fault}")
        return lines
    return [*lines, f"note: {home / NOTE}"]


def _set_up(home: Path, record: SessionRecord) -> Iterator[str]:
    """A line of its own, with its cost, for everything that was made ready before the first run."""
    for job in record.jobs:
        log = home / "logs" / f"{job.name}.log"
        last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1] if log.exists() else ""
        match = _TOOK.match(last) if job.kind == "setup" else None
        if match is not None:
            seconds = int(match["seconds"])
            price = record.rental.price_cents_per_hour
            cost = f", ${cost_usd(price, seconds):.2f}" if price else ""
            yield f"{job.name}: {match['what']}: {seconds / 60:.1f} min{cost}"


def _end(record: SessionRecord, outcome: SessionOutcome) -> Iterator[str]:
    if outcome.trouble is not None:
        yield f"trouble: {outcome.trouble}"
    done = sum(each.is_done for each in outcome.runs)
    if record.rental.api is None:
        yield f"{done} of {len(outcome.runs)} runs done in {outcome.minutes:.1f} min; the machine is yours and goes on"
        return
    yield (
        f"{done} of {len(outcome.runs)} runs done in {outcome.minutes:.1f} min; cost: about ${outcome.usd:.2f}, an "
        "estimate: the provider's invoice is authoritative"
    )
    if outcome.is_confirmed_gone:
        yield f"confirmed gone: {', '.join(record.machine_ids) or 'no machine was launched'}"
