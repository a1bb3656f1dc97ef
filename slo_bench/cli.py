"""`slo-bench`: finds the command, runs it on the right loop, and turns its end into an exit code and one line.

Exit codes: 0 done; 1 a gate failed or no passing rate exists; 2 usage; 3 the measurement is invalid; 4 engine, host or
cloud trouble; 5 inconclusive or not comparable; 6 a run that was skipped, since what it needs is not there; 130 and 143
on signals.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import slo_bench
from cloud.errors import CloudError, CloudUsageError, NotConfirmed
from slo_bench.options import Options, load
from slo_bench.stopped import Stopped
from traffic.errors import EngineError, InvalidMeasurement, SloBenchError, UsageError
from traffic.file_limit import raise_file_limit
from traffic.virtual_time import VirtualLoop

EXIT_CODES: tuple[tuple[type[SloBenchError | CloudError], int], ...] = (
    (UsageError, 2),
    (CloudUsageError, 2),
    (InvalidMeasurement, 3),
    (EngineError, 4),
)
INTERRUPTED, TERMINATED, HUNG_UP = 130, 143, 129


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it says in --help, its options and what it runs. Imported on use: help stays quick.

    details: what else its own help says.
    """

    summary: str
    find: Callable[[], tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]]
    details: Callable[[], str] = str


def _sweep() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.commands import sweep
    from slo_bench.config import SweepOptions

    return SweepOptions, sweep


def _probe() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.commands import probe
    from slo_bench.config import ProbeOptions

    return ProbeOptions, probe


def _compare() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.compare.command import compare
    from slo_bench.compare.options import CompareOptions

    return CompareOptions, compare


def _experiment() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.experiment.command import ExperimentOptions, experiment

    return ExperimentOptions, experiment


def _gate() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.accuracy.command import GateOptions, gate

    return GateOptions, gate


def _report() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.report.command import report
    from slo_bench.report.options import ReportOptions

    return ReportOptions, report


def _simulate() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.config import SimulateOptions
    from slo_bench.simulate.command import simulate

    return SimulateOptions, simulate


def _kernels() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.moe.kernels_command import kernels
    from slo_bench.moe.kernels_options import KernelsOptions

    return KernelsOptions, kernels


def _advise() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.moe.advising.command import AdviseOptions, advise

    return AdviseOptions, advise


def _tune() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.moe.tune_command import tune
    from slo_bench.moe.tune_options import TuneOptions

    return TuneOptions, tune


def _doctor() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.config import DoctorOptions
    from slo_bench.doctor.command import doctor

    return DoctorOptions, doctor


def _demo() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.config import DemoOptions
    from slo_bench.demo import demo

    return DemoOptions, demo


def _run_from_environment() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.bare_run.command import BareOptions, run

    return BareOptions, run


def _cloud_session() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.renting.options import SessionOptions
    from slo_bench.renting.session import session

    return SessionOptions, session


def _cloud_list() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.renting.machines import list_machines
    from slo_bench.renting.options import ListOptions

    return ListOptions, list_machines


def _cloud_reap() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.renting.machines import reap_machines
    from slo_bench.renting.options import ReapOptions

    return ReapOptions, reap_machines


def _cloud_resume() -> tuple[type[Options], Callable[[Any], Coroutine[Any, Any, int]]]:
    from slo_bench.renting.options import ResumeOptions
    from slo_bench.renting.session import resume

    return ResumeOptions, resume


def _bare_names() -> str:
    from slo_bench.bare_run.names import DETAILS

    return DETAILS


COMMANDS = {
    "sweep": Command("Find the capacity of a server inside its service-level objective.", _sweep),
    "probe": Command("Measure one request rate, or one closed loop.", _probe),
    "compare": Command("Tell whether a change is real: two arms at one rate, block by block in turn.", _compare),
    "experiment": Command("Run a plan: arms in order, the first again at the end, one lab note.", _experiment),
    "gate": Command("Ask an engine the items of GSM8K, some at a time, and say whether it answers worse.", _gate),
    "report": Command(
        "Say what finished runs found: table, note, page, summary; or whether it became slower.", _report
    ),
    "kernels": Command("Time the fused MoE kernel per batch size, routing and configuration.", _kernels),
    "advise": Command(
        "Answer vLLM's warning about a default MoE config, from files or by measuring on the GPU.", _advise
    ),
    "tune": Command("Find the fastest MoE kernel configurations that are slower under no routing.", _tune),
    "simulate": Command("Serve the simulated engine as an OpenAI-compatible server.", _simulate),
    "doctor": Command("See what this client can send, and whether host and GPU are fit to measure.", _doctor),
    "run": Command(
        "Run what the environment asks for, under bare names: MODEL, MODE, LABEL and others.",
        _run_from_environment,
        _bare_names,
    ),
    "cloud session": Command("Rent a machine, measure, bring everything home, end it without fail.", _cloud_session),
    "cloud list": Command("Show the machines that sessions have rented.", _cloud_list),
    "cloud reap": Command("End machines whose session's time is over; without --yes only say which.", _cloud_reap),
    "cloud resume": Command("Go on with a session whose process died; its deadline stays.", _cloud_resume),
    "demo": Command("See it work without a server: four SIMULATED arms, one lab note, truth beside finding.", _demo),
}

