"""Whether a host is fit to measure from. Each check gets what was read as arguments and gives one row. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gates.capacity import rate_text
from gates.validity import MEASURED
from reports.numbers import plural, share, watts
from slo_bench.doctor.document import CheckRow, Fitness, HeldRow, ceiling_of
from slo_bench.hosts.gpu_memory import GpuReading
from slo_bench.power.check import PowerCheck
from traffic.file_limit import rate_within

LEAST_FILES, LONG_ANSWER_S = 4096, 60.0
"""Each request under way has a connection."""

LEAST_PORTS = 10_000
"""A closed connection keeps its port for a minute: at 100 req/s without keep-alive that is 6,000."""

GOOD_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
"""Read without a system call; the last is ARM's."""

MOST_STEAL_SHARE = 0.01
MOST_DRIFT_S = 0.050
"""NTP moves the clock by at most 500 ppm: 30 ms in a minute. More is a step."""

MOST_IDLE_LATE_S = 0.002
MOST_PAUSE_S = MEASURED.send_lag_p99_s
MODEST_RPS = 12.5
"""Of chat-mix: where a sweep with the default start warms its server up."""

CHAT_MIX_TOKENS = 211
"""chat-mix's mean answer."""

MOST_POWER_GAP_SHARE = 0.03
"""Of the integral of power against the energy counter."""

_STEAL_COLUMN = 8
_JIFFY_COLUMNS = slice(1, 9)


def open_files(limit: int) -> CheckRow:
    """The limit on open files, raised as far as it goes."""
    figure = (
        f"{limit}, sure to carry {rate_text(rate_within(limit, LONG_ANSWER_S))} req/s of answers that take a minute"
    )
    if limit >= LEAST_FILES:
        return CheckRow(name="open files", fitness=Fitness.OK, figure=figure)
    return CheckRow(name="open files", fitness=Fitness.WARN, figure=figure, remedy="raise the hard limit (ulimit -Hn)")


def local_ports(text: str | None) -> CheckRow:
    """net.ipv4.ip_local_port_range, "32768 60999"; None where it cannot be read."""
    words = (text or "").split()
    if len(words) != 2 or not all(word.isdigit() for word in words):  # noqa: PLR2004 - first and last
        return _unknown("local ports")
    first, last = map(int, words)
    count = last - first + 1
    figure = f"{count} ({first} to {last})"
    if count >= LEAST_PORTS:
        return CheckRow(name="local ports", fitness=Fitness.OK, figure=figure)
    remedy = "sysctl -w net.ipv4.ip_local_port_range='16384 60999'"
    return CheckRow(name="local ports", fitness=Fitness.WARN, figure=figure, remedy=remedy)


def governor(texts: Sequence[str]) -> CheckRow:
    """scaling_governor of each core; none where the machine shows none."""
    if not texts:
        return CheckRow(name="CPU governor", fitness=Fitness.OK, figure="not shown, as in most virtual machines")
    found = sorted(set(texts))
    is_quiet = found == ["performance"]
    return CheckRow(
        name="CPU governor",
        fitness=Fitness.OK if is_quiet else Fitness.WARN,
        figure=", ".join(found),
        remedy="" if is_quiet else "cpupower frequency-set -g performance",
    )


def clock_source(text: str | None) -> CheckRow:
    """The kernel's current clock source; None where it cannot be read."""
    if not text:
        return _unknown("clock source")
    if text in GOOD_CLOCKS:
        return CheckRow(name="clock source", fitness=Fitness.OK, figure=text)
    remedy = "every look at the clock is slow or coarse; boot with clocksource=tsc where the machine allows it"
    return CheckRow(name="clock source", fitness=Fitness.WARN, figure=text, remedy=remedy)


