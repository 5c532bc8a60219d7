"""Slack's Events API: Slack calls through a reverse proxy and gets 200 once the event is committed.

It has the interface of the socket mode connection. Slack signs the bytes that it sends. A request with a wrong
signature, or one older than a few minutes, is refused before it is parsed. Slack repeats an event that is not confirmed
in time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from everhold.errors import Transient
from everhold.infra.deep_json import load_json
from everhold.infra.secret import SecretString
from everhold.platforms.slack.settings import SlackEventsSettings
from everhold.platforms.slack.socket_mode import SlackEnvelope, SlackHello, SlackSocketConnection
from everhold.platforms.webhook import WebhookServer

SIGNATURE_MAX_AGE_SECONDS: Final = 300.0
"""How old a signature may be, or how far ahead of our clock."""
REQUEST_HOLD_SECONDS: Final = 20.0
"""How long a request waits for the commit. Slack waits three seconds and then repeats the event."""


def is_signature_valid(secret: SecretString, headers: Mapping[str, str], body: bytes, *, now: float) -> bool:
    """Return whether Slack signed these bytes recently."""
    at = headers.get("x-slack-request-timestamp", "")
    if not (at.isascii() and at.isdigit()) or len(at) > 15 or abs(now - int(at)) > SIGNATURE_MAX_AGE_SECONDS:
        return False
    key = secret.reveal().strip().encode()
    expected = "v0=" + hmac.new(key, b"v0:" + at.encode() + b":" + body, hashlib.sha256).hexdigest()
    given = headers.get("x-slack-signature", "").encode("latin-1", "replace")
    return bool(key) and hmac.compare_digest(given, expected.encode())


class SlackEventsConnection(SlackSocketConnection):
    """The events of Slack as envelopes, in the order of arrival."""

    def __init__(self, settings: SlackEventsSettings, secret: SecretString, *, now: Callable[[], float]) -> None:
        self._inbox: asyncio.Queue[SlackEnvelope | BaseException | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._settings = settings
        self._secret = secret
        self._now = now
        self._count = itertools.count(1)
        self._unconfirmed: dict[str, asyncio.Future[None]] = {}
        self.asked_to_leave = False
        self._is_closing = False
        self.port = 0

    async def __aenter__(self) -> SlackEventsConnection:
        server = WebhookServer(
            path=urlsplit(self._settings.url).path or "/", proof=self._verify, accept_body=self._accept_body
        )
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = server.serve(host=self._settings.host, port=self._settings.port, ready=ready.set_result)
        self.reader_task = self.start_task(serving)
        try:
            either: list[asyncio.Future[Any]] = [self.reader_task, ready]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.reader_task.done():
                self.reader_task.result()  # raises the error of the port
        except BaseException:
            await self.__aexit__()
            raise
        self.port = ready.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        for waiting in self._unconfirmed.values():
            waiting.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def receive_hello(self) -> SlackHello:
        return SlackHello(connections=1)

    async def acknowledge(self, id: str) -> None:
        waiting = self._unconfirmed.pop(id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _verify(self, headers: Mapping[str, str], body: bytes) -> bool:
        return is_signature_valid(self._secret, headers, body, now=self._now())

    async def _accept_body(self, body: bytes) -> bytes:
        envelope = self._parse_envelope(body)
        if envelope.type == "url_verification":
            return str(envelope.payload.get("challenge", "")).encode("utf-8", "replace")
        if self._is_closing:  # nobody reads the inbox any more, and the server would wait for this request
            raise Transient("the gateway stops")
        waiting = self._unconfirmed[envelope.id] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(envelope)
        done, _ = await asyncio.wait([waiting], timeout=REQUEST_HOLD_SECONDS)
        if not done or waiting.cancelled():
            self._unconfirmed.pop(envelope.id, None)
            raise Transient("the event is not committed yet")
        return b""

    def _parse_envelope(self, body: bytes) -> SlackEnvelope:
        """Return the event of a body. A body that cannot be parsed becomes an unparsed event, which is stored."""
        id = f"call-{next(self._count)}"
        if not body.lstrip().startswith((b"{", b"[")):
            form = dict(parse_qsl(body.decode("utf-8", "replace")))
            if "command" in form:
                return SlackEnvelope(id=id, type="slash_commands", payload=form)
            return SlackEnvelope(id=id, type="interactive", payload=_load_object(form.get("payload", "")))
        text = body.decode("utf-8", "replace")
        try:
            payload = load_json(text)
        except ValueError:
            payload = text
        if not isinstance(payload, dict):
            known = hashlib.sha256(body).hexdigest()[:16]
            return SlackEnvelope(id=id, type="events_api", payload={"event": payload, "event_id": known})
        kind = "url_verification" if payload.get("type") == "url_verification" else "events_api"
        return SlackEnvelope(id=id, type=kind, payload=payload)


def _load_object(text: str) -> dict[str, Any]:
    try:
        found = load_json(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}
