"""A simulated sweep that was given a tuned folder: no server reads it, and it is another configuration all the same."""

from __future__ import annotations

from pathlib import Path

from slo_bench.config import SweepOptions


class TunedSimulatedSweep(SweepOptions):
    """simulated_tuned_moe_dir: TUNED_MOE_DIR with the mark SIMULATED.

    It stands in run.json's config, where a server's folder is `tuned_moe_dir`: a tuned arm is no repeat of the default
    one, whatever engine they met. Sweeps without a folder have no such field, as those of earlier versions.
    """

    simulated_tuned_moe_dir: str


def with_tuned_dir(options: SweepOptions, tuned_dir: Path) -> TunedSimulatedSweep:
    """The same sweep, which tells of its folder."""
    return TunedSimulatedSweep.model_validate(
        {**options.model_dump(), "simulated_tuned_moe_dir": f"SIMULATED {tuned_dir}"}
    )
