"""What the routes work with, and who may see what. Built by app.py."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from everhold.agents import Agents
from everhold.config.settings import Settings
from everhold.control import Control
from everhold.core.entries import Place
from everhold.errors import NotFound
from everhold.flow import access
from everhold.flow.purse import Purses
from everhold.memory import Memory
from everhold.pairing import Pairing
from everhold.platforms import http
from everhold.ports.log import Log
from everhold.ports.platform import Incoming
from everhold.ports.store import Session, Store
from everhold.schedules import Schedules
from everhold.web.caller import Caller
from everhold.web.once import Once
from everhold.web.tail import Tail

if TYPE_CHECKING:
    from everhold.web.reply import Reply

MOST_OWNERS: Final = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatewayServices:
    """What operators may ask of the process as a whole."""

    role: Callable[[], str]
    """What this process is for: `gateway`, or the command that works without one."""
    describe: Callable[[], dict[str, Any]]
    """What the process says about itself: version, agents, accounts, problems."""
    back_up: Callable[[str], Awaitable[dict[str, Any]]]
    """Makes a copy of the store, at a path if one is given; returns what it holds."""
    list_backups: Callable[[], list[dict[str, Any]]]
    pairing: Pairing
    schedules: Schedules
    whisper: Callable[[Place, str], None]
    """Says something in a chat that belongs to no conversation."""


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
    gateway: GatewayServices
    patience: float = 10.0
    """How long a stream waits for its first words before it begins: until then a failure has a status of its own."""
    _owners: OrderedDict[str, str] = dataclasses.field(default_factory=OrderedDict)

    @property
    def store(self) -> Store:
        return self.control.store

    def now(self) -> float:
        return self.control.gates.clock.now()

    def incoming(self, *, agent: str, chat: str, text: str, sender: str, id: str) -> Incoming:
        """A message of `sender` in their chat of this name."""
        origin = http.place(chat=chat, sender=sender, local=sender == self.local, id=id)
        return http.incoming(agent=agent, text=text, sender=sender, origin=origin)

    async def person(self, sender: str, *, platform: str = http.NAME) -> str:
        """Who `sender` is to the agents."""
        identity = f"{platform}:{sender}"
        return self.agents.settings.identities.get(identity) or await self.store.get_person(identity) or sender

    async def find(self, caller: Caller, name: str) -> Session:
        """A session this caller may see; others are not there for them."""
        if caller.operator:
            return await self.control.find(name)
        with contextlib.suppress(NotFound):
            session = await self.store.get_session(name)
            if await self.may_see(caller, session.id):
                return session
        raise NotFound(f"there is no session {name!r}", remedy="GET /api/sessions lists those there are")

    async def sessions(self, caller: Caller, *, limit: int, after: str = "") -> list[Session]:
        """The newest sessions that this caller may see, older than `after`."""
        if caller.operator:
            return await self.store.list_sessions(limit=limit, after=after, newest_first=True)
        seen: list[Session] = []
        person = f"person:{await self.person(caller.sender)}"
        while page := await self.store.list_sessions_begun_by(author=person, limit=limit, after=after):
            seen += [session for session in page if await self.may_see(caller, session.id)]
            after = page[-1].id
            if len(seen) >= limit:
                break
        return seen[:limit]

    async def may_see(self, caller: Caller, session: str) -> bool:
        """Operators see everything; others what began as theirs alone."""
        if caller.operator:
            return True
        return await self._owner(session) == f"person:{await self.person(caller.sender)}"

    async def _owner(self, session: str) -> str:
        """Whose session this is. Kept once it is known: it never changes."""
        if session in self._owners:
            self._owners.move_to_end(session)
            return self._owners[session]
        found = await access.owner(self.store, await self.store.get_session(session))
        if found is None:
            return ""
        self._owners[session] = found
        if len(self._owners) > MOST_OWNERS:
            self._owners.popitem(last=False)
        return found
