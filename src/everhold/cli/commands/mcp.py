"""`everhold mcp`: passes the messages of an MCP client between standard input and the API, one after another."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Iterator
from typing import IO, Any, Final

from everhold.cli.connect import DRAIN_SECONDS, connect_gateway, retry_if_gone
from everhold.cli.errors import DONE
from everhold.cli.render import CommandScreen
from everhold.errors import EverholdError

MAX_LINE_BYTES: Final = 1 << 20
"""Maximum bytes of a message."""
PARSE_ERROR: Final = -32700
INTERNAL_ERROR: Final = -32603


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    output = sys.stdout.buffer
    for line in _read_lines(sys.stdin.buffer):
        # The home is held for one message only, so that `everhold up` can start in between.
        answer = asyncio.run(_answer_line(args, screen, line))
        if answer:
            output.write(answer + b"\n")
            output.flush()
    return DONE


def _read_lines(source: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a client until it closes its end. A line that is too long is cut, so it is no JSON."""
    while line := source.readline(MAX_LINE_BYTES):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = source.readline(MAX_LINE_BYTES)
        if line.strip():
            yield line.strip()


async def _answer_line(args: argparse.Namespace, screen: CommandScreen, line: bytes) -> bytes:
    """Return the answer to one message; empty for a notification."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return _render_error(None, PARSE_ERROR, f"the message is not JSON, or has more than {MAX_LINE_BYTES} bytes")
    if writes := _is_write(message):
        line = _add_note_id(message)
    answers: list[bytes] = []

    async def send() -> int:
        # A note is written by a consumer. Reading needs none.
        reached = await connect_gateway(args, screen, role="mcp", starts=writes)
        try:
            answers.append(await reached.calls.send_mcp_message(line, agent=args.agent))
        finally:
            await reached.close(seconds=DRAIN_SECONDS)
        return DONE

    try:
        await retry_if_gone(send)
    except EverholdError as error:
        id = message.get("id") if isinstance(message, dict) else None
        return _render_error(id, INTERNAL_ERROR, f"{error.message}. {error.remedy}".rstrip(" ."))
    return answers[-1].replace(b"\n", b"")


def _is_write(message: Any) -> bool:
    parameters = message.get("params") if isinstance(message, dict) else None
    return isinstance(parameters, dict) and parameters.get("name") == "remember"


def _add_note_id(message: dict[str, Any]) -> bytes:
    """Return the call with an id of the note, so that a repeated attempt stores the note once."""
    arguments = message["params"].get("arguments")
    if isinstance(arguments, dict) and not arguments.get("id"):
        arguments["id"] = uuid.uuid4().hex
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")


def _render_error(id: Any, code: int, text: str) -> bytes:
    answer = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
