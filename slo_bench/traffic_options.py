"""The options that say what is sent and when, and the workload and arrivals that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import PrivateAttr, model_validator

from slo_bench.dataset_options import DatasetOptions
from slo_bench.engine_options import LOAD, option
from traffic.arrivals import POISSON, Arrivals, Constant, Gamma, Replay
from traffic.conversations import Conversations
from traffic.errors import UsageError
from traffic.shared_prefix import SharedPrefix
from traffic.traced import Traced
from traffic.traces import Trace, read_trace
from traffic.workload import CHAT_MIX, Workload, fixed_lengths

AZURE_URL = "https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceDataset2023)"
PUBLIC_TRACES = {
    "azure-conv": ("azure_llm_conv_2023.csv", AZURE_URL),
    "azure-code": ("azure_llm_code_2023.csv", AZURE_URL),
    "mooncake": ("mooncake_conversation.jsonl", "https://github.com/kvcache-ai/Mooncake (FAST25-release/traces)"),
}
"""Workloads made of a public trace: the file's name in the folder of data, and where it can be had."""

TRACED = (*PUBLIC_TRACES, "trace")


class TrafficOptions(DatasetOptions):
    """What is sent, and when."""

    workload: Literal["chat-mix", "fixed", "multi-turn", "azure-conv", "azure-code", "mooncake", "trace"] = option(
        "chat-mix",
        "what prompts and answers are like: the mix of a chat service, one length, conversations, or a trace's lengths",
        group=LOAD,
    )
    input_tokens: int | None = option(None, "prompt length of --workload fixed", group=LOAD, metavar="N", gt=0)
    output_tokens: int | None = option(
        None, "answer length of --workload fixed or --dataset", group=LOAD, metavar="N", gt=0
    )
    shared_prefix_tokens: int | None = option(
        None, "every prompt begins with the same system message of N of its tokens", group=LOAD, metavar="N", gt=0
    )
    turns_mean: float | None = option(
        None, "turns of a conversation on average, multi-turn (default: 3)", group=LOAD, metavar="N", ge=1
    )
    turns_max: int | None = option(
        None, "turns of a conversation at most, multi-turn (default: 8)", group=LOAD, metavar="N", ge=1
    )
    think_time: float | None = option(
        None,
        "mean seconds between an answer and the next turn, multi-turn (default: 5)",
        group=LOAD,
        metavar="SECONDS",
        ge=0,
    )
    trace: Path | None = option(
        None, "trace file: Azure's table of 2023, or JSON lines as Mooncake's and vLLM's", group=LOAD, metavar="FILE"
    )
    data: Path | None = option(
        None, "folder of public traces, for azure-conv, azure-code and mooncake", group=LOAD, metavar="DIR"
    )
    max_input_tokens: int | None = option(
        None, "cut a trace's longer prompts to this length; leave a data set's out", group=LOAD, metavar="N", gt=0
    )
    length_scale: float = option(
        1.0, "factor on all lengths, for models with a short context", group=LOAD, metavar="X", gt=0
    )
    arrivals: Literal["poisson", "gamma", "constant", "trace"] = option(
        "poisson", "when requests come: at random, in bursts, evenly, or as in the trace", group=LOAD
    )
    burstiness: float | None = option(
        None, "shape of --arrivals gamma: 1 is poisson, less is burstier", group=LOAD, metavar="K", gt=0
    )
    _read: Trace | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _belong_together(self) -> TrafficOptions:
        if self.dataset is not None:
            self._need_nothing_beside_a_dataset()
        elif (self.workload == "fixed") != (self.input_tokens is not None and self.output_tokens is not None):
            raise ValueError("--workload fixed goes with --input-tokens and --output-tokens")
        if self.workload != "multi-turn" and (self.turns_mean, self.turns_max, self.think_time) != (None, None, None):
            raise ValueError("--turns-mean, --turns-max and --think-time go with --workload multi-turn")
        if self.shared_prefix_tokens is not None and self.workload not in ("chat-mix", "fixed"):
            raise ValueError(f"--shared-prefix-tokens goes with --workload chat-mix or fixed, not {self.workload}")
        if self.max_input_tokens is not None and self.workload not in TRACED and self.dataset is None:
            raise ValueError(f"--max-input-tokens goes with --dataset or a trace's workload: {', '.join(TRACED)}")
        if (self.arrivals == "gamma") != (self.burstiness is not None):
            raise ValueError("--arrivals gamma goes with --burstiness")
        needs_file = self.workload == "trace" or (self.arrivals == "trace" and self.workload not in TRACED)
        if needs_file and self.trace is None:
            raise ValueError("give the trace as --trace FILE, or --workload azure-conv, azure-code or mooncake")
        if self.trace is not None and self.workload not in TRACED and self.arrivals != "trace":
            raise ValueError("--trace goes with --arrivals trace or with a trace's workload")
        return self

    def _need_nothing_beside_a_dataset(self) -> None:
        """Its prompts are as long as they are, and alone."""
        usual = ("chat-mix", 1.0, None, None)
        if (self.workload, self.length_scale, self.input_tokens, self.shared_prefix_tokens) != usual:
            raise ValueError(
                "--dataset brings its own prompts: leave out --workload, --length-scale, --input-tokens and "
                "--shared-prefix-tokens"
            )

    def the_workload(self) -> Workload:
        """The workload that the options name. Raises UsageError for a trace or a data set that cannot be read."""
        if self.dataset is not None:
            return self.the_dataset(
                self.dataset, longest_prompt_tokens=self.max_input_tokens, output_tokens=self.output_tokens
            )
        if self.workload == "multi-turn":
            usual = Conversations()
            return Conversations(
                mean_turns=usual.mean_turns if self.turns_mean is None else self.turns_mean,
                most_turns=usual.most_turns if self.turns_max is None else self.turns_max,
                mean_think_s=usual.mean_think_s if self.think_time is None else self.think_time,
            )
        if self.workload in TRACED:
            return Traced(self.the_trace(), self.max_input_tokens)
        mixture = CHAT_MIX
        if self.workload == "fixed":
            mixture = fixed_lengths(self.input_tokens or 0, self.output_tokens or 0)
        return mixture if self.shared_prefix_tokens is None else SharedPrefix(mixture, self.shared_prefix_tokens)

    def the_arrivals(self) -> Arrivals:
        """The arrival process that the options name. Raises UsageError for a trace that cannot be read."""
        if self.arrivals == "gamma":
            return Gamma(self.burstiness or 0.0)
        if self.arrivals == "constant":
            return Constant()
        if self.arrivals == "trace":
            return Replay(self.the_trace())
        return POISSON

    def the_trace(self) -> Trace:
        """The trace of the workload and of the arrivals, read once. Raises UsageError where it cannot be."""
        if self._read is None:
            path = self._trace_file()
            self._read = read_trace(path, self.workload if self.workload in PUBLIC_TRACES else path.stem)
        return self._read

    def _trace_file(self) -> Path:
        if self.trace is not None:
            return self.trace
        file, url = PUBLIC_TRACES[self.workload]
        if self.data is None or not (self.data / file).exists():
            where = "no folder is named" if self.data is None else f"it is not in {self.data}"
            raise UsageError(
                f"--workload {self.workload} reads {file}, and {where}: download it from {url}, then give "
                "--trace FILE, or --data DIR (SLO_BENCH_DATA)"
            )
        return self.data / file
