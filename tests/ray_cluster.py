"""A Ray cluster on this machine: a head and a far node of one core each, ended by process id.

The far node counts CLOCK_MONOTONIC from another start than this machine where the kernel allows that (a time namespace,
which takes root), as a node elsewhere does.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FAR_S = 1000
"""How far the far node's clock is from this machine's."""

START_LIMIT_S = 90.0
IN_ANOTHER_TIME = ["unshare", "--time", "--monotonic", str(FAR_S), "--boottime", str(FAR_S)]


def can_shift_time() -> bool:
    with suppress(OSError):
        return subprocess.run([*IN_ANOTHER_TIME, "true"], capture_output=True, check=False).returncode == 0
    return False


class RayCluster:
    """address: for --ray-address. variables: that whoever meets it must have in its environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.variables = {
            "RAY_usage_stats_enabled": "0",
            "RAY_AUTH_MODE": "token",  # nobody else on this machine may run anything in it
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }

    def add(self, *where: str, wrapper: list[str]) -> int:
        """Start a node of one core; the number of its process group."""
        said = (self._folder / f"node-{len(self._nodes)}.txt").open("wb")
        ray = [str(Path(sys.executable).with_name("ray")), "start", *where, "--num-cpus", "1", "--block"]
        sizes = ["--object-store-memory", "80000000", "--disable-usage-stats"]
        with said:
            node = subprocess.Popen(
                [*wrapper, *ray, *sizes],
                env={**os.environ, **self.variables},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._nodes.append(node)
        end_s = time.monotonic() + START_LIMIT_S
        while b"will now block forever" not in (words := Path(said.name).read_bytes()):
            assert node.poll() is None, words.decode()
            assert time.monotonic() < end_s, words.decode()
            time.sleep(0.1)
        return node.pid

    def end(self) -> None:
        for node in reversed(self._nodes):
            node.terminate()
        for node in self._nodes:
            with suppress(subprocess.TimeoutExpired):
                node.wait(timeout=20)
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)  # what its head left
            node.wait(timeout=5)


@contextmanager
def ray_cluster() -> Iterator[tuple[RayCluster, int]]:
    """A cluster of two nodes, and the process group of the far one."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # its sockets' paths must be short
    cluster = RayCluster(folder)
    try:
        head = ("--head", "--port", str(cluster.port), "--temp-dir", str(folder), "--include-dashboard=false")
        cluster.add(*head, wrapper=[])
        far = cluster.add("--address", cluster.address, wrapper=IN_ANOTHER_TIME if can_shift_time() else [])
        yield cluster, far
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)
