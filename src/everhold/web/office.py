"""What the routes work with, and who may see what. Built by app.py."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from everhold.agents import Agents
from everhold.config.settings import Settings
from everhold.control import Control
from everhold.core.entries import Body, Branched, Changed, Heard, Kind
from everhold.errors import NotFound
from everhold.flow.purse import Purses
from everhold.memory import Memory
from everhold.platforms import http
from everhold.ports.log import Log
from everhold.ports.platform import Incoming
from everhold.ports.store import Session, Store
from everhold.web.caller import Caller
from everhold.web.once import Once
from everhold.web.tail import Tail

if TYPE_CHECKING:
    from everhold.web.reply import Reply

MOST_OWNERS: Final = 10_000


@dataclasses.dataclass(kw_only=True)
class Office:
    """One per server."""

    control: Control
    memory: Memory
    local: str
    """Who sits at this machine, without a token."""
    agents: Agents
    tail: Tail
    log: Log
    fresh: Callable[[], Awaitable[Settings]]
    """The settings in force now: an edit made before this call counts."""
    trouble: Callable[[], str]
    """Why nothing can be accepted now; empty if it can."""
    scrub: Callable[[str], str]
    """A text without secrets."""
    once: Once[Reply]
    purses: Purses
    patience: float = 10.0
    """How long a stream waits for its first words before it begins: until then a failure has a status of its own."""
    _owners: OrderedDict[str, tuple[str, ...]] = dataclasses.field(default_factory=OrderedDict)

    @property
    def store(self) -> Store:
        return self.control.store

    def incoming(self, *, agent: str, chat: str, text: str, sender: str, id: str) -> Incoming:
        """A message of `sender` in their chat of this name."""
        origin = http.place(chat=chat, sender=sender, local=sender == self.local, id=id)
        return http.incoming(agent=agent, text=text, sender=sender, origin=origin)

    async def person(self, sender: str) -> str:
        """Who `sender` is to the agents."""
        identity = f"{http.NAME}:{sender}"
        return self.agents.settings.identities.get(identity) or await self.store.person_of(identity) or sender

    async def find(self, caller: Caller, name: str) -> Session:
        """A session this caller may see; others are not there for them."""
        if caller.operator:
            return await self.control.find(name)
        session = await self.store.session(name)
        if not await self.may_see(caller, session.id):
            raise NotFound(f"there is no session {name!r}", remedy="GET /api/sessions lists those there are")
        return session

    async def may_see(self, caller: Caller, session: str) -> bool:
        """Operators see everything; others what began as theirs alone."""
        if caller.operator:
            return True
        return await self.person(caller.sender) in await self._owner(session)

    async def _owner(self, session: str) -> tuple[str, ...]:
        """Whose session this is: of whoever spoke first, if nobody else was there. Never changes once it is known."""
        if session in self._owners:
            self._owners.move_to_end(session)
            return self._owners[session]
        first = await self.store.entries(session, kinds=(Kind.HEARD, Kind.CHANGED), limit=1)
        if not first:
            return ()
        person = first[0].author.removeprefix("person:")
        self._owners[session] = (person,) if _alone(first[0].body, person) else ()
        if len(self._owners) > MOST_OWNERS:
            self._owners.popitem(last=False)
        return self._owners[session]


def _alone(first: Body | None, person: str) -> bool:
    """Whether what began a session was between `person` and the agent. What was erased tells nothing."""
    match first:
        case Heard(stamp=stamp):
            return f"person:{person}" in stamp.audience
        case Changed(change=Branched()):
            return True  # only the owner of what it branched off can have made it
        case _:
            return False
