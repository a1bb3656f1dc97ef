"""The made-up API has the shapes of the real one, keeps its rules, and goes wrong as it is told."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_lambda import API_KEY, FakeLambda, FakeProgram, Life

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
GOOD: dict[str, Any] = {
    "region_name": "us-east-1",
    "instance_type_name": "gpu_1x_h100_sxm5",
    "ssh_key_names": ["laptop"],
    "name": "slob-1",
    "image": {"family": "lambda-stack-24-04"},
    "tags": [{"key": "slo-bench:session", "value": "slob-1"}],
}

REQUIRED = {
    "instance": "id status ssh_key_names file_system_names region instance_type actions",
    "instance type": "name description gpu_description price_cents_per_hour specs",
    "specs": "vcpus memory_gib storage_gib gpus",
    "region": "name description",
    "image": "id created_time updated_time name description family version architecture region",
    "key": "id name public_key",
    "actions": "migrate rebuild restart cold_reboot terminate",
    "offer": "instance_type regions_with_capacity_available",
}
"""Of the document of version 1.10.0."""
OPTIONAL = {
    "instance": "name ip private_ip hostname jupyter_token jupyter_url tags file_system_mounts firewall_rulesets "
    "is_reserved workspace_id image",
    "instance type": "architecture",
}


@pytest.fixture
def fake() -> Iterator[FakeLambda]:
    with FakeLambda() as server:
        server.add_ssh_key("laptop", "ssh-ed25519 AAAA made-up")
        yield server


def asked(
    fake: FakeLambda | FakeProgram, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Status and what was answered: JSON where it is JSON."""
    all_headers = {"Authorization": f"Bearer {API_KEY}", "User-Agent": "a-test/1", **(headers or {})}
    request = urllib.request.Request(
        f"{fake.base_url}{path}", None if body is None else json.dumps(body).encode(), all_headers
    )
    try:
        with OPENER.open(request, timeout=10) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode()


def launched(fake: FakeLambda | FakeProgram, **more: Any) -> tuple[int, Any]:
    return asked(fake, "/instance-operations/launch", {**GOOD, **more})


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def test_every_shape_has_the_fields_of_the_document_and_no_others(fake: FakeLambda) -> None:
    def check(kind: str, row: Mapping[str, Any]) -> None:
        required = set(REQUIRED[kind].split())
        assert required <= set(row) <= required | set(OPTIONAL.get(kind, "").split()), kind

    machine_id = launched(fake)[1]["data"]["instance_ids"][0]
    for _ in range(4):
        for row in (asked(fake, "/instances")[1]["data"][0], asked(fake, f"/instances/{machine_id}")[1]["data"]):
            check("instance", row)
            check("region", row["region"])
            check("actions", row["actions"])
            assert set(row["tags"][0]) == {"key", "value"}
    for name, offer in asked(fake, "/instance-types")[1]["data"].items():
        check("offer", offer)
        check("instance type", offer["instance_type"])
        check("specs", offer["instance_type"]["specs"])
        assert offer["instance_type"]["name"] == name
        for region in offer["regions_with_capacity_available"]:
            check("region", region)
    for row in asked(fake, "/images")[1]["data"]:
        check("image", row)
        check("region", row["region"])
    check("key", asked(fake, "/ssh-keys")[1]["data"][0])
    check("region", asked(fake, "/regions")[1]["data"][0])


