"""What an answer of the API means, for calls that read and for calls that cost money."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_lambda import API_KEY, JUPYTER_SECRET, FakeLambda, Life
from pydantic import SecretStr, ValidationError

from cloud.errors import Ambiguous, ApiError, CloudTrouble, CloudUsageError
from cloud.lambda_api import DEFAULT_BASE, LambdaApi, checked_base
from cloud.lambda_models import read_machine, read_machines, what_is_wrong
from cloud.machine import Machine, Order
from cloud.pacing import Pacing

ORDER = Order(
    type_name="gpu_1x_h100_sxm5",
    region="us-east-1",
    ssh_key_name="laptop",
    name="slob-1",
    tags={"slo-bench:session": "slob-1", "slo-bench:expires": "1790000000"},
    image_family="lambda-stack-24-04",
)
UNSURE = (
    "429 408 502 500-html cloudflare not-json wrong-shape empty-body redirect internal internal-409 upstream unknown "
    "429-json upstream-400 "
    "close reset hang truncate dribble"
).split()
"""Every answer, and every way to have none, after which a launch may have been done."""
SURE = (
    "no-capacity wrong-region-filesystem quota invalid-parameters not-exist not-exist-400 bad-key inactive "
    "invalid-address forbidden not-found conflict"
).split()
"""Refusals in the API's own words."""
PASSING = sorted(set(UNSURE) - {"cloudflare", "wrong-shape", "redirect"})
"""What a call that reads is repeated after."""


@pytest.fixture
def fake() -> Iterator[FakeLambda]:
    with FakeLambda() as server:
        server.add_ssh_key("laptop", "ssh-ed25519 AAAA made-up")
        yield server


def client(fake: FakeLambda | str, folder: Path, **more: Any) -> LambdaApi:
    settings: dict[str, Any] = {
        "pacing": Pacing(10000.0, 0.0001, lock_file=folder / "pacing"),
        "base_url": fake if isinstance(fake, str) else fake.base_url,
        "timeout_s": 0.25,
        "launch_timeout_s": 0.25,
        "patience_s": 5.0,
        "backoff_s": 0.001,
        "longest_backoff_s": 0.01,
    }
    return LambdaApi(SecretStr(API_KEY), **{**settings, **more})


def done(api: LambdaApi, *calls: Callable[[LambdaApi], Awaitable[Any]]) -> list[Any]:
    """What each call gave; an exception of ours as it was raised."""

    async def run() -> list[Any]:
        given: list[Any] = []
        async with api:
            for call in calls:
                try:
                    given.append(await call(api))
                except (CloudTrouble, CloudUsageError) as error:
                    given.append(error)
        return given

    return asyncio.run(run())


def launch(api: LambdaApi) -> Awaitable[tuple[str, ...]]:
    return api.launch(ORDER)


def machines(api: LambdaApi) -> Awaitable[tuple[Machine, ...]]:
    return api.machines()


def test_a_machine_is_found_ordered_watched_and_ended(fake: FakeLambda, tmp_path: Path) -> None:
    async def life(api: LambdaApi) -> list[Any]:
        (ours,) = await api.launch(ORDER)
        seen = [await api.machine(ours) for _ in range(3)]
        listed = await api.machines()
        ended = await api.terminate([ours])
        after = [await api.machine(ours), await api.machine(ours), await api.machines()]
        return [ours, seen, listed, ended, after]

    ((ours, seen, listed, ended, after),) = done(client(fake, tmp_path), life)
    machine = Machine(ours, "active", "slob-1", "127.0.0.1", ORDER.tags, "gpu_1x_h100_sxm5", "us-east-1")
    assert seen == [replace(machine, status="booting", host=None), replace(machine, status="booting"), machine]
    assert listed == (machine,)
    assert ended == (ours,)
    assert after == [replace(machine, status="terminating"), None, ()]
    assert fake.count("launch") == 1
    assert fake.seen("launch")[0].body == {
        "region_name": "us-east-1",
        "instance_type_name": "gpu_1x_h100_sxm5",
        "ssh_key_names": ["laptop"],
        "name": "slob-1",
        "image": {"family": "lambda-stack-24-04"},
        "tags": [
            {"key": "slo-bench:session", "value": "slob-1"},
            {"key": "slo-bench:expires", "value": "1790000000"},
        ],
    }
    assert fake.account.unknown_fields == set()


