"""A made-up Lambda API on loopback: a real HTTP server before an `Account`, which says what it answers.

    with FakeLambda() as fake:
        fake.add_fault("launch", "hang", is_done=True)
        ... LambdaApi(SecretStr(API_KEY), base_url=fake.base_url, ...)
        assert fake.count("launch") == 1 and fake.alive() == []

The same as a program, for tools that are started as one: `FakeProgram(folder)` starts it and has the same methods,
which go through routes under /_test/. By hand:

    python tests/cloud/fake_lambda.py --port-file PORT [--state START.json] [--until-stdin-closes]

START.json, and what POST /_test/start takes, in any part: {"settings": {...}, "faults": [{"call", "kind", ...}],
"ssh_keys": [{"name", "public_key"}], "machines": [{"name", "tags", "status"}]}. GET /_test/state tells everything.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parent))  # as a program, and where a test's own path lacks this folder

from lambda_account import Account, Seen
from lambda_faults import Answer, Fault
from lambda_machines import Life
from lambda_shapes import API_KEY, JUPYTER_SECRET

__all__ = ["API_KEY", "JUPYTER_SECRET", "Account", "FakeLambda", "FakeProgram", "Fault", "Life", "Seen"]

_START_S = 20.0
_DRIBBLE_S = 0.05
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER without patience: closing resets."""


