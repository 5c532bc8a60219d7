"""Who was let in, who asks to be, and who is one person on two platforms. Kept in the store, decided in core."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from everhold.core import pairing
from everhold.core.access import IdentifiedSender
from everhold.core.pairing import IdentityLinkOffer, PairingGrant, PairingRequest, WrongCodeCount
from everhold.engine.state_updates import MOST_CONFLICTS, update_state_record
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.log import EventLogger
from everhold.ports.store import (
    Change,
    StateNamespace,
    StateRecord,
    StateWrite,
    Step,
    Store,
    make_state_scope,
    split_state_scope,
)

S = TypeVar("S", bound=Struct)

APPROVE: Final = "approve"
"""The key of the wrong codes that operators gave. Those of people are kept under their identity, which has a colon."""
_CODE_RANDOM_BYTES: Final = 64
"""Bytes that a code is made of: so many that enough of them are fair."""


class PairingRegistry:
    """The book of strangers and of those who were let in."""

    def __init__(self, store: Store, *, clock: Clock, chance: RandomSource, log: EventLogger) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._log = log

    # -- at the door -------------------------------------------------------------------------------------------------

    async def is_admitted(self, platform: str, account: str, sender: str) -> bool:
        """Whether somebody was let in to write directly. A group is another matter."""
        scope = make_state_scope(platform, account)
        record = await self._store.get_state_record(StateNamespace.PAIRING_GRANT, sender, scope=scope)
        return record is not None and _decode_record(record, PairingGrant) is not None

    async def request_pairing(self, platform: str, account: str, sender: str, *, name: str, chat: str) -> str:
        """A stranger wrote: the code to tell them, or nothing if they are not to be answered now."""
        now, scope = self._clock.now(), make_state_scope(platform, account)
        own = await self._store.get_state_record(StateNamespace.PAIRING_REQUEST, sender, scope=scope)
        if not pairing.can_answer_request(None if own is None else _decode_record(own, PairingRequest), now):
            return ""
        if await self._tidy_requests(scope, now, besides=sender) >= pairing.MAX_PAIRING_REQUESTS:
            self._log.warning("pairing.limited", platform=platform, account=account)
            return ""
        code = self._make_code()
        request = PairingRequest(
            at=now, digest=pairing.digest_code(code, whose=f"{platform}:{sender}"), name=name[:100], chat=chat
        )
        write = StateWrite(
            namespace=StateNamespace.PAIRING_REQUEST,
            key=sender,
            scope=scope,
            value=_encode(request),
            version=0 if own is None else own.version,
        )
        try:
            await self._commit(write)
        except Conflict:
            return ""  # another message of theirs is answered in this very moment, and that code is the one that counts
        self._log.info("pairing.requested", platform=platform, account=account, sender=sender)
        return code

    async def _tidy_requests(self, scope: str, now: float, *, besides: str) -> int:
        """Forget requests of long ago; how many of the others still wait for an answer."""
        waiting = 0
        for record in await self._store.list_state_records(StateNamespace.PAIRING_REQUEST, scope=scope):
            other = _decode_record(record, PairingRequest)
            if other is None or pairing.can_answer_request(other, now):
                if record.key != besides:
                    with contextlib.suppress(Conflict):  # they asked again in this very moment: then it is not old
                        await self._commit(record.replace_with(None))
            elif other.digest and pairing.is_code_valid(other.at, now):
                waiting += 1
        return waiting

    # -- for whoever is in charge ------------------------------------------------------------------------------------

    async def list_requests(self) -> list[dict[str, Any]]:
        """Strangers whose code still counts."""
        now = self._clock.now()
        return [
            {
                **_describe_identity(record),
                "name": request.name,
                "since": request.at,
                "until": request.at + pairing.CODE_LIFETIME_SECONDS,
            }
            for record in await self._store.list_state_records(StateNamespace.PAIRING_REQUEST)
            if (request := _decode_record(record, PairingRequest))
            and request.digest
            and pairing.is_code_valid(request.at, now)
        ]

    async def list_grants(self) -> list[dict[str, Any]]:
        """Everybody who was let in."""
        return [
            {**_describe_identity(record), "name": grant.name, "since": grant.at}
            for record in await self._store.list_state_records(StateNamespace.PAIRING_GRANT)
            if (grant := _decode_record(record, PairingGrant)) is not None
        ]

    async def approve_code(self, code: str, *, person: str = "") -> dict[str, Any]:
        """Let in whoever was told this code; as `person`, if that is who it is. A code counts once."""
        now = self._clock.now()
        if pairing.is_locked(await self._count_wrong(APPROVE), now):
            raise InvalidRequest("too many wrong codes", remedy="wait ten minutes; whoever waits gets a new code then")
        conflicts = 0
        while True:
            try:
                return await self._approve(code, now, person=person)
            except Conflict:  # the request was renewed, voided or approved in this very moment: look again
                conflicts += 1
                if conflicts == MOST_CONFLICTS:
                    raise

    async def _approve(self, code: str, now: float, *, person: str) -> dict[str, Any]:
        for record in await self._store.list_state_records(StateNamespace.PAIRING_REQUEST):
            knock = _decode_record(record, PairingRequest)
            whose = _describe_identity(record)
            if knock is None or not pairing.is_code_match(knock.digest, code, whose=whose["identity"]):
                continue
            if not pairing.is_code_valid(knock.at, now):
                raise InvalidRequest(
                    "this code is too old", remedy="they get a new one when they write again in an hour"
                )
            before = await self._store.get_person(whose["identity"])
            grant = PairingGrant(at=now, name=knock.name, person=person if person != before else "")
            granted = await self._store.get_state_record(StateNamespace.PAIRING_GRANT, record.key, scope=record.scope)
            let_in = StateWrite(
                namespace=StateNamespace.PAIRING_GRANT,
                key=record.key,
                scope=record.scope,
                value=_encode(grant),
                version=0 if granted is None else granted.version,
            )
            used = record.replace_with(_encode(msgspec.structs.replace(knock, digest="")))
            # first what can be taken back, then what it takes back
            await self._commit(used, let_in)
            if grant.person:
                await self._store.link_identity(whose["identity"], person, at=now)
            self._log.info("pairing.approved", platform=whose["platform"], account=whose["account"], sender=record.key)
            return {**whose, "name": knock.name, "person": person, "chat": knock.chat}
        await self._count_wrong_code(now)
        raise NotFound("nobody waits with this code", remedy="everhold pairing list; codes are good for ten minutes")

    async def revoke_identity(self, identity: str) -> int:
        """Let somebody in no longer, nor know them as whom they were let in as; from how many accounts."""
        gone = 0
        for record in await self._store.list_state_records(StateNamespace.PAIRING_GRANT):
            if _describe_identity(record)["identity"] == identity:
                grant = _decode_record(record, PairingGrant)
                if grant and grant.person and await self._store.get_person(identity) == grant.person:
                    await self._store.link_identity(identity, "", at=self._clock.now())
                # it goes even if it was granted anew in this very moment
                await self._update(record.namespace, record.key, lambda _: None, PairingGrant, scope=record.scope)
                gone += 1
        if not gone:
            raise NotFound(f"{identity} was not let in by a code", remedy="everhold pairing list; everhold people list")
        self._log.info("pairing.revoked", identity=identity)
        return gone

    async def _count_wrong_code(self, now: float) -> None:
        if not pairing.is_locked(await self._add_wrong(APPROVE, now), now):
            return
        for record in await self._store.list_state_records(StateNamespace.PAIRING_REQUEST):
            await self._update(record.namespace, record.key, _void, PairingRequest, scope=record.scope)
        self._log.warning("pairing.locked")

    async def _count_wrong(self, key: str) -> WrongCodeCount:
        record = await self._store.get_state_record(StateNamespace.PAIRING_ATTEMPTS, key)
        return (None if record is None else _decode_record(record, WrongCodeCount)) or WrongCodeCount()

    async def _add_wrong(self, key: str, now: float) -> WrongCodeCount:
        """Count one more wrong code. Of two at the same time, each counts."""
        added = await self._update(
            StateNamespace.PAIRING_ATTEMPTS,
            key,
            lambda tries: pairing.count_wrong_code(tries or WrongCodeCount(), now),
            WrongCodeCount,
        )
        return added or WrongCodeCount()

    # -- one person on two platforms ---------------------------------------------------------------------------------

    async def link_identity(self, speaker: IdentifiedSender, argument: str, *, admitted: bool) -> str:
        """What to answer to `/link [CODE]`. It takes three words: one here, one there, and one here again.

        Each side says a code that only the other was told, so neither can be talked into it alone. A stranger is
        answered only for a code that is right.
        """
        now, identity, person = self._clock.now(), speaker.identity, speaker.person
        if not argument:
            assert admitted, "strangers have nothing to offer"
            code = self._make_code()
            offer = IdentityLinkOffer(at=now, digest=pairing.digest_code(code, whose="offer"), person=person)
            await self._update(
                StateNamespace.IDENTITY_LINK, identity, lambda _: offer, IdentityLinkOffer
            )  # the last word counts
            return f"On the other platform, say to me: /link {code} (within ten minutes)."
        unknown = "I know no such code. Codes are good for ten minutes, and once." if admitted else ""
        if pairing.is_locked(await self._count_wrong(identity), now):
            return "That was wrong too often. Try again in ten minutes." if admitted else ""
        found = await self._find_offer(argument, now, identity=identity)
        if found is None:
            await self._add_wrong(identity, now)
            return unknown
        record, offer = found
        if not offer.other and speaker.verified and person != offer.person:
            return f"You are {person} here, and {offer.person} there. Whoever runs me can change that under people."
        try:
            if not offer.other:
                code = self._make_code()
                back = IdentityLinkOffer(
                    at=now, digest=pairing.digest_code(code, whose=identity), person=offer.person, other=identity
                )
                await self._commit(record.replace_with(_encode(back)))
                return f"Now confirm where you began ({record.key}): /link {code}"
            await self._commit(record.replace_with(None))
        except Conflict:
            return unknown  # the code was used, or replaced by a newer one, in this very moment
        await self._store.link_identity(offer.other, offer.person, at=now)
        self._log.info("person.linked", person=offer.person, identity=offer.other)
        return f"{offer.other} and {identity} are one person to me now: {offer.person}."

    async def _find_offer(
        self, code: str, now: float, *, identity: str
    ) -> tuple[StateRecord, IdentityLinkOffer] | None:
        """The offer that this code answers: another's first word, or the last one to one's own."""
        for record in await self._store.list_state_records(StateNamespace.IDENTITY_LINK):
            offer, whose = _decode_record(record, IdentityLinkOffer), record.key
            if offer is None or not pairing.is_code_valid(offer.at, now):
                with contextlib.suppress(Conflict):  # it was made anew in this very moment: then it is not old
                    await self._commit(record.replace_with(None))
                continue
            asked = "offer" if not offer.other and whose != identity else offer.other if whose == identity else ""
            if asked and pairing.is_code_match(offer.digest, code, whose=asked):
                return record, offer
        return None

    # -- keeping -----------------------------------------------------------------------------------------------------

    def _make_code(self) -> str:
        return pairing.make_code(self._chance.bytes(_CODE_RANDOM_BYTES))

    async def _update(
        self,
        namespace: StateNamespace,
        key: str,
        decide: Callable[[S | None], S | None],
        kind: type[S],
        *,
        scope: str = "",
    ) -> S | None:
        """Write what `decide` makes of what is there, and return it."""

        def decide_text(text: str | None) -> str | None:
            made = decide(None if text is None else _read(text, kind))
            return None if made is None else _encode(made)

        text = await update_state_record(
            self._store, namespace, key, scope=scope, at=self._clock.now(), decide=decide_text
        )
        return None if text is None else _read(text, kind)

    async def _commit(self, *writes: StateWrite) -> None:
        await self._store.commit(Change(step=Step.STATE, session="", at=self._clock.now(), state_writes=writes))


def _void(knock: PairingRequest | None) -> PairingRequest | None:
    """A request whose code does not count any more."""
    return None if knock is None else msgspec.structs.replace(knock, digest="")


def _encode(value: Struct) -> str:
    return msgspec.json.encode(value).decode()


def _read(text: str, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return None


def _decode_record(record: StateRecord, kind: type[S]) -> S | None:
    return _read(record.value, kind)


def _describe_identity(record: StateRecord) -> dict[str, str]:
    platform, account = split_state_scope(record.scope)
    return {"platform": platform, "account": account, "id": record.key, "identity": f"{platform}:{record.key}"}
