"""`everhold` with a bug planted in it: `python planted.py NAME …`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from everhold.cli import main
from everhold.control import Control
from everhold.ports.platform import Incoming, Verdict
from everhold.web import asking
from everhold.web.call import Call
from everhold.web.tail import Tail

_later: set[asyncio.Future[Any]] = set()


def says_kept_first() -> None:
    """Answers before what it was sent is committed."""
    send = Control.send

    async def hasty(self: Control, incoming: Incoming) -> Verdict:
        async def late() -> None:
            await asyncio.sleep(3.0)
            await send(self, incoming)

        if incoming.origin.message.startswith("key:"):
            return await send(self, incoming)
        _later.add(asyncio.ensure_future(late()))
        return Verdict(outcome="accepted", session="soon", seq=1)

    Control.send = hasty  # type: ignore[method-assign]  # that is what a planted bug is


def forgets_keys() -> None:
    """Knows the names of requests only as long as it lives."""
    find = asking._id

    async def forgetful(call: Call, message: Incoming) -> str:
        return f"{await find(call, message)}@{os.getpid()}"

    asking._id = forgetful


def says_what_it_has_not_kept() -> None:
    """Ends a reply with what grew, not with what was committed."""
    grew = Tail.grew

    def louder(self: Tail, session: str, op: int, text: str | None) -> None:
        grew(self, session, op, text and text + text)

    Tail.grew = louder  # type: ignore[method-assign]

    from everhold.web.ink import Ink
    from everhold.web.reply import Growth, Reply

    of = Ink.of

    def careless(self: Ink, growth: Growth) -> str:
        return "" if isinstance(growth, Reply) and self.written else of(self, growth)

    Ink.of = careless  # type: ignore[method-assign]


BUGS: Final[dict[str, tuple[Callable[[], None], str, str]]] = {
    "says kept before commit": (says_kept_first, "kept", "was told that it is kept"),
    "forgets keys with a restart": (forgets_keys, "words", "times"),
    "streams what is not committed": (says_what_it_has_not_kept, "", "the log says"),
}
"""name -> how to plant it, when to kill so that it shows, and what it must be found by."""


if __name__ == "__main__":
    BUGS[sys.argv.pop(1)][0]()
    sys.exit(main())
