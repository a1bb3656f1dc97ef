"""The Lambda Cloud API, as far as a session needs it: lists, one launch, terminate.

What an answer means for a call that changes something is decided here, once. ApiError: the API itself refused, and
nothing was done. CloudTrouble: it was surely not sent. Ambiguous: all else; who gets that looks before asking again.
Calls that only read are repeated until they are answered or their patience is over.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx2 as httpx
from pydantic import SecretStr, ValidationError

from cloud import lambda_models as models
from cloud.errors import Ambiguous, ApiError, CloudTrouble, CloudUsageError
from cloud.machine import Image, InstanceType, Machine, Order, SshKey
from cloud.pacing import Pacing

__all__ = ["API_BASE_NAME", "DEFAULT_BASE", "USER_AGENT", "LambdaApi", "checked_base"]

DEFAULT_BASE = "https://cloud.lambda.ai/api/v1"
API_BASE_NAME = "LAMBDA_API_BASE"
USER_AGENT = "slo-bench-cloud/1"
"""The proxy before the API refuses what Python's own clients call themselves."""

_T = TypeVar("_T")

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)
_PASSING = (408, 425, 429)
"""Client errors by their number, which say nothing of the request itself."""

_LONGEST_MESSAGE = 300
_SHORTEST_TRY_S = 1.0


class LambdaApi:
    """One account at Lambda. Use it as a context manager; every method may raise CloudTrouble, or a kind of it.

    timeout_s, launch_timeout_s: for one answer, to its last byte; connect_s: for a connection. patience_s: how long a
    call that reads is repeated, first after backoff_s, then after twice that and so on up to longest_backoff_s.
    say: gets one line where such a call has no answer after silence_s; the next one comes after the next answer.
    Raises CloudUsageError for a base URL that would send the key unencrypted to another machine.
    """

    def __init__(
        self,
        key: SecretStr,
        *,
        pacing: Pacing,
        base_url: str = DEFAULT_BASE,
        timeout_s: float = 30.0,
        launch_timeout_s: float = 120.0,
        connect_s: float = 10.0,
        patience_s: float = 120.0,
        backoff_s: float = 2.0,
        longest_backoff_s: float = 20.0,
        say: Callable[[str], None] | None = None,
        silence_s: float = 5.0,
        user_agent: str = USER_AGENT,
    ) -> None:
        base, is_loopback = _base(base_url)
        self._key = key
        self._pacing = pacing
        self._timeout_s = timeout_s
        self._launch_timeout_s = launch_timeout_s
        self._patience_s = patience_s
        self._backoff_s = backoff_s
        self._longest_backoff_s = longest_backoff_s
        self._say = say
        self._silence_s = silence_s
        self._is_silent = False
        self._server_date_utc: datetime | None = None
        self._base = base
        self._client = httpx.AsyncClient(
            headers={
                "Authorization": f"Bearer {key.get_secret_value()}",
                "User-Agent": user_agent,
                "Accept": "application/json",
            },
            # A connection that was kept may be closed at the moment of a launch: was it sent?
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=httpx.Timeout(max(timeout_s, launch_timeout_s), connect=connect_s),
            trust_env=not is_loopback,
            verify=_trusted(),
            follow_redirects=False,
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    @property
    def server_date_utc(self) -> datetime | None:
        """The API's clock at its last answer, to the second; None before the first."""
        return self._server_date_utc

    async def instance_types(self) -> tuple[InstanceType, ...]:
        """Every type with its price and the regions that have one free."""
        return await self._get("/instance-types", models.read_instance_types)

    async def images(self) -> tuple[Image, ...]:
        """Every image, once for each region."""
        return await self._get("/images", models.read_images)

    async def ssh_keys(self) -> tuple[SshKey, ...]:
        """The keys that the account holds."""
        return await self._get("/ssh-keys", models.read_ssh_keys)

    async def machines(self) -> tuple[Machine, ...]:
        """Every machine of the account, other people's too. A list that cannot be read is an error, never empty."""
        return await self._get("/instances", models.read_machines)

    async def machine(self, machine_id: str) -> Machine | None:
        """One machine; None only where the API says in its own words that it does not exist."""
        try:
            found = await self._get(f"/instances/{quote(machine_id, safe='')}", models.read_machine)
        except ApiError as error:
            if error.code == models.DOES_NOT_EXIST:
                return None
            raise
        if found.id != machine_id:
            raise CloudTrouble(f"the API answered with machine {found.id} when it was asked for {machine_id}")
        return found

    async def launch(self, order: Order) -> tuple[str, ...]:
        """Ask once for one machine; the ids of all that the API says it launched, which may be none or several.

        CloudTrouble or ApiError: surely nothing was launched. Ambiguous, or being cancelled: a machine may be there.
        """
        async with self._pacing.launch():
            return await self._change(
                "launch", models.launch_body(order), models.read_launched, timeout_s=self._launch_timeout_s
            )

    async def terminate(self, machine_ids: Sequence[str]) -> tuple[str, ...]:
        """Ask once to end machines; the ids that the API says it ends. That is not to say that they are gone."""
        async with self._pacing.call():
            return await self._change(
                "terminate", {"instance_ids": list(machine_ids)}, models.read_terminated, timeout_s=self._timeout_s
            )

    async def _get(self, path: str, read: Callable[[bytes], _T]) -> _T:
        """Repeat until it is answered, or until patience is over: then the last trouble is the one that is told."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        telling = loop.call_at(loop.time() + self._silence_s, self._tell_silence, deadline_s)
        try:
            return await self._asked(path, read, deadline_s)
        finally:
            telling.cancel()

    async def _asked(self, path: str, read: Callable[[bytes], _T], deadline_s: float) -> _T:
        """deadline_s: of the loop's clock; the last try ends then, or a second after it began."""
        loop = asyncio.get_running_loop()
        pause_s = self._backoff_s
        while True:
            try:
                async with self._pacing.call():
                    timeout_s = min(self._timeout_s, max(deadline_s - loop.time(), _SHORTEST_TRY_S))
                    response = await self._send("GET", path, timeout_s=timeout_s)
                answer = self._answer(f"GET {path}", response, read)
            except _NoAnswer as trouble:
                if not trouble.may_pass:
                    raise CloudTrouble(str(trouble)) from None
                wait_s = max(pause_s, trouble.retry_after_s)
                if loop.time() + wait_s > deadline_s:
                    raise CloudTrouble(f"{trouble}; gave up after {self._patience_s:g} s") from None
            else:
                self._is_silent = False
                return answer
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, self._longest_backoff_s)

    def _tell_silence(self, deadline_s: float) -> None:
        """Once in a silence, however many calls it lasts."""
        left_s = max(deadline_s - asyncio.get_running_loop().time(), 0.0)
        if self._say is None or self._is_silent or not left_s:
            return
        self._is_silent = True
        until = datetime.now(UTC) + timedelta(seconds=left_s)
        self._say(f"no answer from {self._base}: it is asked again until {until:%H:%M:%S} UTC ({left_s:.0f} s more)")

    async def _change(
        self, operation: str, body: Mapping[str, Any], read: Callable[[bytes], _T], *, timeout_s: float
    ) -> _T:
        """Sent once, whatever happens."""
        try:
            response = await self._send("POST", f"/instance-operations/{operation}", json=body, timeout_s=timeout_s)
            return self._answer(operation, response, read)
        except _NotSent as trouble:
            raise CloudTrouble(f"{trouble}; the {operation} was not sent") from None
        except _NoAnswer as trouble:
            raise Ambiguous(f"{trouble}; nobody knows whether the {operation} was done") from None

    async def _send(self, method: str, path: str, *, timeout_s: float, json: Any = None) -> httpx.Response:
        """One request and its whole answer. Raises _NoAnswer, never with the request, and so the key, as a cause."""
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._client.request(method, f"{self._base}{path}", json=json)
        except _NOT_SENT as error:
            raise _NotSent(f"cannot reach {self._base} ({self._hidden(_words(error))})") from None
        except TimeoutError:
            raise _NoAnswer(f"{method} {path} was not answered within {timeout_s:g} s") from None
        except (httpx.RequestError, OSError) as error:
            raise _NoAnswer(f"{method} {path} was not answered ({self._hidden(_words(error))})") from None
        self._server_date_utc = _date(response.headers.get("date")) or self._server_date_utc
        return response

    def _answer(self, what: str, response: httpx.Response, read: Callable[[bytes], _T]) -> _T:
        if response.is_success:
            try:
                return read(response.content)
            except ValidationError as error:
                told, is_json = models.what_is_wrong(error)
                raise _NoAnswer(f"{what}: the answer cannot be read ({told})", may_pass=not is_json) from None
        status = response.status_code
        may_pass = status in _PASSING
        refusal = models.read_refusal(response.content)
        if refusal is None:
            told = f"{what}: HTTP {status}, not in the API's own words"
        else:
            told = self._told(what, status, refusal)
            if response.is_client_error and not may_pass and refusal.is_definitive:
                raise ApiError(told, status=status, code=refusal.code)
            may_pass = may_pass or not refusal.is_definitive
        raise _NoAnswer(
            told,
            may_pass=may_pass or response.is_server_error,
            retry_after_s=_seconds(response.headers.get("retry-after")),
        )

    def _told(self, what: str, status: int, refusal: models.Refusal) -> str:
        words = " ".join(f"{refusal.code}: {refusal.message} {refusal.suggestion or ''}".split())
        return f"{what}: HTTP {status} {self._hidden(words)[:_LONGEST_MESSAGE]}"

    def _hidden(self, text: str) -> str:
        return text.replace(self._key.get_secret_value(), "[API key]")


