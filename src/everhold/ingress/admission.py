"""Admission: decides who the sender of a message is, whether it is accepted, and whether an agent answers. It uses the
configuration in force.

The default is to refuse. A stranger gets at most one reply an hour, and only in direct chats. A group message is stored
only if it is addressed to the agent, or if the configuration says to observe the group. A halt silences the agents of a
chat until a human lifts it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from everhold.config import AccountSettings, Settings
from everhold.config.settings import ChatSettings
from everhold.core import access
from everhold.core.access import AdmissionDecision, IdentifiedSender
from everhold.core.address import derive_address, parse_address
from everhold.core.commands import ALONE, QUIETLY, get_command_roles, parse_command
from everhold.core.consumers import COMMANDS, TURN
from everhold.core.entries import ChatCommand, ChatLocation, EntryDraft, EntryKind, Heard, Stamp
from everhold.core.pairing import WELCOME, find_invitation_code
from everhold.core.people import PeopleDirectory, build_identity
from everhold.core.roles import find_place
from everhold.engine.state_updates import update_state_record
from everhold.errors import EverholdError, Transient
from everhold.ingress.accept import build_dedup_key
from everhold.ingress.chat_records import ChatAliases, DmOwners
from everhold.ingress.pairing import PairingRegistry
from everhold.ingress.people import PeopleRegistry
from everhold.ingress.roles import (
    HOOK_ROLE,
    LOCAL_PLATFORMS,
    ChatSender,
    RoleFinder,
    find_configured,
    identify_person,
)
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.log import EventLogger
from everhold.ports.platform import (
    UNPARSED_EVENT,
    IncomingMessage,
    OutgoingMessage,
    Platform,
    SupportsPresence,
)
from everhold.ports.store import Change, StateNamespace, Step, Store, Wakeup, make_state_scope

MAX_ENTRIES_BACK: Final = 200
"""How many entries back a message of a human is searched."""
MAX_REPORTED_LOOPS: Final = 1_000
LOOP_REPORT_SECONDS: Final = 86_400.0
"""How long a broken loop is shown in the status."""
PAIRING_REPLY: Final = """\
I do not know you yet. To get access, give this code to the owner of this agent: {code} (valid for ten minutes)."""


class AdmissionControl:
    """Decides about every message: who speaks, in which conversation, and whether it is accepted."""

    def __init__(
        self,
        *,
        settings: Callable[[], Settings],
        store: Store,
        platforms: Mapping[tuple[str, str], Platform],
        clock: Clock,
        chance: RandomSource,
        log: EventLogger,
        chat_aliases: ChatAliases | None = None,
        people: PeopleRegistry | None = None,
        load_settings: Callable[[], Awaitable[Settings]] | None = None,
    ) -> None:
        """`load_settings` returns the settings for a worker, after an edit of the file was applied."""
        self._store = store
        self._platforms = platforms
        self._clock = clock
        self._chance = chance
        self._log = log
        self.shared_records = (chat_aliases or ChatAliases(store, clock=clock, log=log)).shared_records
        self._dm_owners = DmOwners(store, clock=clock, shared_records=self.shared_records)
        self.people = people or PeopleRegistry(store, settings=settings, clock=clock, chance=chance, log=log)
        self.pairing = PairingRegistry(store, people=self.people, clock=clock, chance=chance, log=log)
        self.roles = RoleFinder(store, pairing=self.pairing, load_settings=load_settings or self.people.apply_settings)
        """Tells the workers which role a sender has now."""
        self.loops: dict[tuple[str, str, str], dict[str, Any]] = {}
        """(agent, platform, chat) of broken loops -> how often agents answered each other, and when last."""
        self.unparsed: Counter[str] = Counter()
        """How many updates could not be parsed: `read` if the sender could be read, `unknown` if not."""
        self._sends: set[asyncio.Task[None]] = set()

    async def __call__(self, incoming: IncomingMessage) -> AdmissionDecision:
        settings, origin = await self.people.apply_settings(), incoming.origin
        state_version = await self.shared_records.load()
        people = await self._store.get_people()
        speaker = identify_sender(incoming, people)
        account = settings.platforms.get(origin.platform, {}).get(origin.account)
        first = self.shared_records.find_first_id(origin.platform, origin.chat)
        chat = find_configured(account.chats, origin.chat, first) if account is not None else None
        agent = _choose_agent(incoming, account, chat, settings)
        if incoming.is_automatic:
            _check_configured(incoming, agent, account, settings)
        if agent not in settings.agents:
            return AdmissionDecision(agent=agent, identity=speaker.identity, refusal=f"there is no agent {agent!r}")
        sessions = settings.agents[agent].sessions
        if chat is not None:
            sessions = chat.sessions or sessions
        found = AdmissionDecision(
            agent=agent,
            identity=speaker.identity,
            people_version=people.version,
            state_version=state_version,
            is_new_identity=speaker.identity not in people.identities,
            group=sessions.group,
            threads=sessions.thread,
            chat=first,
        )
        sender = _build_chat_sender(incoming, speaker, agent, first)
        if origin.platform in LOCAL_PLATFORMS:
            found = await self._add_role(found, sender, settings)
        else:
            if account is None:
                return msgspec.structs.replace(found, refusal=f"{origin.platform}/{origin.account} is not connected")
            if incoming.event == UNPARSED_EVENT:
                return await self._check_unparsed(incoming, found, settings)
            found = await self._add_role(found, sender, settings)
            if found.refusal and await self.shared_records.refresh():
                return await self(incoming)  # nothing is committed for it, so no commit notices an outdated copy
            found = await self._check_access(incoming, found, sender, account, settings)
            if found.ignored and await self.shared_records.refresh():
                return await self(incoming)
            if not (found.refusal or found.ignored) and incoming.kind == "dm":
                found = await self._check_dm_owner(incoming, found, speaker, people)
            if found.refusal or found.ignored:
                return found
        return await self._check_loops(incoming, found, speaker, settings)

    async def can_speak(self, incoming: IncomingMessage) -> bool:
        """Return whether the sender of a message may speak where it was sent. Nothing is stored, and nobody gets an
        answer."""
        if incoming.event == UNPARSED_EVENT:
            kind = "dm" if incoming.unparsed_direct else "group"
            place = msgspec.structs.replace(incoming.origin, chat=incoming.unparsed_chat)
            incoming = msgspec.structs.replace(incoming, kind=kind, origin=place)
        settings, origin = await self.people.apply_settings(), incoming.origin
        speaker = identify_sender(incoming, await self._store.get_people())
        account = settings.platforms.get(origin.platform, {}).get(origin.account)
        await self.shared_records.refresh()
        first = self.shared_records.find_first_id(origin.platform, origin.chat)
        chat = find_configured(account.chats, origin.chat, first) if account is not None else None
        agent = _choose_agent(incoming, account, chat, settings)
        sender = _build_chat_sender(incoming, speaker, agent, first)
        return await self.roles.compute_role(sender, settings) is not None

    async def _add_role(self, found: AdmissionDecision, sender: ChatSender, settings: Settings) -> AdmissionDecision:
        """Return the decision with the sender's role, or with a refusal if the sender may not speak."""
        role = await self.roles.compute_role(sender, settings)
        if sender.is_hook and (role is not None or not sender.is_direct):
            role = HOOK_ROLE
        if role is None:
            return msgspec.structs.replace(found, refusal=f"{sender.speaker.identity} is not allowed here")
        return msgspec.structs.replace(found, role=role)

    async def _check_unparsed(
        self, incoming: IncomingMessage, found: AdmissionDecision, settings: Settings
    ) -> AdmissionDecision:
        """Decide about an update that cannot be parsed. It is stored only if its sender may speak where it was sent."""
        self.unparsed["read" if incoming.sender else "unknown"] += 1
        if not incoming.sender:
            return msgspec.structs.replace(found, refusal="the sender of an update cannot be read")
        chat, platform = incoming.unparsed_chat, incoming.origin.platform
        await self.shared_records.refresh()
        first = self.shared_records.find_first_id(platform, chat) if chat else ""
        speaker = identify_sender(incoming, await self._store.get_people())
        sender = _build_chat_sender(incoming, speaker, found.agent, first)
        place = msgspec.structs.replace(sender, is_direct=incoming.unparsed_direct, chats=(chat, first))
        return msgspec.structs.replace(await self._add_role(found, place, settings), asks=False)

    async def _check_access(
        self,
        incoming: IncomingMessage,
        found: AdmissionDecision,
        sender: ChatSender,
        account: AccountSettings,
        settings: Settings,
    ) -> AdmissionDecision:
        admitted = not found.refusal
        command = _parse_given_command(incoming)
        if sender.is_direct and command is not None and command.name == "link" and (admitted or command.argument):
            if answer := await self.pairing.answer_link_command(sender.speaker, command.argument, admitted=admitted):
                self.send_outside_session(incoming.origin, answer)
            return msgspec.structs.replace(found, refusal="it was a link command")
        code = find_invitation_code(incoming.text) if sender.is_direct and not incoming.bot else ""
        if code and await self.pairing.accept_invitation(
            incoming.origin.platform, incoming.origin.account, incoming.sender, name=incoming.name, code=code
        ):
            self.send_outside_session(incoming.origin, WELCOME)
            return msgspec.structs.replace(found, refusal="it was an invitation")
        if not admitted:
            if sender.is_direct and settings.access.pairing and not incoming.bot:
                await self._answer_pairing_request(incoming)
            return found
        return found if sender.is_direct else self._check_group_message(incoming, found, account, settings)

    def _check_group_message(
        self, incoming: IncomingMessage, found: AdmissionDecision, account: AccountSettings, settings: Settings
    ) -> AdmissionDecision:
        """Decide whether a group message asks for an answer."""
        manners = account.groups
        chat = find_configured(account.chats, incoming.origin.chat, found.chat)
        if chat is not None:
            manners = chat.groups or manners
        order = self._parse_halt_order(incoming, settings)
        asks = incoming.addressed or manners.answer == "always" or order is not None
        if not asks and not manners.observe:
            return msgspec.structs.replace(found, ignored=True)
        return msgspec.structs.replace(found, asks=asks, always_answered=manners.answer == "always")

    async def _check_dm_owner(
        self, incoming: IncomingMessage, found: AdmissionDecision, speaker: IdentifiedSender, people: PeopleDirectory
    ) -> AdmissionDecision:
        """Give a direct chat that can change hands to the person who was heard there first. Another person gets a
        separate conversation.
        """
        origin, sender = incoming.origin, incoming.sender
        platform, account = origin.platform, origin.account
        # This also applies to messages that do not come from the platform, such as schedules.
        first = await self._dm_owners.find_owner(platform, account, found.chat)
        if not first and incoming.can_change_owner:
            outside = msgspec.structs.replace(origin, thread="")
            chat = msgspec.structs.replace(incoming, origin=outside)
            addresses = (self._derive_address(chat, found), self._derive_address(incoming, found))
            first = await self._dm_owners.find_or_set_owner(
                platform, account, found.chat, addresses=addresses, sender=sender
            )
        if incoming.is_automatic:
            there: object = self._platforms.get((platform, account))
            if isinstance(there, SupportsPresence) and not await there.is_alone_with(origin, sender):
                return msgspec.structs.replace(found, refusal=f"{speaker.identity} is no longer alone in that chat")
        if first in ("", sender) or people.is_same_person(build_identity(platform, first), speaker.identity):
            return found
        return msgspec.structs.replace(found, separate_conversation=True)

    async def _check_loops(
        self, incoming: IncomingMessage, found: AdmissionDecision, speaker: IdentifiedSender, settings: Settings
    ) -> AdmissionDecision:
        """Silence agents after too many answers to each other, and in halted chats."""
        origin = incoming.origin
        order = self._parse_halt_order(incoming, settings)
        if origin.platform in LOCAL_PLATFORMS:
            if (word := order or self._parse_link(incoming)) is not None:
                return msgspec.structs.replace(found, command=ChatCommand(name=ALONE, argument=word))
        elif order is not None:
            command = ChatCommand(name=order)
            place = find_place(is_direct=incoming.kind == "dm", has_own_session=_has_own_session(incoming, found))
            # The command worker tells a sender who may not do this what is missing.
            if get_command_roles(command)[place].allows(found.role) and not await self._is_repeated(incoming):
                await self._apply_halt_order(incoming, found, speaker, order)
                found = msgspec.structs.replace(found, state_version=self.shared_records.version)  # it wrote a record
            return msgspec.structs.replace(found, command=command, asks=True)
        hops = incoming.hops
        if not incoming.bot:
            self.loops.pop((found.agent, origin.platform, origin.chat), None)
        if incoming.bot and not hops and origin.platform not in LOCAL_PLATFORMS:
            hops = await self._count_hops(incoming, found)  # a count from the platform is exact, ours is an estimate
        if hops >= settings.loops.max_hops:
            self._record_broken_loop(found.agent, origin, hops)
            return msgspec.structs.replace(found, asks=False, hops=hops)
        asks = found.asks and not self.shared_records.is_halted(origin.platform, found.chat)
        return msgspec.structs.replace(found, asks=asks, hops=hops)

    # -- strangers ---------------------------------------------------------------------------------------------------

    async def _answer_pairing_request(self, incoming: IncomingMessage) -> None:
        origin = incoming.origin
        code = await self.pairing.request_pairing(
            origin.platform, origin.account, incoming.sender, name=incoming.name, chat=origin.chat
        )
        if code:
            self.send_outside_session(origin, PAIRING_REPLY.format(code=code))

    def send_outside_session(self, to: ChatLocation, text: str) -> None:
        """Send a message that belongs to no session. It is neither awaited nor retried."""
        platform = self._platforms.get((to.platform, to.account))
        if platform is None:
            return
        out = OutgoingMessage(to=to, text=text, key=f"whisper:{self._chance.bytes(8).hex()}", notice=True)

        async def say() -> None:
            try:
                await platform.send(out)
            except EverholdError as error:
                self._log.warning("reply.failed", platform=to.platform, account=to.account, error=error)

        task = asyncio.get_running_loop().create_task(say())
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def close_sends(self) -> None:
        """Wait for messages that are being sent, or give them up."""
        if self._sends:
            await asyncio.wait(self._sends, timeout=2.0)
        for task in self._sends:
            task.cancel()

    # -- loops and halts ---------------------------------------------------------------------------------------------

    def _parse_halt_order(self, incoming: IncomingMessage, settings: Settings) -> str | None:
        """Return `halt` or `wake` if a human orders it: by the halt word, or by the command, because bots may see only
        commands.
        """
        if not _can_give_commands(incoming):
            return None
        words = {settings.loops.halt_word: "halt", settings.loops.wake_word: "wake"}
        command = parse_command(incoming.text)
        return words.get(incoming.text.strip()) or (
            command.name if command is not None and command.name in ("halt", "wake") else None
        )

    def _parse_link(self, incoming: IncomingMessage) -> str | None:
        command = _parse_given_command(incoming)
        return command.name if command is not None and command.name == "link" else None

    async def _is_repeated(self, incoming: IncomingMessage) -> bool:
        """Return whether an order was handled and stored before, because a late repeat must not undo a later order. An
        order that was handled and not stored is handled again, which changes nothing.
        """
        key = build_dedup_key(incoming)
        return key is not None and await self._store.find_entry_place(key) is not None

    async def _apply_halt_order(
        self, incoming: IncomingMessage, found: AdmissionDecision, speaker: IdentifiedSender, order: str
    ) -> None:
        origin = incoming.origin
        value: str | None = None
        if order == "halt":
            by = {"by": speaker.identity, "at": self._clock.now()}
            value = msgspec.json.encode(by).decode()
        # The last order counts, whoever gave the one before.
        await update_state_record(
            self._store,
            StateNamespace.CHAT_HALT,
            found.chat,
            scope=make_state_scope(origin.platform),
            at=self._clock.now(),
            decide=lambda _: value,
        )
        await self.shared_records.refresh()
        if order == "halt":
            await self._spread_halt(incoming, found, speaker)
        else:
            self.loops = {key: it for key, it in self.loops.items() if key[1:] != (origin.platform, origin.chat)}
        self._log.info(
            "chat.halted" if order == "halt" else "chat.resumed", platform=origin.platform, by=speaker.identity
        )

    async def _spread_halt(
        self, incoming: IncomingMessage, found: AdmissionDecision, speaker: IdentifiedSender
    ) -> None:
        """Send the halt to every session of this chat that is running or has pending messages."""
        own = self._derive_address(incoming, found)
        for cursor in await self._store.list_cursors(consumer=TURN, waiting=True):
            session = await self._store.get_session(cursor.session)
            address = parse_address(session.address)
            here = (address.platform, address.chat) == (incoming.origin.platform, found.chat)
            if not here or session.address == own:
                continue
            body = Heard(
                origin=incoming.origin,
                text=incoming.text,
                command=ChatCommand(name="halt", argument=QUIETLY),
                stamp=Stamp(person=speaker.identity, audience=(f"chat:{session.address}",), address=session.address),
                role=found.role,
            )
            key = f"halt:{session.id}:{incoming.origin.account}:{incoming.origin.message}"
            draft = EntryDraft(body=body, author=f"person:{speaker.identity}", dedup=key)
            wakeups = (Wakeup(consumer=COMMANDS),)
            at = self._clock.now()
            await self._store.commit(
                Change(step=Step.ACCEPT, session=session.id, at=at, entries=(draft,), wakeups=wakeups)
            )

    async def _count_hops(self, incoming: IncomingMessage, found: AdmissionDecision) -> int:
        """Count how often agents have answered each other in this conversation, on a platform that carries no count."""
        led = await self._store.get_bound_session(self._derive_address(incoming, found))
        if led is None:
            return 0
        session = await self._store.get_session(led[0])
        kinds = (EntryKind.HEARD, EntryKind.SAID)
        return access.count_session_hops(
            await self._store.list_entries(session.id, after=max(0, session.last_seq - MAX_ENTRIES_BACK), kinds=kinds)
        )

    def _derive_address(self, incoming: IncomingMessage, found: AdmissionDecision) -> str:
        origin = incoming.origin
        return str(
            derive_address(
                agent=found.agent,
                platform=origin.platform,
                account=origin.account,
                kind=incoming.kind,
                chat=found.chat,
                thread=origin.thread,
                sender=incoming.sender,
                group=found.group,
                threads=found.threads,
                apart=found.separate_conversation,
            )
        )

    def _record_broken_loop(self, agent: str, origin: ChatLocation, hops: int) -> None:
        key = (agent, origin.platform, origin.chat)
        self._log.warning("loop.stopped", agent=agent, platform=origin.platform, hops=hops)
        if key in self.loops or len(self.loops) < MAX_REPORTED_LOOPS:
            count = self.loops.get(key, {"count": 0})["count"] + 1
            self.loops[key] = {"count": count, "hops": hops, "at": self._clock.now()}

    async def is_halted(self, platform: str, chat: str) -> bool:
        """Return whether the agents of a chat are silenced."""
        await self.shared_records.refresh()
        return self.shared_records.is_halted(platform, chat)

    def describe(self) -> dict[str, Any]:
        """Return broken loops and silenced chats, for `status`."""
        return {
            "loops": [
                {"agent": agent, "platform": platform, "chat": chat, **it}
                for (agent, platform, chat), it in sorted(self.loops.items())
                if it["at"] > self._clock.now() - LOOP_REPORT_SECONDS
            ],
            "halted": [
                {"platform": platform, "chat": chat, "by": by}
                for platform, chat, by in self.shared_records.list_halts()
            ],
        }


