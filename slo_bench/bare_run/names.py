"""The bare names: which command each belongs to, and which of its options it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["sweep", "tune", "experiment"]

_EVERYWHERE = {"RUNS_DIR": "runs_dir"}
SWEEP: Mapping[str, str] = _EVERYWHERE | {
    "MODEL": "model",
    "MODE": "mode",
    "LABEL": "label",
    "SWEEP_START": "sweep_start",
    "SWEEP_GROWTH": "sweep_growth",
    "MAX_REQUEST_RATE": "max_request_rate",
    "MAX_MINUTES": "max_minutes",
    "SEED": "seed",
    "WORKLOAD": "workload",
    "LENGTH_SCALE": "length_scale",
    "TTFT_P99_MS": "ttft_p99_ms",
    "TPOT_P99_MS": "tpot_p99_ms",
    "GATE": "gate",
    "GSM8K_FILE": "gsm8k_file",
    "USD_PER_HOUR": "usd_per_hour",
    "MIN_DRIVER": "min_driver",
    "TUNED_MOE_DIR": "tuned_moe_dir",
    "VLLM_PYTHON": "vllm_python",
}
TUNE: Mapping[str, str] = {
    "MODEL": "model",
    "TUNE_MINUTES": "minutes",
    "SEED": "seed",
    "VLLM_PYTHON": "vllm_python",
}
EXPERIMENT: Mapping[str, str] = _EVERYWHERE | {
    "PLAN": "plan",
    "MODE": "mode",
    "GATE": "gate",
    "GSM8K_FILE": "gsm8k_file",
}

KNOWN: Mapping[Kind, frozenset[str]] = {
    "sweep": frozenset((*SWEEP, "VLLM_ARGS", "RESUME")),
    "tune": frozenset((*TUNE, "TUNE_MOE", "LABEL", "RUNS_DIR", "MIN_DRIVER", "TUNED_MOE_DIR", "RESUME")),
    "experiment": frozenset((*EXPERIMENT, "RESUME")),
}
"""Names that a command takes. TUNE_MOE=0 is for any of them."""

NEEDS_VLLM = ("model", "min_driver", "tuned_moe_dir", "vllm_python")
"""Options of a sweep that the simulated engine cannot take."""

DETAILS = """\
It reads the environment, and becomes one of three commands:

    PLAN=plan.toml     slo-bench experiment; with MODE, GATE, GSM8K_FILE
    TUNE_MOE=1         slo-bench tune of MODEL's MoE kernels for TUNE_MINUTES; files go to TUNED_MOE_DIR, or
                       ~/moe-tuned; with SEED, MIN_DRIVER
    else               slo-bench sweep of MODEL on vLLM; with MODE, SWEEP_START, SWEEP_GROWTH, MAX_REQUEST_RATE,
                       MAX_MINUTES, SEED, WORKLOAD, LENGTH_SCALE, TTFT_P99_MS, TPOT_P99_MS, GATE, GSM8K_FILE,
                       USD_PER_HOUR, MIN_DRIVER, TUNED_MOE_DIR, and VLLM_ARGS, words for vllm serve

All take LABEL (the name of the run directory; a plan has its own) and RUNS_DIR (default: runs); RESUME=1 goes on where
a run of this LABEL stopped, VLLM_PYTHON is the interpreter that has vLLM. Each name is the option of the same name in
the command that it belongs to; further options are in the environment under SLO_BENCH_. An empty value is none.

A run whose TUNED_MOE_DIR lacks the file that its model needs is skipped: exit code 6, one line says which file.

~/.config/slo-bench/machine.toml belongs to the machine: engine = "simulated" runs everything without a server or GPU
and marks it SIMULATED (simulated = [...] are settings of that engine, tune = {...} options of every search), and
python = "PATH" names an interpreter that has the dependencies already, for `slo-bench cloud session`."""