class _NoAnswer(Exception):  # noqa: N818 -- it is no error before patience is over
    """Neither yes nor no. may_pass: asking again may help; retry_after_s: what the provider asked for, or 0."""

    def __init__(self, message: str, *, may_pass: bool = True, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.may_pass = may_pass
        self.retry_after_s = retry_after_s


class _NotSent(_NoAnswer):
    """There was no connection to send it on."""


def checked_base(base_url: str) -> str:
    """The base URL without its last slash; raises CloudUsageError where the key would travel unencrypted."""
    return _base(base_url)[0]


def _base(base_url: str) -> tuple[str, bool]:
    """The base URL, and whether it is on this machine."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        raise CloudUsageError(f"the API's address cannot be read: {base_url!r}") from None
    is_loopback = _is_loopback(url.host)
    if not url.host or url.scheme not in ("http", "https") or url.userinfo or url.query or url.fragment:
        raise CloudUsageError("the API's address must be like https://HOST/api/v1, with nothing else in it")
    if url.scheme != "https" and not is_loopback:
        raise CloudUsageError(f"the API key is not sent to {url.host} over plain http: use https")
    return str(url).rstrip("/"), is_loopback


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The certificates that are believed: read once, which takes longer than a call."""
    return httpx.create_ssl_context()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())[:_LONGEST_MESSAGE]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _date(text: str | None) -> datetime | None:
    try:
        return None if text is None else parsedate_to_datetime(text)
    except ValueError:
        return None


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
