"""What is looked at before anything costs: each refusal is one line, and nothing but reading has been asked for."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_lambda import API_KEY
from sessions import FAMILY, TYPE, Place

from cloud.errors import CloudError, CloudTrouble, CloudUsageError
from cloud.preflight import Ready, Wish, check_labels, preflight
from cloud.session_file import EXPIRES_TAG, SESSION_TAG

KEYGEN = shutil.which("ssh-keygen")
OURS = {SESSION_TAG: "slob-1", EXPIRES_TAG: "4102444800"}

pytestmark = pytest.mark.skipif(KEYGEN is None, reason="not installed here: ssh-keygen")


@pytest.fixture(scope="module")
def made_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two pairs: `ours`, and `locked` with a passphrase."""
    folder = tmp_path_factory.mktemp("keys")
    for name, passphrase in (("ours", ""), ("locked", "made-up")):
        command = [str(KEYGEN), "-q", "-t", "ed25519", "-N", passphrase, "-C", "a comment", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=30)
    return folder


class Desk:
    """A computer with keys in `~/.ssh`, and an account that has the public half of `ours` under the name laptop-2."""

    def __init__(self, office: Place, keys: Path) -> None:
        self.fake = office.fake
        self.office = office
        self.home = office.folder / "home"
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        for each in keys.iterdir():
            shutil.copy2(each, self.home / ".ssh" / each.name)
        self.private = self.home / ".ssh" / "ours"
        self.fake.add_ssh_key("laptop-2", (keys / "ours.pub").read_text())
        self.wish = Wish(
            type_name=TYPE,
            ssh_key="laptop-2",
            image_family=FAMILY,
            max_minutes=300.0,
            home=office.folder / "runs" / "slob-1",
            min_free_bytes=1,
        )

    def ready(self, **more: Any) -> Ready:
        async def look() -> Ready:
            async with self.office.api() as api:
                return await preflight(api, replace(self.wish, **more), ssh_home=self.home)

        return asyncio.run(look())

    def refusal(self, kind: type[CloudError] = CloudUsageError, **more: Any) -> str:
        """What is said, of exactly this kind, in one line without the key, and after nothing but reading."""
        with pytest.raises(CloudError) as refused:
            self.ready(**more)
        assert type(refused.value) is kind
        assert "\n" not in str(refused.value)
        assert API_KEY not in str(refused.value)
        assert {each.method for each in self.fake.seen()} <= {"GET"}
        assert not self.wish.home.parent.exists()
        return str(refused.value)