def test_a_machine_gets_on_with_every_look(fake: FakeLambda) -> None:
    fake.set(life=Life(looks_without_ip=2, looks_booting=1, terminating_looks=2))
    machine_id = launched(fake)[1]["data"]["instance_ids"][0]
    shown = [asked(fake, f"/instances/{machine_id}")[1]["data"] for _ in range(4)]
    assert [(row["status"], row.get("ip")) for row in shown] == [
        ("booting", None),
        ("booting", None),
        ("booting", "127.0.0.1"),
        ("active", "127.0.0.1"),
    ]
    assert fake.alive() == [machine_id]
    ended = asked(fake, "/instance-operations/terminate", {"instance_ids": [machine_id]})[1]["data"]
    assert [row["status"] for row in ended["terminated_instances"]] == ["terminating"]
    assert fake.alive() == []
    assert [row["status"] for row in asked(fake, "/instances")[1]["data"]] == ["terminating"]
    assert asked(fake, f"/instances/{machine_id}")[1]["data"]["status"] == "terminating"
    assert code(asked(fake, f"/instances/{machine_id}")) == (404, "global/object-does-not-exist")
    assert asked(fake, "/instances")[1]["data"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"ssh_key_names": []},
        {"ssh_key_names": ["laptop", "laptop"]},
        {"quantity": 1},
        {"name": "n" * 65},
        {"tags": [{"key": "slo_bench", "value": "an underscore"}]},
        {"tags": [{"key": "Slo", "value": "a capital"}]},
        {"tags": [{"key": "slo", "value": "v" * 129}]},
        {"tags": [{"key": "s" * 56, "value": ""}]},
        {"user_data": "x" * 1_000_001},
    ],
)
def test_a_launch_that_the_real_api_refuses_is_refused(fake: FakeLambda, wrong: dict[str, Any]) -> None:
    assert code(launched(fake, **wrong)) == (400, "global/invalid-parameters")
    assert fake.account.machines == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"ssh_key_names": ["nobody's"]},
        {"region_name": "the-moon-1"},
        {"instance_type_name": "gpu_1x_tomorrow"},
        {"image": {"family": "windows"}},
    ],
)
def test_a_launch_of_what_is_not_there_is_refused(fake: FakeLambda, wrong: dict[str, Any]) -> None:
    assert code(launched(fake, **wrong)) == (400, "global/object-does-not-exist")
    assert fake.account.machines == []


def test_there_is_no_machine_where_there_is_no_capacity(fake: FakeLambda) -> None:
    refused = (400, "instance-operations/launch/insufficient-capacity")
    assert code(launched(fake, region_name="us-south-1")) == refused
    fake.set(capacity={"gpu_1x_h100_sxm5": ["us-south-1"]})
    assert code(launched(fake)) == refused
    assert launched(fake, region_name="us-south-1")[0] == 200


def test_without_the_key_nothing_is_told(fake: FakeLambda) -> None:
    for wrong in ("", "Bearer another", "Basic another"):
        assert code(asked(fake, "/instances", headers={"Authorization": wrong})) == (401, "global/invalid-api-key")


def test_a_client_by_pythons_own_name_is_turned_away_by_the_proxy(fake: FakeLambda) -> None:
    status, text = asked(fake, "/instances", headers={"User-Agent": "Python-urllib/3.11"})
    assert (status, "1010" in text) == (403, True)


def test_calls_that_come_too_fast_are_told_so_not_in_json(fake: FakeLambda) -> None:
    fake.set(calls_every_s=60.0)
    assert asked(fake, "/instances")[0] == 200
    assert asked(fake, "/instances") == (429, "slow down")
    fake.set(calls_every_s=0.0, launch_every_s=60.0)
    assert [launched(fake)[0], launched(fake)[0], asked(fake, "/instances")[0]] == [200, 429, 200]


def test_a_second_terminate_is_told_that_nobody_knows(fake: FakeLambda) -> None:
    machine_id = fake.add_machine("mine")
    body = {"instance_ids": [machine_id]}
    assert asked(fake, "/instance-operations/terminate", body)[0] == 200
    assert code(asked(fake, "/instance-operations/terminate", body)) == (400, "global/unknown")
    asked(fake, "/instances")
    assert code(asked(fake, "/instance-operations/terminate", body)) == (404, "global/object-does-not-exist")


def test_faults_are_combined_by_giving_several(fake: FakeLambda) -> None:
    fake.add_fault("instances", "internal", after=1, times=2)
    fake.add_fault("instances", "502", since="ssh-keys", times=None)
    seen = [asked(fake, "/instances")[0] for _ in range(4)]
    assert asked(fake, "/ssh-keys")[0] == 200
    seen += [asked(fake, "/instances")[0] for _ in range(2)]
    assert seen == [200, 500, 500, 200, 502, 502]
    fake.clear_faults()
    assert asked(fake, "/instances")[0] == 200
    with pytest.raises(ValueError, match="no fault of launch is called stuck"):
        fake.add_fault("launch", "stuck")


