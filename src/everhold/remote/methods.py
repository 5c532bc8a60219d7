"""What may be asked over the socket: an explicit table, each method with its parameters' shape. Answers are JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from everhold.control import Control, entry_json, parked_json, session_json
from everhold.core.address import Address, derive, parse
from everhold.errors import Misuse, NotFound
from everhold.ports.platform import Incoming
from everhold.ports.store import Session
from everhold.remote import memory as remembering
from everhold.remote.follow import Followers
from everhold.remote.memory import Remembering

PAGE: Final = 500
PAGE_BYTES: Final = 1 << 20
SHORTEST_PREFIX: Final = 8
"""From here on the beginning of an id counts as one when somebody wants to talk; a shorter word names a new chat."""
TERMINAL: Final = "terminal"
_READ_BY_PEOPLE: Final = (TERMINAL, "http")
"""Places whose replies are read in the log, so that whoever speaks from here is answered here."""


class Nothing(Struct, forbid_unknown_fields=True): ...


class Name(Struct, forbid_unknown_fields=True):
    name: str


class MaybeName(Struct, forbid_unknown_fields=True):
    name: str | None = None


class Chat(Struct, forbid_unknown_fields=True):
    name: str
    agent: str = ""


class Some(Struct, forbid_unknown_fields=True):
    limit: int = 100


class Part(Struct, forbid_unknown_fields=True):
    session: str
    after: int = 0
    limit: int = PAGE


class At(Struct, forbid_unknown_fields=True):
    name: str
    at: int | None = None


class Words(Struct, forbid_unknown_fields=True):
    text: str
    limit: int = 50


class Undo(Struct, forbid_unknown_fields=True):
    name: str
    what: str = "turn"
    count: int = 1


class Compress(Struct, forbid_unknown_fields=True):
    name: str
    keep: int | None = None
    focus: str = ""
    preview: bool = False


class Fold(Struct, forbid_unknown_fields=True):
    name: str
    fold: int


class Note(Struct, forbid_unknown_fields=True):
    name: str
    text: str


class Ids(Struct, forbid_unknown_fields=True):
    ids: tuple[int, ...] = ()


class Message(Struct, forbid_unknown_fields=True):
    incoming: Incoming


class From(Struct, forbid_unknown_fields=True):
    session: str
    after: int = 0


class To(Struct, forbid_unknown_fields=True):
    to: str = ""


Answer: TypeAlias = Callable[[Any], Awaitable[Any]]
Backup: TypeAlias = Callable[[str], Awaitable[dict[str, Any]]]
"""Makes a copy of the store, at a path if one is given; what it holds."""
About: TypeAlias = Callable[[], dict[str, Any]]
"""What this process says about itself: version, agents, problems."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A name's meaning. `follows`: it answers with events until the asker leaves."""

    params: type[Struct]
    answer: Answer | None = None
    follows: bool = False


