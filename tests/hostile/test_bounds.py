"""What a stranger sends is bounded before anything reads it: paths, headers, names, nesting, events and texts.

A request costs work in proportion to what it may be at most. The work is counted: the characters that redaction reads.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from everhold.api.middleware import MAX_HEADER_CHARS, MAX_PATH_CHARS
from everhold.app import GatewayApp, SystemClock, load_home_settings
from everhold.core.entries import ChatLocation, TextPiece
from everhold.infra.deep_json import MAX_DEPTH, cut_deep_parts, load_json
from everhold.infra.home import Home
from everhold.platforms.matrix.client import _decode_json
from everhold.platforms.unparsed import (
    MAX_ID_CHARS,
    MAX_PIECES,
    MAX_RAW_CHARS,
    MAX_TEXT_CHARS,
    PARSE_ERRORS,
    UnparsedSender,
    build_unparsed_message,
    check_incoming_message,
)
from everhold.ports.platform import IncomingMessage
from everhold.telemetry.logs import MAX_TEXT_CHARS as MAX_LOG_CHARS, SecretRedaction, open_log

TOKEN: Final = "ada-token-0123456789abcdef0123456789abcdef012345"
CONFIGURATION: Final = """\
http:
  port: 0
  tokens:
    - {name: laptop, token_env: TOKEN_ADA, person: ada}
people:
  - {name: ada, identities: ["telegram:1001"]}
"""
CLAIMS: Final = "eyJ-"
MAX_WORK_CHARS: Final = 4 * MAX_LOG_CHARS
"""What redaction may read for one request."""


class CountingRedaction(SecretRedaction):
    """Counts the characters that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.chars = 0

    def scrub_text(self, text: str) -> str:
        self.chars += len(text)
        return super().scrub_text(text)