EPILOGUE = """\
Options can also stand in slo-bench.toml or in the environment: --sweep-start is SLO_BENCH_SWEEP_START.
Exit codes: 0 done, 1 no rate or no gate passed, 2 usage, 3 measurement invalid, 4 engine or cloud
trouble, 5 inconclusive, 6 skipped."""


def overview(names: Collection[str] = ()) -> str:
    """The text of `slo-bench --help`; names: only these commands."""
    shown = {name: command for name, command in COMMANDS.items() if not names or name in names}
    width = max(len(name) for name in shown)
    lines = [f"  {name:{width}}  {command.summary}" for name, command in shown.items()]
    return "\n".join(
        [
            "usage: slo-bench COMMAND [options]      slo-bench COMMAND --help      slo-bench --version",
            "",
            (slo_bench.__doc__ or "").strip(),
            "",
            *lines,
            "",
            EPILOGUE,
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The program. Returns the exit code; a traceback is a bug."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"slo-bench {slo_bench.__version__}")
        return 0
    try:
        return _run(*_named(words))
    except (SloBenchError, CloudError) as error:
        print(f"slo-bench: {error}", file=sys.stderr)
        if isinstance(error, NotConfirmed):
            print(error.rescue, file=sys.stderr)  # the last line, to be copied
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 4)
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _named(words: list[str]) -> tuple[str, list[str]]:
    """The command, of one word or two, and the words after it."""
    if words[0] in COMMANDS:
        return words[0], words[1:]
    pairs = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    if not pairs:
        raise UsageError(f"there is no command {words[0]!r}; choose {', '.join(COMMANDS)}")
    if words[1:2] in (["--help"], ["-h"]):
        print(overview(pairs))
        raise SystemExit(0)
    if " ".join(words[:2]) not in pairs:
        raise UsageError(f"slo-bench {words[0]}: choose {', '.join(pairs)}")
    return " ".join(words[:2]), words[2:]


def _run(name: str, words: list[str]) -> int:
    command = COMMANDS[name]
    model, run = command.find()
    extra: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, extra = words[:cut], words[cut + 1 :]
    if extra and "vllm_arg" not in model.model_fields:
        raise UsageError(f"slo-bench {name} takes no arguments after --")
    words += [f"--vllm-arg={argument}" for argument in extra]
    description = "\n\n".join(part for part in (command.summary, command.details()) if part)
    options = load(model, words, prog=f"slo-bench {name}", description=description, command=name)
    raise_file_limit()  # a connection is a file, and what we start inherits the limit
    return run_with_signals(lambda: run(options), is_virtual=is_virtual(name, options))


def is_virtual(name: str, options: Options) -> bool:
    """Whether a command runs under virtual time: everything that only meets the simulated engine."""
    engine_kind = getattr(options, "engine_kind", None)
    return name == "demo" or (engine_kind is not None and engine_kind() == "simulated")


def _real_loop() -> asyncio.AbstractEventLoop:
    from traffic.real_time import RealLoop

    return RealLoop()


def run_with_signals(work: Callable[[], Coroutine[Any, Any, int]], *, is_virtual: bool) -> int:
    """Run to the end; SIGINT, SIGTERM and SIGHUP cancel the work, which cleans up, and give their exit code."""
    caught: list[int] = []
    codes = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}

    async def with_handlers() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 - we are inside one

        def stop(signum: int) -> None:
            caught.append(signum)
            loop.call_soon_threadsafe(task.cancel)

        for signum in codes:
            if is_virtual:
                signal.signal(signum, lambda number, _frame: stop(number))
            else:
                loop.add_signal_handler(signum, stop, signum)
        return await work()

    with asyncio.Runner(loop_factory=VirtualLoop if is_virtual else _real_loop) as runner:
        try:
            return runner.run(with_handlers())
        except (asyncio.CancelledError, Stopped) as stop:
            if not caught:
                raise
            go_on = f"; go on with: {stop.command}" if isinstance(stop, Stopped) else ""
    name = signal.Signals(caught[0]).name
    print(f"slo-bench: stopped by {name}; what was measured is kept{go_on}", file=sys.stderr)
    return codes[signal.Signals(caught[0])]