class Methods:
    """Control, asked by name."""

    def __init__(
        self,
        control: Control,
        *,
        about: About,
        fresh: Callable[[], Awaitable[object]],
        followers: Followers,
        backup: Backup | None = None,
        memory: Remembering | None = None,
        rooms: Iterable[tuple[str, type[Struct], Answer]] = (),
    ) -> None:
        self.control = control
        self.store = control.store
        self.about = about
        self.fresh = fresh
        self.followers = followers
        self.backup = backup
        self.table: Final[dict[str, Method]] = {
            "ping": Method(Nothing, self._ping),
            "find": Method(Name, self._find),
            "place": Method(Chat, self._place),
            "sessions": Method(Some, self._sessions),
            "entries": Method(Part, self._entries),
            "context": Method(At, self._context),
            "folds": Method(Name, self._folds),
            "diff": Method(Fold, self._diff),
            "search": Method(Words, self._search),
            "status": Method(Nothing, self._status),
            "agents": Method(Nothing, self._agents),
            "audit": Method(MaybeName, self._audit),
            "undo": Method(Undo, self._undo),
            "compress": Method(Compress, self._compress),
            "stop": Method(Name, self._stop),
            "note": Method(Note, self._note),
            "parked": Method(Nothing, self._parked),
            "replay": Method(Ids, self._replay),
            "send": Method(Message, self._send),
            "backup": Method(To, self._backup),
            "follow": Method(From, follows=True),
        }

        if memory is not None:
            asked = (
                ("status", remembering.Nothing, memory.status),
                ("search", remembering.Recall, memory.search),
                ("backfill", remembering.Backfill, memory.backfill),
                ("replay", remembering.Replay, memory.replay),
                ("why", remembering.At, memory.why),
                ("forget", remembering.Forget, memory.forget),
                ("export", remembering.Export, memory.export),
                ("import", remembering.BringIn, memory.bring_in),
            )
            self.table.update((f"memory.{name}", Method(shape, answer)) for name, shape, answer in asked)
        self.table.update((name, Method(shape, answer)) for name, shape, answer in rooms)

    async def call(self, name: str, params: object) -> Any:
        """Ask a method that answers once."""
        method, given = self._look_up(name, params)
        if method.answer is None:
            raise Misuse(f"{name} does not answer once", remedy="follow it")
        return await method.answer(given)

    def follow(self, name: str, params: object) -> AsyncIterator[dict[str, Any]]:
        """Ask a method that answers with events."""
        method, given = self._look_up(name, params)
        if not method.follows:
            raise Misuse(f"{name} cannot be followed", remedy="call it")
        return self.followers.follow(self.control, given.session, after=given.after)

    def follows(self, name: str) -> bool:
        return name in self.table and self.table[name].follows

    def _look_up(self, name: str, params: object) -> tuple[Method, Any]:
        method = self.table.get(name)
        if method is None:
            raise Misuse(f"there is no method {name[:40]!r}", remedy=f"there is {', '.join(sorted(self.table))}")
        try:
            return method, msgspec.convert(params, method.params)
        except msgspec.ValidationError as error:
            raise Misuse(f"{name}: {error}", remedy="the client and the gateway may be of different versions") from None

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _ping(self, _: Nothing) -> dict[str, Any]:
        about = self.about()
        return {key: about[key] for key in ("version", "pid", "role")}

    async def _find(self, given: Name) -> dict[str, Any]:
        return session_json(await self.control.find(given.name))

    async def _sessions(self, given: Some) -> dict[str, Any]:
        found = await self.control.sessions(limit=given.limit)
        return {"sessions": [{**session_json(session), "at": await self._last(session)} for session in found]}

    async def _last(self, session: Session) -> float:
        """When something was last written there."""
        if not session.last_seq:
            return session.created
        return (await self.store.get_entry(session.id, session.last_seq)).at

    async def _entries(self, given: Part) -> dict[str, Any]:
        """A page: at most so many entries, and no more bytes than fit a line. `more` says whether to ask again."""
        page: list[dict[str, Any]] = []
        size = 0
        limit = max(1, min(given.limit, PAGE))
        found = await self.store.list_entries(given.session, after=given.after, limit=limit + 1)
        for entry in found[:limit]:
            shown = entry_json(entry)
            size += len(msgspec.json.encode(shown))
            if page and size > PAGE_BYTES:
                break
            page.append(shown)
        return {"entries": page, "more": len(page) < len(found)}

    async def _context(self, given: At) -> dict[str, Any]:
        found = await self.control.context(given.name, at=given.at)
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain

    async def _folds(self, given: Name) -> dict[str, Any]:
        return {
            "folds": [
                {"op": op.op, "state": op.state, "undone_at": op.undone_at, **entry_json(entry)}
                for op, entry in await self.control.folds(given.name)
            ]
        }

    async def _diff(self, given: Fold) -> dict[str, Any]:
        return await self.control.diff(given.name, fold=given.fold)

    async def _search(self, given: Words) -> dict[str, Any]:
        if not given.text.split():
            raise Misuse("search for what?", remedy="everhold sessions search 'some words'")
        hits = await self.control.search(given.text, limit=given.limit)
        return {"hits": [{"session": entry.session, **entry_json(entry)} for entry in hits]}

    async def _status(self, _: Nothing) -> dict[str, Any]:
        about = self.about()
        day = str(about.pop("day"))
        for agent in about["agents"]:
            spent = await self.store.get_spend(f"agent:{agent['name']}", day)
            agent["spent"] = {"usd": spent.usd, "tokens": spent.tokens}
        people = [
            {"name": it.budget.removeprefix("person:"), "spent": {"usd": it.usd, "tokens": it.tokens}}
            for it in await self.store.list_spends("person:", day)
        ]
        return {**about, "people": people, **await self.control.status()}

    async def _agents(self, _: Nothing) -> dict[str, Any]:
        about = self.about()
        return {"agents": about["agents"], "default": about["default_agent"]}

    async def _audit(self, given: MaybeName) -> dict[str, Any]:
        report = await self.control.audit(given.name)
        return {
            "holds": not report.broken,
            "sessions": report.sessions,
            "checked": msgspec.to_builtins(report.checked),
            "promises": report.lines(),
            "findings": msgspec.to_builtins(report.findings),
        }

    async def _parked(self, _: Nothing) -> dict[str, Any]:
        return {"parked": [parked_json(item) for item in await self.store.list_dead_letters()]}

    # -- doing -------------------------------------------------------------------------------------------------------

    async def _undo(self, given: Undo) -> dict[str, Any]:
        if given.count < 1:
            raise Misuse(f"{given.count} turns cannot be undone", remedy="say how many, from 1 on")
        before = await self.control.find(given.name)
        text = await self.control.undo(before.id, what=given.what, count=given.count)
        return await self._amended(before, text)

    async def _compress(self, given: Compress) -> dict[str, Any]:
        if given.keep is not None and given.keep < 0:
            raise Misuse(f"{given.keep} exchanges cannot stay", remedy="say how many, from 0 on")
        before = await self.control.find(given.name)
        folds = len(await self.control.folds(before.id))
        text = await self.control.compress(before.id, keep=given.keep, focus=given.focus, preview=given.preview)
        done = len(await self.control.folds(before.id)) > folds
        return {"session": before.id, "text": text, "done": done}

    async def _stop(self, given: Name) -> dict[str, Any]:
        before = await self.control.find(given.name)
        return await self._amended(before, await self.control.stop(before.id))

    async def _amended(self, before: Session, text: str) -> dict[str, Any]:
        """What was said about it, and whether anything was written."""
        after = await self.store.get_session(before.id)
        return {"session": before.id, "text": text, "done": after.last_seq > before.last_seq}

    async def _note(self, given: Note) -> dict[str, Any]:
        if not given.text.strip():
            raise Misuse("note what?", remedy="everhold memory note 'Ada likes tea'")
        session = await self.control.find(given.name)
        return {"session": session.id, "seq": await self.control.note(session.id, given.text)}

    async def _replay(self, given: Ids) -> dict[str, Any]:
        return {"replayed": await self.control.replay(given.ids)}

    async def _send(self, given: Message) -> dict[str, Any]:
        verdict = await self.control.send(given.incoming)
        plain: dict[str, Any] = msgspec.to_builtins(verdict)
        return plain

    async def _backup(self, given: To) -> dict[str, Any]:
        if self.backup is None:
            raise Misuse("this process keeps no copies", remedy="everhold up")
        return await self.backup(given.to)

    # -- where a terminal speaks -------------------------------------------------------------------------------------

    async def _agent(self, name: str) -> str:
        about = self.about()
        if name and all(it["name"] != name for it in about["agents"]):
            await self.fresh()  # it may have been added a moment ago
            about = self.about()
            if all(it["name"] != name for it in about["agents"]):
                raise NotFound(f"there is no agent {name!r}", remedy="`everhold agents` lists them")
        return name or str(about["default_agent"])

    async def _place(self, given: Chat) -> dict[str, Any]:
        """Where to speak so that it is heard in the chat or session called `name`; a new chat if there is none."""
        if not given.name.strip():
            raise Misuse("a chat needs a name", remedy="--session NAME, or leave it out for `me`")
        agent = await self._agent(given.agent)
        chat = derive(agent=agent, platform=TERMINAL, account="", kind="dm", chat=given.name)
        bound = await self.store.resolve_address(str(chat))
        if bound is not None:
            return _spot(chat, await self.store.get_session(bound))
        session = await self._meant(given.name)
        if session is None:
            return _spot(chat, None)
        if given.agent and session.agent != given.agent:
            raise Misuse(
                f"session {session.id} is {session.agent}'s, not {given.agent}'s", remedy=f"--agent {session.agent}"
            )
        for text in sorted(await self.control.addresses(session), key=_preference):
            address = parse(text)
            if address.platform in _READ_BY_PEOPLE and address.kind == "dm":
                return _spot(address, session)
        raise Misuse(
            f"nothing said here would reach session {session.id}: no terminal leads to it",
            remedy=f"in a chat of yours, `/resume {session.id}` goes on in it",
        )

    async def _meant(self, name: str) -> Session | None:
        found = await self.store.find_sessions(name)
        if name == "last" and not found:
            raise NotFound("there is no session yet", remedy="everhold chat")
        found = [id for id in found if len(name) >= SHORTEST_PREFIX or not id.startswith(name)]
        return await self.control.find(name) if found else None


def _preference(address: str) -> int:
    return 0 if f":{TERMINAL}:" in address else 1


def _spot(address: Address, session: Session | None) -> dict[str, Any]:
    return {
        "agent": address.agent,
        "origin": {
            "platform": address.platform,
            "account": address.account,
            "chat": address.chat,
            "thread": address.thread,
        },
        "kind": address.kind,
        "session": session_json(session) if session else None,
    }
