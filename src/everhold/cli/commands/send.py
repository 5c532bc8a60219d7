"""`everhold send`: sends one message and prints the reply. Exits 0 if answered, 75 if stored and not answered yet."""

from __future__ import annotations

import argparse
import asyncio
import functools
import mimetypes
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from everhold.cli import errors, message
from everhold.cli.client import ApiClient
from everhold.cli.connect import DRAIN_SECONDS
from everhold.cli.reconnect import ReconnectingClient, make_reconnecting_client
from everhold.cli.render import CommandScreen, escape_control
from everhold.cli.reply_wait import ReplyWait
from everhold.errors import InvalidRequest, Transient

MAX_FILE_BYTES: Final = 20_000_000
MAX_HANDOVER_SECONDS: Final = 10.0


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    text = sys.stdin.read() if args.text == "-" else args.text
    if not text.strip():
        raise InvalidRequest("there is nothing to send", remedy="everhold send 'hello'")
    return asyncio.run(_send_message(args, screen, text, [_read_file(name) for name in args.file]))


def _read_file(name: str) -> tuple[str, bytes]:
    try:
        if Path(name).stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(f"{name} is larger than {MAX_FILE_BYTES:,} bytes", remedy="send a smaller file")
        return Path(name).name, Path(name).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {name}: {error.strerror}", remedy="name a file that you may read") from error


async def _send_message(
    args: argparse.Namespace, screen: CommandScreen, text: str, files: list[tuple[str, bytes]]
) -> int:
    client = make_reconnecting_client(args, screen, role="send")
    seconds = 0.0
    try:
        location = await (await client.open()).find_chat_location(args.session, agent=args.agent)
        given = message.make_message(location, text, id=args.id or "")
        for name, data in files:
            media = mimetypes.guess_type(name)[0] or "application/octet-stream"
            upload = functools.partial(_upload_file, data=data, name=name, media=media)
            given.setdefault("files", []).append((await client.call(upload))["id"])
        accepted = await _deliver_message(client, given, seconds=max(args.timeout, MAX_HANDOVER_SECONDS))
        answer = ReplyWait(accepted["seq"])
        try:
            async with asyncio.timeout(args.timeout):
                await _wait_for_reply(client, accepted["session"], answer)
            seconds = DRAIN_SECONDS
        except TimeoutError:
            pass  # the message is stored
    finally:
        await client.close(seconds=seconds)
    return _print_reply(screen, accepted, answer)


async def _upload_file(calls: ApiClient, *, data: bytes, name: str, media: str) -> dict[str, Any]:
    return await calls.upload_file(data, name=name, media=media)


async def _deliver_message(client: ReconnectingClient, given: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """Send the message until a gateway has committed it. Because of its id it is accepted once."""
    try:
        async with asyncio.timeout(seconds):
            return await client.call(lambda calls: calls.send_message(given))
    except TimeoutError:
        remedy = f"send it again with --id {given['id']}, so that it is accepted once"
        raise Transient("the gateway ended before it confirmed the message", remedy=remedy) from None


async def _wait_for_reply(client: ReconnectingClient, session: str, answer: ReplyWait) -> None:
    """Wait until the message is answered. A gateway that restarts answers it afterwards."""
    async with aclosing(client.follow_session(session, after=answer.seq)) as events:
        async for event in events:
            if "entry" in event and answer.observe_entry(event["entry"]):
                return


def _print_reply(screen: CommandScreen, accepted: dict[str, Any], answer: ReplyWait) -> int:
    if screen.json:
        screen.print_json(
            {
                "session": accepted["session"],
                "seq": answer.seq,
                "outcome": answer.outcome or "waiting",
                "reply": answer.reply_text if answer.outcome else None,
                "notices": answer.notices,
            }
        )
    elif answer.outcome == "done" and answer.reply_text:
        screen.print_line(escape_control(answer.reply_text))
        if answer.reply_notice:
            screen.print_note(escape_control(answer.reply_notice))
    if answer.outcome == "done":
        return errors.DONE
    if answer.outcome:
        if answer.said and not screen.json:
            screen.print_line(escape_control("\n".join(answer.said)))
        if answer.notices:  # the notice says what failed and the remedy
            screen.print_failure("\n".join(answer.notices), "")
        else:
            screen.print_failure(
                f"the turn ended {answer.outcome}: {answer.reason}".rstrip(": "), "`/retry` tries again"
            )
        return errors.WRONG
    if answer.released and answer.notices:  # the notice says why the model cannot answer
        text = f"stored as entry {answer.seq} of session {accepted['session']}. {answer.notices[-1]}"
        screen.print_failure(text, "a running gateway answers it then: `everhold up`")
        return errors.AGAIN
    if answer.released:
        screen.print_failure(
            f"stored as entry {answer.seq} of session {accepted['session']}; the model is not available now",
            "a running gateway answers it when the model is available; `everhold status` shows why it is not",
        )
        return errors.AGAIN
    screen.print_failure(
        f"stored as entry {answer.seq} of session {accepted['session']}, not answered yet",
        "a running gateway answers it: `everhold up`",
    )
    return errors.AGAIN
