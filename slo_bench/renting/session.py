"""`slo-bench cloud session` and `resume`: from the options to a session, and what came of it."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from cloud.ending import EndBounds
from cloud.errors import CloudUsageError
from cloud.kit import SessionBounds, SessionOutcome, SessionPlan
from cloud.own_host import OwnHost, own_host_facts
from cloud.preflight import Wish, check_here, preflight
from cloud.rental import LambdaRental, RentalBounds
from cloud.session import new_session_name, over, resume_session, run_session
from cloud.session_file import LoginFacts, RentalFacts, SessionFolder
from slo_bench.renting.account import Account, opened
from slo_bench.renting.kit import Wanted, kit_for, wanted
from slo_bench.renting.options import RESERVE_MINUTES, ResumeOptions, SessionOptions
from slo_bench.renting.outcome import told
from traffic.errors import UsageError

_MIN_FREE_BYTES = 2 << 30
_BOOT_S, _LARGE_BOOT_S, _LARGE_GPUS = 1200.0, 1800.0, 4
"""Large machines boot for twenty minutes and more."""


def say(line: str) -> None:
    """A line while it runs."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


async def session(options: SessionOptions) -> int:
    """Rent, measure, bring home, end: 0 when every run ended well; see `outcome.exit_code`."""
    name = new_session_name()
    what = wanted(options, name, os.environ)
    _check_link(options)
    for line in what.lines():
        say(line)
    home = options.runs_dir / name
    plan = SessionPlan(
        name=name,
        home=home,
        max_minutes=options.minutes,
        max_usd=options.max_usd,
        reserve_s=RESERVE_MINUTES * 60,
        fail_fast=options.fail_fast,
        bounds=SessionBounds(poll_s=options.poll_s),
        request=options.request(),  # type: ignore[arg-type]  # JSON, as pydantic made it
    )
    if options.host is not None:
        check_here(home, _MIN_FREE_BYTES)
        with tempfile.TemporaryDirectory(prefix="slo-bench-kit-") as scratch:
            kit = kit_for(what, Path(scratch), say, usd_per_hour=None)
            outcome = await run_session(plan, kit, OwnHost(own_host_facts(options.host, _login(options))), say)
        return await told(home, outcome)
    async with opened(options, say) as account:
        return await _rented(options, what, plan, account)


async def _rented(options: SessionOptions, what: Wanted, plan: SessionPlan, account: Account) -> int:
    if not account.is_here and (options.ssh_port is not None or options.ssh_config is not None):
        raise UsageError("--ssh-port and --ssh-config go with --host: a rented machine listens where it always does")
    wish = Wish(
        type_name=options.type or "",
        ssh_key=options.ssh_key or "",
        image_family=options.image_family,
        max_minutes=options.minutes,
        max_usd=options.max_usd,
        reserve_s=plan.reserve_s,
        regions=tuple(options.region),
        home=plan.home,
        min_free_bytes=_MIN_FREE_BYTES,
    )
    ready = await preflight(account.api, wish)
    _check_searches(what, ready.budget.work_s)
    say(ready.ceiling)
    facts = RentalFacts(
        api=account.facts,
        type_name=ready.type.name,
        regions=ready.regions,
        image_family=options.image_family,
        ssh_key_name=ready.key.name,
        price_cents_per_hour=ready.type.price_cents_per_hour,
        login=_login(options).model_copy(update={"user": options.ssh_user, "key": ready.key.identity}),
    )
    if options.ssh_port is None:
        facts = facts.model_copy(update={"login": facts.login.model_copy(update={"port": 22})})
    with tempfile.TemporaryDirectory(prefix="slo-bench-kit-") as scratch:
        kit = kit_for(what, Path(scratch), say, usd_per_hour=ready.type.price_cents_per_hour / 100)
        kit = replace(kit, secrets=(*kit.secrets, account.key))
        _confirm(is_agreed=options.yes)
        large = ready.type.gpus > _LARGE_GPUS
        rental = _rental(account, facts, options.poll_s, boot_s=_LARGE_BOOT_S if large else _BOOT_S)
        outcome = await run_session(plan, kit, rental, say)
    return await told(plan.home, outcome)


def _rental(account: Account, facts: RentalFacts, poll_s: float, *, boot_s: float = _BOOT_S) -> LambdaRental:
    return LambdaRental(
        account.api,
        key=account.key,
        facts=facts,
        bounds=RentalBounds(boot_s=boot_s, poll_s=poll_s),
        end=EndBounds(poll_s=poll_s),
        is_loopback_allowed=account.is_here,
    )


async def resume(options: ResumeOptions) -> int:
    """Go on with a session whose process died; its deadline stays. As `session`."""
    home = (options.session or Path()).expanduser()
    record = SessionFolder.open(home).record
    if record.is_over:
        raise CloudUsageError(over(record))
    try:
        asked = SessionOptions.model_validate(dict(record.request))
    except ValidationError as error:
        raise UsageError(f"{home} was made by another version: {error.errors()[0]['msg']}") from None
    if options.api_key_file is not None:
        asked = asked.model_copy(update={"api_key_file": options.api_key_file})
    what = wanted(asked, record.name, os.environ)
    price = record.rental.price_cents_per_hour / 100 or None
    bounds = SessionBounds(poll_s=options.poll_s)
    outcome: SessionOutcome
    with tempfile.TemporaryDirectory(prefix="slo-bench-kit-") as scratch:
        kit = kit_for(what, Path(scratch), say, usd_per_hour=price, is_sent=not record.is_set_up)
        if record.rental.api is None:
            outcome = await resume_session(home, kit, OwnHost(record.rental), say, bounds)
        else:
            async with opened(asked, say, known=record.rental.api) as account:
                kit = replace(kit, secrets=(*kit.secrets, account.key))
                outcome = await resume_session(home, kit, _rental(account, record.rental, options.poll_s), say, bounds)
    return await told(home, outcome)


def _login(options: SessionOptions) -> LoginFacts:
    """How the machine is reached, as far as the options say."""
    key = None if options.ssh_key is None or options.host is None else Path(options.ssh_key).expanduser()
    config = None if options.ssh_config is None else Path(options.ssh_config).expanduser()
    return LoginFacts(user=None, port=options.ssh_port, key=key, config=config)


def _check_link(options: SessionOptions) -> None:
    if options.host is not None and options.ssh_key is not None and not Path(options.ssh_key).expanduser().is_file():
        raise CloudUsageError(f"--ssh-key {options.ssh_key}: with --host it is the path of a private key")


def _check_searches(what: Wanted, work_s: float) -> None:
    """Dollars bound the time too."""
    minutes = sum(run.tune_minutes for run in what.options.runs())
    if minutes * 60 > work_s:
        raise UsageError(
            f"TUNE_MINUTES ({minutes:g} in all) do not fit: --max-usd leaves {work_s / 60:.0f} min for work"
        )


def _confirm(*, is_agreed: bool) -> None:
    """Ask once before money is spent. Raises UsageError for a no, or where nobody can answer."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody is there to agree to the cost: give --yes")
    sys.stderr.write("Rent it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("stopped: nothing was rented")
