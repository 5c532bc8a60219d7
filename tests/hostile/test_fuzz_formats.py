"""Parsers of bytes that others send raise our errors only, end, and return something bounded."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
import pytest
from hypothesis import strategies as st

from everhold.config.secrets import parse_env
from everhold.config.source import read_document
from everhold.core.entries import _DECODERS, EntryKind, decode_body, encode_body
from everhold.core.memory_files import parse_memory_file
from everhold.errors import EverholdError
from everhold.hermes.reader.database import HermesDatabase
from everhold.infra.http1 import MAX_INFLATED_BYTES, _Http1Connection
from everhold.models.anthropic import _AnthropicResponseReader
from everhold.models.errors import MAX_EXCERPT_CHARS, ModelEndpoint, parse_duration, parse_error_body
from everhold.models.http_client import SseParser, StreamTooLarge
from everhold.models.openai import _OpenAIResponseReader
from everhold.ports.model import ModelRequest
from tests.hermes.built_home import BuiltHermesHome
from tests.hermes.test_doctor import DM
from tests.hostile.fuzzing import JSON, TEXT, fuzz_briefly, fuzz_for_long, mutate
from tests.hostile.test_bounds import CountedGateway, with_token

BYTES: Final = st.binary(max_size=200)
ENDPOINT: Final = ModelEndpoint(model="m", host="example.org")

# -- server-sent events and model replies ------------------------------------------------------------------------------


def check_sse(lines: list[bytes], cuts: list[int]) -> None:
    """How the bytes arrive makes no difference."""
    data = b"".join(lines)
    whole = SseParser()
    expected = whole.feed(data) + whole.close()
    pieces, found, at = SseParser(), [], 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        found += pieces.feed(data[at:cut])
        at = cut
    assert found + pieces.close() == expected
    assert sum(len(text) for _, text in expected) <= len(data) + len(expected)


SSE: Final[dict[str, Any]] = {
    "lines": st.lists(
        st.sampled_from([b"data: x\n", b"data:\r", b"\r\n", b"\n", b"event: e\r\n", b": c\n", b"\xef\xbb\xbf", b"data"])
        | BYTES,
        max_size=12,
    ),
    "cuts": st.lists(st.integers(0, 10_000), max_size=6),
}
test_sse = fuzz_briefly(check_sse, examples=100, **SSE)
test_sse_for_long = fuzz_for_long(check_sse, **SSE)


def test_an_event_of_empty_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everhold.models.http_client.MAX_EVENT_BYTES", 1_000)
    parser = SseParser()
    for _ in range(100):
        parser.feed(b"data:\n")
    with pytest.raises(StreamTooLarge):
        parser.feed(b"data:\n" * 1_000)


OPENAI_CHUNK: Final[dict[str, Any]] = {
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "delta": {
                "content": "hi",
                "reasoning_content": "x",
                "tool_calls": [{"index": 0, "id": "c", "function": {"name": "t", "arguments": "{}"}}],
            },
            "message": {"content": [{"type": "text", "text": "hi"}], "tool_calls": None},
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    "error": {"message": "rate limit reached, try again in 20s", "code": 429, "type": "x"},
}
ANTHROPIC_EVENTS: Final[list[dict[str, Any]]] = [
    {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1, "cache_read_input_tokens": 2}}},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "i", "name": "t", "input": {}},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
    {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": {"output_tokens": 3}},
]


def encode(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "replace")


def check_reader(reader: Any, datas: list[bytes]) -> None:
    lengths: list[int] = []
    for method in (
        lambda data: reader.read_event("", data),
        lambda data: reader.read_event("error", data),
        reader.read_whole,
    ):
        for data in datas:
            try:
                method(data)
            except EverholdError as error:
                lengths.append(len(str(error)))
    assert max(lengths, default=0) < 10 * MAX_EXCERPT_CHARS


def check_openai(datas: list[bytes]) -> None:
    check_reader(_OpenAIResponseReader(ENDPOINT, {"t": "t"}, now=lambda: 0.0, on_text=None), datas)


def check_anthropic(datas: list[bytes]) -> None:
    check_reader(
        _AnthropicResponseReader(ENDPOINT, ModelRequest(system="", messages=()), now=lambda: 0.0, on_text=None), datas
    )


GARBAGE: Final = BYTES | JSON.map(encode) | st.sampled_from([b"[" * 50_000, b'{"a":' * 50_000, b"9" * 9_999])
OPENAI: Final = st.lists(mutate(OPENAI_CHUNK).map(encode) | GARBAGE, min_size=1, max_size=3)
ANTHROPIC: Final = st.lists(
    st.one_of(*(mutate(event).map(encode) for event in ANTHROPIC_EVENTS), GARBAGE), min_size=1, max_size=4
)
test_openai = fuzz_briefly(check_openai, datas=OPENAI)
test_openai_for_long = fuzz_for_long(check_openai, datas=OPENAI)
test_anthropic = fuzz_briefly(check_anthropic, datas=ANTHROPIC)
test_anthropic_for_long = fuzz_for_long(check_anthropic, datas=ANTHROPIC)


def check_error_body(data: bytes, text: str) -> None:
    found = parse_error_body(data)
    assert len(ENDPOINT.redact_text(found.message)) <= MAX_EXCERPT_CHARS
    parse_duration(text)


ERRORS: Final[dict[str, Any]] = {
    "data": GARBAGE
    | mutate({"error": {"message": "m", "code": 1, "type": "t", "retry_after": 3}}).map(encode)
    | st.sampled_from([b"<script>" * 5_000, b"<" * 50_000]),
    "text": TEXT | st.sampled_from(["1h2m3.5s", "9" * 9_999 + "s", "1" * 400 + "h"]),
}
test_error_body = fuzz_briefly(check_error_body, **ERRORS)
test_error_body_for_long = fuzz_for_long(check_error_body, **ERRORS)


def check_http_response(pieces: list[bytes]) -> None:
    async def play() -> None:
        connection = _Http1Connection()
        connection._body_received = False
        for piece in pieces:
            connection.data_received(piece)
        connection.eof_received()
        connection.connection_lost(None)

    asyncio.run(play())


RESPONSE_PARTS: Final = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"content-encoding: gzip\r\n", b"content-encoding: deflate\r\n", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n",
    b"x: " + b"y" * 70_000 + b"\r\n", b"ffffffffffffffffffff\r\n",
]  # fmt: skip
RESPONSES: Final = st.lists(st.sampled_from(RESPONSE_PARTS) | BYTES, max_size=10)
test_http_response = fuzz_briefly(check_http_response, pieces=RESPONSES)
test_http_response_for_long = fuzz_for_long(check_http_response, pieces=RESPONSES)


def test_an_archive_bomb_of_a_model_server_is_refused() -> None:
    packed = zlib.compress(b"\0" * (MAX_INFLATED_BYTES * 4), 9)

    async def play() -> None:
        connection = _Http1Connection()
        connection._body_received = False
        head = b"HTTP/1.1 200 OK\r\ncontent-encoding: deflate\r\ncontent-length: %d\r\n\r\n" % len(packed)
        connection.data_received(head + packed)
        assert sum(map(len, connection._pieces)) <= MAX_INFLATED_BYTES
        assert connection._error is not None

    asyncio.run(play())


# -- requests ----------------------------------------------------------------------------------------------------------


class FuzzedGateway:
    def __init__(self, path: Path) -> None:
        self.runner = asyncio.Runner()
        self.gateway = self.runner.run(self._start(path))

    async def _start(self, path: Path) -> CountedGateway:
        found = CountedGateway(path)
        await found.app.start()
        found.port = int((await found.app.serve(port=0)).rpartition(":")[2])
        return found

    async def send(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        try:
            writer.write(data)
            await writer.drain()
            writer.write_eof()
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    def close(self) -> None:
        self.runner.run(self.gateway.app.stop())
        self.runner.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FuzzedGateway]:
    found = FuzzedGateway(tmp_path)
    yield found
    found.close()


def check_request(gateway: FuzzedGateway, parts: list[bytes]) -> None:
    answer = gateway.runner.run(gateway.send(b"".join(parts)))
    assert not answer or answer.startswith(b"HTTP/1.1 ")
    assert b" 500 " not in answer[:20]
    assert len(answer) < 1_000_000
    status, _ = gateway.runner.run(gateway.gateway.ask(with_token("GET /health")))
    assert status in (200, 429), "the server no longer answers"  # a fast machine exceeds the rate


REQUEST_PARTS: Final = [
    b"GET / HTTP/1.1\r\n", b"POST /v1/chat/completions HTTP/1.1\r\n", b"GET /" + b"%" * 9_000 + b" HTTP/1.1\r\n",
    b"Host: 127.0.0.1\r\n", b"Host: \xff\r\n", b"Content-Length: 10\r\n", b"Content-Length: -1\r\n", b"\r\n",
    b"Content-Length: " + b"9" * 5_000 + b"\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Authorization: Bearer \xff\xfe\r\n", b"Authorization: Basic " + b"A" * 9_000 + b"\r\n",
    b"X-Forwarded-For: ::1%0\r\n",
    b"Origin: http://[\r\n", b"5\r\nhello\r\n0\r\n\r\n", b'{"model": 1}', b"[" * 9_999,
    b"Cookie: " + b"a=b;" * 9_000 + b"\r\n",
]  # fmt: skip
REQUESTS: Final = st.lists(st.sampled_from(REQUEST_PARTS) | BYTES, min_size=1, max_size=8)
test_request = fuzz_briefly(check_request, examples=40, parts=REQUESTS)
test_request_for_long = fuzz_for_long(check_request, share=0.2, parts=REQUESTS)

# -- stored entries, configuration, MCP --------------------------------------------------------------------------------


def check_entry(kind: EntryKind, data: bytes) -> None:
    try:
        body = decode_body(kind, data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # `audit` names the entry
    assert decode_body(kind, encode_body(body)) == body


ENTRIES: Final[dict[str, Any]] = {
    "kind": st.sampled_from(sorted(_DECODERS, key=str)),
    "data": GARBAGE
    | mutate(
        {
            "text": "hi", "origin": {"platform": "p", "account": "a", "chat": "c", "message": "m"}, "sender": "s",
            "at": 1.0, "calls": [{"id": "c", "tool": "t", "arguments": {}}], "usage": {"input": 1}, "op": 1, "why": "x",
        }
    ).map(encode),
}  # fmt: skip
test_entry = fuzz_briefly(check_entry, examples=150, **ENTRIES)
test_entry_for_long = fuzz_for_long(check_entry, **ENTRIES)


def check_configuration(text: str, data: bytes) -> None:
    for given in (text, data, text.encode("utf-8", "replace") + data):
        document = read_document(given)
        assert isinstance(document.data, dict)
        assert len(document.problems) < 10_000
    parse_env(data)
    parse_memory_file(text)


YAML_PARTS: Final = [
    "a: ", "&x ", "*x", "<<: *x\n", "- ", "[", "]", "{", "}", "\n", "  ", "? ", ": ", "|\n", ">\n", "'", '"',
    "!!python/name:os ",
    "---\n", "%YAML 9.9\n", "\t", "# c\n", "agents: ", "main: ", "2026-99-99", "\0", "\ufeff", "[" * 200,
    "0x" + "9" * 5_000,
]  # fmt: skip
CONFIGURATIONS: Final[dict[str, Any]] = {
    "text": st.lists(st.sampled_from(YAML_PARTS) | st.text(max_size=8), max_size=15).map("".join),
    "data": BYTES,
}
test_configuration = fuzz_briefly(check_configuration, examples=25, **CONFIGURATIONS)
test_configuration_for_long = fuzz_for_long(check_configuration, share=0.1, **CONFIGURATIONS)


@pytest.mark.parametrize("text", ["---\n%YAML 9.9\n", "---\n%YAML 9.9\na: b\n", "%YAML 9.9\n---\na: b\n"])
def test_a_directive_for_an_unknown_version_does_not_end_the_reader(text: str) -> None:
    document = read_document(text)
    assert document.data == {"a": "b"} or document.problems


def check_mcp(line: bytes) -> None:
    import mcp_types as types

    with suppress(ValueError):  # counted as an invalid line
        types.jsonrpc_message_adapter.validate_json(line, by_name=False)


MCP: Final = GARBAGE | mutate({"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "t", "inputSchema": {}}]}}).map(
    encode
)
test_mcp = fuzz_briefly(check_mcp, line=MCP)
test_mcp_for_long = fuzz_for_long(check_mcp, line=MCP)

# -- imported databases ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    built = BuiltHermesHome(tmp_path_factory.mktemp("sound"))
    for number in range(3):
        built.add_exchanges(built.add_chat(f"c-{number}", f"{DM}{number}"), "b" * 400, "c")
    built.run("pragma wal_checkpoint(truncate)")
    built.run("pragma journal_mode = delete")
    built.close()
    return built.path.read_bytes()


def check_database(sound_database: bytes, tmp_path: Path, seed: int, bytes_changed: int, cut: bool) -> None:
    chance = random.Random(seed)
    data = bytearray(sound_database)
    for _ in range(bytes_changed):
        data[chance.randrange(16, len(data))] = chance.choice((0, 1, 255, chance.randrange(256)))
    if cut:
        del data[chance.randrange(100, len(data)) :]
    path = tmp_path / "state.db"
    path.write_bytes(data)
    try:
        db = HermesDatabase(path)
    except EverholdError:
        return
    try:
        for session in db.read_sessions():
            sum(1 for _ in db.iter_messages(session.id))
        db.list_unreadable()
        db.read_routing()
        db.read_newest_times()
    except EverholdError:
        pass  # the import names it
    finally:
        db.close()


DATABASES: Final[dict[str, Any]] = {
    "seed": st.integers(0, 1 << 30),
    "bytes_changed": st.sampled_from([0, 1, 5, 50, 2_000]),
    "cut": st.booleans(),
}
test_database = fuzz_briefly(check_database, **DATABASES)
test_database_for_long = fuzz_for_long(check_database, **DATABASES)


def test_a_row_whose_text_is_no_utf_8_is_left_out_and_named(sound_database: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(sound_database)
    changed = apsw.Connection(str(path))
    changed.execute("update sessions set source = cast(x'd6ff' as text)")
    changed.close()
    db = HermesDatabase(path)
    try:
        assert not db.read_sessions()
        assert all("its source is not UTF-8, so it was left out" in each for each in db.undecodable)
        assert db.undecodable
    finally:
        db.close()
