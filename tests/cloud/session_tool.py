"""A session in a process of its own: `python session_tool.py JSON`, as `Tool` in sessions.py starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import sessions

from cloud.errors import CloudTrouble, NotConfirmed
from cloud.session_file import WatchdogFacts
from slo_bench.cli import run_with_signals


def main(told: dict[str, object]) -> int:
    kept = SimpleNamespace(**told)
    machine = SimpleNamespace(**kept.machine)
    machine.key = Path(machine.key)
    fake = SimpleNamespace(base_url=kept.base_url, account=SimpleNamespace(api_key=kept.key))
    place = sessions.Place(Path(kept.folder), fake, machine, max_minutes=kept.max_minutes, request=kept.request)
    place.watchdog = WatchdogFacts(**kept.watchdog)
    place.said = SimpleNamespace(append=lambda text: print(text, flush=True))
    kit = getattr(sessions, kept.kit)()

    async def work() -> int:
        try:
            outcome = await (place.run(kit) if kept.action == "run" else place.resume(kit))
        except NotConfirmed as error:
            print(f"{error}\n{error.rescue}", flush=True)
            return 4
        except CloudTrouble as error:
            print(error, flush=True)
            return 4
        return 4 if outcome.trouble else 0

    return run_with_signals(work, is_virtual=False)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
