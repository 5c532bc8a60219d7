"""Who was let in, who asks to be, and who is one person on two platforms. Kept in the store, decided in core."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from everhold.core import pairing
from everhold.core.access import Speaker
from everhold.core.pairing import Grant, Knock, Offer, Tries
from everhold.errors import Misuse, NotFound
from everhold.ports.clock import Chance, Clock
from everhold.ports.log import Log
from everhold.ports.store import Change, Position, Step, Store

S = TypeVar("S", bound=Struct)

KNOCK: Final = "knock/"
GRANT: Final = "grant/direct/"
OFFER: Final = "link/"
TRIES: Final = "tries/"
_CHANCE: Final = 64
"""Bytes that a code is made of: so many that enough of them are fair."""


class Pairing:
    """The book of strangers and of those who were let in."""

    def __init__(self, store: Store, *, clock: Clock, chance: Chance, log: Log) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._log = log

    # -- at the door -------------------------------------------------------------------------------------------------

    async def admits(self, platform: str, account: str, sender: str) -> bool:
        """Whether somebody was let in to write directly. A group is another matter."""
        return await self._read(platform, account, GRANT + sender, Grant) is not None

    async def knock(self, platform: str, account: str, sender: str, *, name: str, chat: str) -> str:
        """A stranger wrote: the code to tell them, or nothing if they are not to be answered now."""
        now = self._clock.now()
        if not pairing.may_answer(await self._read(platform, account, KNOCK + sender, Knock), now):
            return ""
        waiting = 0
        for position in await self._store.positions(prefix=KNOCK, platform=platform, account=account):
            other = _decode(position, Knock)
            if other is None or pairing.may_answer(other, now):
                await self._write(platform, account, position.name, None)  # long ago: nothing to remember any more
            elif other.digest and pairing.is_good(other.at, now):
                waiting += 1
        if waiting >= pairing.MOST_WAITING:
            self._log.warning("pairing.crowded", platform=platform, account=account)
            return ""
        code = self._code()
        knock = Knock(at=now, digest=pairing.digest(code, whose=f"{platform}:{sender}"), name=name[:100], chat=chat)
        await self._write(platform, account, KNOCK + sender, knock)
        self._log.info("pairing.asked", platform=platform, account=account, sender=sender)
        return code

    # -- for whoever is in charge ------------------------------------------------------------------------------------

    async def waiting(self) -> list[dict[str, Any]]:
        """Strangers whose code still counts."""
        now = self._clock.now()
        return [
            {**_whose(position, KNOCK), "name": knock.name, "since": knock.at, "until": knock.at + pairing.GOOD_SECONDS}
            for position in await self._store.positions(prefix=KNOCK)
            if (knock := _decode(position, Knock)) and knock.digest and pairing.is_good(knock.at, now)
        ]

    async def granted(self) -> list[dict[str, Any]]:
        """Everybody who was let in."""
        return [
            {**_whose(position, GRANT), "name": grant.name, "since": grant.at}
            for position in await self._store.positions(prefix=GRANT)
            if (grant := _decode(position, Grant)) is not None
        ]

    async def approve(self, code: str, *, person: str = "") -> dict[str, Any]:
        """Let in whoever was told this code; as `person`, if that is who it is. A code counts once."""
        now = self._clock.now()
        tries = await self._read("", "", TRIES + "approve", Tries) or Tries()
        if pairing.is_locked(tries, now):
            raise Misuse("too many wrong codes", remedy="wait ten minutes; whoever waits gets a new code then")
        for position in await self._store.positions(prefix=KNOCK):
            knock = _decode(position, Knock)
            whose = _whose(position, KNOCK)
            if knock is None or not pairing.fits(knock.digest, code, whose=whose["identity"]):
                continue
            if not pairing.is_good(knock.at, now):
                raise Misuse("this code is too old", remedy="they get a new one when they write again in an hour")
            await self._write(
                position.platform, position.account, position.name, msgspec.structs.replace(knock, digest="")
            )
            before = await self._store.person_of(whose["identity"])
            grant = Grant(at=now, name=knock.name, person=person if person != before else "")
            # first what can be taken back, then what it takes back
            await self._write(position.platform, position.account, GRANT + whose["id"], grant)
            if grant.person:
                await self._store.link(whose["identity"], person, at=now)
            self._log.info("pairing.approved", platform=position.platform, account=position.account, sender=whose["id"])
            return {**whose, "name": knock.name, "person": person, "chat": knock.chat}
        await self._got_wrong(now, tries)
        raise NotFound("nobody waits with this code", remedy="everhold pairing list; codes are good for ten minutes")

    async def revoke(self, identity: str) -> int:
        """Let somebody in no longer, nor know them as whom they were let in as; from how many accounts."""
        gone = 0
        for position in await self._store.positions(prefix=GRANT):
            if _whose(position, GRANT)["identity"] == identity:
                grant = _decode(position, Grant)
                if grant and grant.person and await self._store.person_of(identity) == grant.person:
                    await self._store.link(identity, "", at=self._clock.now())
                await self._write(position.platform, position.account, position.name, None)
                gone += 1
        if not gone:
            raise NotFound(f"{identity} was not let in by a code", remedy="everhold pairing list; everhold people list")
        self._log.info("pairing.revoked", identity=identity)
        return gone

    async def _got_wrong(self, now: float, tries: Tries) -> None:
        tries = pairing.wrong(tries, now)
        await self._write("", "", TRIES + "approve", tries)
        if not pairing.is_locked(tries, now):
            return
        for position in await self._store.positions(prefix=KNOCK):
            knock = _decode(position, Knock)
            if knock is not None and knock.digest:
                void = msgspec.structs.replace(knock, digest="")
                await self._write(position.platform, position.account, position.name, void)
        self._log.warning("pairing.locked")

    # -- one person on two platforms ---------------------------------------------------------------------------------

    async def link(self, speaker: Speaker, argument: str, *, admitted: bool) -> str:
        """What to answer to `/link [CODE]`. It takes three words: one here, one there, and one here again.

        Each side says a code that only the other was told, so neither can be talked into it alone. A stranger is
        answered only for a code that is right.
        """
        now, identity, person = self._clock.now(), speaker.identity, speaker.person
        if not argument:
            assert admitted, "strangers have nothing to offer"
            code = self._code()
            offer = Offer(at=now, digest=pairing.digest(code, whose="offer"), person=person)
            await self._write("", "", OFFER + identity, offer)
            return f"On the other platform, say to me: /link {code} (within ten minutes)."
        tries = await self._read("", "", TRIES + identity, Tries) or Tries()
        if pairing.is_locked(tries, now):
            return "That was wrong too often. Try again in ten minutes." if admitted else ""
        found = await self._offer(argument, now, identity=identity)
        if found is None:
            await self._write("", "", TRIES + identity, pairing.wrong(tries, now))
            return "I know no such code. Codes are good for ten minutes, and once." if admitted else ""
        partner, offer = found
        if not offer.other and speaker.known and person != offer.person:
            return f"You are {person} here, and {offer.person} there. Whoever runs me can change that under people."
        if not offer.other:
            code = self._code()
            back = Offer(at=now, digest=pairing.digest(code, whose=identity), person=offer.person, other=identity)
            await self._write("", "", OFFER + partner, back)
            return f"Now confirm where you began ({partner}): /link {code}"
        await self._write("", "", OFFER + identity, None)
        await self._store.link(offer.other, offer.person, at=now)
        self._log.info("people.linked", person=offer.person, identity=offer.other)
        return f"{offer.other} and {identity} are one person to me now: {offer.person}."

    async def _offer(self, code: str, now: float, *, identity: str) -> tuple[str, Offer] | None:
        """The offer that this code answers: another's first word, or the last one to one's own."""
        for position in await self._store.positions(prefix=OFFER, platform="", account=""):
            offer, whose = _decode(position, Offer), position.name.removeprefix(OFFER)
            if offer is None or not pairing.is_good(offer.at, now):
                await self._write("", "", position.name, None)
                continue
            asked = "offer" if not offer.other and whose != identity else offer.other if whose == identity else ""
            if asked and pairing.fits(offer.digest, code, whose=asked):
                return whose, offer
        return None

    # -- keeping -----------------------------------------------------------------------------------------------------

    def _code(self) -> str:
        return pairing.code_of(self._chance.bytes(_CHANCE))

    async def _read(self, platform: str, account: str, name: str, kind: type[S]) -> S | None:
        value = await self._store.position(platform=platform, account=account, name=name)
        return msgspec.json.decode(value, type=kind) if value else None

    async def _write(self, platform: str, account: str, name: str, value: Struct | None) -> None:
        text = "" if value is None else msgspec.json.encode(value).decode()
        position = Position(platform=platform, account=account, name=name, value=text)
        await self._store.commit(Change(step=Step.POSITION, session="", at=self._clock.now(), position=position))


def _decode(position: Position, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(position.value, type=kind)
    except msgspec.DecodeError:
        return None


def _whose(position: Position, prefix: str) -> dict[str, str]:
    id = position.name.removeprefix(prefix)
    return {
        "platform": position.platform,
        "account": position.account,
        "id": id,
        "identity": f"{position.platform}:{id}",
    }
