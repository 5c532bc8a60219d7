"""A Honcho workspace as a memory provider.

Exchanges become messages of their speakers' peers; notes become conclusions. Honcho recognises no repeat, so every
message carries its key in its metadata, and conclusions are looked for by their words: whoever doubts asks first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from everhold.core.split import split
from everhold.core.wording import describe_count
from everhold.errors import EverholdError, InDoubt, Transient
from everhold.memories.faults import partly
from everhold.memories.honcho.client import PAGE, Client
from everhold.memories.honcho.peers import Peers
from everhold.memories.honcho.tools import tools_of
from everhold.memories.remote import REMOTE_CAPABILITIES, read_time
from everhold.memories.scope import alone, marks, may_hear
from everhold.memories.signature import signature
from everhold.memories.wording import outdated, packed, unpacked
from everhold.ports.log import Log
from everhold.ports.memory import (
    Batch,
    Exchange,
    Forgotten,
    Found,
    Health,
    Memory,
    Note,
    Query,
    Retraction,
    Utterance,
)
from everhold.ports.platform import Delivery
from everhold.ports.tool import Tool

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings

LONGEST_MESSAGE: Final = 24_000
LONGEST_CONCLUSION: Final = 8_000
"""Characters; the service allows more, its embeddings do not."""
MOST_NAMES: Final = 1_000
_SHARED: Final = "which stands for others, too"


class HonchoMemory:
    """One instance for one agent."""

    delivery = Delivery.PROBE
    capabilities: ClassVar = REMOTE_CAPABILITIES

    def __init__(self, settings: HonchoSettings, *, agent: str, log: Log) -> None:
        self.settings = settings
        self.agent = agent
        self.log = log
        self.deadline = settings.deadline_seconds
        self.visible_after = settings.visible_seconds
        self.client = Client(settings)
        self.peers = Peers(settings, agent)
        self.names: dict[str, str] = {}
        """session -> the name it goes by over there, as far as it has come up: for tools, which are not told."""
        self.notes: dict[str, Note] = {}
        """By their key, for a while: conclusions carry no key, and whoever takes one back may not say what it said."""

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: Batch) -> Mapping[str, str]:
        """Every item in its order: neighbours of one kind go in one request."""
        remotes: dict[str, str] = {}
        self._learn(batch)
        for kind, group in itertools.groupby(batch.items, _kind):
            items = list(group)
            try:
                match kind:
                    case "exchange":
                        await self._say(batch.name, [it for it in items if isinstance(it, Exchange)], remotes)
                    case "note":
                        await self._conclude(batch.name, [it for it in items if isinstance(it, Note)], remotes)
                    case _:
                        for item in items:
                            await self._settle(batch, item, remotes)
            except EverholdError as error:
                raise partly(bool(remotes), error) from error
        return remotes

    async def _say(self, name: str, exchanges: Sequence[Exchange], remotes: dict[str, str]) -> None:
        for chunk in _chunks([(it.key, self._messages(it)) for it in exchanges]):
            messages = [message for _, parts in chunk for message in parts]
            if len(messages) > PAGE:
                await self._say_long(name, messages)
            elif messages:
                await self.client.open(name, [self.peers.ai, *(message["peer_id"] for message in messages)])
                kept = await self.client.say(name, messages)
                await self._confirm(name, messages)
                first = {message.metadata["everhold"]: message.id for message in reversed(kept)}
                remotes |= first
            remotes |= {key: remotes.get(key, "") for key, _ in chunk}

    async def _say_long(self, name: str, messages: Sequence[dict[str, Any]]) -> None:
        """An exchange that takes several requests: what an earlier try left there is not said again."""
        await self.client.open(name, [self.peers.ai, *(message["peer_id"] for message in messages)])
        there = {
            _part(message.metadata) for message in await self._stamped(name, [messages[0]["metadata"]["everhold"]])
        }
        missing = [message for message in messages if _part(message["metadata"]) not in there]
        said = len(missing) < len(messages)
        for start in range(0, len(missing), PAGE):
            try:
                await self.client.say(name, missing[start : start + PAGE])
            except EverholdError as error:
                raise partly(said, error) from error
            said = True

    async def _confirm(self, name: str, messages: Sequence[dict[str, Any]]) -> None:
        """Read back what was said to have been kept."""
        if not self.settings.confirm:
            return
        wanted = {_part(message["metadata"]) for message in messages}
        try:
            there = await self._stamped(name, sorted({key for key, _ in wanted}))
        except EverholdError as error:
            raise InDoubt(f"what was added to {name} could not be read back: {error.message}") from error
        if not wanted <= {_part(message.metadata) for message in there}:
            raise InDoubt(f"Honcho said that messages were added to {name}, and they are not there")

    async def _conclude(self, name: str, notes: Sequence[Note], remotes: dict[str, str]) -> None:
        for listeners, group in itertools.groupby(notes, lambda note: self.peers.about(note.stamp.audience)):
            parts = [(note, _pieces(note.text)) for note in group]
            contents = [piece for _, pieces in parts for piece in pieces]
            if contents:
                await self.client.open(name, [self.peers.ai, *listeners])
            ids: dict[str, str] = {}
            for about, start in itertools.product(listeners, range(0, len(contents), PAGE)):
                some = contents[start : start + PAGE]
                try:
                    kept = await self.client.conclude(some, observer=self.peers.ai, about=about, name=name)
                except EverholdError as error:
                    raise partly(bool(ids), error) from error
                ids |= {one.content: one.id for one in kept}
                if self.settings.confirm and not set(some) <= await self._known(some, [about]):
                    raise InDoubt(f"Honcho said that conclusions about {about} were added, and they are not there")
            remotes |= {note.key: ids.get(pieces[0], "") if pieces else "" for note, pieces in parts}

    async def _settle(self, batch: Batch, item: Memory, remotes: dict[str, str]) -> None:
        """What changes something that is there already: looks, then does what is missing. Safe to repeat."""
        if isinstance(item, Retraction):
            for message in await self._stamped(batch.name, item.keys):
                if not message.metadata.get("everhold_retracted"):
                    await self.client.mark(batch.name, message.id, {**message.metadata, "everhold_retracted": True})
            for old in await self._withdrawn(item):
                await self.client.unconclude(old.id, observer=old.observer_id, about=old.observed_id)
            remotes[item.key] = ""
            return
        assert isinstance(item, Note)
        remote = ""
        if item.action != "remove":
            for about in self.peers.about(item.stamp.audience):
                known = await self._known(_pieces(item.text), [about])
                missing = [piece for piece in _pieces(item.text) if piece not in known]
                if missing:
                    await self.client.open(batch.name, [self.peers.ai, about])
                    kept = await self.client.conclude(missing, observer=self.peers.ai, about=about, name=batch.name)
                    remote = kept[0].id
        for old in await self._outdated(batch, item):
            await self.client.unconclude(old.id, observer=old.observer_id, about=old.observed_id)
        remotes[item.key] = remote

    # -- asking what is there ----------------------------------------------------------------------------------------

    async def probe(self, batch: Batch) -> Sequence[str]:
        arrived: list[str] = []
        exchanges = [item for item in batch.items if isinstance(item, Exchange)]
        there = {_part(it.metadata) for it in await self._stamped(batch.name, [it.key for it in exchanges])}
        for item in batch.items:
            if isinstance(item, Exchange):
                here = all(_part(message["metadata"]) in there for message in self._messages(item))
            elif isinstance(item, Note):
                here = await self._noted(batch, item)
            else:
                marked = await self._stamped(batch.name, item.keys)
                here = all(message.metadata.get("everhold_retracted") for message in marked)
                here = here and not await self._withdrawn(item)
            if here:
                arrived.append(item.key)
        return arrived

    async def _noted(self, batch: Batch, note: Note) -> bool:
        pieces = [] if note.action == "remove" else _pieces(note.text)
        if not set(pieces) <= await self._known(pieces, self.peers.about(note.stamp.audience)):
            return False
        return not await self._outdated(batch, note)

    async def _stamped(self, name: str, keys: Sequence[str]) -> list[Any]:
        """Messages that carry one of our keys."""
        if not keys:
            return []
        found = await self.client.messages(name, {"metadata": {"everhold": {"in": list(keys)}}})
        return [message for message in found if message.metadata.get("everhold") in keys]

    async def _known(self, contents: Sequence[str], listeners: Sequence[str]) -> set[str]:
        """Those that are there for every one of these."""
        known = set(contents)
        for about in listeners if known else ():
            filters = {"observer_id": self.peers.ai, "observed_id": about, "content": {"in": list(contents)}}
            known &= {one.content for one in await self.client.conclusions(filters)}
        return known

    async def _outdated(self, batch: Batch, note: Note) -> list[Any]:
        """Conclusions that a note replaces or removes and that are still there."""
        old = outdated(batch, note)
        pieces = [piece for piece in _pieces(old) if note.action == "remove" or piece not in _pieces(note.text)]
        heard_by = batch.heard_by.get(note.supersedes) or batch.heard_by.get(note.fact) or note.stamp.audience
        return await self._drawn(pieces, heard_by)

    async def _withdrawn(self, retraction: Retraction) -> list[Any]:
        """Conclusions of notes that are taken back, and are still there."""
        found: list[Any] = []
        for key in retraction.keys:
            if (note := self.notes.get(key)) is not None:
                found += await self._drawn(_pieces(note.text), note.stamp.audience)
        return found

    async def _drawn(self, contents: Sequence[str], audience: Sequence[str]) -> list[Any]:
        """Conclusions in these words that were drawn with these people: others may have one in the same words."""
        listeners = self.peers.about(audience)
        if not contents or not listeners:
            return []
        mine = {"observer_id": self.peers.ai, "observed_id": {"in": listeners}, "content": {"in": list(contents)}}
        found = await self.client.conclusions(mine)
        return [one for one in found if one.content in contents and one.observed_id in listeners]

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: Query) -> Sequence[Found]:
        """What was concluded about whoever is present, then what was said. Creates nothing over there."""
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        if query.name:
            self._remember(query.session, query.name)
        questions = [self._find_concluded(query)]
        if self.settings.workspace_words:
            questions.append(self._find_said(query))
            if query.name:
                questions.append(self._find_here(query))
        answers = await asyncio.gather(*questions, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            if not isinstance(error, EverholdError) or len(errors) == len(answers):
                raise error
            self.log.warning("recall.partial", error=str(error))
        found = [item for answer in answers if not isinstance(answer, BaseException) for item in answer]
        return found[: query.limit]

    async def _find_concluded(self, query: Query) -> list[Found]:
        """What everybody present has heard: it is there for each of them."""
        answers = [
            await self.concluded(_asked(query), about, query.limit) for about in self.peers.about(query.audience)
        ]
        common = set.intersection(*({one.content for one in answer} for answer in answers))
        return [
            Found(text=unpacked(one.content), person=alone(query.audience), at=read_time(one.created_at))
            for one in answers[0]
            if one.content in common
        ]

    async def concluded(self, text: str, about: str, limit: int) -> list[Any]:
        """What was concluded about a peer and fits a question."""
        found: list[Any] = await self.client.read(
            "searching conclusions",
            lambda sdk: self.client.peer(sdk, self.peers.ai).conclusions_of(about).aio.query(text, _limit(limit)),
            missing=[],
        )
        return found

    async def _find_said(self, query: Query) -> list[Found]:
        """Anywhere in the workspace, in the same company."""
        filters: dict[str, object] = {"metadata": marks(self.peers.heard_by(query.audience))}
        found = await self.client.read(
            "searching messages",
            lambda sdk: sdk.aio.search(_asked(query), filters=filters, limit=_limit(query.limit)),
            missing=[],
        )
        return [self._found(message) for message in found if self.may_hear(message.metadata, query.audience)]

    async def _find_here(self, query: Query) -> list[Found]:
        """In this very session, what somebody else wrote there: earlier systems put no audience on it."""
        found = await self.client.read(
            "searching the session",
            lambda sdk: self.client.session(sdk, query.name).aio.search(_asked(query), None, _limit(query.limit)),
            missing=[],
        )
        return [self._found(message) for message in found if not message.metadata.get("everhold")]

    def may_hear(self, about: Mapping[str, Any], audience: Sequence[str]) -> bool:
        """Whether those present may hear of a message with this metadata."""
        return (
            may_hear(self.peers.heard_by(audience), about)
            and (self.settings.share_agents or about.get("everhold_agent") == self.agent)
            and not about.get("everhold_retracted")
        )

    def _found(self, message: Any) -> Found:
        about = message.metadata
        return Found(
            text=unpacked(message.content),
            session=str(about.get("everhold_session", "")),
            seq=int(about.get("everhold_seq") or 0),
            person=str(about.get("everhold_person", "")) or message.peer_id,
            at=read_time(message.created_at),
            key=str(about.get("everhold", "")),
        )

    # -- the rest ----------------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return tools_of(self)

    async def forget(self, person: str) -> Forgotten:
        """Conclusions and the card can be deleted. Messages cannot, short of the sessions they are in."""
        spoken = await self._spoken_by(person)
        drawn, unclear = await self._concluded_of(person, spoken)
        for one in drawn:
            await self.client.unconclude(one.id, observer=one.observer_id, about=one.observed_id)
        kept = await self._keep_card(person)
        if unclear:
            kept.append(
                f"{unclear} conclusions about {self.peers.person(person)}, {_SHARED}: whose they are is not told"
            )
        deleted = len(drawn)
        gone: set[str] = set()
        for name, own, others in spoken:
            if own and others:
                kept.append(
                    f"{len(own)} messages in session {name}: others speak there, and Honcho deletes no single message"
                )
            elif own:
                await self.client.delete(name)
                gone.add(name)
                deleted += len(own)
        every = await self.client.conclusions({"observer_id": self.peers.ai})
        if rooms := sum(self.peers.is_room(one.observed_id) and one.session_id not in gone for one in every):
            kept.append(f"{rooms} conclusions of what was noted in company: whose notes they were is not told")
        return Forgotten(deleted=deleted, kept=tuple(kept))

    async def _keep_card(self, person: str) -> list[str]:
        """Clear a person's card; why it is still there, if it is one for several people."""
        about, shared = self.peers.person(person), self.peers.shared(person)
        card = await self.client.read(
            "clearing the card",
            lambda sdk: (
                self.client.peer(sdk, self.peers.ai).aio.get_card(about)
                if shared
                else self.client.peer(sdk, self.peers.ai).aio.set_card([], target=about)
            ),
        )
        return [f"the card of {about}, {_SHARED}"] if shared and card else []

    async def _spoken_by(self, person: str) -> list[tuple[str, list[Any], int]]:
        """(session, messages by the person, how many messages there are by other people) of every session."""
        peer, shared = self.peers.person(person), self.peers.shared(person)
        found = []
        for name in await self.client.read("listing sessions", _session_names, missing=[]):
            said = await self.client.messages(name)
            own = [
                message
                for message in said
                if message.peer_id == peer and (not shared or message.metadata.get("everhold_person") == person)
            ]
            ours = sum(message.peer_id == self.peers.ai != peer for message in said)
            found.append((name, own, len(said) - len(own) - ours))
        return found

    async def _concluded_of(self, person: str, spoken: Sequence[tuple[str, list[Any], int]]) -> tuple[list[Any], int]:
        """What was concluded about a person, and of how much more nobody can tell: under a peer that stands for
        several people, only the session says whom something was concluded about, and only if nobody else spoke there.
        """
        drawn = await self.client.conclusions({"observed_id": self.peers.person(person)})
        if not self.peers.shared(person):
            return drawn, 0
        alone_in = {name for name, own, others in spoken if own and not others}
        without = {name for name, own, others in spoken if others and not own}
        theirs = [one for one in drawn if one.session_id in alone_in]
        return theirs, sum(one.session_id not in alone_in | without for one in drawn)

    async def export(self, person: str) -> AsyncIterator[Found]:
        spoken = await self._spoken_by(person)
        drawn, _ = await self._concluded_of(person, spoken)
        for one in drawn:
            yield Found(text=unpacked(one.content), person=person, at=read_time(one.created_at))
        for _, own, _ in spoken:
            for message in own:
                yield self._found(message)

    async def health(self) -> Health:
        """Whether it answers, and whether it works off what it was given: it was seen accepting, and doing nothing."""
        try:
            status = await self.client.read("asking how it is", lambda sdk: sdk.aio.queue_status())
        except Transient as error:
            return Health(well=False, text=error.message)
        waiting = status.pending_work_units if status else 0
        return Health(well=True, text=f"{describe_count(waiting, 'message')} not reasoned about yet" if waiting else "")

    async def close(self) -> None:
        await self.client.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        """Everything it was built from; the key only as what tells two apart."""
        return signature("honcho", self.settings)

    # -- small things ------------------------------------------------------------------------------------------------

    def _messages(self, exchange: Exchange) -> list[dict[str, Any]]:
        """An exchange as Honcho's messages, each with its key and its place among them."""
        said: list[tuple[Utterance, str]] = [
            (utterance, piece)
            for utterance in (*exchange.heard, *exchange.said)
            for piece in split(packed(utterance.text), LONGEST_MESSAGE)
            if piece.strip()
        ]
        heard_by = marks(self.peers.heard_by(exchange.stamp.audience))
        return [
            {
                "content": piece,
                "peer_id": self.peers.speaker(utterance.author, utterance.stamp),
                "created_at": datetime.fromtimestamp(utterance.at, UTC) if utterance.at else None,
                "metadata": {
                    "everhold": exchange.key,
                    "everhold_part": number,
                    "everhold_parts": len(said),
                    "everhold_agent": exchange.agent,
                    "everhold_session": exchange.session,
                    "everhold_seq": utterance.seq,
                    "everhold_person": exchange.agent if _own(utterance) else utterance.stamp.person,
                    **heard_by,
                    **({"everhold_parent": exchange.parent} if exchange.parent else {}),
                    **({"everhold_tags": list(exchange.tags)} if exchange.tags else {}),
                },
            }
            for number, (utterance, piece) in enumerate(said)
        ]

    def _learn(self, batch: Batch) -> None:
        for item in batch.items:
            self._remember(item.session, batch.name)
            if isinstance(item, Note):
                self.notes[item.key] = item
        while len(self.notes) > MOST_NAMES:
            del self.notes[next(iter(self.notes))]

    def _remember(self, session: str, name: str) -> None:
        self.names.pop(session, None)
        self.names[session] = name
        if len(self.names) > MOST_NAMES:
            del self.names[next(iter(self.names))]


