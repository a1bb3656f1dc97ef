"""Every window, the commands that measure it again, and the files behind the numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from reports import numbers, tables
from reports.arms import Arm
from reports.gates_document import GATES_NAME
from reports.kernels import KERNELS_NAME
from reports.markdown import bullets, code, code_block, details, escape, heading, link
from reports.page import Page
from reports.tuning_document import TUNING_NAME

PLAN_NAME = "plan.toml"
_OF_EVERY_ARM = ("run.json", "sweep.json", "engine.json")
_WHERE_THERE = (
    GATES_NAME,
    "text_gate.json",
    "power.json",
    "power.parquet",
    "cost.json",
    "metrics.parquet",
    KERNELS_NAME,
)


def windows(page: Page) -> Iterator[str]:
    """Every window of every arm, folded away."""
    yield heading(page.marked("Every window"), 2)
    yield "In the order of measurement. Struck out: invalid, with the reason; no result, and used for nothing."
    for arm in page.experiment.arms:
        summary = f"{arm.label}: {numbers.plural(len(arm.sweep.probes), 'window')}"
        yield details(page.marked(summary), tables.windows(arm))


def reproduce(page: Page) -> Iterator[str]:
    """All that a reader of this note alone needs: versions, the plan where there was one, and the commands."""
    experiment = page.experiment
    runs = [*(arm.run for arm in experiment.arms), *(each.run for each in experiment.tunings)]
    if experiment.tunings:  # a search comes before the sweep that uses its file
        runs.sort(key=lambda run: run.started_utc)
    commands = [text for run in runs if (text := _command(run.config.get("command"))) is not None]
    commands += [shlex.join(each.document.command) for each in experiment.comparisons if each.document.command]
    if not commands:
        return
    yield heading("Reproduce", 2)
    lines = [*_versions(experiment.baseline), *_seed(page, commands), *_plan(page, commands)]
    yield code_block("\n".join([*lines, *dict.fromkeys(commands)]), "sh")
    yield "A later version may draw other gaps and lengths from the same seed; its changelog says so."


def _versions(arm: Arm) -> Iterator[str]:
    """What was installed, as comments of the shell."""
    environment = arm.run.environment
    ours, python = environment.get("slo_bench"), environment.get("python")
    yield f"# Python {python or 'not known'}; in a checkout of slo-bench {ours or 'of that day'}: pip install ."
    packages = environment.get("packages")
    if isinstance(packages, Mapping) and packages:
        yield f"# {', '.join(f'{name} {version}' for name, version in packages.items())}"
    if arm.engine.version is not None:
        yield f"# engine {arm.engine.kind} {arm.engine.version}"


def _seed(page: Page, commands: list[str]) -> Iterator[str]:
    """The seed, where no command and no plan names it."""
    if not any("--seed" in each or " experiment " in each for each in commands):
        yield f"export SLO_BENCH_SEED={page.experiment.document.seed}"


def _plan(page: Page, commands: list[str]) -> Iterator[str]:
    """The plan that the command reads, written out under the name that the command gives it."""
    path = page.experiment.directory / PLAN_NAME
    words = next((shlex.split(each) for each in commands if " experiment " in each), [])
    name = next((word for word in words if word.endswith(".toml")), None)
    if name is None or not path.exists():
        return
    folder = name.rpartition("/")[0]
    if folder:
        yield f"mkdir -p {shlex.quote(folder)}"
    yield f"cat > {shlex.quote(name)} <<'END_OF_PLAN'\n{path.read_text(encoding='utf-8').rstrip()}\nEND_OF_PLAN"


def _command(recorded: object) -> str | None:
    """The command as it was recorded: a line, or its words."""
    if isinstance(recorded, str) and recorded.strip():
        return recorded
    if isinstance(recorded, list) and recorded:
        return shlex.join(str(word) for word in recorded)
    return None


def raw_files(page: Page) -> Iterator[str]:
    """Links to what the numbers come from."""
    experiment = page.experiment
    yield heading("Raw files", 2)
    path = experiment.directory / "experiment.json"
    lines = [link("experiment.json", page.to(path))] if path.exists() else []
    if experiment.truth is not None:
        lines.append(link("truth.json", page.to(experiment.directory / "truth.json")))
    lines += [
        f"comparison of {code(each.document.b.label)}: {link('effect.json', page.to(each.directory / 'effect.json'))}"
        for each in experiment.comparisons
    ]
    lines += [f"{code(arm.label)}: {', '.join(_files(page, arm))}" for arm in experiment.arms]
    for each in experiment.tunings:
        names = (TUNING_NAME, KERNELS_NAME, each.document.file, each.document.journal)
        links = (link(escape(name.rpartition("/")[2]), page.to(each.directory / name)) for name in names)
        lines.append(f"{code(each.label)}: {', '.join(links)}")
    yield bullets(lines)


def _files(page: Page, arm: Arm) -> Iterator[str]:
    for name in (*_OF_EVERY_ARM, *(name for name in _WHERE_THERE if (arm.directory / name).exists())):
        yield link(name, page.to(arm.directory / name))
    kept = sum(row.requests_file is not None for row in arm.sweep.probes)
    rows = f"a row per request of {numbers.plural(kept, 'window')}"
    if kept and (arm.directory / "probes").is_dir():
        yield f"{rows} in {link('probes', page.to(arm.directory / 'probes'))}"
    elif kept:
        yield f"{rows} is not kept here; the command above writes them again"
