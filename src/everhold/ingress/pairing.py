"""Pairing: admitted identities, pairing requests, and links of two identities to one person. `core/pairing.py`
decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from everhold.core import pairing
from everhold.core.access import IdentifiedSender
from everhold.core.pairing import AccountInvitation, IdentityLinkOffer, PairingGrant, PairingRequest, WrongCodeCount
from everhold.engine.state_updates import update_state_record
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.ingress.people import PeopleRegistry
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
"""The key of the count of wrong codes from operators. Counts of people use their identity, which contains a colon."""
_CODE_RANDOM_BYTES: Final = 64
"""Random bytes for a code. They are so many that enough of them are usable."""


class PairingRegistry:
    """The registry of pairing requests and admitted identities."""

    def __init__(
        self, store: Store, *, people: PeopleRegistry, clock: Clock, chance: RandomSource, log: EventLogger
    ) -> None:
        self._store = store
        self._people = people
        self._clock = clock
        self._chance = chance
        self._log = log

    # -- for the admission -------------------------------------------------------------------------------------------

    async def is_admitted(self, platform: str, account: str, sender: str) -> bool:
        """Return whether an identity was admitted to direct chats. Groups are not included."""
        scope = make_state_scope(platform, account)
        record = await self._store.get_state_record(StateNamespace.PAIRING_GRANT, sender, scope=scope)
        return record is not None and _decode_record(record, PairingGrant) is not None

    async def request_pairing(self, platform: str, account: str, sender: str, *, name: str, chat: str) -> str:
        """Record a stranger's message; return the code for the reply, or nothing if no reply is due."""
        now, scope = self._clock.now(), make_state_scope(platform, account)
        own = await self._store.get_state_record(StateNamespace.PAIRING_REQUEST, sender, scope=scope)
        if not pairing.can_answer_request(None if own is None else _decode_record(own, PairingRequest), now):
            return ""
        if await self._tidy_requests(scope, now, besides=sender):
            self._log.warning("pairing.limited", platform=platform, account=account)
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
            return ""  # another message of this stranger is answered at this moment, and that code is valid
        self._log.info("pairing.requested", platform=platform, account=account, sender=sender)
        return code

    async def tidy_requests(self) -> None:
        """Delete old requests of all accounts, and the names of strangers whose code has expired."""
        records = await self._store.list_state_records(StateNamespace.PAIRING_REQUEST)
        for scope in {record.scope for record in records}:
            await self._tidy_requests(scope, self._clock.now(), besides="")

    async def _tidy_requests(self, scope: str, now: float, *, besides: str) -> int:
        """Delete old requests, and the names in expired ones. If too many are left, delete the oldest; return how
        many.
        """
        kept: list[tuple[float, StateRecord]] = []
        for record in await self._store.list_state_records(StateNamespace.PAIRING_REQUEST, scope=scope):
            other = _decode_record(record, PairingRequest)
            if record.key == besides:
                continue
            if other is None or pairing.can_answer_request(other, now):
                await self._replace_request(record, None)
                continue
            kept.append((other.at, record))
            if not pairing.is_code_valid(other.at, now) and other != pairing.strip_names(other):
                await self._replace_request(record, pairing.strip_names(other))
        crowd = sorted(kept, key=lambda it: it[0])[: max(0, len(kept) - pairing.MAX_PAIRING_REQUESTS + 1)]
        for _, record in crowd:
            await self._replace_request(record, None)
        return len(crowd)

    async def _replace_request(self, record: StateRecord, request: PairingRequest | None) -> None:
        with contextlib.suppress(Conflict):  # the stranger asked again at this moment, so the request is not old
            await self._commit(record.replace_with(None if request is None else _encode(request)))

    # -- for operators -----------------------------------------------------------------------------------------------

    async def list_requests(self) -> list[dict[str, Any]]:
        """Return the strangers whose code is still valid."""
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
        """Return the admitted identities."""
        return [
            {**_describe_identity(record), "name": grant.name, "since": grant.at}
            for record in await self._store.list_state_records(StateNamespace.PAIRING_GRANT)
            if (grant := _decode_record(record, PairingGrant)) is not None
        ]

    async def approve_code(self, code: str, *, person: str = "") -> dict[str, Any]:
        """Admit the identity that holds this code; as `person`, if one is given. A code is valid once."""
        now = self._clock.now()
        if person:
            await self._people.require_person(person)
        if pairing.is_locked(await self._count_wrong(APPROVE), now):
            raise InvalidRequest("too many wrong codes", remedy="wait ten minutes; strangers get a new code then")
        record, request = await self._find_request(code, now)
        described = _describe_identity(record)
        # The grant and the link are one commit, because a code is valid once: a crash between them would lose the
        # person that the operator named.
        await self._people.admit_identity(
            described["identity"], person, by="operator", list_writes=lambda: self._list_grant_writes(code, now)
        )
        self._log.info(
            "pairing.approved", platform=described["platform"], account=described["account"], sender=record.key
        )
        return {**described, "name": request.name, "person": person, "chat": request.chat}

    # -- invitations -------------------------------------------------------------------------------------------------

    async def create_invitation(self, platform: str, account: str, *, person: str = "") -> tuple[str, float]:
        """Return a code that admits whoever sends it first to an account, and its end; as `person`, if given."""
        now = self._clock.now()
        who = (await self._people.require_person(person)).id if person else ""
        for record in await self._store.list_state_records(StateNamespace.INVITATION):
            other = _decode_record(record, AccountInvitation)
            if other is None or not pairing.is_invitation_valid(other, now):
                with contextlib.suppress(Conflict):  # another process deleted it
                    await self._commit(record.replace_with(None))
        code = pairing.make_invitation_code(self._chance.bytes(pairing.INVITATION_BYTES))
        write = StateWrite(
            namespace=StateNamespace.INVITATION,
            key=pairing.digest_code(code, whose="invitation"),
            scope=make_state_scope(platform, account),
            value=_encode(AccountInvitation(at=now, person=who)),
            version=0,
        )
        await self._commit(write)
        self._log.info("pairing.invited", platform=platform, account=account)
        return code, now + pairing.INVITATION_LIFETIME_SECONDS

    async def accept_invitation(self, platform: str, account: str, sender: str, *, name: str, code: str) -> bool:
        """Admit the sender of an invitation's code; return whether the code was valid. It is valid once."""
        now, scope = self._clock.now(), make_state_scope(platform, account)
        key = pairing.digest_code(code, whose="invitation")

        async def find_invitation() -> tuple[StateRecord, AccountInvitation]:
            record = await self._store.get_state_record(StateNamespace.INVITATION, key, scope=scope)
            invitation = None if record is None else _decode_record(record, AccountInvitation)
            if record is None or invitation is None or not pairing.is_invitation_valid(invitation, now):
                raise NotFound("this invitation was used or is too old")
            return record, invitation

        async def list_writes() -> Sequence[StateWrite]:
            record, _ = await find_invitation()
            return record.replace_with(None), await self._build_grant(scope, sender, name=name, at=now)

        try:
            _, invitation = await find_invitation()
            await self._people.admit_identity(
                f"{platform}:{sender}", invitation.person, by="operator", list_writes=list_writes
            )
        except NotFound:
            return False
        self._log.info("pairing.approved", platform=platform, account=account, sender=sender)
        return True

    async def _build_grant(self, scope: str, sender: str, *, name: str, at: float) -> StateWrite:
        granted = await self._store.get_state_record(StateNamespace.PAIRING_GRANT, sender, scope=scope)
        return StateWrite(
            namespace=StateNamespace.PAIRING_GRANT,
            key=sender,
            scope=scope,
            value=_encode(PairingGrant(at=at, name=name[:100])),
            version=0 if granted is None else granted.version,
        )

    async def _list_grant_writes(self, code: str, now: float) -> Sequence[StateWrite]:
        """Return the grant for the holder of a code, and the request without the code."""
        record, request = await self._find_request(code, now)
        grant = await self._build_grant(record.scope, record.key, name=request.name, at=now)
        return record.replace_with(_encode(pairing.void_request(request))), grant

    async def _find_request(self, code: str, now: float) -> tuple[StateRecord, PairingRequest]:
        """Return the pairing request with this code. A wrong code is counted."""
        for record in await self._store.list_state_records(StateNamespace.PAIRING_REQUEST):
            request = _decode_record(record, PairingRequest)
            whose = _describe_identity(record)["identity"]
            if request is None or not pairing.is_code_match(request.digest, code, whose=whose):
                continue
            if not pairing.is_code_valid(request.at, now):
                raise InvalidRequest(
                    "this code is too old", remedy="the stranger gets a new code by writing again in an hour"
                )
            return record, request
        await self._count_wrong_code(now)
        raise NotFound(
            "there is no pairing request with this code",
            remedy="see `everhold pairing list`; codes are valid for ten minutes",
        )

    async def revoke_identity(self, identity: str) -> int:
        """Revoke an identity's access, and the link that the grant made; return from how many accounts."""
        revoked: Sequence[StateWrite] = ()

        async def list_writes() -> Sequence[StateWrite]:
            nonlocal revoked
            grants = await self._store.list_state_records(StateNamespace.PAIRING_GRANT)
            revoked = [it.replace_with(None) for it in grants if _describe_identity(it)["identity"] == identity]
            if not revoked:
                raise NotFound(
                    f"{identity} was not admitted by pairing",
                    remedy="see `everhold pairing list` and `everhold people list`",
                )
            return revoked

        await self._people.revoke_identity(identity, by="operator", list_writes=list_writes)
        self._log.info("pairing.revoked", identity=identity)
        return len(revoked)

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
        """Count one more wrong code. Two codes at the same time both count."""
        added = await self._update(
            StateNamespace.PAIRING_ATTEMPTS,
            key,
            lambda tries: pairing.count_wrong_code(tries or WrongCodeCount(), now),
            WrongCodeCount,
        )
        return added or WrongCodeCount()

    # -- links of identities -----------------------------------------------------------------------------------------

    async def answer_link_command(self, speaker: IdentifiedSender, argument: str, *, admitted: bool) -> str:
        """Return the reply to `/link [CODE]`. A link takes three messages: one here, one on the other platform, and one
        here again.

        Each side sends a code that only the other side received, so neither side can link alone. A stranger gets a
        reply only for a valid code.
        """
        now, identity = self._clock.now(), speaker.identity
        if not argument:
            assert admitted, "strangers cannot begin a link"
            code = self._make_code()
            offer = IdentityLinkOffer(at=now, digest=pairing.digest_code(code, whose="offer"))
            await self._update(
                StateNamespace.IDENTITY_LINK, identity, lambda _: offer, IdentityLinkOffer
            )  # the latest offer counts
            return f"On the other platform, send me within ten minutes: /link {code}"
        unknown = "This code is not valid. A code is valid once, for ten minutes." if admitted else ""
        if pairing.is_locked(await self._count_wrong(identity), now):
            return "Too many wrong codes. Try again in ten minutes." if admitted else ""
        found = await self._find_offer(argument, now, identity=identity)
        if found is None:
            await self._add_wrong(identity, now)
            return unknown
        record, offer = found
        people = await self._store.get_people()
        here, there = people.find_label(identity), people.find_label(record.key)
        if not offer.other and here and here != there:
            # The person with a name has to begin, so that nobody is talked into becoming one with a stranger.
            also = (
                f" and {there} there. An operator can change that with `everhold people`." if there else ". Begin here."
            )
            return f"You are {here} here{also}"
        if not offer.other:
            code = self._make_code()
            back = IdentityLinkOffer(at=now, digest=pairing.digest_code(code, whose=identity), other=identity)
            try:
                await self._commit(record.replace_with(_encode(back)))
            except Conflict:
                return unknown  # the code was used or replaced at this moment
            return f"Now confirm in the chat where you began ({record.key}): /link {code}"

        async def list_writes() -> Sequence[StateWrite]:
            confirmed = await self._find_offer(argument, now, identity=identity)
            if confirmed is None:
                raise NotFound(unknown)  # the code was used or replaced at this moment
            return (confirmed[0].replace_with(None),)

        try:
            person = await self._people.join_identities(identity, offer.other, by=identity, list_writes=list_writes)
        except NotFound:
            return unknown
        except InvalidRequest as error:
            return f"{error}."
        name = f": {person.label}" if person.label else ""
        return f"{offer.other} and {identity} are linked to one person now{name}."

    async def _find_offer(
        self, code: str, now: float, *, identity: str
    ) -> tuple[StateRecord, IdentityLinkOffer] | None:
        """Return the offer that this code answers: the first code of another identity, or the second code of one's own
        offer.
        """
        for record in await self._store.list_state_records(StateNamespace.IDENTITY_LINK):
            offer, whose = _decode_record(record, IdentityLinkOffer), record.key
            if offer is None or not pairing.is_code_valid(offer.at, now):
                with contextlib.suppress(Conflict):  # it was renewed at this moment, so it is not old
                    await self._commit(record.replace_with(None))
                continue
            asked = "offer" if not offer.other and whose != identity else offer.other if whose == identity else ""
            if asked and pairing.is_code_match(offer.digest, code, whose=asked):
                return record, offer
        return None

    # -- state records -----------------------------------------------------------------------------------------------

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
        """Write what `decide` returns for the present value, and return it."""

        def decide_text(text: str | None) -> str | None:
            made = decide(None if text is None else _read(text, kind))
            return None if made is None else _encode(made)

        text = await update_state_record(
            self._store, namespace, key, scope=scope, at=self._clock.now(), decide=decide_text
        )
        return None if text is None else _read(text, kind)

    async def _commit(self, *writes: StateWrite) -> None:
        await self._store.commit(Change(step=Step.STATE, session="", at=self._clock.now(), state_writes=writes))


def _void(request: PairingRequest | None) -> PairingRequest | None:
    """Return a request whose code is not valid any more."""
    return None if request is None else pairing.void_request(request)


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