def _own(utterance: Utterance) -> bool:
    return utterance.author.startswith("agent:")


def _kind(item: Memory) -> str:
    match item:
        case Exchange():
            return "exchange"
        case Note(action="add"):
            return "note"
        case _:
            return "change"


def _chunks(
    parts: Iterable[tuple[str, list[dict[str, Any]]]],
) -> Iterable[list[tuple[str, list[dict[str, Any]]]]]:
    """Exchanges that fit into one request together; one that fits into none goes alone."""
    chunk: list[tuple[str, list[dict[str, Any]]]] = []
    size = 0
    for key, messages in parts:
        if chunk and size + len(messages) > PAGE:
            yield chunk
            chunk, size = [], 0
        chunk.append((key, messages))
        size += len(messages)
    if chunk:
        yield chunk


def _part(metadata: Mapping[str, Any]) -> tuple[str, int]:
    return str(metadata.get("everhold", "")), int(metadata.get("everhold_part") or 0)


def _pieces(text: str) -> list[str]:
    pieces = split(packed(text), LONGEST_CONCLUSION)
    return list(dict.fromkeys(piece for piece in pieces if piece.strip()))


def _asked(query: Query) -> str:
    return query.text.strip()


def _limit(limit: int) -> int:
    return max(1, min(PAGE, limit))


async def _session_names(sdk: Any) -> list[str]:
    names: list[str] = []
    number = 1
    while True:
        page = await sdk.aio.sessions(page=number, size=PAGE)
        names += [session.id for session in page.items]
        if len(page.items) < PAGE:
            return names
        number += 1
