"""Counts what senders, chats and accounts use, and refuses a message that exceeds a quota.

Rates are counted in this process. Waiting messages are counted in the store when a limit seems to be reached, and in
between this process adds what it accepts, so a lost decrement cannot lock anybody out. Daily amounts are state records:
a process reserves a block of bytes with compare-and-set and uses it up in memory. So most messages need no store call,
and a restart forgets nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from everhold.core.access import AdmissionDecision
from everhold.core.address import parse_address
from everhold.core.entries import ChatLocation
from everhold.core.people import HOOK_PLATFORM, PERSON_MEMBER, build_identity
from everhold.core.quotas import (
    DAILY_QUOTAS,
    DailyUse,
    QuotaLimits,
    QuotaName,
    QuotaRefusal,
    QuotaSubject,
    QuotaTable,
    RateMeter,
    SubjectKind,
    WaitingCount,
    find_quota_account,
    find_shared_subject,
    is_exempt,
    reserve_bytes,
)
from everhold.core.roles import PersonRole
from everhold.engine.state_updates import update_state_record
from everhold.errors import EverholdError
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.platform import SCHEDULED_EVENT, IncomingMessage
from everhold.ports.store import Change, StateNamespace, Step, Store

EXEMPT_PLATFORMS: Final = frozenset({"terminal", "agent"})
"""The operator's own terminal, and agents, which `loops` and budgets limit."""
MAX_METERS: Final = 20_000
MAX_REPORTED: Final = 1_000
RECOUNT_SECONDS: Final = 1.0
"""How often waiting messages are counted in the store while a sender is at the limit."""
SHARED_RECOUNT_SECONDS: Final = 5.0
"""How often they are counted if other hosts accept messages, too."""
WAITING_RETRY_SECONDS: Final = 10.0
REPORT_SECONDS: Final = 86_400.0


class SubjectMeter:
    """What this process knows about the use of one subject."""

    __slots__ = ("bytes_left", "day", "full_at", "lock", "rate", "subject", "told_at", "waiting", "waiting_bytes")

    def __init__(self, subject: QuotaSubject) -> None:
        self.subject = subject
        self.rate = RateMeter()
        self.waiting = 0
        self.waiting_bytes = 0
        self.full_at: float | None = None
        """When the store last confirmed that too much waits."""
        self.day = ""
        self.bytes_left = 0
        """The rest of the block that this process has reserved for `day`."""
        self.told_at: dict[QuotaName, float] = {}
        self.lock = asyncio.Lock()


class MessageCharge:
    """What one message takes from its subjects, until the message is stored or the charge is returned."""

    __slots__ = ("asks", "is_local", "parts", "size", "taken_bytes", "taken_rate", "taken_waiting", "text_size")

    def __init__(
        self,
        parts: Sequence[tuple[SubjectMeter, QuotaLimits]],
        *,
        text_size: int,
        size: int,
        asks: bool,
        is_local: bool,
    ) -> None:
        self.parts = parts
        self.text_size = text_size
        self.size = size
        self.asks = asks
        self.is_local = is_local
        """The sender waits for the response of a request, so no answer is sent to a chat."""
        self.taken_bytes: list[SubjectMeter] = []
        self.taken_rate = False
        self.taken_waiting = False

    def give_back(self) -> None:
        """Return everything, because the message was not stored or was stored before."""
        if self.taken_rate:
            self.taken_rate = False
            for meter, _ in self.parts:
                meter.rate.give_back()
        self.give_back_stored()

    def give_back_stored(self) -> None:
        """Return what only a stored message takes. A refused message still counts in the rate."""
        self.give_back_waiting()
        for meter in self.taken_bytes:
            meter.bytes_left += self.size
        self.taken_bytes = []

    def give_back_waiting(self) -> None:
        if self.taken_waiting:
            self.taken_waiting = False
            for meter, _ in self.parts:
                meter.waiting -= 1
                meter.waiting_bytes -= self.text_size