def test_the_lists_say_what_can_be_rented(fake: FakeLambda, tmp_path: Path) -> None:
    types, images, keys = done(
        client(fake, tmp_path), lambda api: api.instance_types(), lambda api: api.images(), lambda api: api.ssh_keys()
    )
    by_name = {each.name: each for each in types}
    h100 = by_name["gpu_1x_h100_sxm5"]
    assert (h100.price_cents_per_hour, h100.gpus, h100.storage_gib) == (429, 1, 2816)
    assert (h100.architecture, h100.regions) == ("x86_64", ("us-east-1", "us-west-1"))
    assert h100.description == "1x H100 (80 GB SXM5)"
    assert by_name["gpu_8x_h100_sxm5"].regions == ()
    assert by_name["gpu_1x_gh200"].architecture == "arm64"
    assert ("lambda-stack-24-04", "x86_64", "us-east-1") in {
        (each.family, each.architecture, each.region) for each in images
    }
    assert [(each.name, each.public_key) for each in keys] == [("laptop", "ssh-ed25519 AAAA made-up")]


def test_cloud_init_is_sent_and_never_shown(fake: FakeLambda, tmp_path: Path) -> None:
    order = replace(ORDER, user_data="#cloud-config\nssh_keys: {}\n")
    assert "cloud-config" not in repr(order)
    done(client(fake, tmp_path), lambda api: api.launch(order))
    assert fake.seen("launch")[0].body["user_data"] == order.user_data


@pytest.mark.parametrize("kind", SURE)
def test_a_launch_that_the_api_itself_refuses_was_surely_not_done(fake: FakeLambda, tmp_path: Path, kind: str) -> None:
    fake.add_fault("launch", kind)
    (error,) = done(client(fake, tmp_path), launch)
    assert isinstance(error, ApiError)
    assert error.code in str(error)
    assert f"HTTP {error.status}" in str(error)
    assert fake.count("launch") == 1


@pytest.mark.parametrize("kind", UNSURE)
def test_after_any_other_answer_nobody_knows_and_a_launch_is_never_sent_twice(
    fake: FakeLambda, tmp_path: Path, kind: str
) -> None:
    fake.add_fault("launch", kind, is_done=True)
    (error,) = done(client(fake, tmp_path), launch)
    assert isinstance(error, Ambiguous)
    assert not isinstance(error, ApiError)
    assert "\n" not in str(error)
    assert fake.count() == 1
    assert len(fake.alive()) == 1


@pytest.mark.parametrize(("kind", "count"), [("no-ids", 0), ("two-ids", 2)])
def test_all_that_a_launch_made_is_told(fake: FakeLambda, tmp_path: Path, kind: str, count: int) -> None:
    fake.add_fault("launch", kind)
    (ids,) = done(client(fake, tmp_path), launch)
    assert len(ids) == count
    assert set(ids) <= set(fake.alive())


def test_without_a_connection_a_launch_was_surely_not_sent(fake: FakeLambda, tmp_path: Path) -> None:
    fake.stop()
    (error,) = done(client(fake, tmp_path), launch)
    assert type(error) is CloudTrouble
    assert "the launch was not sent" in str(error)


def test_a_connection_that_is_not_taken_is_none(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = [_connecting(full.getsockname()) for _ in range(3)]
        try:
            base = f"http://127.0.0.1:{full.getsockname()[1]}/api/v1"
            (error,) = done(client(base, tmp_path, connect_s=0.1, launch_timeout_s=5.0), launch)
        finally:
            for each in fillers:
                each.close()
    assert type(error) is CloudTrouble
    assert "the launch was not sent" in str(error)


def _connecting(address: tuple[str, int]) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(address)
    return made


def test_a_server_without_a_trusted_certificate_gets_no_launch_and_no_key(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).parents[1] / "localhost.pem")
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(10))
        writer.close()

    async def run() -> CloudTrouble:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with server, client(f"https://127.0.0.1:{port}/api/v1", tmp_path) as api:
            with pytest.raises(CloudTrouble) as refused:
                await api.launch(ORDER)
        return refused.value

    error = asyncio.run(run())
    assert type(error) is CloudTrouble
    assert "the launch was not sent" in str(error)
    assert got == []


