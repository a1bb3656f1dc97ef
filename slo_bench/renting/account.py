"""The provider's account as the options name it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from cloud.api_key import read_api_key
from cloud.lambda_api import API_BASE_NAME, DEFAULT_BASE, LambdaApi, checked_base
from cloud.pacing import Pacing
from cloud.session_file import ApiFacts
from slo_bench.hosts.attached import is_loopback
from slo_bench.renting.options import ProviderOptions


def _times_of_calls() -> Path:
    """All processes that use the account keep its rate limits together, by this file."""
    return Path("~/.cache/slo-bench/lambda-calls").expanduser()


@dataclass(frozen=True, slots=True)
class Account:
    """An open account. facts: how the API is asked, for whoever asks it later."""

    api: LambdaApi
    key: SecretStr
    facts: ApiFacts

    @property
    def is_here(self) -> bool:
        """Whether the API is a test's on this machine, whose machines may be here too."""
        return is_loopback(self.facts.base_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """With an API that does not answer what is read. silence_s: after it, whoever waits is told; whole_s: the end."""

    silence_s: float = 5.0
    whole_s: float = 120.0


_DEFAULT_PATIENCE = Patience()


@asynccontextmanager
async def opened(
    options: ProviderOptions,
    say: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    known: ApiFacts | None = None,
    patience: Patience = _DEFAULT_PATIENCE,
) -> AsyncIterator[Account]:
    """The account. say: is told of an API that does not answer; known: how a session asked it before.

    Raises CloudUsageError for no key, or an unsafe address.
    """
    key = read_api_key(environ, options.api_key_file)
    facts = known or ApiFacts(
        base_url=checked_base(options.api_base or environ.get(API_BASE_NAME) or DEFAULT_BASE),
        calls_per_s=options.calls_per_s,
        launch_every_s=options.launch_every_s,
        lock_file=_times_of_calls(),
    )
    pacing = Pacing(facts.calls_per_s, facts.launch_every_s, lock_file=facts.lock_file)
    async with LambdaApi(
        key,
        pacing=pacing,
        base_url=facts.base_url,
        timeout_s=facts.timeout_s,
        patience_s=patience.whole_s,
        say=say,
        silence_s=patience.silence_s,
    ) as api:
        yield Account(api, key, facts)
