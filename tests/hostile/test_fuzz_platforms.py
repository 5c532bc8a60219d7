"""Any update of a platform is stored or skipped, and the update after it is heard."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from everhold.infra.secret import SecretString
from everhold.platforms.matrix import parsing as matrix_parsing
from everhold.platforms.matrix.client import _decode_json
from everhold.platforms.slack.events import SlackEventsConnection, is_signature_valid
from everhold.platforms.slack.settings import SlackEventsSettings
from everhold.platforms.unparsed import (
    MAX_ID_CHARS,
    MAX_RAW_CHARS,
    MAX_TEXT_CHARS,
    PARSE_ERRORS,
    check_incoming_message,
)
from everhold.platforms.webhook import WebhookServer
from everhold.testing.contracts.platform import PlatformHarness
from tests.hostile.fuzzing import JSON, TEXT, fuzz_briefly, fuzz_for_long, mutate
from tests.platforms import test_malformed_updates as updates
from tests.platforms.remote_discord import open_remote_discord
from tests.platforms.remote_slack import open_remote_slack
from tests.platforms.remote_telegram import open_remote_telegram
from tests.platforms.test_matrix_parsing import ADA, COMPANY, ME, event

_OPENERS: Final[dict[str, Any]] = {
    "telegram": (open_remote_telegram, updates.telegram),
    "slack": (open_remote_slack, updates.slack),
    "discord": (open_remote_discord, updates.discord),
}


class FuzzedPlatform:
    """One adapter with a real store. Its event loop lives as long as the fuzzing."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._runner.run(self._open(path))
        self._ids = itertools.count(1_100_000_000_000_000_100)

    async def _open(self, path: Path) -> None:
        open_remote, prepare = _OPENERS[self.name]
        self.harness = PlatformHarness(await self._stack.enter_async_context(open_remote()), path)
        self._bring = await prepare(self.harness)

    def bring(self, raw: Any) -> None:
        self._runner.run(self._bring(raw))

    def bring_neighbour(self) -> None:
        """Bring a good update and check that it is stored, and that nothing unbounded is."""
        id = next(self._ids)
        match self.name:
            case "telegram":
                chat = {"id": -100123, "type": "supergroup", "title": "all"}
                message = {
                    "message_id": id,
                    "date": 1_700_000_000,
                    "chat": chat,
                    "from": updates.ADA,
                    "text": f"@everhold_bot n{id}",
                }
                raw: dict[str, Any] = {"update_id": id, "message": message}
            case "slack":
                raw = {
                    "type": "message",
                    "channel": "C1",
                    "user": "U1",
                    "text": f"<@U0> n{id}",
                    "ts": f"17{id % 10**8:08}.000100",
                }
            case _:
                raw = {**updates.DISCORD, "id": str(id), "content": f"<@1> n{id}", "attachments": []}
        self.bring(raw)
        heard = self._runner.run(self.harness.read_heard())
        assert any(f"n{id}" in body.text for body in heard), "the update after it was lost"
        for body in heard[-3:]:
            assert len(body.text) <= max(MAX_TEXT_CHARS, MAX_RAW_CHARS + MAX_ID_CHARS + 1)
            assert len(body.origin.message) <= MAX_ID_CHARS

    def close(self) -> None:
        self._runner.run(self.harness.close())
        self._runner.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture
def telegram(tmp_path: Path) -> Iterator[FuzzedPlatform]:
    found = FuzzedPlatform("telegram", tmp_path)
    yield found
    found.close()


@pytest.fixture
def slack(tmp_path: Path) -> Iterator[FuzzedPlatform]:
    found = FuzzedPlatform("slack", tmp_path)
    yield found
    found.close()


@pytest.fixture
def discord(tmp_path: Path) -> Iterator[FuzzedPlatform]:
    found = FuzzedPlatform("discord", tmp_path)
    yield found
    found.close()


def check_telegram(telegram: FuzzedPlatform, raw: Any) -> None:
    telegram.bring(raw)
    telegram.bring_neighbour()


def check_slack(slack: FuzzedPlatform, raw: Any) -> None:
    slack.bring(raw)
    slack.bring_neighbour()


def check_discord(discord: FuzzedPlatform, raw: Any) -> None:
    discord.bring(raw)
    discord.bring_neighbour()


TELEGRAM_UPDATES: Final = mutate(updates.TELEGRAM) | mutate(updates.TELEGRAM_PRESS)
SLACK_EVENTS: Final = mutate(updates.SLACK) | mutate(updates.SLACK_EDIT) | mutate(updates.SLACK_PRESS)
DISCORD_EVENTS: Final = mutate(updates.DISCORD) | mutate(updates.COMMAND) | mutate(updates.DISCORD_PRESS)
test_telegram = fuzz_briefly(check_telegram, examples=25, raw=TELEGRAM_UPDATES)
test_telegram_for_long = fuzz_for_long(check_telegram, share=0.1, raw=TELEGRAM_UPDATES)
test_slack = fuzz_briefly(check_slack, examples=25, raw=SLACK_EVENTS)
test_slack_for_long = fuzz_for_long(check_slack, share=0.1, raw=SLACK_EVENTS)
test_discord = fuzz_briefly(check_discord, examples=25, raw=DISCORD_EVENTS)
test_discord_for_long = fuzz_for_long(check_discord, share=0.1, raw=DISCORD_EVENTS)