class MessageQuotas:
    """The quotas of messages. One object per process."""

    def __init__(
        self,
        store: Store,
        *,
        settings: Callable[[], QuotaTable],
        clock: Clock,
        log: EventLogger,
        get_today: Callable[[], str],
        get_seconds_left: Callable[[], float],
        list_held: Callable[[], Iterable[WaitingCount]] = tuple,
    ) -> None:
        """`get_seconds_left` returns the seconds until the next day. `list_held` returns the messages whose files are
        being downloaded."""
        self._store = store
        self._settings = settings
        self._clock = clock
        self._log = log
        self._get_today = get_today
        self._get_seconds_left = get_seconds_left
        self.list_held = list_held
        self._meters: dict[QuotaSubject, SubjectMeter] = {}
        self._known: dict[tuple[str, str, str, str], tuple[SubjectMeter, SubjectMeter, SubjectMeter]] = {}
        self._counted = False
        self._counted_at = 0.0
        self._purged_day = ""
        self.refused: Counter[QuotaName] = Counter()
        """The number of refused messages by quota, since the process began."""
        self._reports: dict[tuple[QuotaSubject, QuotaName], dict[str, Any]] = {}

    # -- before a message is stored ----------------------------------------------------------------------------------

    def find_charge(self, incoming: IncomingMessage, admission: AdmissionDecision) -> MessageCharge | None:
        """Return what the message will take; None if no quota applies to its sender."""
        if is_exempt(admission.role) or incoming.by_operator or incoming.event == SCHEDULED_EVENT:
            return None
        origin = incoming.origin
        if origin.platform in EXEMPT_PLATFORMS:
            return None
        # a webhook in the chat of a person does not use up that person's quotas
        identity = build_identity(HOOK_PLATFORM, incoming.hook) if incoming.hook else admission.identity
        key = (identity, origin.platform, origin.account, admission.chat or origin.chat)
        meters = self._known.get(key) or self._find_meters(key)
        settings = self._settings()
        own = settings.member if admission.role >= PersonRole.MEMBER else settings.stranger
        # the platform reports the size of a file that is not downloaded yet; the rest is charged when it is known
        text_size = len(incoming.text)
        size = text_size
        if incoming.files or incoming.remote_files:
            size += sum(map(len, incoming.files)) + sum(it.size for it in incoming.remote_files)
        return MessageCharge(
            _list_parts(meters, own, settings),
            text_size=text_size,
            size=size,
            asks=admission.asks and not incoming.bot and not incoming.notice and incoming.addressed,
            is_local=origin.platform == "http",
        )

    async def take_note(self, identity: str, role: PersonRole, origin: ChatLocation, size: int) -> QuotaRefusal | None:
        """Charge a note like a message. Nothing is answered, so it does not wait."""
        if is_exempt(role):
            return None
        settings = self._settings()
        meters = self._find_meters((identity, origin.platform, origin.account, origin.chat))
        parts = _list_parts(meters, settings.member, settings)
        charge = MessageCharge(parts, text_size=size, size=size, asks=False, is_local=True)
        refusal = await self.take(charge)
        charge.give_back_waiting()
        if refusal is not None:
            self.record_refusal(refusal)
        return refusal

    async def take(self, charge: MessageCharge) -> QuotaRefusal | None:
        """Take the charge, or return the quota that refuses it. Then nothing is taken, except from the rate."""
        now = self._clock.monotonic()
        for meter, limits in charge.parts:
            limit = limits.messages_per_minute
            if limit and (wait := meter.rate.compute_wait(limit, now)):
                return QuotaRefusal(quota=QuotaName.MESSAGES, subject=meter.subject, limit=limit, retry_after=wait)
        charge.taken_rate = True
        for meter, _ in charge.parts:
            meter.rate.take()
        if (refusal := await self._take_waiting(charge, now)) is not None:
            return refusal
        for meter, limits in charge.parts:
            if not limits.bytes_per_day:
                continue
            if not await self._take_bytes(meter, limits.bytes_per_day, charge.size):
                charge.give_back_stored()
                return self._refuse_today(QuotaName.BYTES, meter, limits.bytes_per_day)
            charge.taken_bytes.append(meter)
        return None

    async def _take_waiting(self, charge: MessageCharge, now: float) -> QuotaRefusal | None:
        if not self._counted or (not self._store.is_exclusive and now - self._counted_at >= SHARED_RECOUNT_SECONDS):
            await self._count_waiting()
        refusal = _find_waiting_refusal(charge)
        if refusal is not None and self._may_recount(refusal, now):
            await self._count_waiting()
            refusal = _find_waiting_refusal(charge)
            if refusal is not None:
                self._meters[refusal.subject].full_at = now
        if refusal is not None:
            return refusal
        charge.taken_waiting = True
        for meter, _ in charge.parts:
            meter.waiting += 1
            meter.waiting_bytes += charge.text_size
        return None

    def _may_recount(self, refusal: QuotaRefusal, now: float) -> bool:
        full_at = self._meters[refusal.subject].full_at
        return full_at is None or now - full_at >= RECOUNT_SECONDS

    async def take_conversation(self, charge: MessageCharge, *, force: bool = False) -> QuotaRefusal | None:
        """Count a new conversation; with `force` also above the limit, because its message was accepted before."""
        counted: list[SubjectMeter] = []
        for meter, limits in charge.parts:
            limit = limits.conversations_per_day
            if not limit:
                continue
            if not await self._add_conversations(meter, 1, limit=None if force else limit):
                for done in counted:
                    await self._add_conversations(done, -1, limit=None)
                return self._refuse_today(QuotaName.CONVERSATIONS, meter, limit)
            counted.append(meter)
        return None

    async def add_bytes(self, charge: MessageCharge, size: int) -> None:
        """Charge bytes of an accepted message, even above the limit. The next message is refused then."""
        for meter, limits in charge.parts:
            if not limits.bytes_per_day or await self._take_bytes(meter, limits.bytes_per_day, size):
                continue
            await self._update_use(meter, lambda use: msgspec.structs.replace(use, bytes=use.bytes + size))

    # -- after a refusal ---------------------------------------------------------------------------------------------

    def record_refusal(self, refusal: QuotaRefusal) -> None:
        """Count a refused message, for `status` and the metrics."""
        self.refused[refusal.quota] += 1
        key = (refusal.subject, refusal.quota)
        if key in self._reports or len(self._reports) < MAX_REPORTED:
            row = self._reports.setdefault(key, {"count": 0})
            row.update(count=row["count"] + 1, limit=refusal.limit, at=self._clock.now())

    async def should_tell(self, refusal: QuotaRefusal) -> bool:
        """Return whether the sender was not told yet in this window. The next call returns False."""
        meter, now = self._meters.get(refusal.subject), self._clock.monotonic()
        if meter is None:
            return False
        told = meter.told_at.get(refusal.quota)
        if told is not None and now - told < refusal.window:
            return False
        meter.told_at[refusal.quota] = now
        return refusal.quota not in DAILY_QUOTAS or await self._mark_told(meter, refusal.quota)

    def describe(self) -> list[dict[str, Any]]:
        """Return the refused messages of the last day, for `status`."""
        recent = self._clock.now() - REPORT_SECONDS
        return [
            {"subject": str(subject), "quota": quota.value, **row}
            for (subject, quota), row in sorted(self._reports.items(), key=lambda it: -float(it[1]["at"]))
            if row["at"] > recent
        ]

    async def close(self) -> None:
        """Return the rest of all reserved blocks."""
        for meter in self._meters.values():
            left, meter.bytes_left = meter.bytes_left, 0
            if left and meter.day == self._get_today():
                with contextlib.suppress(EverholdError):  # a block that is not returned counts as used
                    await self._update_use(meter, functools.partial(_return_bytes, left), only_existing=True)

    # -- meters ------------------------------------------------------------------------------------------------------

    def _find_meters(self, key: tuple[str, str, str, str]) -> tuple[SubjectMeter, SubjectMeter, SubjectMeter]:
        identity, platform, account, chat = key
        found = (
            self._find_meter(QuotaSubject(SubjectKind.SENDER, identity)),
            self._find_meter(find_shared_subject(platform, account, chat)),
            self._find_meter(QuotaSubject(SubjectKind.ACCOUNT, f"{platform}:{account}")),
        )
        if len(self._known) >= MAX_METERS:
            self._known.clear()
        self._known[key] = found
        return found

    def _find_meter(self, subject: QuotaSubject) -> SubjectMeter:
        meter = self._meters.get(subject)
        if meter is None:
            if len(self._meters) >= MAX_METERS:
                self._drop_meters()
            meter = self._meters[subject] = SubjectMeter(subject)
        return meter

    def _drop_meters(self) -> None:
        """Drop the older half. Their rates begin anew, and the rest of their blocks counts as used."""
        for subject in list(self._meters)[: MAX_METERS // 2]:
            del self._meters[subject]
        self._known.clear()
        self._counted = False

    def _refuse_today(self, quota: QuotaName, meter: SubjectMeter, limit: int) -> QuotaRefusal:
        return QuotaRefusal(quota=quota, subject=meter.subject, limit=limit, retry_after=self._get_seconds_left())

    async def _count_waiting(self) -> None:
        """Count in the store which messages wait. Messages that are being committed may be missing."""
        self._counted, self._counted_at = True, self._clock.monotonic()
        messages: Counter[QuotaSubject] = Counter()
        sizes: Counter[QuotaSubject] = Counter()
        for row in (*await self._store.list_waiting(), *self.list_held()):
            for subject in _list_subjects(row):
                messages[subject] += row.messages
                sizes[subject] += row.bytes
        for subject, meter in self._meters.items():
            meter.waiting, meter.waiting_bytes = messages[subject], sizes[subject]
        for subject in messages:
            meter = self._find_meter(subject)
            meter.waiting, meter.waiting_bytes = messages[subject], sizes[subject]

    # -- daily amounts -----------------------------------------------------------------------------------------------

    async def _take_bytes(self, meter: SubjectMeter, limit: int, size: int) -> bool:
        today = self._get_today()
        while meter.day != today or meter.bytes_left < size:
            async with meter.lock:
                if meter.day == today and meter.bytes_left >= size:
                    break  # another task has reserved a block
                if meter.day != today:
                    meter.day, meter.bytes_left = today, 0
                    await self._purge_records(today)
                if not await self._reserve_block(meter, limit, size - meter.bytes_left):
                    return False
        meter.bytes_left -= size
        return True

    async def _reserve_block(self, meter: SubjectMeter, limit: int, size: int) -> bool:
        block = 0

        def decide(use: DailyUse) -> DailyUse:
            nonlocal block
            reserved = reserve_bytes(use, limit=limit, size=size)
            if reserved is None:
                block = 0
                return use
            use, block = reserved
            return use

        await self._update_use(meter, decide)
        meter.bytes_left += block
        return block > 0 or size <= 0

    async def _add_conversations(self, meter: SubjectMeter, count: int, *, limit: int | None) -> bool:
        granted = True

        def decide(use: DailyUse) -> DailyUse:
            nonlocal granted
            granted = limit is None or use.conversations + count <= limit
            return msgspec.structs.replace(use, conversations=use.conversations + count) if granted else use

        await self._update_use(meter, decide)
        return granted

    async def _mark_told(self, meter: SubjectMeter, quota: QuotaName) -> bool:
        new = True

        def decide(use: DailyUse) -> DailyUse:
            nonlocal new
            new = quota not in use.told
            return msgspec.structs.replace(use, told=(*use.told, quota.value)) if new else use

        await self._update_use(meter, decide)
        return new

    async def _update_use(
        self, meter: SubjectMeter, decide: Callable[[DailyUse], DailyUse], *, only_existing: bool = False
    ) -> None:
        """Change the record of a subject. With `only_existing`, a record that was deleted with its person stays so."""
        today, at = self._get_today(), self._clock.now()

        def decide_value(value: str | None) -> str | None:
            if value is None and only_existing:
                return None
            use = DailyUse(day="") if value is None else msgspec.json.decode(value, type=DailyUse)
            if use.day != today:
                use = DailyUse(day=today, at=at)
            return msgspec.json.encode(decide(use)).decode()

        await update_state_record(self._store, StateNamespace.QUOTA, str(meter.subject), at=at, decide=decide_value)

    async def _purge_records(self, today: str) -> None:
        """Delete the records of former days, once a day."""
        if self._purged_day == today:
            return
        self._purged_day = today
        records = await self._store.list_state_records(StateNamespace.QUOTA)
        writes = tuple(
            it.replace_with(None) for it in records if msgspec.json.decode(it.value, type=DailyUse).day < today
        )
        if writes:
            with contextlib.suppress(EverholdError):  # another process purges, too
                await self._store.commit(Change(step=Step.STATE, session="", at=self._clock.now(), state_writes=writes))


def _return_bytes(count: int, use: DailyUse) -> DailyUse:
    return msgspec.structs.replace(use, bytes=max(0, use.bytes - count))


def _find_waiting_refusal(charge: MessageCharge) -> QuotaRefusal | None:
    for meter, limits in charge.parts:
        size = meter.waiting_bytes + charge.text_size
        for quota, limit, used in (
            (QuotaName.WAITING, limits.waiting_messages, meter.waiting + 1),
            # a message that is longer than the limit is accepted if nothing waits
            (QuotaName.WAITING_BYTES, limits.waiting_bytes, size if meter.waiting else 0),
        ):
            if limit and used > limit:
                return QuotaRefusal(quota=quota, subject=meter.subject, limit=limit, retry_after=WAITING_RETRY_SECONDS)
    return None


def _list_parts(
    meters: tuple[SubjectMeter, SubjectMeter, SubjectMeter], own: QuotaLimits, settings: QuotaTable
) -> tuple[tuple[SubjectMeter, QuotaLimits], ...]:
    """Pair each meter with its limits. A sender's own limits depend on the role."""
    sender, group, account = meters
    shared = settings.service if group.subject.kind is SubjectKind.SERVICE else settings.chat
    return (sender, own), (group, shared), (account, settings.account)


def _list_subjects(row: WaitingCount) -> Iterable[QuotaSubject]:
    address = parse_address(row.address)
    account = find_quota_account(address)
    yield QuotaSubject(SubjectKind.SENDER, row.author.removeprefix(PERSON_MEMBER))
    yield find_shared_subject(address.platform, account, address.chat)
    yield QuotaSubject(SubjectKind.ACCOUNT, f"{address.platform}:{account}")