def test_a_cancelled_launch_stays_cancelled(fake: FakeLambda, tmp_path: Path) -> None:
    fake.add_fault("launch", "hang", is_done=True)

    async def cut(api: LambdaApi) -> bool:
        task = asyncio.ensure_future(api.launch(ORDER))
        await asyncio.to_thread(fake.wait_for, "launch")
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert done(client(fake, tmp_path, launch_timeout_s=20.0), cut) == [True]
    assert fake.count("launch") == 1


@pytest.mark.parametrize("kind", PASSING)
def test_a_call_that_reads_is_repeated_until_it_is_answered(fake: FakeLambda, tmp_path: Path, kind: str) -> None:
    machine_id = fake.add_machine("another's")
    fake.add_fault("instances", kind, times=2)
    (listed,) = done(client(fake, tmp_path), machines)
    assert [each.id for each in listed] == [machine_id]
    assert fake.count("instances") == 3


def test_a_call_that_reads_is_repeated_while_nobody_listens(fake: FakeLambda, tmp_path: Path) -> None:
    async def back(api: LambdaApi) -> Any:
        fake.stop()
        task = asyncio.ensure_future(api.machines())
        await asyncio.sleep(0.02)
        fake.start()
        return await task

    assert done(client(fake, tmp_path), back) == [()]


@pytest.mark.parametrize("kind", PASSING)
def test_its_patience_has_an_end_and_an_unreadable_list_is_never_an_empty_one(
    fake: FakeLambda, tmp_path: Path, kind: str
) -> None:
    fake.add_fault("instances", kind, times=None)
    started_s = time.monotonic()
    (error,) = done(client(fake, tmp_path, patience_s=0.05, timeout_s=0.1), machines)
    assert time.monotonic() - started_s < 3.0
    assert type(error) is CloudTrouble
    assert str(error).endswith("gave up after 0.05 s")
    assert fake.count("instances") >= 1


@pytest.mark.parametrize("kind", [*SURE, "cloudflare", "wrong-shape", "redirect"])
def test_what_asking_again_will_not_change_is_told_at_once(fake: FakeLambda, tmp_path: Path, kind: str) -> None:
    fake.add_fault("instances", kind, times=None)
    (error,) = done(client(fake, tmp_path), machines)
    assert isinstance(error, ApiError) == (kind in SURE)
    assert isinstance(error, CloudTrouble)
    assert fake.count() == 1


def test_too_many_is_backed_off_from_longer_each_time(fake: FakeLambda, tmp_path: Path) -> None:
    fake.add_fault("instances", "429", times=4)
    api = client(fake, tmp_path, backoff_s=0.02, longest_backoff_s=0.08)
    assert done(api, machines) == [()]
    moments = [each.at_s for each in fake.seen("instances")]
    gaps = [after - before for before, after in pairwise(moments)]
    assert len(gaps) == 4
    assert all(gap >= least for gap, least in zip(gaps, (0.02, 0.04, 0.08, 0.08), strict=True))


def test_the_providers_own_word_for_how_long_to_wait_counts(tmp_path: Path) -> None:
    answers = (
        b"HTTP/1.1 429 Slow\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"data": []}',
    )
    came: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.append(time.monotonic())
        writer.write(answers[len(came) - 1])
        await writer.drain()
        writer.close()

    async def run() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, client(f"http://127.0.0.1:{port}/api/v1", tmp_path) as api:
            return await api.machines()

    assert asyncio.run(run()) == ()
    assert came[1] - came[0] >= 1.0


def test_only_the_apis_own_word_makes_a_machine_gone(fake: FakeLambda, tmp_path: Path) -> None:
    machine_id = fake.add_machine("mine")
    for kind in ("not-found", "bad-key", "forbidden"):
        fake.add_fault("instance", kind)
    found = done(client(fake, tmp_path), *[lambda api: api.machine(machine_id)] * 4)
    assert [type(each) for each in found] == [ApiError, ApiError, ApiError, Machine]
    for kind in ("not-exist", "not-exist-400"):
        fake.add_fault("instance", kind)
    assert done(client(fake, tmp_path), *[lambda api: api.machine(machine_id)] * 2) == [None, None]


