import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_server import CLOSE, FakeServer, in_turn, whole_answer
from flights import KEY, PATIENT, ask, fly, one_over_a_socket, over_a_socket

from traffic.connect import Connect, Wire
from traffic.endpoint import Endpoint
from traffic.errors import UsageError
from traffic.http_client import Bounds, Client, base_url, build_client
from traffic.http_engine import HttpEngine
from traffic.http_pool import KEEP_ALIVE_S
from traffic.records import End


class TestConnections:
    def test_r10_every_request_has_a_connection_at_once(self) -> None:
        async def run() -> None:
            handler = in_turn(whole_answer(1))
            async with FakeServer(handler, together=120) as server, Endpoint(server.url) as endpoint:
                engine = HttpEngine(endpoint, "m")
                everyone = asyncio.gather(*(fly(engine, ask(1)) for _ in range(120)))
                flights = await asyncio.wait_for(everyone, 20)
                assert {flight.end for flight in flights} == {End.FINISHED}
                assert server.connections == 120

        asyncio.run(run())

    def test_r11_a_request_on_a_connection_that_was_given_up_goes_out_once_more(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            engine = HttpEngine(endpoint, "m")
            assert (await fly(engine)).end is End.FINISHED
            flight = await fly(engine)
            assert (flight.end, flight.error, endpoint.resent) == (End.FINISHED, "", 1)
            assert [received.connection for received in server.received] == [1, 1, 2]

        over_a_socket(in_turn(whole_answer(4), [CLOSE], whole_answer(4)), use)

    def test_r11_a_fresh_connection_that_closes_is_a_failure(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            flight = await fly(HttpEngine(endpoint, "m"))
            assert flight.end is End.FAILED
            assert "closed the connection" in flight.error
            assert (len(server.received), endpoint.resent) == (1, 0)

        over_a_socket(in_turn([CLOSE], whole_answer(4)), use)

    def test_r11_idle_connections_are_kept_for_less_time_than_servers_keep_them(self) -> None:
        assert KEEP_ALIVE_S < 5

    @pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
    def test_r10_localhost_is_whichever_loopback_address_the_server_has(self, host: str) -> None:
        async def run() -> None:
            async with FakeServer(in_turn(whole_answer(4)), host=host) as server:
                async with Endpoint(f"http://localhost:{server.port}") as endpoint:
                    assert (await fly(HttpEngine(endpoint, "m"))).end is End.FINISHED
                    assert endpoint.url == f"http://localhost:{server.port}"
                assert server.received[0].headers["host"] == f"localhost:{server.port}"

        asyncio.run(run())

    def test_a_proxy_variable_stays_out_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        assert one_over_a_socket(whole_answer(4)).end is End.FINISHED


@contextmanager
def no_more_files() -> Iterator[None]:
    """A process that may open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TestClientFaults:
    def test_r10_too_many_open_files_are_the_clients_fault(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            await fly(HttpEngine(endpoint, "m"))
            await asyncio.sleep(0)
            holders = [socket.socket() for _ in range(3)]
            for holder in holders:
                holder.close()
            async with Endpoint(server.url) as other:
                with no_more_files():
                    flight = await fly(HttpEngine(other, "m"))
            assert flight.end is End.FAILED
            assert flight.error.startswith("client: too many open files (limit ")

        over_a_socket(in_turn(whole_answer(4)), use)

    def test_r10_no_local_port_is_the_clients_fault(self) -> None:
        async def from_nowhere(make: Callable[[], Wire], host: str, port: int) -> tuple[asyncio.Transport, Wire]:
            loop = asyncio.get_running_loop()
            return await loop.create_connection(make, host, port, local_addr=("192.0.2.1", 0))

        flight = one_over_a_socket(
            whole_answer(4), client=lambda **given: build_client(**given | {"connect": from_nowhere})
        )
        assert flight.error.startswith("client: cannot assign requested address")

    def test_an_address_that_refused_beside_one_that_this_machine_lacks_is_the_servers_fault(self) -> None:
        group = ExceptionGroup("tried", [OSError(99, "no such address"), OSError(111, "refused")])

        async def refuse(*_: object) -> tuple[asyncio.Transport, Wire]:
            raise OSError("all failed") from group

        flight = one_over_a_socket(whole_answer(4), client=lambda **given: build_client(**given | {"connect": refuse}))
        assert flight.error == "cannot connect: connection refused"


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "root"),
        [
            ("http://host:8000/v1", "http://host:8000/"),
            ("http://host:8000/v1/", "http://host:8000/"),
            ("https://host/openai/v1", "https://host/openai"),
            (" http://[::1]:8000 ", "http://[::1]:8000/"),
        ],
    )
    def test_a_base_url_comes_with_or_without_v1(self, text: str, root: str) -> None:
        assert str(base_url(text)) == root

    @pytest.mark.parametrize("text", ["", "host:8000", "ftp://host", "http://", "http://host:port", "/v1"])
    def test_what_is_no_base_url_is_a_usage_error(self, text: str) -> None:
        with pytest.raises(UsageError, match="give one like http://host:8000/v1"):
            Endpoint(text)

    @pytest.mark.parametrize("text", [f"http://me:{KEY}@host", f"me:{KEY}@host:1", f"http://host?key={KEY}"])
    def test_credentials_in_a_url_are_refused_without_being_repeated(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            Endpoint(text)
        assert KEY not in str(caught.value)

    def test_a_header_that_http_cannot_carry_is_refused_without_being_repeated(self) -> None:
        with pytest.raises(UsageError, match="header 'X-Token'") as caught:
            Endpoint("http://host", headers={"X-Token": f"{KEY}\n"})
        assert KEY not in str(caught.value)

    @pytest.mark.parametrize("content", [None, "no certificate"])
    def test_a_ca_file_that_cannot_be_used_is_a_usage_error(self, content: str | None, tmp_path: Path) -> None:
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_text(content)

        async def enter() -> None:
            async with Endpoint("https://host", ca_file=path):
                pass

        with pytest.raises(UsageError, match="cannot use the CA file"):
            asyncio.run(enter())

    def test_a_client_of_ones_own_gets_the_settings(self) -> None:
        seen: list[tuple[Mapping[str, str], Bounds, bool]] = []

        def build(
            *, headers: Mapping[str, str], bounds: Bounds, tls: ssl.SSLContext, keep_alive: bool, connect: Connect
        ) -> Client:
            seen.append((headers, bounds, keep_alive))
            return build_client(headers=headers, bounds=bounds, tls=tls, keep_alive=keep_alive, connect=connect)

        assert one_over_a_socket(whole_answer(4), client=build, headers={"X-Team": "blue"}).end is End.FINISHED
        assert seen == [({"X-Team": "blue"}, PATIENT, True), ({"X-Team": "blue"}, PATIENT, False)]
