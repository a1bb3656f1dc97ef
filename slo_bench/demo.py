"""The demo: four simulated arms with hidden truths, one note, and truth beside finding.

The machine speeds up while the arms run, and the first server starts cold. The tool does not know; the note shows what
it concluded, what was hidden, and what a plain comparison of two runs would have claimed.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from gates.slo import DEFAULT_SLO
from reports.findings import capacity_text
from reports.run_directory import SweepDocument, TruthArm, TruthDocument, to_json
from slo_bench.accuracy.holding import GatePlan
from slo_bench.bench import Load
from slo_bench.config import DemoOptions
from slo_bench.demo_items import demo_answers, demo_items
from slo_bench.experiment.arms import Arm, Experiment, run_experiment
from slo_bench.hosts.simulated import SimulatedHost
from slo_bench.modes import Mode, mode_named
from slo_bench.power.measuring import SIMULATED, PowerSource
from slo_bench.run import RunRecord
from slo_bench.search import SearchSettings
from slo_bench.store import RunStore, free_name, write_text
from slo_bench.surroundings import Surroundings
from slo_bench.sweep import SweepPlan
from slo_bench.view import SweepView
from traffic.arrivals import POISSON
from traffic.step_model import EngineSettings, StepModel
from traffic.workload import CHAT_MIX

TUNED_FACTOR = 0.9833
"""Of the step time. Faster steps also leave fewer requests in flight, so mean TPOT at the anchor rate falls by 3 %."""

DRIFT_SHARE_PER_HOUR = -0.0056
"""Of the step time; 2.6 % of mean TPOT between the first arm's windows at the anchor rate and the last one's."""

COLD_COST_S, CACHED_COST_S = 0.15, 0.02
"""First use of a batch shape: compiled on the first server, read from the compile cache by the later ones."""

ACCURACY_FLOOR = 0.7

PLAIN_WINDOW_S = 120.0
NOTE = "note.md"


@dataclass(frozen=True, slots=True)
class Hidden:
    """One arm of the demo and what is hidden in it."""

    label: str
    factor: float
    first_shape_cost_s: float
    sentence: str

    @property
    def settings(self) -> EngineSettings:
        """The arm's simulated server."""
        return EngineSettings(
            step_time_factor=self.factor,
            first_shape_cost_s=self.first_shape_cost_s,
            drift_share_per_hour=DRIFT_SHARE_PER_HOUR,
        )

    @property
    def quiet(self) -> EngineSettings:
        """The same server without noise, drift or cold shapes: what truth is computed on."""
        return EngineSettings(
            step_time_factor=self.factor,
            step_noise_share=0.0,
            wander_share=0.0,
            first_shape_cost_s=0.0,
        )


ARMS = (
    Hidden("moe-default", 1.0, COLD_COST_S, "the default, on a server that compiles every batch shape at first use"),
    Hidden("moe-tuned", TUNED_FACTOR, CACHED_COST_S, "3 % less time per output token at the anchor rate"),
    Hidden("moe-same", 1.0, CACHED_COST_S, "nothing: the default under another name"),
    Hidden("moe-default-2", 1.0, CACHED_COST_S, "nothing: the default again, on the machine as it is by then"),
)


async def demo(options: DemoOptions, mode: Mode | None = None) -> int:
    """`slo-bench demo`: run the arms, write the note, print where it is. mode: another than quick, for a short look."""
    from reports.note import write_note  # noqa: PLC0415 - it brings matplotlib, which --help need not wait for

    directory = options.runs_dir / free_name(options.runs_dir, "demo")
    RunStore(directory).check_unused()
    mode = mode or mode_named("quick")
    load = Load(CHAT_MIX, 1.0, options.seed, DEFAULT_SLO, mode.ramp_s, mode.bounds)
    search = SearchSettings(
        resolution_share=mode.resolution_share, pass_repeats=mode.repeats, fail_repeats=mode.repeats
    )
    plan = SweepPlan("demo", mode, load, search, None)
    experiment = Experiment(
        label="demo",
        title="A tuned kernel, its copy and a machine that speeds up",
        arms=[_arm(hidden, plan, options.usd_per_hour) for hidden in ARMS],
        drift_arm=ARMS[-1].label,
        plan=plan,
    )
    with SweepView(load.slo, marks=["SIMULATED"]) as view:
        found = (await run_experiment(experiment, directory, view, view.say)).found
        anchor_rps = found[ARMS[0].label].capacity_rps
        if anchor_rps is not None:
            write_text(directory / "truth.json", to_json(truth(found, anchor_rps, options.seed)))
        write_note(directory, directory / NOTE, directory / "figures")
        for hidden in ARMS:
            view.say(f"{hidden.label}: {capacity_text(found[hidden.label])}")
        if options.lab_notes is not None:
            kept = options.lab_notes / "0001-demo"
            _keep(directory, kept)
            write_note(kept, options.lab_notes / "0001-demo.md", kept)
        view.say(f"note: {directory / NOTE}")
    return 0


