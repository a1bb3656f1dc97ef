"""How a connection comes about: names looked up once, every address a chance, TLS by name, and any event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from fake_server import FakeServer, in_turn, whole_answer
from flights import PATIENT, fly
from memory_server import MemoryServer

from traffic.connect import Dial, Wire, resolve
from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.records import End, Flight
from traffic.virtual_time import run_virtual

CERTIFICATE = Path(__file__).parents[1] / "localhost.pem"
"""Self-signed for the name localhost, with its key: openssl req -x509 -newkey ec -addext subjectAltName=DNS:..."""


class Net:
    """Takes the place of the loop's doors to the network: who has which addresses, and which of them accept."""

    def __init__(self, names: dict[str, list[str]], *accepting: str) -> None:
        self.names = names
        self.accepting = accepting
        self.lookups: list[str] = []
        self.tried: list[str] = []
        self.server = MemoryServer(in_turn(whole_answer(4)))

    def open(self) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.getaddrinfo, loop.create_connection = self.getaddrinfo, self.create_connection

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        self.lookups.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(2, 1, 6, "", (address, port)) for address in self.names[host]]

    async def create_connection(
        self, make: Callable[[], Wire], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, Wire]:
        self.tried.append(host)
        if host in self.accepting:
            return await self.server.connect(make, host, port)
        if host in self.names:  # a name was dialled: the loop would look it up
            await self.getaddrinfo(host, port)
        number = errno.ECONNREFUSED
        raise OSError(number, os.strerror(number))


def addresses(net: Net, host: str) -> tuple[str, ...]:
    async def run() -> tuple[str, ...]:
        net.open()
        return (await resolve(host, 8000, 1.0)).addresses

    return run_virtual(run())


class TestAddresses:
    def test_an_address_is_taken_as_it_is(self) -> None:
        net = Net({})
        assert [addresses(net, host) for host in ("10.0.0.1", "::1")] == [("10.0.0.1",), ("::1",)]
        assert (net.lookups, net.tried) == ([], [])

    def test_a_name_with_one_address_is_not_tried_before_its_time(self) -> None:
        net = Net({"gpu": ["10.0.0.1"]})
        assert addresses(net, "gpu") == ("10.0.0.1",)
        assert net.tried == []

    def test_an_address_that_accepts_comes_first_and_the_others_stay(self) -> None:
        net = Net({"gpu": ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"]}, "10.0.0.2")
        assert addresses(net, "gpu") == ("10.0.0.2", "10.0.0.1", "10.0.0.3")

    def test_r10_localhost_is_both_loopback_addresses_whatever_the_resolver_says(self) -> None:
        assert addresses(Net({"localhost": ["127.0.0.1"]}, "::1"), "localhost") == ("::1", "127.0.0.1")
        assert addresses(Net({}), "localhost") == ("127.0.0.1", "::1")

    def test_a_name_that_nobody_knows_stays_a_name(self) -> None:
        assert addresses(Net({}), "gpu") == ("gpu",)


class TestEndpoint:
    def test_a_name_is_looked_up_once_and_stays_in_the_host_header(self) -> None:
        net = Net({"gpu": ["10.0.0.1", "10.0.0.2"]}, "10.0.0.2")

        async def run() -> None:
            net.open()
            async with net.server, Endpoint("http://gpu:8000") as endpoint:
                for _ in range(3):
                    assert (await fly(HttpEngine(endpoint, "m"))).end is End.FINISHED
                    await asyncio.sleep(60.0)

        run_virtual(run())
        assert net.lookups == ["gpu"]
        assert net.tried == ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2", "10.0.0.2"]
        assert {received.headers["host"] for received in net.server.received} == {"gpu:8000"}

    def test_the_next_address_is_tried_when_the_first_gives_up_later(self) -> None:
        net = Net({"gpu": ["10.0.0.1", "10.0.0.2"]}, "10.0.0.1")

        async def run() -> list[Flight]:
            net.open()
            async with net.server, Endpoint("http://gpu:8000") as endpoint:
                net.accepting = ("10.0.0.2",)
                moved = await fly(HttpEngine(endpoint, "m"))
                await asyncio.sleep(60.0)
                net.accepting = ()
                return [moved, await fly(HttpEngine(endpoint, "m"))]

        moved, refused = run_virtual(run())
        assert moved.end is End.FINISHED
        assert refused.error == "cannot connect: connection refused"

    def test_an_unknown_name_is_said_to_be_unknown(self) -> None:
        class Nowhere(Net):
            async def create_connection(self, *_: object) -> Any:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        async def run() -> Flight:
            Nowhere({}).open()
            async with Endpoint("http://gpu:8000") as endpoint:
                return await fly(HttpEngine(endpoint, "m"))

        assert run_virtual(run()).error == "cannot connect: the host name is not known"


def test_every_failed_address_is_in_the_error() -> None:
    async def run() -> None:
        Net({}).open()
        with pytest.raises(OSError, match="refused") as caught:
            await Dial(("10.0.0.1", "10.0.0.2", "10.0.0.3"))(asyncio.Protocol, "gpu", 8000)
        assert isinstance(caught.value.__cause__, ExceptionGroup)
        assert len(caught.value.__cause__.exceptions) == 2

    run_virtual(run())


class TestTls:
    @staticmethod
    def flight(
        loop: Callable[[], asyncio.AbstractEventLoop], host: str, ca_file: Path | None
    ) -> tuple[Flight, list[Any]]:
        """One request over TLS, and the names that the client asked for."""
        names: list[Any] = []
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(CERTIFICATE)
        tls.sni_callback = lambda _socket, name, _context: names.append(name)

        async def run() -> Flight:
            async with FakeServer(in_turn(whole_answer(4)), tls=tls) as server:
                url = f"https://{host}:{server.port}"
                async with Endpoint(url, ca_file=ca_file, bounds=PATIENT) as endpoint:
                    await fly(HttpEngine(endpoint, "m"))
                    return await fly(HttpEngine(endpoint, "m"))

        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(run()), names

    @pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
    def test_a_server_proves_its_name(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        flight, names = self.flight(loop, "localhost", CERTIFICATE)
        assert (flight.end, flight.error, flight.output_tokens) == (End.FINISHED, "", 4)
        assert names == ["localhost"], "and the second request goes over the same connection"

    @pytest.mark.parametrize(("host", "ca_file"), [("127.0.0.1", CERTIFICATE), ("localhost", None)])
    def test_a_server_that_cannot_is_not_asked(self, host: str, ca_file: Path | None) -> None:
        flight, _ = self.flight(asyncio.new_event_loop, host, ca_file)
        assert flight.end is End.FAILED
        assert flight.error.startswith("cannot connect: [SSL: CERTIFICATE_VERIFY_FAILED]")


def test_an_answer_reads_the_same_on_the_loop_of_the_command_line() -> None:
    async def run() -> Flight:
        async with FakeServer(in_turn(whole_answer(4))) as server, Endpoint(server.url, bounds=PATIENT) as endpoint:
            return await fly(HttpEngine(endpoint, "m"))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        flight = runner.run(run())
    assert (flight.end, flight.error, flight.output_tokens) == (End.FINISHED, "", 4)
