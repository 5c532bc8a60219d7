"""`everhold send`: one message, one reply. Exits 0 once answered, 75 if it is kept and not yet answered."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from typing import Any, Final

from everhold.cli import errors, message
from everhold.cli.answer import Answer
from everhold.cli.reach import DRAIN_SECONDS
from everhold.cli.render import Screen, safe
from everhold.cli.steady import Steady, steady
from everhold.errors import Misuse, Transient

HAND_OVER_SECONDS: Final = 10.0


def run(args: argparse.Namespace, screen: Screen) -> int:
    text = sys.stdin.read() if args.text == "-" else args.text
    if not text.strip():
        raise Misuse("there is nothing to send", remedy="everhold send 'hello'")
    return asyncio.run(_run(args, screen, text))


async def _run(args: argparse.Namespace, screen: Screen, text: str) -> int:
    line = steady(args, screen, role="send")
    seconds = 0.0
    try:
        spot = await (await line.open()).find_chat_location(args.session, agent=args.agent)
        given = message.make_message(spot, text, id=args.id)
        verdict = await _hand_over(line, given, seconds=max(args.timeout, HAND_OVER_SECONDS))
        answer = Answer(verdict["seq"])
        try:
            async with asyncio.timeout(args.timeout):
                await _wait(line, verdict["session"], answer)
            seconds = DRAIN_SECONDS
        except TimeoutError:
            pass  # it is kept
    finally:
        await line.close(seconds=seconds)
    return _tell(screen, verdict, answer)


async def _hand_over(line: Steady, given: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """Until somebody has taken the message. Under its id it counts once, however often it is tried."""
    try:
        async with asyncio.timeout(seconds):
            return await line.ask(lambda calls: calls.send_message(given))
    except TimeoutError:
        remedy = f"send it again with --id {given['id']}, then it counts once"
        raise Transient("the gateway went away and nobody has confirmed the message", remedy=remedy) from None


async def _wait(line: Steady, session: str, answer: Answer) -> None:
    """Until the message is answered; a gateway that restarts meanwhile answers it after that."""
    async with aclosing(line.follow(session, after=answer.seq)) as events:
        async for event in events:
            if "entry" in event and answer.see(event["entry"]):
                return


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
    elif answer.outcome == "done" and answer.text:
        screen.say(safe(answer.text))
        if answer.beside:
            screen.note(safe(answer.beside))
    if answer.outcome == "done":
        return errors.DONE
    if answer.outcome:
        if answer.said and not screen.json:
            screen.say(safe("\n".join(answer.said)))
        if answer.told:  # the notice says what failed and what helps: saying it twice would only confuse
            screen.fail("\n".join(answer.told), "")
        else:
            screen.fail(f"the turn ended {answer.outcome}: {answer.reason}".rstrip(": "), "`/retry` tries again")
        return errors.WRONG
    if answer.released:
        screen.fail(
            f"kept as entry {answer.seq} of session {verdict['session']}; the model cannot be reached right now",
            "a running gateway answers it when the model is back; `everhold status` shows why",
        )
        return errors.AGAIN
    screen.fail(
        f"kept as entry {answer.seq} of session {verdict['session']}, not answered yet",
        "it will be, while a gateway runs: `everhold up`",
    )
    return errors.AGAIN
