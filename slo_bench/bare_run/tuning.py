"""A search with a run directory: run.json, tuning.json, kernels.json, and in tuned/ what the search itself leaves.

The search works in its run directory, so that whoever brings that home has the journal too. At its end the file is
placed where servers read it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from reports.kernels import KERNELS_NAME
from reports.run_directory import EngineKind, RunDocument, read_document, to_json
from reports.tuning_document import TUNING_NAME, TuningDocument
from slo_bench.bare_run.translation import Tuning
from slo_bench.checksums import file_checksum
from slo_bench.environment import command_line
from slo_bench.hosts.gpu_memory import check_driver, read_gpus
from slo_bench.lock import held
from slo_bench.moe.tune_command import run_tune
from slo_bench.moe.tune_files import JOURNAL_NAME, SIDE_FOLDER, SIDE_NAME, TunedFolder, finished
from slo_bench.moe.tune_machines import machines_for
from slo_bench.run import RunRecord, told
from slo_bench.store import RunStore, write_text, write_whole
from traffic.clock import running_clock
from traffic.errors import EngineError


async def tuning_run(tuning: Tuning, say: Callable[[str], None]) -> int:
    """Search, write the run directory, place the file; 0. Raises UsageError and EngineError in one line."""
    store, options = RunStore(tuning.directory), tuning.options
    with held(tuning.directory, is_new=not options.resume):
        began_utc = running_clock().utc().isoformat()
        resumed_utc: list[str] = []
        if options.resume:
            earlier = read_document(store.directory / "run.json", RunDocument)
            began_utc, resumed_utc = earlier.started_utc, [*earlier.resumed_utc, began_utc]
        else:
            store.check_unused()
        if tuning.min_driver is not None:
            check_driver(read_gpus(), tuning.min_driver)
        TunedFolder(tuning.target, "").check_kind(is_simulated=options.simulated)
        with told(store, _record(tuning), began_utc, resumed_utc):
            is_begun = (options.folder() / SIDE_FOLDER).is_dir()
            if not options.resume or finished(options.folder()) is None:
                await run_tune(options.model_copy(update={"resume": is_begun}), machines_for(options), say)
            document = _documented(tuning)
            _place(options.folder() / document.file.rpartition("/")[2], tuning.target, say)
    say(f"files: {tuning.directory}")
    return 0


def _record(tuning: Tuning) -> RunRecord:
    config = tuning.options.model_dump(mode="json", exclude={"resume"})
    engine: EngineKind = "simulated" if tuning.options.simulated else "vllm"
    config |= {"label": tuning.label, "tuned_moe_dir": str(tuning.target), "command": command_line()}
    return RunRecord(tuning.label, engine, tuning.options.seed, config, kind="tune")


def _documented(tuning: Tuning) -> TuningDocument:
    """tuning.json and kernels.json, made from what the search left."""
    folder, directory = tuning.options.folder(), tuning.directory
    found = finished(folder)
    if found is None:
        raise EngineError(f"tuning left no finished file in {folder}")
    tuned = TunedFolder(folder, found.file)
    kept = [tuned.file, tuned.side / SIDE_NAME, tuned.side / KERNELS_NAME, tuned.side / JOURNAL_NAME]
    sums = {path.relative_to(directory).as_posix(): file_checksum(path) for path in kept}
    document = TuningDocument(
        label=tuning.label,
        is_simulated=found.is_simulated,
        file=tuned.file.relative_to(directory).as_posix(),
        journal=tuned.journal.relative_to(directory).as_posix(),
        minutes=None if found.tuning_s is None else found.tuning_s / 60,
        is_complete=found.is_complete,
        placed_in=str(tuning.target),
        checksums={name: each for name, each in sums.items() if each is not None},
    )
    write_text(directory / KERNELS_NAME, (tuned.side / KERNELS_NAME).read_text(encoding="utf-8"))
    write_text(directory / TUNING_NAME, to_json(document))
    return document


def _place(file: Path, target: Path, say: Callable[[str], None]) -> None:
    """Copy a finished file and what is beside it into the folder that servers read, the file itself last."""
    made, placed = TunedFolder(file.parent, file.name), TunedFolder(target, file.name)
    for name in (SIDE_NAME, KERNELS_NAME, JOURNAL_NAME):
        write_whole(placed.side / name, partial(shutil.copyfile, made.side / name))
    write_text(placed.file, file.read_text(encoding="utf-8"))
    say(f"placed {placed.file}; runs with TUNED_MOE_DIR={target} use it")


def keep_kernels(tuned_dir: Path, name: str, directory: Path) -> None:
    """Put the kernel times of the tuned file beside the sweep that used it, so that its note has them."""
    times = TunedFolder(tuned_dir, name).side / KERNELS_NAME
    if times.is_file() and (directory / "sweep.json").exists():
        write_text(directory / KERNELS_NAME, times.read_text(encoding="utf-8"))


def say(line: str) -> None:
    """A line while it runs."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
