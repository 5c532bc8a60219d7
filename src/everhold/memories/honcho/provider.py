"""A Honcho workspace as a memory provider.

Exchanges become messages of their speakers' peers; notes become conclusions. Honcho does not recognise a repeat. So
every message has its key in its metadata, conclusions are found by their text, and an attempt in doubt is probed first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import structs

from everhold.core.message_split import split_text
from everhold.core.wording import describe_count
from everhold.errors import EverholdError, InDoubt, Transient
from everhold.memories.errors import convert_partial_failure
from everhold.memories.honcho.client import PAGE_SIZE, HonchoClient
from everhold.memories.honcho.erasure import HonchoErasure, confirm_deletions
from everhold.memories.honcho.peers import HonchoPeers
from everhold.memories.honcho.renewal import HonchoRenewal
from everhold.memories.honcho.tools import build_tools
from everhold.memories.remote import (
    REMOTE_CAPABILITIES,
    compute_signature,
    escape_nul,
    find_outdated_text,
    read_time,
    unescape_nul,
)
from everhold.memories.scope import build_audience_marks, can_hear, get_only_person, get_present
from everhold.ports.log import EventLogger
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    MemoryUtterance,
    ProviderDeletion,
    ProviderHealth,
    SessionRenewal,
)
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.tool import Tool, ToolContext

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings

MAX_MESSAGE_CHARS: Final = 24_000
MAX_CONCLUSION_CHARS: Final = 8_000
"""In characters. The service allows more, but its embeddings do not."""
MAX_NAMES: Final = 1_000
PERSONA_LINE: Final = "Persona: "
"""Begins the line of the agent's card that everhold writes."""