class CountedGateway:
    """A gateway on loopback whose redaction is counted."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path / "home").create()
        for file, text in ((self.home.config, CONFIGURATION), (self.home.env, f"TOKEN_ADA={TOKEN}\n")):
            file.write_text(text)
            file.chmod(0o600)
        self.redaction = CountingRedaction()
        self.out = io.StringIO()
        log = open_log(clock=SystemClock(), stream=self.out, redaction=self.redaction, level="debug")
        self.app = GatewayApp(self.home, load_home_settings(self.home, environ={}), log=log, environ={})
        self.port = 0

    async def ask(self, head: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send one request and return the status and the rest of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = f"{head}\r\nHost: everhold.example\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(lines.encode("latin-1") + body)
        try:
            await writer.drain()
            answer = await reader.read()
        finally:
            writer.close()
        return int(answer.split(b" ", 2)[1]), answer

    async def count_work(self, head: str, body: bytes = b"") -> tuple[int, bytes, int]:
        before = self.redaction.chars
        status, answer = await self.ask(head, body)
        return status, answer, self.redaction.chars - before


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[CountedGateway]:
    found = CountedGateway(tmp_path)
    await found.app.start()
    try:
        found.port = int((await found.app.serve(port=0)).rpartition(":")[2])
        yield found
    finally:
        await found.app.stop()


def with_token(line: str) -> str:
    elsewhere = "X-Forwarded-For: 203.0.113.9\r\nContent-Type: application/json"
    return f"{line} HTTP/1.1\r\n{elsewhere}\r\nAuthorization: Bearer {TOKEN}"


async def test_a_model_name_of_200_kilobytes_is_refused_at_once(gateway: CountedGateway) -> None:
    """It held the event loop for 68 seconds: the name was logged, and redaction was quadratic."""
    body = json.dumps({"model": CLAIMS * 50_000, "messages": [{"role": "user", "content": "hi"}]}).encode()
    for path in ("/v1/chat/completions", "/v1/responses"):
        status, answer, work = await gateway.count_work(with_token(f"POST {path}"), body)
        assert status == 400
        assert len(answer) < 10_000
        assert work <= MAX_WORK_CHARS
    assert (await gateway.ask(with_token("GET /health")))[0] == 200


@pytest.mark.parametrize("before", ["/", "/api/sessions/", "/v1/models/", "/health/"])
async def test_a_long_path_is_refused_before_anybody_is_known(gateway: CountedGateway, before: str) -> None:
    status, answer, work = await gateway.count_work(f"GET {before}{CLAIMS * 15_000} HTTP/1.1")
    assert status == 414
    assert f"{MAX_PATH_CHARS:,}".encode() in answer
    assert len(answer) < 5_000
    assert work <= MAX_WORK_CHARS


async def test_a_long_header_is_refused_before_anybody_is_known(gateway: CountedGateway) -> None:
    line = f"GET /health HTTP/1.1\r\nX-Anything: {CLAIMS * 5_000}"
    status, answer, work = await gateway.count_work(line)
    assert status == 431
    assert f"{MAX_HEADER_CHARS:,}".encode() in answer
    assert work <= MAX_WORK_CHARS


@pytest.mark.parametrize("key", ["model", "messages", "tools", "anything"])
async def test_a_deep_body_is_refused(gateway: CountedGateway, key: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    body = f'{{"model": "main", "messages": [], "{key}": {deep}}}'.encode()
    status, _, work = await gateway.count_work(with_token("POST /v1/chat/completions"), body)
    assert status == 400
    assert work <= MAX_WORK_CHARS


# -- platform messages -------------------------------------------------------------------------------------------------


def build_message(**fields: Any) -> IncomingMessage:
    origin = ChatLocation(platform="telegram", account="main", chat=fields.pop("chat", "1"), message="2")
    return IncomingMessage(origin=origin, **{"text": "hi", "sender": "3", "kind": "dm", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "x" * (MAX_TEXT_CHARS + 1)},
        {"name": "x" * (MAX_ID_CHARS + 1)},
        {"chat": "x" * (MAX_ID_CHARS + 1)},
        {"sender": "x" * (MAX_ID_CHARS + 1)},
        {"pieces": (TextPiece(source="quoted", by="a", name="b", text="c"),) * (MAX_PIECES + 1)},
        {"pieces": (TextPiece(source="quoted", by="a", name="b", text="c" * (MAX_TEXT_CHARS + 1)),)},
    ],
)
def test_an_oversized_message_is_not_parsed(fields: dict[str, Any]) -> None:
    with pytest.raises(PARSE_ERRORS, match=r"longer than|more than"):
        check_incoming_message(build_message(**fields))


def test_an_update_that_cannot_be_stored_as_it_is_is_stored_in_part() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for raw in (deep, {"a": deep}, "x" * 1_000_000, {"x" * 1_000_000: 1}):
        stored = build_unparsed_message(
            raw,
            platform="p",
            account="a",
            id="i" * 1_000_000,
            reason="r" * 1_000_000,
            sent_by=UnparsedSender(sender="ada"),
        )
        assert len(stored.text) <= MAX_RAW_CHARS + MAX_ID_CHARS + 1
        assert len(stored.origin.message) <= MAX_ID_CHARS


def test_a_deep_event_does_not_hide_its_neighbours() -> None:
    """A homeserver passes on what another one sent. One deep event must not stop the account."""
    deep = "[" * 30_000 + "]" * 30_000
    body = f'{{"events": [{{"body": "before"}}, {{"body": {deep}}}, {{"body": "after \\"[[\\""}}], "next": "s2"}}'
    found = _decode_json(body.encode())
    assert found is not None
    assert found["events"][0] == {"body": "before"}
    assert found["events"][2] == {"body": 'after "[["'}
    assert found["next"] == "s2"


@pytest.mark.parametrize("text", ['{"a": [1, {"b": "]}"}]}', "[]", '"[["', "7", '{"a": {"b": {"c": [[]]}}}'])
def test_what_is_not_deep_stays(text: str) -> None:
    assert load_json(text) == json.loads(text)
    assert json.loads(cut_deep_parts(text)) == json.loads(text)


@pytest.mark.parametrize(
    "text", ["[" * 99_999, '["' + "[" * 10_000, "[" * 5_000 + "}" * 5_000, "{" * 5_000 + '"', "]" * 5_000]
)
def test_broken_deep_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        load_json(text)


def test_depth_is_cut_at_the_limit() -> None:
    found = json.loads(cut_deep_parts("[" * (MAX_DEPTH + 50) + "]" * (MAX_DEPTH + 50)))
    depth = 0
    while found is not None:
        found, depth = (found[0] if found else None), depth + 1
    assert depth == MAX_DEPTH
