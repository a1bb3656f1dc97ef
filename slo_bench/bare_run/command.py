"""`slo-bench run`: the command that the environment asks for, on the loop that it needs, with its exit codes."""

from __future__ import annotations

import os
from functools import cached_property

from slo_bench.bare_run.machine_file import MachineFile, read_machine_file
from slo_bench.bare_run.translation import Meant, Tuning, meant
from slo_bench.bare_run.tuned_file import look_for_file
from slo_bench.bare_run.tuning import keep_kernels, say, tuning_run
from slo_bench.commands import sweep
from slo_bench.config import SweepOptions
from slo_bench.environment import stands_for
from slo_bench.experiment.command import ExperimentOptions, experiment
from slo_bench.options import Options

SKIPPED = 6
"""Exit code of a run that was not begun, since an earlier one did not leave what it needs."""


class BareOptions(Options):
    """It has no options of its own: everything comes from the environment."""

    @cached_property
    def machine(self) -> MachineFile:
        """This machine's own file. Raises UsageError."""
        return read_machine_file()

    @cached_property
    def meant(self) -> Meant:
        """The command that it stands for. Raises UsageError."""
        return meant(os.environ, self.machine)

    def engine_kind(self) -> str:
        """What the loop needs to know."""
        options = self.meant.options
        return options.options.engine_kind() if isinstance(options, Tuning) else options.engine_kind()


async def run(options: BareOptions) -> int:
    """Run the command: its exit code, or SKIPPED with the reason in one line."""
    found = options.meant
    stands_for(found.words)
    for note in found.notes:
        say(note)
    match found.options:
        case Tuning():
            mark = "[SIMULATED] " if found.options.options.simulated else ""
            return await tuning_run(found.options, lambda line: say(_marked(mark, line)))
        case ExperimentOptions():
            return await experiment(found.options)
        case SweepOptions():
            return await _sweep(found, found.options, options.machine)


def _marked(mark: str, line: str) -> str:
    return line if line.startswith(mark) else f"{mark}{line}"


async def _sweep(found: Meant, options: SweepOptions, machine: MachineFile) -> int:
    if found.tuned_dir is None:
        return await sweep(options)
    file = look_for_file(found.tuned_dir, found.model or "", options, machine)
    if file.lack is not None:
        say(f"skipped: {file.lack}")
        return SKIPPED
    code = await sweep(options)
    if options.label is not None:
        keep_kernels(found.tuned_dir, file.file, options.runs_dir / options.label)
    return code
