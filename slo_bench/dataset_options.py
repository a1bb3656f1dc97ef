"""The options that name a chat data set and a tokenizer, and what they make."""

from __future__ import annotations

from pydantic import PrivateAttr, model_validator

from slo_bench.engine_options import LOAD, EngineOptions, option
from traffic.chat_dataset import ChatDataset, CountTokens, chat_dataset


class DatasetOptions(EngineOptions):
    """Prompts that somebody else wrote, and who counts their tokens."""

    dataset: str | None = option(
        None,
        "chat data set, in place of --workload: a .jsonl, .json, .csv or .parquet file, a folder, or a name on the hub",
        group=LOAD,
        metavar="NAME|FILE",
    )
    dataset_split: str | None = option(
        None, "part of a data set from a folder or the hub (default: train)", group=LOAD, metavar="SPLIT"
    )
    dataset_config: str | None = option(None, "variant of a data set from the hub", group=LOAD, metavar="NAME")
    tokenizer: str | None = option(
        None,
        "the server's tokenizer, where the server cannot count prompts itself: a folder with tokenizer.json, the file, "
        "or a model on the hub",
        group=LOAD,
        metavar="NAME|FILE",
    )
    _tokenizer: CountTokens | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _need_a_dataset(self) -> DatasetOptions:
        if self.dataset is None and (self.dataset_split, self.dataset_config) != (None, None):
            raise ValueError("--dataset-split and --dataset-config go with --dataset")
        return self

    def the_tokenizer(self) -> CountTokens | None:
        """The tokenizer that the options name, read once. Raises UsageError for one that cannot be had."""
        if self._tokenizer is None and self.tokenizer is not None:
            from slo_bench.tokenizer import load_tokenizer  # noqa: PLC0415 - the library is for those who name one

            self._tokenizer = load_tokenizer(self.tokenizer)
        return self._tokenizer

    def the_dataset(self, name: str, *, longest_prompt_tokens: int | None, output_tokens: int | None) -> ChatDataset:
        """The data set of that name. Raises UsageError for one that cannot be had or holds no chat."""
        return chat_dataset(
            name,
            split=self.dataset_split or "train",
            config=self.dataset_config,
            longest_prompt_tokens=longest_prompt_tokens,
            output_tokens=output_tokens,
            tokenizer=self.the_tokenizer(),
        )