def cores(usable: int, there: int, quota: str | None) -> CheckRow:
    """Cores that this process may use, of those there; quota: cgroup's cpu.max, "max 100000" or "200000 100000"."""
    figure = f"{usable} of {there}"
    words = (quota or "").split()
    allowed = usable
    if len(words) == 2 and all(word.isdigit() for word in words):  # noqa: PLR2004 - microseconds per period
        share = int(words[0]) / int(words[1])
        figure += f", limited to the time of {share:g}"
        allowed = min(usable, math.floor(share))
    if allowed > 1:
        return CheckRow(name="cores", fitness=Fitness.OK, figure=figure)
    remedy = "whatever else runs here makes the client late: give it a second core"
    return CheckRow(name="cores", fitness=Fitness.WARN, figure=figure, remedy=remedy)


def steal(before: str, after: str) -> CheckRow:
    """The share of time that other machines of the same host took: two texts of /proc/stat."""
    first, last = _jiffies(before), _jiffies(after)
    total = sum(last[_JIFFY_COLUMNS]) - sum(first[_JIFFY_COLUMNS]) if first and last else 0
    if total <= 0:
        return _unknown("steal time")
    share = (last[_STEAL_COLUMN] - first[_STEAL_COLUMN]) / total
    figure = f"{share:.1%} of the cores' time".replace("%", " %")
    if share <= MOST_STEAL_SHARE:
        return CheckRow(name="steal time", fitness=Fitness.OK, figure=figure)
    remedy = "another machine takes time from this one: measure from a host of your own"
    return CheckRow(name="steal time", fitness=Fitness.WARN, figure=figure, remedy=remedy)


def _jiffies(text: str) -> list[int]:
    """The numbers of the line of all cores, at their columns; empty where it is not there."""
    line = next((line.split() for line in text.splitlines() if line.startswith("cpu ")), [])
    return [0, *map(int, line[1:])] if len(line) > _STEAL_COLUMN else []


def clock_drift(drift_s: float, over_s: float) -> CheckRow:
    """How far UTC moved against the monotonic clock while the doctor looked."""
    figure = f"{drift_s * 1000:+.1f} ms in {over_s:.0f} s"
    if abs(drift_s) <= MOST_DRIFT_S:
        return CheckRow(name="UTC", fitness=Fitness.OK, figure=figure)
    fitness = Fitness.BAD if abs(drift_s) > MEASURED.clock_step_s else Fitness.WARN
    return CheckRow(name="UTC", fitness=fitness, figure=figure, remedy="check time keeping (chronyc tracking)")


def gpus(reading: GpuReading | None, nvml: str | None, fault: str) -> CheckRow:
    """The GPUs; nvml: version of the management library, None where it does not answer. fault: why nothing was read."""
    if fault:
        return CheckRow(name="GPU", fitness=Fitness.WARN, figure="the driver does not answer", remedy=fault)
    if reading is None:
        return CheckRow(name="GPU", fitness=Fitness.OK, figure="no GPU seen")
    names = ", ".join(f"{gpu.index} {gpu.name}" for gpu in reading.gpus)
    figure = f"driver {reading.driver}, {names}"
    if nvml is not None:
        return CheckRow(name="GPU", fitness=Fitness.OK, figure=f"{figure}, NVML {nvml}")
    return CheckRow(name="GPU", fitness=Fitness.WARN, figure=figure, remedy="NVML does not answer: power is not read")


def power(check: PowerCheck) -> CheckRow:
    """Whether power can be read, and whether the two ways to energy agree."""
    if check.not_measured is not None:
        return CheckRow(name="power", fitness=Fitness.OK, figure=f"not measured: {check.not_measured}")
    figure = f"{check.source}, {plural(check.gpus, 'GPU')}, {watts(check.mean_w)} now"
    if check.counter_gap_share is None:
        remedy = "" if check.mean_w is not None else "the driver gives no power: look at nvidia-smi -q -d POWER"
        fitness = Fitness.OK if check.mean_w is not None else Fitness.WARN
        return CheckRow(name="power", fitness=fitness, figure=f"{figure}, no energy counter to compare", remedy=remedy)
    figure += f", counter and integral agree within {share(abs(check.counter_gap_share))}"
    if abs(check.counter_gap_share) <= MOST_POWER_GAP_SHARE:
        return CheckRow(name="power", fitness=Fitness.OK, figure=figure)
    remedy = "readings and counter of the driver differ: energy comes from the counter; look again under load"
    return CheckRow(name="power", fitness=Fitness.WARN, figure=figure, remedy=remedy)