@pytest.fixture
def desk(office: Place, made_keys: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Programs that preflight only looks for are stand-ins; no agent has keys."""
    programs = office.folder / "bin"
    programs.mkdir()
    for name in ("ssh", "rsync"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    (programs / "ssh-keygen").symlink_to(str(KEYGEN))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return Desk(office, made_keys)


def test_what_fits_is_told_with_the_most_that_it_can_cost(desk: Desk) -> None:
    ready = desk.ready()
    assert ready.regions == ("us-east-1", "us-west-1")
    assert (ready.key.name, ready.key.identity) == ("laptop-2", desk.private)
    assert ready.type.price_cents_per_hour == 429
    assert ready.ceiling == (
        "gpu_1x_h100_sxm5 in us-east-1, us-west-1 at $4.29/h: ends after 300 min at the latest, $21.45 at most"
    )
    assert [each.method for each in desk.fake.seen()] == ["GET"] * 4


def test_the_dollars_are_the_ceiling_where_they_are_over_first(desk: Desk) -> None:
    assert desk.ready(max_usd=4.29).ceiling.endswith("ends after 60 min at the latest, $4.29 at most")


def test_regions_are_tried_as_they_were_asked_for(desk: Desk) -> None:
    assert desk.ready(regions=("us-west-1", "us-south-1", "us-east-1")).regions == ("us-west-1", "us-east-1")


def test_a_key_may_be_named_by_the_path_of_its_private_half(desk: Desk) -> None:
    assert desk.ready(ssh_key=str(desk.private)).key.name == "laptop-2"


@pytest.mark.parametrize("kind", ["bad-key", "inactive", "forbidden"])
def test_an_account_that_refuses_the_key(desk: Desk, kind: str) -> None:
    desk.fake.add_fault("*", kind, times=None)
    assert desk.refusal().startswith("the API refuses the key: GET /instance-types: HTTP 40")
    assert desk.fake.count() == 1


@pytest.mark.parametrize("kind", ["internal", "wrong-shape"])
@pytest.mark.parametrize("call", ["instance-types", "ssh-keys", "images", "instances"])
def test_an_api_that_cannot_be_read_is_trouble_that_may_pass(desk: Desk, call: str, kind: str) -> None:
    desk.fake.add_fault(call, kind, times=None)
    assert f"GET /{call}" in desk.refusal(CloudTrouble)


@pytest.mark.parametrize("call", ["instance-types", "ssh-keys", "images", "instances"])
def test_an_answer_that_fails_once_is_asked_for_again(desk: Desk, call: str) -> None:
    desk.fake.add_fault(call, "502")
    assert desk.ready().regions == ("us-east-1", "us-west-1")


@pytest.mark.parametrize(("skew_s", "word"), [(-100.0, "ahead of"), (100.0, "behind")])
def test_a_clock_that_is_wrong(desk: Desk, skew_s: float, word: str) -> None:
    desk.fake.set(date_skew_s=skew_s)
    told = desk.refusal()
    seconds = told.removeprefix("this computer's clock is ").split()[0]
    assert 98 <= float(seconds) <= 103
    assert told.endswith(f" s {word} the provider's, and it is what ends the session: set it right")


@pytest.mark.parametrize("skew_s", [-25.0, 25.0])
def test_a_clock_that_is_nearly_right_will_do(desk: Desk, skew_s: float) -> None:
    desk.fake.set(date_skew_s=skew_s)
    assert desk.ready().regions


def test_a_type_that_there_is_not(desk: Desk) -> None:
    assert desk.refusal(type_name="gpu_1x_h100") == (
        "there is no type gpu_1x_h100: gpu_1x_a10 ($1.29/h), gpu_1x_h100_sxm5 ($4.29/h), "
        "gpu_8x_h100_sxm5 ($31.92/h), gpu_1x_gh200 ($2.29/h)"
    )


@pytest.mark.parametrize(
    ("caps", "told"),
    [
        ({"max_minutes": 0.0}, "a session needs a limit above 0"),
        ({"max_usd": 0.0}, "a session needs a limit above 0"),
        ({"max_minutes": 3.0}, "the caps allow 3.0 min and 4.0 min of them are kept"),
        ({"max_usd": 0.1}, "the caps allow 1.4 min and 4.0 min of them are kept"),
    ],
)
def test_caps_that_leave_no_time_for_work(desk: Desk, caps: dict[str, float], told: str) -> None:
    assert desk.refusal(**caps).startswith(told)


def test_a_key_that_neither_side_has(desk: Desk) -> None:
    assert desk.refusal(ssh_key="desktop") == (
        "desktop is neither a file here nor a key of the account (it has: laptop, laptop-2)"
    )


def test_a_key_of_the_account_whose_private_half_is_not_here(desk: Desk) -> None:
    assert desk.refusal(ssh_key="laptop") == (
        f"no private key in {desk.home}/.ssh fits the account's key laptop: give --ssh-key the private key's path"
    )


def test_a_private_key_whose_public_half_the_account_does_not_have(desk: Desk, made_keys: Path) -> None:
    desk.fake.account.ssh_keys[:] = []
    assert desk.refusal(ssh_key=str(made_keys / "ours")) == (
        f"the account has no key for {made_keys}/ours: add its public half to the account (it has none)"
    )


@pytest.mark.parametrize("wanted", ["laptop-2", None])
def test_a_private_key_that_others_can_read(desk: Desk, wanted: str | None) -> None:
    desk.private.chmod(0o640)
    assert desk.refusal(ssh_key=wanted or str(desk.private)) == (
        f"others can read {desk.private} (mode 0640), so ssh refuses it: chmod 600 {desk.private}"
    )


def test_a_key_that_would_have_to_be_asked_for(desk: Desk) -> None:
    locked = desk.home / ".ssh" / "locked"
    desk.fake.add_ssh_key("locked-key", locked.with_suffix(".pub").read_text())
    assert desk.refusal(ssh_key=str(locked)) == (
        f"{locked} cannot be used without asking: if it has a passphrase, ssh-add it first"
    )


def test_an_image_family_that_there_is_not(desk: Desk) -> None:
    assert desk.refusal(image_family="ubuntu-99") == (
        "no image family ubuntu-99 for x86_64: gpu-base-24-04, lambda-stack-24-04"
    )


def test_an_image_that_another_processor_needs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert desk.ready(type_name="gpu_1x_gh200").regions
    listed = desk.fake.account._list

    def without_arm(call: str) -> Any:
        told = listed(call)
        return [each for each in told if each["architecture"] != "arm64"] if call == "images" else told

    monkeypatch.setattr(desk.fake.account, "_list", without_arm)
    assert desk.refusal(type_name="gpu_1x_gh200") == f"no image family {FAMILY} for arm64: none at all"
    assert desk.ready().regions


def test_an_image_that_is_not_where_the_machine_is(desk: Desk) -> None:
    desk.fake.set(capacity={TYPE: ["eu-central-9"]})
    assert desk.refusal() == f"the image family {FAMILY} is not in eu-central-9"


def test_a_machine_of_ours_that_is_still_there(desk: Desk) -> None:
    machine = desk.fake.add_machine("any name", tags=OURS, status="hibernating")
    told = desk.refusal()
    assert told.startswith(f"there is a machine of ours already: {machine} hibernating {TYPE} us-east-1 session slob-1")
    assert told.endswith(" min left): resume or reap it, or allow others")
    assert desk.ready(are_others_allowed=True).regions


def test_machines_of_somebody_else_and_those_that_are_gone_are_no_reason(desk: Desk) -> None:
    desk.fake.add_machine("slob-1")
    desk.fake.add_machine("slob-1", tags={SESSION_TAG: "slob-1"})
    desk.fake.add_machine("slob-1", tags=OURS, status="terminated")
    assert desk.ready().regions


def test_no_machine_is_free(desk: Desk) -> None:
    assert desk.refusal(CloudTrouble, type_name="gpu_8x_h100_sxm5") == (
        "no gpu_8x_h100_sxm5 is free now; free are: gpu_1x_a10, gpu_1x_h100_sxm5, gpu_1x_gh200"
    )


def test_none_is_free_in_the_regions_that_were_asked_for(desk: Desk) -> None:
    assert desk.refusal(CloudTrouble, regions=("us-south-1", "mars-1")).startswith(
        "no gpu_1x_h100_sxm5 is free in us-south-1, mars-1 now; free are: "
    )


def test_nothing_at_all_is_free(desk: Desk) -> None:
    desk.fake.set(capacity={})
    assert desk.refusal(CloudTrouble) == "no gpu_1x_h100_sxm5 is free now; free are: nothing"


def test_a_disk_that_is_too_full_is_found_before_anybody_is_asked(desk: Desk) -> None:
    told = desk.refusal(min_free_bytes=1 << 60)
    assert told.startswith(f"{desk.office.folder} has ")
    assert told.endswith(" GB free and results may need 1152921504.6 GB: free some space")
    assert desk.fake.count() == 0


@pytest.mark.parametrize("program", ["ssh", "rsync", "ssh-keygen"])
def test_a_program_that_is_missing_is_found_before_anybody_is_asked(desk: Desk, program: str) -> None:
    (desk.office.folder / "bin" / program).unlink()
    assert desk.refusal() == f"{program} is not installed here: install it (openssh-client, rsync)"
    assert desk.fake.count() == 0


@pytest.mark.parametrize("name", ["", "s" * 65])
def test_a_name_that_the_provider_would_refuse(name: str) -> None:
    with pytest.raises(CloudUsageError, match=r"is no name for a machine: 1 to 64 signs$"):
        check_labels(name, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Owner", "x"),
        ("slo_bench", "x"),
        ("1st", "x"),
        ("x", "x"),
        ("a" * 56, "x"),
        ("owner\n", "x"),
        ("owner", "v" * 129),
    ],
)
def test_a_tag_that_the_provider_would_refuse(key: str, value: str) -> None:
    with pytest.raises(CloudUsageError, match=r"^the provider refuses the tag '"):
        check_labels("slob-1", [(SESSION_TAG, "slob-1"), (key, value)])


def test_names_and_tags_of_the_longest_kind_are_taken() -> None:
    check_labels("s" * 64, [("a" * 55, "v" * 128), (EXPIRES_TAG, str(int(time.time())))])
