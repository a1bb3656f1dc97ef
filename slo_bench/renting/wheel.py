"""The wheel that is sent to a machine, and the versions that it was tried with here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import slo_bench
from slo_bench.environment import git_state
from traffic.errors import EngineError, UsageError

_BUILD_S = 300.0
_NAME = "slo-bench"


@dataclass(frozen=True, slots=True)
class Wheel:
    """file: the wheel; origin: what it was made from, in words."""

    file: Path
    origin: str


def make_wheel(folder: Path) -> Wheel:
    """Build it from this checkout, else pack what is installed. Raises UsageError and EngineError in one line."""
    root = checkout()
    if root is None:
        return Wheel(_packed(folder), f"slo-bench {slo_bench.__version__} as it is installed here (no checkout)")
    state = git_state(Path(slo_bench.__file__).parent)
    return Wheel(_built(root, folder), f"this checkout{f', commit {state[:12]}{state[40:]}' if state else ''}")


def checkout() -> Path | None:
    """The checkout that this program runs from; None where it was installed without one."""
    root = Path(slo_bench.__file__).resolve().parents[1]
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return None
    return root if project.get("name") == _NAME else None


def _built(root: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--wheel-dir", str(folder), str(root)]
    if not _has_pip():
        uv = shutil.which("uv")
        if uv is None:
            raise UsageError(f"neither pip nor uv is here to build the wheel: {sys.executable} -m ensurepip")
        command = [uv, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(root)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"the wheel could not be built: {error}") from None
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["no word came"])[-1]
        raise EngineError(f"the wheel could not be built from {root}: {last}")
    return found[0]


def _has_pip() -> bool:
    asked = [sys.executable, "-m", "pip", "--version"]
    return subprocess.run(asked, capture_output=True, timeout=_BUILD_S, check=False).returncode == 0


def _packed(folder: Path) -> Path:
    """The installed files as the wheel that they came from."""
    ours = distribution(_NAME)
    path = folder / f"slo_bench-{slo_bench.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in ours.files or []:
            place = Path(str(ours.locate_file(file)))
            if ".." not in file.parts and "__pycache__" not in file.parts and place.is_file():
                wheel.write(place, str(file))
    return path


def constraints() -> str:
    """The versions of everything that slo-bench needs, as they are installed here, for pip."""
    known = {_plain(each.metadata["Name"]): each for each in distributions() if each.metadata["Name"]}
    wanted, todo = set[str](), [_plain(_NAME)]
    while todo:
        name = todo.pop()
        if name in known and name not in wanted:
            wanted.add(name)
            todo += _needs(known[name])
    lines = [f"{name}=={known[name].version}" for name in sorted(wanted - {_plain(_NAME)}) if _is_public(known[name])]
    return "".join(f"{line}\n" for line in lines)


def _needs(found: Distribution) -> list[str]:
    """Names of what it needs, without what only its extras do."""
    plain = [text for text in found.requires or [] if not re.search(r"extra\s*==", text)]
    return [_plain(match[0]) for text in plain if (match := re.match(r"[A-Za-z0-9._-]+", text))]


def _is_public(found: Distribution) -> bool:
    """Whether another machine can have this version too: none of a folder here, none with a local part."""
    return "+" not in found.version and found.read_text("direct_url.json") is None


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