class FakeLambda:
    """The server in a thread of this process. `account` is what it knows; the methods are short forms for tests."""

    def __init__(self, *, api_key: str = API_KEY) -> None:
        self.account = Account(api_key=api_key)
        self.api_key = api_key
        self.port = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1"

    def start(self) -> None:
        """Begin, or begin again at the same port."""
        self._server = _Server(self.account, self.port)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Connections are refused, and calls that hang are let go."""
        server, thread, self._server = self._server, self._thread, None
        if server is not None and thread is not None:
            server.is_over.set()
            server.shutdown()
            thread.join(_START_S)
            server.server_close()

    def start_with(self, told: Mapping[str, Any]) -> None:
        """Settings, faults, keys and machines, in the form of START.json."""
        start_with(self.account, told)

    def add_fault(self, call: str, kind: str, **more: Any) -> None:
        """As in Fault: after, times, since, is_done."""
        self.account.add_fault(Fault(call, kind, **more))

    def clear_faults(self) -> None:
        self.account.clear_faults()

    def set(self, **settings: Any) -> None:
        """Any field of Settings; life=Life(...) is for machines from now on."""
        apply_settings(self.account, settings)

    def add_ssh_key(self, name: str, public_key: str) -> None:
        self.account.add_ssh_key(name, public_key)

    def add_machine(self, name: str = "", **more: Any) -> str:
        return self.account.add_machine(name, **more)

    def force(self, machine_id: str, status: str | None) -> None:
        """The machine has this status from now on; None: it lives on as its Life says."""
        with self.account.lock:
            self.account.find(machine_id).forced = status

    def alive(self) -> list[str]:
        return self.account.alive()

    def seen(self, call: str | None = None) -> list[Seen]:
        return self.account.seen(call)

    def count(self, call: str | None = None) -> int:
        return self.account.count(call)

    def wait_for(self, call: str, count: int = 1) -> None:
        """Until so many calls of this name have come; blocks the thread."""
        _wait_for(lambda: self.count(call) >= count)

    def state(self) -> dict[str, Any]:
        return self.account.state()


class FakeProgram:
    """The same in a process of its own, so that it outlives whatever a test kills. It ends with this process."""

    def __init__(self, folder: Path, start: Mapping[str, Any] | None = None) -> None:
        self._port_file = folder / "fake_lambda.port"
        self._start_file = folder / "fake_lambda.json"
        self._start_file.write_text(json.dumps(start or {}))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.api_key = API_KEY

    def __enter__(self) -> Self:
        command = [sys.executable, __file__, "--port-file", str(self._port_file), "--state", str(self._start_file)]
        self._process = subprocess.Popen(
            [*command, "--until-stdin-closes"], stdin=subprocess.PIPE, start_new_session=True
        )
        deadline_s = time.monotonic() + _START_S
        while not self._port_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.__exit__(None, None, None)
                raise RuntimeError("the made-up API did not start")
            time.sleep(0.01)
        self.port = int(self._port_file.read_text())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1"

    def start_with(self, told: Mapping[str, Any]) -> None:
        self._call("start", told)

    def add_fault(self, call: str, kind: str, **more: Any) -> None:
        self.start_with({"faults": [asdict(Fault(call, kind, **more))]})

    def clear_faults(self) -> None:
        self._call("clear-faults", {})

    def set(self, **settings: Any) -> None:
        if is_dataclass(settings.get("life")):
            settings["life"] = asdict(settings["life"])
        self.start_with({"settings": settings})

    def add_ssh_key(self, name: str, public_key: str) -> None:
        self.start_with({"ssh_keys": [{"name": name, "public_key": public_key}]})

    def add_machine(self, name: str = "", **more: Any) -> str:
        return str(self._call("machine", {"name": name, **more})["id"])

    def force(self, machine_id: str, status: str | None) -> None:
        self._call("force", {"id": machine_id, "status": status})

    def alive(self) -> list[str]:
        return list(self.state()["alive"])

    def seen(self, call: str | None = None) -> list[Seen]:
        return [each for row in self.state()["requests"] if call in (None, (each := Seen(**row)).call)]

    def count(self, call: str | None = None) -> int:
        return len(self.seen(call))

    def wait_for(self, call: str, count: int = 1) -> None:
        _wait_for(lambda: self.count(call) >= count)

    def state(self) -> dict[str, Any]:
        return dict(self._call("state", None))

    def _call(self, name: str, told: Mapping[str, Any] | None) -> Any:
        body = None if told is None else json.dumps(told).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/_test/{name}", data=body)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_START_S) as response:
            return json.load(response)


def _wait_for(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"it did not happen in {_START_S:g} s")
        time.sleep(0.01)


def start_with(account: Account, told: Mapping[str, Any]) -> None:
    """Add what is told to what the account knows."""
    apply_settings(account, told.get("settings", {}))
    for fault in told.get("faults", []):
        account.add_fault(Fault(**fault))
    for key in told.get("ssh_keys", []):
        account.add_ssh_key(key["name"], key["public_key"])
    for machine in told.get("machines", []):
        account.add_machine(**machine)


def apply_settings(account: Account, settings: Mapping[str, Any]) -> None:
    """Fields of Settings by name; of a life that is told as a table, only the fields that it names."""
    with account.lock:
        for name, value in settings.items():
            is_table = name == "life" and isinstance(value, Mapping)
            setattr(account.settings, name, replace(account.settings.life, **value) if is_table else value)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, account: Account, port: int) -> None:
        self.account = account
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what tests are about."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._do()

    def do_POST(self) -> None:
        self._do()

    def do_DELETE(self) -> None:
        self._do()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name is the base class's
        """Requests are in the account."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate((timestamp or time.time()) + self.server.account.settings.date_skew_s, usegmt=True)

    def _do(self) -> None:
        self.close_connection = True
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/_test/"):
            told = _steered(self.server.account, self.path.removeprefix("/_test/"), json.loads(body or b"null"))
            self._send(Answer(200, json.dumps(told).encode()))
            return
        self._send(self.server.account.answer(self.command, self.path, self.headers, body))

    def _send(self, answer: Answer) -> None:
        if answer.cut == "hang":
            self.server.is_over.wait(self.server.account.settings.hold_s)
        if answer.cut == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if answer.cut in ("hang", "reset", "close"):
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if answer.cut == "dribble":
            self._dribble(answer.body)
        else:
            self.wfile.write(answer.body[: len(answer.body) // 2] if answer.cut == "truncate" else answer.body)

    def _dribble(self, body: bytes) -> None:
        """Always alive, never done: no time-out of a single read ends it."""
        for index in range(len(body)):
            if self.server.is_over.wait(_DRIBBLE_S):
                return
            self.wfile.write(body[index : index + 1])
            self.wfile.flush()


def _steered(account: Account, name: str, told: Any) -> Any:
    if name == "start":
        start_with(account, told)
    elif name == "clear-faults":
        account.clear_faults()
    elif name == "machine":
        return {"id": account.add_machine(**told)}
    elif name == "force":
        with account.lock:
            account.find(told["id"]).forced = told["status"]
    return account.state()


def main() -> None:
    """Serve until a signal, or until the one that started it closes its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--until-stdin-closes", action="store_true")
    options = parser.parse_args()
    fake = FakeLambda()
    fake.port = options.port
    if options.state is not None:
        fake.start_with(json.loads(options.state.read_text()))
    with fake, suppress(KeyboardInterrupt):
        whole = options.port_file.with_suffix(".new")
        whole.write_text(str(fake.port))
        whole.replace(options.port_file)
        if options.until_stdin_closes:
            sys.stdin.buffer.read()
        else:
            threading.Event().wait()


if __name__ == "__main__":
    main()