# -- Matrix ------------------------------------------------------------------------------------------------------------

RELATION: Final = {"m.in_reply_to": {"event_id": "$0"}, "rel_type": "m.replace", "event_id": "$0"}
MATRIX_EVENT: Final = event(
    {
        "msgtype": "m.text",
        "body": "> <@a:b> quoted\n> more\n\nHelper: hello",
        "m.mentions": {"user_ids": [ME]},
        "m.relates_to": RELATION,
        "m.new_content": {"msgtype": "m.file", "body": "x", "url": "mxc://example.org/abc", "info": {"size": 3}},
    }
)


def check_matrix(raw: Any) -> None:
    try:
        found = matrix_parsing.parse_event(
            raw, account="main", chat="!room", me=ME, room=COMPANY, bots=set(), commands={"status": ""}
        )
        if found is not None:
            check_incoming_message(found.incoming)
    except PARSE_ERRORS:
        pass  # the adapter stores it as unparsed
    with suppress(*PARSE_ERRORS):
        matrix_parsing.parse_quote(raw, sender=ADA, me=ME, room=COMPANY)


def check_matrix_bytes(before: bytes, depth: int, after: bytes) -> None:
    body = before + b"[" * depth + after
    found = _decode_json(body)
    assert found is None or isinstance(found, dict)


MATRIX_EVENTS: Final = mutate(MATRIX_EVENT)
MATRIX_BYTES: Final[dict[str, Any]] = {
    "before": st.binary(max_size=50) | st.just(b'{"a": '),
    "depth": st.sampled_from([0, 1, 100, 50_000]),
    "after": st.binary(max_size=50),
}
test_matrix = fuzz_briefly(check_matrix, examples=150, raw=MATRIX_EVENTS)
test_matrix_for_long = fuzz_for_long(check_matrix, raw=MATRIX_EVENTS)
test_matrix_bytes = fuzz_briefly(check_matrix_bytes, **MATRIX_BYTES)
test_matrix_bytes_for_long = fuzz_for_long(check_matrix_bytes, **MATRIX_BYTES)

# -- webhooks ----------------------------------------------------------------------------------------------------------

SECRET: Final = SecretString("0123456789abcdef0123456789abcdef")
NOW: Final = 1_700_000_000.0


def check_slack_signature(stamp: str, signature: str, body: bytes) -> None:
    headers = {"x-slack-request-timestamp": stamp, "x-slack-signature": signature}
    assert not is_signature_valid(SECRET, headers, body, now=NOW), "nobody without the secret can sign"


def check_slack_body(body: bytes) -> None:
    connection = SlackEventsConnection(SlackEventsSettings(url="https://example.org/slack"), SECRET, now=lambda: NOW)
    envelope = connection._parse_envelope(body)
    assert isinstance(envelope.payload, dict)


def check_webhook(method: str, path: str, headers: list[tuple[bytes, bytes]], bodies: list[bytes]) -> None:
    accepted: list[bytes] = []
    sent: list[dict[str, Any]] = []
    signature = hmac.new(b"key", b"".join(bodies), hashlib.sha256).hexdigest()

    async def accept(body: bytes) -> None:
        accepted.append(body)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0) if left else b"", "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    left = list(bodies)
    server = WebhookServer(
        path="/hook", proof=lambda given, _: given.get("x-proof") == signature, accept_body=accept, most_bytes=1_000
    )
    asyncio.run(server({"type": "http", "method": method, "path": path, "headers": headers}, receive, send))
    assert sent[0]["status"] in (401, 404, 405, 413)
    assert not accepted, "nothing unsigned is accepted"


SIGNATURES: Final[dict[str, Any]] = {
    "stamp": TEXT | st.just(str(int(NOW))) | st.integers().map(str),
    "signature": TEXT | st.binary(max_size=32).map(lambda data: f"v0={data.hex()}"),
    "body": st.binary(max_size=50),
}
BODIES: Final[dict[str, Any]] = {
    "body": st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()) | st.just(b"[" * 50_000)
}
REQUESTS: Final[dict[str, Any]] = {
    "method": st.sampled_from(["POST", "POST", "POST", "GET", "\0"]),
    "path": st.sampled_from(["/hook", "/hook", "/hook", "/", "/hook/", "/" + "x" * 70_000]),
    "headers": st.lists(
        st.tuples(
            st.sampled_from([b"content-length", b"x-proof", b"X-Proof"]), st.binary(max_size=10) | st.just(b"9" * 5_000)
        ),
        max_size=4,
    ),
    "bodies": st.lists(st.binary(max_size=600), max_size=4),
}
test_slack_signature = fuzz_briefly(check_slack_signature, **SIGNATURES)
test_slack_signature_for_long = fuzz_for_long(check_slack_signature, **SIGNATURES)
test_slack_body = fuzz_briefly(check_slack_body, **BODIES)
test_slack_body_for_long = fuzz_for_long(check_slack_body, **BODIES)
test_webhook = fuzz_briefly(check_webhook, **REQUESTS)
test_webhook_for_long = fuzz_for_long(check_webhook, **REQUESTS)
