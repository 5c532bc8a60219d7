"""`everhold send`: one message, one reply. Exits 0 once answered, 75 if it is kept and not yet answered."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from typing import Any, Final

from everhold.cli import message
from everhold.cli.answer import Answer
from everhold.cli.reach import talking
from everhold.cli.render import Screen, safe
from everhold.errors import Misuse, Refused
from everhold.remote import wire
from everhold.remote.client import Calls, Gone

AGAIN_SECONDS: Final = 0.3


def run(args: argparse.Namespace, screen: Screen) -> int:
    text = sys.stdin.read() if args.text == "-" else args.text
    if not text.strip():
        raise Misuse("there is nothing to send", remedy="everhold send 'hello'")
    return asyncio.run(_run(args, screen, text))


async def _run(args: argparse.Namespace, screen: Screen, text: str) -> int:
    kept: tuple[dict[str, Any], Answer] | None = None
    try:
        async with talking(args, screen, role="send") as calls:
            spot = await calls.place(args.session, agent=args.agent)
            verdict = await calls.send(message.incoming(spot, text, id=args.id))
            if verdict["outcome"] == "differs":
                raise Misuse(f"another text was sent under the id {args.id!r}", remedy="choose another --id")
            if not verdict["session"]:
                raise Refused(verdict["reason"] or "the message was not accepted", remedy="everhold agents")
            kept = verdict, Answer(verdict["seq"])
            async with asyncio.timeout(args.timeout):
                await _wait(calls, verdict["session"], kept[1])
    except TimeoutError:
        if kept is None:
            raise
    return _tell(screen, *kept)


async def _wait(calls: Calls, session: str, answer: Answer) -> None:
    """Until the message is answered; a gateway that restarts meanwhile answers it after that."""
    after = answer.seq
    while True:
        try:
            async with aclosing(calls.follow(session, after=after)) as events:
                async for event in events:
                    if "entry" in event:
                        after = event["entry"]["seq"]
                        answer.see(event["entry"])
                    if answer.outcome:
                        return
        except Gone:
            await asyncio.sleep(AGAIN_SECONDS)


def _tell(screen: Screen, verdict: dict[str, Any], answer: Answer) -> int:
    if screen.json:
        screen.show(
            {
                "session": verdict["session"],
                "seq": answer.seq,
                "outcome": answer.outcome or "waiting",
                "reply": answer.text if answer.outcome else None,
                "notices": answer.told,
            }
        )
    elif answer.outcome and answer.text:
        screen.say(safe(answer.text))
    if answer.outcome == "done":
        return wire.DONE
    if answer.outcome:
        screen.fail(f"the turn ended {answer.outcome}: {answer.reason}".rstrip(": "), "`/retry` tries again")
        return wire.WRONG
    screen.fail(
        f"kept as entry {answer.seq} of session {verdict['session']}, not answered yet",
        "it will be, while a gateway runs: `everhold up`",
    )
    return wire.AGAIN