def _keep(directory: Path, kept: Path) -> None:
    """Copy the experiment's documents, without the rows of each request, to where the published note can link them."""
    if kept.exists():
        shutil.rmtree(kept)
    for document in directory.rglob("*.json"):
        target = kept / document.relative_to(directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(document, target)


def _arm(hidden: Hidden, plan: SweepPlan, usd_per_hour: float) -> Arm:
    seed = plan.load.seed
    around = Surroundings(PowerSource(reason=SIMULATED), usd_per_hour=usd_per_hour)
    config = {
        "engine": "simulated",
        "simulated": dataclasses.asdict(hidden.settings),
        "workload": plan.load.workload.name,
        "length_scale": plan.load.length_scale,
        "objectives": [str(each) for each in plan.load.slo],
        "mode": plan.mode.name,
        "usd_per_hour": usd_per_hour,
        "command": ["slo-bench", "demo", "--seed", str(seed), "--usd-per-hour", f"{usd_per_hour:g}"],
    }
    return Arm(
        record=RunRecord(hidden.label, "simulated", seed, config, around=around),
        host=lambda start: SimulatedHost(hidden.settings, seed=seed, start=start, known=demo_answers()),
        gate=GatePlan(demo_items(), floor=ACCURACY_FLOOR, why_no_text=SIMULATED),
    )


def truth(found: dict[str, SweepDocument], anchor_rps: float, seed: int) -> TruthDocument:
    """What was hidden, computed on the quiet step model at the anchor rate, and what a plain comparison claims."""
    base = quiet_tpot_s(ARMS[0].quiet, anchor_rps, seed)
    plain = [_plain_tpot_s(hidden, order, anchor_rps, seed) for order, hidden in enumerate(ARMS)]
    moments_s = [_anchor_moment_s(found[hidden.label], anchor_rps) for hidden in (ARMS[0], ARMS[-1])]
    before, after = (1 + DRIFT_SHARE_PER_HOUR * moment_s / 3600 for moment_s in moments_s)
    drifted = [
        quiet_tpot_s(dataclasses.replace(ARMS[0].quiet, step_time_factor=factor), anchor_rps, seed)
        for factor in (before, after)
    ]
    return TruthDocument(
        schema_version=1,
        arms=[
            TruthArm(
                label=hidden.label,
                hidden=hidden.sentence,
                true_capacity_rps=None,
                true_tpot_effect_share=None if order == 0 else quiet_tpot_s(hidden.quiet, anchor_rps, seed) / base - 1,
                plain_claim_share=None if order == 0 else plain[order] / plain[0] - 1,
            )
            for order, hidden in enumerate(ARMS)
        ],
        drift_share=drifted[1] / drifted[0] - 1,
        cold_start=(
            f"the first server needs {COLD_COST_S:g} s at the first use of each batch shape, the later ones "
            f"{CACHED_COST_S:g} s"
        ),
    )


def _anchor_moment_s(document: SweepDocument, anchor_rps: float) -> float:
    """When the arm measured the anchor rate, seconds after the experiment's start (virtual time begins at 0)."""
    rows = [row for row in document.probes if row.rate_rps == anchor_rps and row.is_whole]
    starts = [datetime.fromisoformat(row.started_utc).timestamp() for row in rows]
    epoch_s = datetime.fromisoformat("2000-01-01T00:00:00+00:00").timestamp()
    return float(np.mean(starts)) - epoch_s


def quiet_tpot_s(settings: EngineSettings, rate_rps: float, seed: int, repeats: Sequence[int] = (0, 1, 2)) -> float:
    """Mean TPOT of the anchor's own draws on a model without noise, seconds."""
    return float(
        np.mean([_window_tpot_s(StepModel(settings, seed, 0), rate_rps, seed, repeat, 0.0) for repeat in repeats])
    )


def _plain_tpot_s(hidden: Hidden, order: int, rate_rps: float, seed: int) -> float:
    """One run on a server that has just been started, as a plain comparison does it: no warm-up, one window."""
    began_s = order * (PLAIN_WINDOW_S + 300.0)
    return _window_tpot_s(StepModel(hidden.settings, seed, 100 + order), rate_rps, seed, 0, began_s)


def _window_tpot_s(model: StepModel, rate_rps: float, seed: int, repeat: int, began_s: float) -> float:
    due_s = POISSON.due_s(rate_rps, seed, repeat, PLAIN_WINDOW_S)
    lengths = CHAT_MIX.draw(seed, repeat, len(due_s))
    driven = model.drive(due_s + began_s, lengths.input_tokens, lengths.output_tokens)
    several = driven.output_tokens > 1
    spans_s = (driven.last_token_s - driven.first_token_s)[several]
    return float(np.mean(spans_s / (driven.output_tokens[several] - 1)))