def test_a_machine_of_another_id_is_not_the_one_that_was_asked_for(fake: FakeLambda, tmp_path: Path) -> None:
    machine_id = fake.add_machine("mine")
    fake.account.find(machine_id).id = "another"
    fake.account.machines.append(replace(fake.account.machines[0], id=machine_id, name="x"))
    real = fake.account._one
    fake.account._one = lambda _: real("another")  # type: ignore[method-assign]
    (error,) = done(client(fake, tmp_path), lambda api: api.machine(machine_id))
    assert str(error) == f"the API answered with machine another when it was asked for {machine_id}"


def test_an_id_cannot_become_another_route(fake: FakeLambda, tmp_path: Path) -> None:
    assert done(client(fake, tmp_path), lambda api: api.machine("../ssh-keys?x=1")) == [None]
    assert fake.seen()[0].path == "/api/v1/instances/..%2Fssh-keys%3Fx%3D1"


@pytest.mark.parametrize("kind", UNSURE)
def test_nobody_knows_what_became_of_a_terminate_without_a_clear_answer(
    fake: FakeLambda, tmp_path: Path, kind: str
) -> None:
    machine_id = fake.add_machine("mine")
    fake.add_fault("terminate", kind, is_done=True)
    (error,) = done(client(fake, tmp_path), lambda api: api.terminate([machine_id]))
    assert isinstance(error, Ambiguous)
    assert fake.count("terminate") == 1


def test_only_those_that_the_api_names_are_being_terminated(fake: FakeLambda, tmp_path: Path) -> None:
    machine_id = fake.add_machine("mine")
    fake.add_fault("terminate", "empty-list")
    calls = [lambda api: api.terminate([machine_id])] * 3
    none, ours, again = done(client(fake, tmp_path), *calls)
    assert (none, ours) == ((), (machine_id,))
    assert isinstance(again, Ambiguous)  # it is terminating already: look
    gone = done(client(fake, tmp_path), machines, machines, *calls[:1])[-1]
    assert isinstance(gone, ApiError)
    assert gone.code == "global/object-does-not-exist"


@pytest.mark.parametrize("status", ["active", "booting", "unhealthy", "preempted", "terminating", "dreaming"])
def test_every_status_but_terminated_is_alive(fake: FakeLambda, tmp_path: Path, status: str) -> None:
    machine_id = fake.add_machine("mine", status=status)
    (machine,) = done(client(fake, tmp_path), lambda api: api.machine(machine_id))
    assert (machine.status, machine.is_alive) == (status, True)


def test_a_machine_that_is_shown_as_terminated_is_not(fake: FakeLambda, tmp_path: Path) -> None:
    fake.set(life=Life(terminating_looks=0, is_shown_terminated=True))
    ours, _, listed = done(
        client(fake, tmp_path), launch, lambda api: api.terminate(fake.alive()), lambda api: api.machines()
    )
    assert [(each.id, each.is_alive) for each in listed] == [(ours[0], False)]


def test_a_machine_of_which_little_is_told_can_still_be_read() -> None:
    assert read_machines(b'{"data": [{"id": "1", "status": "active", "name": null, "ip": "", "tags": null}]}') == (
        Machine(id="1", status="active", name="", host=None, tags={}, type_name="", region=""),
    )
    assert read_machine(b'{"data": {"id": "1", "status": "x", "more": [1]}, "page": 2}').id == "1"


def test_types_as_a_list_are_an_error_and_not_types_without_capacity(fake: FakeLambda, tmp_path: Path) -> None:
    fake.account._list = lambda _: []  # type: ignore[method-assign]
    (error,) = done(client(fake, tmp_path), lambda api: api.instance_types())
    assert str(error) == "GET /instance-types: the answer cannot be read (data: dict_type)"