def _can_give_commands(incoming: IncomingMessage) -> bool:
    """Return whether a message can be a command. A bot gives none, and neither does a schedule or a webhook."""
    return not incoming.bot and not incoming.is_automatic


def _parse_given_command(incoming: IncomingMessage) -> ChatCommand | None:
    return parse_command(incoming.text) if _can_give_commands(incoming) else None


def identify_sender(incoming: IncomingMessage, people: PeopleDirectory) -> IdentifiedSender:
    """Return the sender with the name of the person, if a proof links the identity to one."""
    return identify_person(build_identity(incoming.origin.platform, incoming.sender), people)


def _build_chat_sender(incoming: IncomingMessage, speaker: IdentifiedSender, agent: str, first_chat: str) -> ChatSender:
    origin = incoming.origin
    return ChatSender(
        speaker=speaker,
        sender=incoming.sender,
        agent=agent,
        platform=origin.platform,
        account=origin.account,
        is_direct=incoming.kind == "dm",
        is_hook=bool(incoming.hook),
        chats=(origin.chat, first_chat),
    )


def _has_own_session(incoming: IncomingMessage, found: AdmissionDecision) -> bool:
    return (found.threads if incoming.origin.thread else found.group) == "per-person"


def _check_configured(
    incoming: IncomingMessage, agent: str, account: AccountSettings | None, settings: Settings
) -> None:
    """Raise if the agent or account of a schedule or webhook is not configured, so that its message waits."""
    origin, remedy = incoming.origin, f"configure it, or remove the {incoming.event}"
    if agent not in settings.agents:
        raise Transient(f"there is no agent {agent!r}", remedy=remedy)
    if account is None and origin.platform not in LOCAL_PLATFORMS:
        raise Transient(f"{origin.platform}/{origin.account} is not connected", remedy=remedy)


def _choose_agent(
    incoming: IncomingMessage, account: AccountSettings | None, chat: ChatSettings | None, settings: Settings
) -> str:
    if incoming.agent:
        return incoming.agent
    if account is None:
        return settings.default_agent
    return (chat.agent if chat is not None else None) or account.agent