def test_a_launch_may_be_done_and_not_told(fake: FakeLambda) -> None:
    fake.add_fault("launch", "502", is_done=True)
    fake.add_fault("launch", "502")
    fake.add_fault("launch", "no-ids")
    fake.add_fault("launch", "two-ids")
    counts = []
    for _ in range(4):
        status, told = launched(fake)
        counts.append((status, len(told["data"]["instance_ids"]) if status == 200 else None, len(fake.alive())))
    assert counts == [(502, None, 1), (502, None, 1), (200, 0, 2), (200, 2, 4)]


def test_a_machine_may_be_late_in_the_list_and_fall_ill_later(fake: FakeLambda) -> None:
    fake.set(life=Life(hidden_lists=3, looks_without_ip=0, looks_booting=0, active_looks=2, then="preempted"))
    launched(fake)
    lists = [asked(fake, "/instances")[1]["data"] for _ in range(6)]
    assert [[row["status"] for row in rows] for rows in lists] == [[], [], [], ["active"], ["active"], ["preempted"]]


def test_a_machine_that_is_stuck_is_alive_for_ever(fake: FakeLambda) -> None:
    machine_id = fake.add_machine("mine")
    fake.add_fault("terminate", "stuck")
    assert asked(fake, "/instance-operations/terminate", {"instance_ids": [machine_id]})[0] == 200
    assert {asked(fake, "/instances")[1]["data"][0]["status"] for _ in range(5)} == {"terminating"}
    assert fake.alive() == [machine_id]


def test_the_clock_may_be_wrong(fake: FakeLambda) -> None:
    fake.set(date_skew_s=86400.0)
    request = urllib.request.Request(f"{fake.base_url}/regions", headers={"User-Agent": "a-test/1"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        OPENER.open(request, timeout=10)
    with refused.value as error:
        tomorrow = error.headers["Date"]
    fake.set(date_skew_s=0.0)
    with pytest.raises(urllib.error.HTTPError) as refused:
        OPENER.open(request, timeout=10)
    with refused.value as error:
        assert error.headers["Date"][:3] != tomorrow[:3]


def test_every_request_is_written_down_without_the_key(fake: FakeLambda) -> None:
    launched(fake)
    asked(fake, "/instances")
    assert [(each.call, each.method, each.status) for each in fake.seen()] == [
        ("launch", "POST", 200),
        ("instances", "GET", 200),
    ]
    assert fake.seen("launch")[0].body["name"] == "slob-1"
    assert API_KEY not in json.dumps(fake.state())


def test_it_can_be_away_and_come_back_at_the_same_port(fake: FakeLambda) -> None:
    port = fake.port
    fake.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    fake.start()
    assert (fake.port, asked(fake, "/instances")[0]) == (port, 200)


def test_as_a_program_it_takes_the_same_orders(tmp_path: Path) -> None:
    start = {
        "settings": {"life": {"looks_without_ip": 0}},
        "ssh_keys": [{"name": "laptop", "public_key": "ssh-ed25519 AAAA"}],
        "faults": [{"call": "ssh-keys", "kind": "internal"}],
        "machines": [{"name": "another's", "tags": {"owner": "somebody"}}],
    }
    with FakeProgram(tmp_path, start) as fake:
        assert [asked(fake, "/ssh-keys")[0], asked(fake, "/ssh-keys")[0]] == [500, 200]
        fake.set(life=Life(looks_without_ip=0, looks_booting=0))
        mine = launched(fake)[1]["data"]["instance_ids"][0]
        assert asked(fake, f"/instances/{mine}")[1]["data"]["status"] == "active"
        fake.force(mine, "unhealthy")
        assert asked(fake, f"/instances/{mine}")[1]["data"]["status"] == "unhealthy"
        third = fake.add_machine("third", status="booting")
        fake.add_fault("instances", "empty-list")
        assert asked(fake, "/instances")[1]["data"] == []
        fake.add_fault("*", "502", times=None)
        assert asked(fake, "/regions")[0] == 502
        fake.clear_faults()
        fake.add_ssh_key("desk", "ssh-ed25519 BBBB")
        assert [row["name"] for row in asked(fake, "/ssh-keys")[1]["data"]] == ["laptop", "desk"]
        assert len(fake.alive()) == 3
        assert fake.alive()[1:] == [mine, third]
        assert fake.count("launch") == 1
        assert fake.seen("launch")[0].body["name"] == "slob-1"