class HonchoMemory:
    """One instance for one agent."""

    delivery = DeliveryGuarantee.PROBE
    capabilities: ClassVar = REMOTE_CAPABILITIES | {
        MemoryCapability.PERSONA,
        MemoryCapability.REMOVE_SESSION,
        MemoryCapability.RENEW_SESSION,
    }

    def __init__(self, settings: HonchoSettings, *, agent: str, log: EventLogger) -> None:
        self.settings = settings
        self.agent = agent
        self.log = log
        self.deadline = settings.deadline_seconds
        self.visible_after = settings.visible_seconds
        self.client = HonchoClient(settings)
        self.peers = HonchoPeers(settings, agent)
        self.peer_rule = self.peers.rule
        self._persona: str | None = None
        """The persona that the service was not told yet."""
        self._has_persona = False
        self.session_names: dict[str, str] = {}
        """Session -> its name at Honcho, as far as known. Tools need it, because their context does not contain the
        name.
        """
        self.recent_notes: dict[str, MemoryNote] = {}
        """Texts of notes by key, cached: conclusions have no key, and a note that removes one may not repeat its text.
        """

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        """Store the items in order. Adjacent items of one kind go in one request."""
        remotes: dict[str, str] = {}
        self._remember_batch(batch)
        for kind, group in itertools.groupby(batch.items, _classify_item):
            items = list(group)
            try:
                match kind:
                    case "exchange":
                        await self._add_exchanges(batch.name, [it for it in items if isinstance(it, Exchange)], remotes)
                    case "note":
                        await self._add_conclusions(
                            batch.name, [it for it in items if isinstance(it, MemoryNote)], remotes
                        )
                    case _:
                        for item in items:
                            await self._apply_change(batch, item, remotes)
            except EverholdError as error:
                raise convert_partial_failure(bool(remotes), error) from error
        await self._offer_persona()
        return remotes

    def set_persona(self, persona: str) -> None:
        persona = persona.strip()[:MAX_CONCLUSION_CHARS]
        if persona or self._has_persona:
            self._persona, self._has_persona = persona, bool(persona)

    async def _offer_persona(self) -> None:
        """Write the persona to the card of the agent's own peer, beside what Honcho found out. A failure delays
        nothing, and the next write tries again.
        """
        if self._persona is None:
            return
        wanted = [PERSONA_LINE + escape_nul(self._persona)] if self._persona else []
        try:
            card = await self.client.call(
                "reading the agent's card",
                lambda sdk: self.client.get_peer(sdk, self.peers.agent_peer).aio.get_card(),
                missing=None,
            )
            new = [*wanted, *(line for line in card or () if not line.startswith(PERSONA_LINE))]
            if new != list(card or ()):
                await self.client.call(
                    "writing the agent's card",
                    lambda sdk: self.client.get_peer(sdk, self.peers.agent_peer).aio.set_card(new),
                )
        except EverholdError as error:
            self.log.warning("memory.hook_failed", hook="persona", error=error)
        else:
            self._persona = None

    async def _add_exchanges(self, name: str, exchanges: Sequence[Exchange], remotes: dict[str, str]) -> None:
        for chunk in _group_requests([(it.key, self._build_messages(it)) for it in exchanges]):
            messages = [message for _, parts in chunk for message in parts]
            if len(messages) > PAGE_SIZE:
                await self._add_long_exchange(name, messages)
            elif messages:
                await self.ensure_session(name, [message["peer_id"] for message in messages])
                kept = await self.client.add_messages(name, messages)
                await self._confirm_messages(name, messages)
                first = {message.metadata["everhold"]: message.id for message in reversed(kept)}
                remotes |= first
            remotes |= {key: remotes.get(key, "") for key, _ in chunk}

    async def _add_long_exchange(self, name: str, messages: Sequence[dict[str, Any]]) -> None:
        """Store an exchange that needs several requests, without the messages that an earlier attempt stored."""
        await self.ensure_session(name, [message["peer_id"] for message in messages])
        there = {
            _get_part(message.metadata)
            for message in await self._list_keyed_messages(name, [messages[0]["metadata"]["everhold"]])
        }
        missing = [message for message in messages if _get_part(message["metadata"]) not in there]
        said = len(missing) < len(messages)
        for start in range(0, len(missing), PAGE_SIZE):
            try:
                await self.client.add_messages(name, missing[start : start + PAGE_SIZE])
            except EverholdError as error:
                raise convert_partial_failure(said, error) from error
            said = True

    async def ensure_session(self, name: str, peers: Sequence[str]) -> None:
        await self.client.ensure_session(name, peers, observer=self.peers.agent_peer)

    async def _confirm_messages(self, name: str, messages: Sequence[dict[str, Any]]) -> None:
        """Read back the messages that Honcho reported as stored."""
        if not self.settings.confirm:
            return
        wanted = {_get_part(message["metadata"]) for message in messages}
        try:
            there = await self._list_keyed_messages(name, sorted({key for key, _ in wanted}))
        except EverholdError as error:
            raise InDoubt(f"messages added to {name} could not be read back: {error.message}") from error
        if not wanted <= {_get_part(message.metadata) for message in there}:
            raise InDoubt(f"Honcho reported messages as added to {name}, but they are not there")

    async def _add_conclusions(self, name: str, notes: Sequence[MemoryNote], remotes: dict[str, str]) -> None:
        for listeners, group in itertools.groupby(
            notes, lambda note: self.peers.list_audience_peers(note.stamp.audience, note.peers)
        ):
            parts = [(note, _split_text(note.text)) for note in group]
            contents = [piece for _, pieces in parts for piece in pieces]
            if contents:
                await self.ensure_session(name, listeners)
            ids: dict[str, str] = {}
            for about, start in itertools.product(listeners, range(0, len(contents), PAGE_SIZE)):
                some = contents[start : start + PAGE_SIZE]
                try:
                    kept = await self.client.add_conclusions(
                        some, observer=self.peers.agent_peer, about=about, name=name
                    )
                except EverholdError as error:
                    raise convert_partial_failure(bool(ids), error) from error
                ids |= {one.content: one.id for one in kept}
                if self.settings.confirm and not set(some) <= await self._find_known_texts(some, [about]):
                    raise InDoubt(f"Honcho reported conclusions about {about} as added, but they are not there")
            remotes |= {note.key: ids.get(pieces[0], "") if pieces else "" for note, pieces in parts}

    async def _apply_change(self, batch: MemoryBatch, item: MemoryItem, remotes: dict[str, str]) -> None:
        """Apply an item that changes existing data: read, then do what is missing. Safe to repeat."""
        if isinstance(item, MemoryRetraction):
            for name, message in await self._list_retracted_messages(batch, item):
                if not message.metadata.get("everhold_retracted"):
                    await self.client.update_message(name, message.id, {**message.metadata, "everhold_retracted": True})
            for old in await self._list_withdrawn_conclusions(item):
                await self.client.delete_conclusion(old.id, observer=old.observer_id, about=old.observed_id)
            remotes[item.key] = ""
            return
        assert isinstance(item, MemoryNote)
        remote = ""
        if item.action != "remove":
            for about in self.peers.list_audience_peers(item.stamp.audience, item.peers):
                known = await self._find_known_texts(_split_text(item.text), [about])
                missing = [piece for piece in _split_text(item.text) if piece not in known]
                if missing:
                    await self.ensure_session(batch.name, [about])
                    kept = await self.client.add_conclusions(
                        missing, observer=self.peers.agent_peer, about=about, name=batch.name
                    )
                    remote = kept[0].id
        for old in await self._list_outdated_conclusions(batch, item):
            await self.client.delete_conclusion(old.id, observer=old.observer_id, about=old.observed_id)
        remotes[item.key] = remote

    # -- probing -----------------------------------------------------------------------------------------------------

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        arrived: list[str] = []
        exchanges = [item for item in batch.items if isinstance(item, Exchange)]
        there = {
            _get_part(it.metadata) for it in await self._list_keyed_messages(batch.name, [it.key for it in exchanges])
        }
        for item in batch.items:
            if isinstance(item, Exchange):
                here = all(_get_part(message["metadata"]) in there for message in self._build_messages(item))
            elif isinstance(item, MemoryNote):
                here = await self._is_noted(batch, item)
            else:
                marked = await self._list_retracted_messages(batch, item)
                here = all(message.metadata.get("everhold_retracted") for _, message in marked)
                here = here and not await self._list_withdrawn_conclusions(item)
            if here:
                arrived.append(item.key)
        return arrived

    async def _is_noted(self, batch: MemoryBatch, note: MemoryNote) -> bool:
        pieces = [] if note.action == "remove" else _split_text(note.text)
        listeners = self.peers.list_audience_peers(note.stamp.audience, note.peers)
        only_in = batch.name if batch.is_moved else ""
        if not set(pieces) <= await self._find_known_texts(pieces, listeners, only_in=only_in):
            return False
        return not await self._list_outdated_conclusions(batch, note)

    async def _list_keyed_messages(self, name: str, keys: Sequence[str]) -> list[Any]:
        """Return the messages that have one of our keys."""
        if not keys:
            return []
        found = await self.client.list_messages(name, {"metadata": {"everhold": {"in": list(keys)}}})
        return [message for message in found if message.metadata.get("everhold") in keys]

    async def _list_retracted_messages(self, batch: MemoryBatch, item: MemoryRetraction) -> list[tuple[str, Any]]:
        """Return the messages that a retraction names, each with its session."""
        names = {
            name: [it for it in item.keys if batch.names_of.get(it, batch.name) == name] for name in _list_names(batch)
        }
        return [
            (name, message) for name, keys in names.items() for message in await self._list_keyed_messages(name, keys)
        ]

    async def _find_known_texts(
        self, contents: Sequence[str], listeners: Sequence[str], *, only_in: str = ""
    ) -> set[str]:
        """Return the texts for which every listener has a conclusion, in any session or in one."""
        known = set(contents)
        for about in listeners if known else ():
            filters = {"observer_id": self.peers.agent_peer, "observed_id": about, "content": {"in": list(contents)}}
            if only_in:
                filters["session_id"] = only_in
            known &= {one.content for one in await self.client.list_conclusions(filters)}
        return known

    async def _list_outdated_conclusions(self, batch: MemoryBatch, note: MemoryNote) -> list[Any]:
        """Return the conclusions that a note replaces or removes and that still exist."""
        old = find_outdated_text(batch, note)
        pieces = [piece for piece in _split_text(old) if note.action == "remove" or piece not in _split_text(note.text)]
        heard_by = batch.heard_by.get(note.supersedes) or batch.heard_by.get(note.fact) or note.stamp.audience
        known = batch.peers_of.get(note.supersedes) or batch.peers_of.get(note.fact) or {}
        return await self._find_conclusions(pieces, heard_by, {**note.peers, **known})

    async def _list_withdrawn_conclusions(self, retraction: MemoryRetraction) -> list[Any]:
        """Return the conclusions of retracted notes that still exist."""
        found: list[Any] = []
        for key in retraction.keys:
            if (note := self.recent_notes.get(key)) is not None:
                found += await self._find_conclusions(_split_text(note.text), note.stamp.audience, note.peers)
        return found

    async def _find_conclusions(
        self, contents: Sequence[str], audience: Sequence[str], peers: Mapping[str, str]
    ) -> list[Any]:
        """Return the conclusions with this text about these peers, because others may have one with the same text."""
        listeners = self.peers.list_audience_peers(audience, peers)
        if not contents or not listeners:
            return []
        mine = {
            "observer_id": self.peers.agent_peer,
            "observed_id": {"in": listeners},
            "content": {"in": list(contents)},
        }
        found = await self.client.list_conclusions(mine)
        return [one for one in found if one.content in contents and one.observed_id in listeners]

    # -- removing ----------------------------------------------------------------------------------------------------

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        """Hide messages, because Honcho deletes them only with their session, and delete conclusions."""
        for message in await self._list_keyed_messages(batch.name, [it.key for it in batch.items]):
            if not message.metadata.get("everhold_retracted"):
                await self.client.update_message(
                    batch.name, message.id, {**message.metadata, "everhold_retracted": True}
                )
        for note in batch.items:
            if isinstance(note, MemoryNote):
                for one in await self._find_conclusions(_split_text(note.text), note.stamp.audience, note.peers):
                    if one.session_id == batch.name:
                        await self.client.delete_conclusion(one.id, observer=one.observer_id, about=one.observed_id)
        return ()

    async def remove_session(self, name: str) -> str:
        messages = await self.client.list_messages(name)
        if any(not message.metadata.get("everhold_retracted") for message in messages):
            return f"session {name} has messages that were not moved"
        await self.client.delete_session(name)
        return ""

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        """Return conclusions about the people present, then messages. It creates nothing at Honcho."""
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        if query.name:
            self._remember_session_name(query.session, query.name)
        questions = [self._find_in_conclusions(query)]
        if self.settings.workspace_words:
            questions.append(self._find_in_messages(query))
            if query.name:
                questions.append(self._find_in_session(query))
        answers = await asyncio.gather(*questions, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            if not isinstance(error, EverholdError) or len(errors) == len(answers):
                raise error
            self.log.warning("recall.incomplete", error=str(error))
        found = [item for answer in answers if not isinstance(answer, BaseException) for item in answer]
        return found[: query.limit]

    async def _find_in_conclusions(self, query: MemoryQuery) -> list[MemoryHit]:
        """Return what everyone present has heard: conclusions that exist for each of them, under any of their peers."""
        answers = [
            await self._search_person_conclusions(query, peers)
            for peers in self.peers.list_present_peers(get_present(query), query.peers)
        ]
        common = set.intersection(*({one.content for one in answer} for answer in answers))
        return [
            MemoryHit(
                text=unescape_nul(one.content), person=get_only_person(query.audience), at=read_time(one.created_at)
            )
            for one in answers[0]
            if one.content in common
        ]

    async def _search_person_conclusions(self, query: MemoryQuery, peers: Sequence[tuple[str, float]]) -> list[Any]:
        """Return the conclusions about one person that match a question. The best of each peer come first."""
        found = [
            [
                one
                for one in await self.search_conclusions(_get_query_text(query), about, query.limit)
                if read_time(one.created_at) >= since
            ]
            for about, since in peers
        ]
        ranked = (one for rank in itertools.zip_longest(*found) for one in rank if one is not None)
        return list({one.content: one for one in ranked}.values())

    async def search_conclusions(self, text: str, about: str, limit: int) -> list[Any]:
        """Return the conclusions about a peer that match a question."""
        found: list[Any] = await self.client.call(
            "searching conclusions",
            lambda sdk: (
                self.client.get_peer(sdk, self.peers.agent_peer)
                .conclusions_of(about)
                .aio.query(text, _clamp_limit(limit))
            ),
            missing=[],
        )
        return found

    async def _find_in_messages(self, query: MemoryQuery) -> list[MemoryHit]:
        """Search messages in the whole workspace that have the same audience."""
        filters = self._build_audience_filter(query)
        found = await self.client.call(
            "searching messages",
            lambda sdk: sdk.aio.search(_get_query_text(query), filters=filters, limit=_clamp_limit(query.limit)),
            missing=[],
        )
        return [self._to_memory_hit(message) for message in found if self.can_hear(message, query)]

    def _build_audience_filter(self, query: MemoryQuery) -> dict[str, object]:
        """Return the filter for messages that have, for each of the people present, a mark of any of their identities,
        or of their peers, as early versions made them.
        """
        choices: list[list[str]] = []
        for group in get_present(query).groups:
            members = [one.member for one in group]
            names = dict.fromkeys(
                (*members, *(peer for it in members for peer in query.peers.get(it.removeprefix("person:"), ())))
            )
            choices.append([mark for name in names for mark in build_audience_marks((name,))])
        if all(len(marks) == 1 for marks in choices):
            return {"metadata": {marks[0]: "yes" for marks in choices}}
        return {"AND": [{"OR": [{"metadata": {mark: "yes"}} for mark in marks]} for marks in choices]}

    async def _find_in_session(self, query: MemoryQuery) -> list[MemoryHit]:
        """Search this session for messages without an audience, which other systems wrote earlier."""
        found = await self.client.call(
            "searching the session",
            lambda sdk: self.client.get_session(sdk, query.name).aio.search(
                _get_query_text(query), None, _clamp_limit(query.limit)
            ),
            missing=[],
        )
        return [self._to_memory_hit(message) for message in found if not message.metadata.get("everhold")]

    def can_hear(self, message: Any, asked: MemoryQuery | ToolContext) -> bool:
        """Whether the people present may see a message."""
        about = message.metadata
        return (
            can_hear(get_present(asked), about, read_time(message.created_at), peers=asked.peers)
            and (self.settings.share_agents or about.get("everhold_agent") == self.agent)
            and not about.get("everhold_retracted")
        )

    def _to_memory_hit(self, message: Any) -> MemoryHit:
        about = message.metadata
        return MemoryHit(
            text=unescape_nul(message.content),
            session=str(about.get("everhold_session", "")),
            seq=int(about.get("everhold_seq") or 0),
            person=str(about.get("everhold_person", "")) or message.peer_id,
            at=read_time(message.created_at),
            key=str(about.get("everhold", "")),
        )

    # -- other capabilities ------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return build_tools(self)

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        return await HonchoErasure(self, target).ask()

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        return await confirm_deletions(self, deletions)

    async def renew_session(self, renewal: SessionRenewal) -> Sequence[ProviderDeletion]:
        notes = frozenset(piece for text in renewal.notes for piece in _split_text(text))
        return await HonchoRenewal(self, structs.replace(renewal, notes=notes)).ask()

    async def list_sessions(self) -> dict[str, datetime]:
        """Return the names of all sessions, and when Honcho made each."""
        found: dict[str, datetime] = await self.client.call("listing sessions", _list_sessions, missing={})
        return found

    async def export(
        self, person: str, *, peers: Sequence[str] = (), shared_peers: Sequence[str] = ()
    ) -> AsyncIterator[MemoryHit]:
        target = ErasureTarget(identities=(person,), peers=tuple(peers), shared_peers=tuple(shared_peers))
        everything = HonchoErasure(self, target)
        spoken = await everything.list_sessions()
        drawn, _ = await everything.list_conclusions(spoken)
        for one in drawn:
            yield MemoryHit(text=unescape_nul(one.content), person=person, at=read_time(one.created_at))
        for session in spoken:
            for message in session.own:
                yield self._to_memory_hit(message)

    async def health(self) -> ProviderHealth:
        """Check that the service answers and works through its queue. Services were seen to accept messages and do
        nothing.
        """
        try:
            status = await self.client.call("checking its health", lambda sdk: sdk.aio.queue_status())
        except Transient as error:
            return ProviderHealth(healthy=False, text=error.message)
        waiting = status.pending_work_units if status else 0
        return ProviderHealth(
            healthy=True, text=f"{describe_count(waiting, 'message')} not reasoned about yet" if waiting else ""
        )

    async def close(self) -> None:
        await self.client.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        """Return the signature of the settings, with the API key only as a fingerprint."""
        return compute_signature("honcho", self.settings)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _build_messages(self, exchange: Exchange) -> list[dict[str, Any]]:
        """Return an exchange as Honcho's messages, each with its key and its number."""
        said: list[tuple[MemoryUtterance, str]] = [
            (utterance, piece)
            for utterance in (*exchange.heard, *exchange.said)
            for piece in split_text(escape_nul(utterance.text), MAX_MESSAGE_CHARS)
            if piece.strip()
        ]
        heard_by = build_audience_marks(exchange.stamp.audience)
        return [
            {
                "content": piece,
                "peer_id": self.peers.get_speaker_peer(utterance),
                "created_at": datetime.fromtimestamp(utterance.at, UTC) if utterance.at else None,
                "metadata": {
                    "everhold": exchange.key,
                    "everhold_part": number,
                    "everhold_parts": len(said),
                    "everhold_agent": exchange.agent,
                    "everhold_session": exchange.session,
                    "everhold_seq": utterance.seq,
                    "everhold_person": exchange.agent if _is_own(utterance) else utterance.stamp.person,
                    **heard_by,
                    **({"everhold_parent": exchange.parent} if exchange.parent else {}),
                    **({"everhold_tags": list(exchange.tags)} if exchange.tags else {}),
                },
            }
            for number, (utterance, piece) in enumerate(said)
        ]

    def _remember_batch(self, batch: MemoryBatch) -> None:
        for item in batch.items:
            self._remember_session_name(item.session, batch.name)
            if isinstance(item, MemoryNote):
                self.recent_notes[item.key] = item
        while len(self.recent_notes) > MAX_NAMES:
            del self.recent_notes[next(iter(self.recent_notes))]

    def _remember_session_name(self, session: str, name: str) -> None:
        self.session_names.pop(session, None)
        self.session_names[session] = name
        if len(self.session_names) > MAX_NAMES:
            del self.session_names[next(iter(self.session_names))]


def _is_own(utterance: MemoryUtterance) -> bool:
    return utterance.author.startswith("agent:")


def _classify_item(item: MemoryItem) -> str:
    match item:
        case Exchange():
            return "exchange"
        case MemoryNote(action="add"):
            return "note"
        case _:
            return "change"


def _group_requests(
    parts: Iterable[tuple[str, list[dict[str, Any]]]],
) -> Iterable[list[tuple[str, list[dict[str, Any]]]]]:
    """Group exchanges that fit into one request; an exchange that is too large goes alone."""
    chunk: list[tuple[str, list[dict[str, Any]]]] = []
    size = 0
    for key, messages in parts:
        if chunk and size + len(messages) > PAGE_SIZE:
            yield chunk
            chunk, size = [], 0
        chunk.append((key, messages))
        size += len(messages)
    if chunk:
        yield chunk


def _get_part(metadata: Mapping[str, Any]) -> tuple[str, int]:
    return str(metadata.get("everhold", "")), int(metadata.get("everhold_part") or 0)


def _split_text(text: str) -> list[str]:
    pieces = split_text(escape_nul(text), MAX_CONCLUSION_CHARS)
    return list(dict.fromkeys(piece for piece in pieces if piece.strip()))


def _get_query_text(query: MemoryQuery) -> str:
    return query.text.strip()


def _clamp_limit(limit: int) -> int:
    return max(1, min(PAGE_SIZE, limit))


def _list_names(batch: MemoryBatch) -> list[str]:
    return list(dict.fromkeys((batch.name, *batch.names_of.values())))


async def _list_sessions(sdk: Any) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    number = 1
    while True:
        page = await sdk.aio.sessions(page=number, size=PAGE_SIZE)
        found |= {session.id: session.created_at for session in page.items}
        if len(page.items) < PAGE_SIZE:
            return found
        number += 1