def no_vllm() -> CheckRow:
    """This environment has none."""
    return CheckRow(name="vLLM", fitness=Fitness.OK, figure="none in this environment; --vllm-python names another")


def vllm(version: str | None, cuda: str | None, fault: str) -> CheckRow:
    """A vLLM that imports; cuda: what its torch was built for. fault: why it cannot be used."""
    if fault:
        return CheckRow(name="vLLM", fitness=Fitness.WARN, figure="cannot be used", remedy=fault)
    built_for = "without CUDA" if cuda is None else f"CUDA {cuda}"
    return CheckRow(name="vLLM", fitness=Fitness.OK, figure=f"{version or 'of unknown version'}, {built_for}")


def pauses(longest_s: float) -> CheckRow:
    """The longest that a computing process was stopped."""
    figure = f"{longest_s * 1000:.1f} ms at the longest"
    if longest_s <= MOST_PAUSE_S:
        return CheckRow(name="pauses", fitness=Fitness.OK, figure=figure)
    remedy = "something stops this machine's cores, other programs or the host under it: measure where nothing does"
    return CheckRow(name="pauses", fitness=Fitness.WARN, figure=figure, remedy=remedy)


def idle(late_s: float) -> CheckRow:
    """How late an idle client wakes (p99)."""
    figure = f"wakes {late_s * 1000:.1f} ms late (p99)"
    if late_s <= MOST_IDLE_LATE_S:
        return CheckRow(name="idle client", fitness=Fitness.OK, figure=figure)
    remedy = "something else takes its cores: stop it, or give the client cores of its own (taskset)"
    return CheckRow(name="idle client", fitness=Fitness.WARN, figure=figure, remedy=remedy)


def client(short: HeldRow | None, long: HeldRow | None, *, load_workers: int, cores: int) -> CheckRow:
    """What this client holds, all load workers together; chat-mix stands for the loads between."""
    ceiling = ceiling_of(short, long, load_workers=load_workers, cores=cores)
    if short is None or long is None or ceiling is None:
        return CheckRow(
            name="client",
            fitness=Fitness.BAD,
            figure="late at every rate that was tried",
            remedy="free this machine, or give the search longer (--seconds)",
        )
    chat_rps = ceiling.highest_rps(CHAT_MIX_TOKENS, load_workers)
    least = "at least " if short.is_least or long.is_least else ""
    error_s = long.ttft_error_p99_s
    figure = (
        f"{least}{rate_text(short.rate_rps)} req/s with answers of {short.output_tokens} tokens, "
        f"{long.rate_rps * long.output_tokens:,.0f} tokens/s in answers of {long.output_tokens}, chat-mix at "
        f"{rate_text(chat_rps)} req/s, by {load_workers} process{'es' if load_workers > 1 else ''}"
        + ("" if error_s is None else f"; first tokens read {error_s * 1000:.1f} ms late (p99)")
    )
    if chat_rps >= MODEST_RPS:
        return CheckRow(name="client", fitness=Fitness.OK, figure=figure)
    remedy = "free this machine or take a faster one; --load-workers spreads the load over more cores"
    return CheckRow(name="client", fitness=Fitness.WARN, figure=figure, remedy=remedy)


def _unknown(name: str) -> CheckRow:
    return CheckRow(name=name, fitness=Fitness.WARN, figure="cannot be read here", remedy="look at it by hand")
