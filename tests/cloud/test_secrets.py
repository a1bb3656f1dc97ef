"""No secret is written down: whole sessions, after each of which every byte of every file here and there is searched.

Beside each secret travels a decoy that is none: it must be found wherever the secret could have been.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_lambda import JUPYTER_SECRET
from laptop import Laptop, at_home
from real_sshd import MISSING
from sessions import wait_for

from cloud.session_file import SessionFolder, State

pytestmark = [pytest.mark.cloud, pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")]

DECOY = f"decoy-{secrets.token_hex(8)}"
TALKS = f"""\
echo "{DECOY} $HF_TOKEN $HF_TOKEN"
printf '{DECOY} %s' "${{HF_TOKEN%????????}}"
sleep 1.5
printf '%s\\n' "${{HF_TOKEN#"${{HF_TOKEN%????????}}"}}"
if [ "$LABEL" = broken ]; then
    mkdir -p "$RUNS_DIR/broken"
    echo "{DECOY} $HF_TOKEN" > "$RUNS_DIR/broken/server.log"
    printf '{DECOY} at last %s' "$HF_TOKEN"
    exit 3
fi
if [ "$LABEL" = held ]; then echo holds; exec sleep 300; fi
"""
"""What every run says: its token, whole and in two writes with several looks between them. `broken` writes it into its
results too, and says it last."""

RUN = "MODEL=Qwen/Qwen3-30B-A3B-FP8 MODE=smoke"
HELD_LOGS = {"here/runs/slob/logs/held.log", "there/slo-bench/slob/jobs/held/out.log"}
STARS = "*" * 35
"""What stands where a token was."""

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Search:
    """All that could hold a secret, by paths that begin with `here` or `there`; `said` is what the command wrote."""

    content: dict[str, bytes]

    @classmethod
    def of(cls, laptop: Laptop, said: str) -> Search:
        print(said)
        content = {"said": said.encode()}
        for name, tree in (("here", laptop.home), ("there", laptop.machine.home)):
            for path in (each for each in tree.rglob("*") if each.is_file()):
                place = "/".join((name, *path.relative_to(tree).parts)).replace(laptop.session.name, "slob")
                content[place] = path.read_bytes()
        return cls(content)

    def holders(self, *words: str) -> set[str]:
        """Where any of these words stands."""
        return {place for place, text in self.content.items() if any(word.encode() in text for word in words)}


@dataclass
class Case:
    """A laptop that passes HF_TOKEN on."""

    laptop: Laptop
    token: str = field(repr=False)

    def start(self, *labels: str) -> subprocess.Popen[str]:
        runs = [word for label in labels for word in ("--run", f"{RUN} LABEL={label}")]
        return self.laptop.start(*self.laptop.rented(), "--pass-env", "HF_TOKEN", *runs)

    def holders_of_key(self, search: Search) -> set[str]:
        return search.holders(*_halves(self.laptop.fake.api_key), JUPYTER_SECRET)

    def holders_of_token(self, search: Search) -> set[str]:
        return search.holders(*_halves(self.token))

    def wait_for_the_run(self) -> None:
        """Until it holds, and its log is home as far as that."""

        def is_held() -> bool:
            logs = (self.laptop.home / "runs").glob("slob-*/logs/held.log")
            return any("holds" in log.read_text() for log in logs)

        wait_for(is_held, 100.0, lambda: "the run did not begin")


def _halves(word: str) -> tuple[str, str]:
    """A secret that came in two writes could be kept in two pieces."""
    return word[: len(word) // 2], word[len(word) // 2 :]


@pytest.fixture
def new_case(tmp_path: Path) -> Iterator[Callable[[str], Case]]:
    with ExitStack() as stack:

        def made(name: str) -> Case:
            token = f"hf_{secrets.token_hex(16)}"
            (tmp_path / name).mkdir()
            laptop = stack.enter_context(at_home(tmp_path / name, before=TALKS))
            laptop.env["HF_TOKEN"] = token
            return Case(laptop, token)

        yield made


def command_lines(*words: str) -> list[str]:
    """Processes whose command line, which everybody may read, has any of these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if any(word in line for word in words)]


def test_a_whole_session_keeps_no_secret(new_case: Callable[[str], Case]) -> None:
    case = new_case("whole")
    tool = case.start("good", "broken")
    said, _ = tool.communicate(timeout=150)
    search = Search.of(case.laptop, said)
    assert tool.returncode == 3, said
    assert case.laptop.fake.alive() == []
    own = {f"there/slo-bench/slob/jobs/{label}/out.log" for label in ("good", "broken")}
    results = {"there/slo-bench/slob/runs/broken/server.log", "here/runs/slob/broken/server.log"}
    logs = {"here/runs/slob/logs/good.log", "here/runs/slob/logs/broken.log", "here/runs/slob/session.log"}
    assert search.holders(DECOY) >= {"said", "here/runs/slob/session.json", *logs, *own, *results}
    assert search.holders("[secret]", STARS) >= {"said", "here/runs/slob/session.json", *logs}
    assert search.holders(STARS) >= own | results
    assert case.holders_of_token(search) == NOTHING
    named = {"here/runs/slob/good/run.json", "here/runs/slob/note.md", "here/runs/slob/watchdog.log"}
    assert search.holders(case.laptop.session.name) >= {"there/slo-bench/slob/jobs/good/job.json", *named}
    assert search.holders(case.laptop.record.machine_ids[0]) >= {"said", "here/runs/slob/session.json"}
    assert case.holders_of_key(search) == NOTHING


def test_a_session_that_is_killed_and_one_whose_key_is_refused_leave_no_secret_either(
    new_case: Callable[[str], Case],
) -> None:
    killed, refused = new_case("killed"), new_case("refused")
    tool_of_killed, tool_of_refused = killed.start("held"), refused.start("held")
    for case in (killed, refused):
        case.wait_for_the_run()
    words = [killed.token, refused.token, killed.laptop.fake.api_key, refused.laptop.fake.api_key]
    assert command_lines(killed.laptop.session.name)
    assert command_lines(*words) == []

    os.killpg(tool_of_killed.pid, signal.SIGKILL)
    refused.laptop.fake.add_fault("*", "bad-key", times=None)
    tool_of_refused.send_signal(signal.SIGTERM)
    # How long the watchdog waits for a resume is no option of the command; the deadline is what it reads again.
    SessionFolder.open(killed.laptop.session).change(deadline_utc=0.0)

    said_by_killed, said_by_refused = (tool.communicate(timeout=60)[0] for tool in (tool_of_killed, tool_of_refused))
    log = killed.laptop.session / "watchdog.log"
    wait_for(lambda: killed.laptop.record.state is State.GONE, 60.0, log.read_text)
    assert killed.laptop.fake.alive() == []
    assert tool_of_refused.returncode == 4, said_by_refused
    assert "$LAMBDA_API_KEY" in said_by_refused.splitlines()[-1]
    for case, said in ((killed, said_by_killed), (refused, said_by_refused)):
        search = Search.of(case.laptop, said)
        assert search.holders(DECOY) >= HELD_LOGS
        assert search.holders(STARS) >= {"there/slo-bench/slob/jobs/held/out.log"}
        assert case.holders_of_token(search) == NOTHING
        told = {"said", "here/runs/slob/session.json", "here/runs/slob/session.log", "here/runs/slob/watchdog.log"}
        assert search.holders(case.laptop.session.name) >= told
        assert case.holders_of_key(search) == NOTHING
    assert "confirmed gone" in log.read_text()