def test_the_clock_of_the_api_is_known_after_its_first_answer(fake: FakeLambda, tmp_path: Path) -> None:
    fake.set(date_skew_s=3600.0)
    api = client(fake, tmp_path)
    assert api.server_date_utc is None
    done(api, machines)
    assert api.server_date_utc is not None
    assert 3590 < (api.server_date_utc - datetime.now(UTC)).total_seconds() < 3610


def test_we_call_ourselves_by_our_own_name(fake: FakeLambda, tmp_path: Path) -> None:
    done(client(fake, tmp_path), machines)
    done(client(fake, tmp_path, user_agent="another/2"), machines)
    assert [each.user_agent for each in fake.seen()] == ["slo-bench-cloud/1", "another/2"]


def test_a_proxy_of_the_environment_does_not_get_what_is_for_this_machine(
    fake: FakeLambda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert done(client(fake, tmp_path), machines) == [()]


@pytest.mark.parametrize("call", ["launch", "instances", "instance", "terminate"])
@pytest.mark.parametrize("kind", ["truncate", "wrong-shape", "bad-key", "502"])
def test_no_secret_is_in_an_error_its_traceback_or_a_log(
    fake: FakeLambda, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str, kind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    machine_id = fake.add_machine("mine")
    fake.add_fault(call, kind, times=None)
    calls: dict[str, Callable[[LambdaApi], Awaitable[Any]]] = {
        "launch": launch,
        "instances": machines,
        "instance": lambda api: api.machine(machine_id),
        "terminate": lambda api: api.terminate([machine_id]),
    }
    (error,) = done(client(fake, tmp_path, patience_s=0.01), calls[call])
    assert isinstance(error, CloudTrouble)
    told = "".join(traceback.format_exception(error)) + repr(error) + caplog.text
    assert API_KEY not in told
    assert JUPYTER_SECRET not in told


def test_no_jupyter_token_comes_out_of_the_parser(fake: FakeLambda, tmp_path: Path) -> None:
    machine_id = fake.add_machine("mine")
    one, listed = done(client(fake, tmp_path), lambda api: api.machine(machine_id), machines)
    assert one.id == machine_id
    assert JUPYTER_SECRET not in repr((one, listed))


def test_what_cannot_be_read_is_not_in_the_error_that_says_so() -> None:
    with pytest.raises(ValidationError) as wrong:
        read_machine(f'{{"data": {{"id": ["{JUPYTER_SECRET}"], "status": 1}}}}'.encode())
    assert JUPYTER_SECRET not in str(wrong.value)
    assert what_is_wrong(wrong.value) == ("data.id: string_type", True)


def test_a_key_that_the_api_repeats_is_hidden(
    fake: FakeLambda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("lambda_shapes").REFUSALS, "bad-key", (401, f"global/{API_KEY}"))
    fake.add_fault("instances", "bad-key")
    (error,) = done(client(fake, tmp_path), machines)
    assert "global/[API key]" in str(error)
    assert API_KEY not in str(error)


@pytest.mark.parametrize(
    "base", ["http://cloud.lambda.ai/api/v1", "http://localhost.example.com/api/v1", "http://128.0.0.1/api/v1"]
)
def test_the_key_is_not_sent_unencrypted_to_another_machine(base: str, tmp_path: Path) -> None:
    with pytest.raises(CloudUsageError, match="over plain http: use https"):
        client(base, tmp_path)


@pytest.mark.parametrize(
    "base",
    ["", "cloud.lambda.ai", "ftp://localhost/api", "https://", "https://user:word@host/api", "https://host/api?x=1",
     "https://host/api#x", "http://[::1"],
)  # fmt: skip
def test_what_is_no_address_of_an_api_is_refused_in_one_line(base: str) -> None:
    with pytest.raises(CloudUsageError) as refused:
        checked_base(base)
    assert "\n" not in str(refused.value)
    assert "word" not in str(refused.value)


@pytest.mark.parametrize(
    "base",
    [DEFAULT_BASE, "http://localhost:1/api/v1", "http://127.0.0.1:1", "http://127.9.9.9/x", "http://[::1]:80/api",
     "https://example.com/api/v1"],
)  # fmt: skip
def test_https_and_loopback_are_addresses(base: str) -> None:
    assert checked_base(f"{base}/").rstrip("/") == checked_base(base).rstrip("/")
