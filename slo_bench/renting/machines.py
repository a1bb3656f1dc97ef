"""`slo-bench cloud list` and `reap`."""

from __future__ import annotations

import sys
import time

from cloud.ending import EndBounds
from cloud.reap import describe, reap, rented
from slo_bench.renting.account import Patience, opened
from slo_bench.renting.options import ListOptions, ReapOptions

_DEFAULT_PATIENCE = Patience()


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _warn(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


async def list_machines(options: ListOptions, patience: Patience = _DEFAULT_PATIENCE) -> int:
    """Every machine that a session of ours has rented; 0."""
    async with opened(options, _warn, patience=patience) as account:
        found = await rented(account.api)
    now_utc = time.time()
    for each in found:
        _print(describe(each, now_utc))
    if not found:
        _print("no machine of ours")
    return 0


async def reap_machines(options: ReapOptions, patience: Patience = _DEFAULT_PATIENCE) -> int:
    """End machines whose session's time is over, or those that are named; without --yes only say which. 0."""
    async with opened(options, _warn, patience=patience) as account:
        done = await reap(
            account.api,
            now_utc=time.time(),
            say=_print,
            instance=options.instance,
            session=options.session,
            is_dry=not options.yes,
            bounds=EndBounds(poll_s=options.poll_s),
            api_base=account.facts.base_url,
        )
    if done.meant and not options.yes:
        _print("nothing was ended: --yes ends them")
    return 0
