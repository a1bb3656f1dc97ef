"""An arm that is tuned before it is measured: its server reads the folder that the search leaves.

    [[arm]]
    label = "moe-tuned"
    tune = { minutes = 8 }       # options of `slo-bench tune`; the layer is that of the arm's model, a local folder

Files lie in tuned/LABEL of the experiment, for the arm and for its repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reports.kernels import KERNELS_NAME
from slo_bench.config import SweepOptions
from slo_bench.moe.tune_command import run_tune
from slo_bench.moe.tune_files import SIDE_FOLDER, finished
from slo_bench.moe.tune_machines import machines_for
from slo_bench.moe.tune_options import TuneOptions
from slo_bench.options import checked
from slo_bench.store import write_text
from traffic.errors import EngineError, UsageError

FOLDER = "tuned"

_NOT_IN_A_PLAN = {"output", "resume", "simulated", "tuner", "vllm_checkout", "vllm_python"}
_COMPILERS = 14
"""Of a rehearsal: as many as a host with 16 cores has, on any machine, so that it comes to the same bytes."""


def planned_tune(label: str, arm: SweepOptions, values: object, where: str) -> TuneOptions:
    """The search before an arm, from the arm's `tune` table. Its output is the arm's label, to be placed later.

    Raises UsageError in one line that begins with `where`.
    """
    where = f"{where}: tune"
    if not isinstance(values, Mapping):
        raise UsageError(f"{where}: give a table of options of slo-bench tune, like {{ minutes = 8 }}")
    if arm.tuned_moe_dir is not None:
        raise UsageError(f"{where}: the arm has a tuned_moe_dir already")
    if arm.engine_kind() == "attached":
        raise UsageError(f"{where}: the arm's server runs elsewhere, and would not read the file")
    table: dict[str, Any] = {str(key).replace("-", "_"): value for key, value in values.items()}
    for key in table:
        if key not in TuneOptions.model_fields or key in _NOT_IN_A_PLAN:
            raise UsageError(f"{where}: there is no option {key!r} of slo-bench tune in a plan")
    own = {"output": Path(label), "vllm_python": arm.vllm_python, "simulated": arm.engine_kind() == "simulated"}
    layer = {} if "shape" in table or "model" in table else {"model": arm.model}
    options = checked(TuneOptions, {**layer, **table, **own}, where=where)
    try:
        options.routings(options.layer()[0])
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return options


def rehearsed_tune(options: TuneOptions) -> TuneOptions:
    """The same search on a model of the kernel."""
    return options.model_copy(update={"simulated": True, "vllm_python": None})


def placed(options: TuneOptions, directory: Path) -> TuneOptions:
    """With its folder in an experiment's directory."""
    more = {"compilers": options.compilers or _COMPILERS} if options.simulated else {}
    return options.model_copy(update={"output": directory / FOLDER / options.folder(), **more})


async def tune_before(options: TuneOptions, arm_folder: Path, say: Callable[[str], None]) -> None:
    """Search, or go on with a search that was stopped; one that came to its end is taken as it is.

    Its kernels.json is put into the arm's folder too. Raises EngineError where it fails.
    """
    document = finished(options.folder())
    if document is None:
        is_begun = (options.folder() / SIDE_FOLDER).is_dir()
        try:
            await run_tune(options.model_copy(update={"resume": is_begun}), machines_for(options), say)
        except UsageError as error:
            # What could be known before was checked; an experiment goes on without this arm.
            raise EngineError(f"tuning: {error}") from None
        document = finished(options.folder())
    if document is None:
        raise EngineError(f"tuning left no finished file in {options.folder()}")
    side = options.folder() / SIDE_FOLDER / document.file.removesuffix(".json")
    write_text(arm_folder / KERNELS_NAME, (side / KERNELS_NAME).read_text(encoding="utf-8"))
