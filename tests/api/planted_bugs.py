"""Runs `everhold` with a planted bug: `python planted_bugs.py NAME …`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from everhold.admin.sessions import SessionAdmin
from everhold.api import openai_shared
from everhold.api.log_tail import LogTail
from everhold.api.request import ApiCall
from everhold.cli import main
from everhold.ports.platform import AcceptResult, IncomingMessage

_later: set[asyncio.Future[Any]] = set()


def says_kept_first() -> None:
    """Answers a message before it is committed."""
    send = SessionAdmin.send_message

    async def hasty(self: SessionAdmin, incoming: IncomingMessage) -> AcceptResult:
        async def late() -> None:
            await asyncio.sleep(3.0)
            await send(self, incoming)

        if incoming.origin.message.startswith("key:"):
            return await send(self, incoming)
        _later.add(asyncio.ensure_future(late()))
        return AcceptResult(outcome="accepted", session="soon", seq=1)

    SessionAdmin.send_message = hasty  # type: ignore[method-assign]  # that is what a planted bug is


def forgets_keys() -> None:
    """Recognises repeated requests only within one process."""
    find = openai_shared._derive_message_id

    async def forgetful(call: ApiCall, message: IncomingMessage) -> str:
        return f"{await find(call, message)}@{os.getpid()}"

    openai_shared._derive_message_id = forgetful


def says_what_it_has_not_kept() -> None:
    """Ends a reply with the growing text instead of the committed text."""
    grew = LogTail.on_reply_text

    def louder(self: LogTail, session: str, op: int, text: str | None) -> None:
        grew(self, session, op, text and text + text)

    LogTail.on_reply_text = louder  # type: ignore[method-assign]

    from everhold.api.reply_wait import FinalReply, ReplyGrowth
    from everhold.api.streaming import ReplyWriter

    of = ReplyWriter.write_growth

    def careless(self: ReplyWriter, growth: ReplyGrowth) -> str:
        return "" if isinstance(growth, FinalReply) and self.written_text else of(self, growth)

    ReplyWriter.write_growth = careless  # type: ignore[method-assign]


BUGS: Final[dict[str, tuple[Callable[[], None], str, str]]] = {
    "says kept before commit": (says_kept_first, "kept", "was confirmed to its caller and is not in the log"),
    "forgets keys with a restart": (forgets_keys, "words", "times"),
    "streams what is not committed": (says_what_it_has_not_kept, "", "the log has ["),
}
"""How to plant each bug, when to kill so that it shows, and which check must find it."""


if __name__ == "__main__":
    BUGS[sys.argv.pop(1)][0]()
    sys.exit(main())
