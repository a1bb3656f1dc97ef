"""R10: a limit on open files that may not carry the load is named before the load starts."""

from __future__ import annotations

import resource
from dataclasses import replace

from gates.slo import DEFAULT_SLO
from gates.validity import MEASURED
from slo_bench.bench import Load
from slo_bench.commands import warn_of_files
from slo_bench.config import ProbeOptions
from slo_bench.open_files import file_warning
from traffic.workload import CHAT_MIX

LOAD = Load(CHAT_MIX, 1.0, 0, DEFAULT_SLO, ramp_s=20.0, bounds=MEASURED)
"""An answer of 1,000 tokens may take 2 s + 999 x 50 ms = 51.95 s."""


def test_a_limit_that_carries_every_rate_of_the_search_needs_no_word() -> None:
    assert file_warning(LOAD, 128.0, 8192) is None


def test_a_lower_limit_says_what_it_carries_and_what_to_do() -> None:
    assert file_warning(LOAD, 128.0, 1024) == (
        "open files: the limit of 1024 is sure to carry 15.73 req/s when answers take as long as the objectives allow; "
        "for 128.0 req/s raise the hard limit (ulimit -Hn)"
    )


def test_processes_that_share_a_load_have_a_limit_each() -> None:
    assert file_warning(LOAD, 60.0, 1024) is not None
    assert file_warning(replace(LOAD, workers=4), 60.0, 1024) is None


def test_a_command_says_so_before_a_load_over_http_and_never_of_a_simulated_one() -> None:
    said: list[str] = []
    most_rps = 1e6
    attached = ProbeOptions(base_url="http://127.0.0.1:1", request_rate=most_rps)
    simulated = ProbeOptions(engine="simulated", request_rate=most_rps)
    warn_of_files(simulated, LOAD, most_rps, said.append)
    warn_of_files(attached, LOAD, None, said.append)
    warn_of_files(attached, LOAD, 0.01, said.append)
    assert said == []
    warn_of_files(attached, LOAD, most_rps, said.append)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert len(said) == 1
    assert said[0].startswith(f"open files: the limit of {limit} ")
