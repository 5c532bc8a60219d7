"""Gives requests with an idempotency key the same answer at every host of a store.

Such a request belongs to no session. The host that receives it first records that it answers it, and keeps the answer
in the store for some minutes. Other hosts wait for that answer. If the host dies, another one answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec import Struct, structs

from everhold.api.idempotency import KEEP_SECONDS, TaskKey
from everhold.api.reply_wait import FinalReply
from everhold.core.people import build_identity
from everhold.engine.gates import Gates
from everhold.engine.state_updates import update_state_record
from everhold.errors import Conflict, EverholdError
from everhold.platforms import http
from everhold.ports.store import Change, StateNamespace, StateWrite, Step

ANSWER_LEASE_SECONDS: Final = 60.0
ANSWER_POLL_SECONDS: Final = 0.5


class SharedAnswer(Struct, frozen=True, kw_only=True):
    """An answer as it is stored, or that a host is at work on it."""

    identity: str
    """Who asked, for forgetting."""
    at: float
    """When it was begun, on the store's clock."""
    digest: str
    owner: str
    until: float
    """Until when the host certainly works on it."""
    reply: FinalReply | None = None


class SharedAnswers:
    """The answers of all hosts."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._store = gates.store

    async def answer_once(self, key: TaskKey, digest: bytes, work: Callable[[], Awaitable[FinalReply]]) -> FinalReply:
        """Return the answer to the request with this key: by `work`, or from the host that answers it already.

        Raises Conflict if the key was used for another request.
        """
        id = hashlib.sha256(msgspec.json.encode(key)).hexdigest()
        found = await self._begin(id, key, digest.hex())
        if found.reply is not None:
            return found.reply
        renewing = asyncio.get_running_loop().create_task(self._keep_renewing(id, found), name="answer")
        try:
            reply = await work()
        except BaseException:
            with contextlib.suppress(EverholdError):  # otherwise a repeat waits until the lease ends
                await self._replace(id, found, None)
            raise
        finally:
            renewing.cancel()
        await self._replace(id, found, structs.replace(found, reply=reply))
        return reply

    async def _begin(self, id: str, key: TaskKey, digest: str) -> SharedAnswer:
        """Return the stored answer, or the record that this host answers now."""
        await self._drop_old(await self._store.get_time())
        while True:
            now = await self._store.get_time()
            record = await self._store.get_state_record(StateNamespace.API_ANSWER, id)
            found = None if record is None else msgspec.json.decode(record.value, type=SharedAnswer)
            if found is not None and _is_kept(found, now):
                if found.digest != digest:
                    raise Conflict(
                        f"key {key.key!r} was used for another request", remedy="give a new request a new key"
                    )
                if found.reply is not None:
                    return found
                if now < found.until:
                    await self._gates.sleep(ANSWER_POLL_SECONDS)
                    continue
            begun = SharedAnswer(
                identity=build_identity(http.NAME, key.sender),
                at=now,
                digest=digest,
                owner=self._gates.owner,
                until=now + ANSWER_LEASE_SECONDS,
            )
            text = msgspec.json.encode(begun).decode()
            version = 0 if record is None else record.version
            write = StateWrite(namespace=StateNamespace.API_ANSWER, key=id, value=text, version=version)
            try:
                await self._store.commit(Change(step=Step.STATE, session="", at=now, state_writes=(write,)))
            except Conflict:
                continue  # another host was first
            return begun

    async def _keep_renewing(self, id: str, begun: SharedAnswer) -> None:
        while True:
            await self._gates.sleep(ANSWER_LEASE_SECONDS / 3)
            with contextlib.suppress(EverholdError):  # a later renewal may still be in time
                until = await self._store.get_time() + ANSWER_LEASE_SECONDS
                await self._replace(id, begun, structs.replace(begun, until=until))

    async def _replace(self, id: str, begun: SharedAnswer, new: SharedAnswer | None) -> None:
        """Replace this host's record, unless another host has taken it over."""

        def decide(present: str | None) -> str | None:
            found = None if present is None else msgspec.json.decode(present, type=SharedAnswer)
            if found is None or (found.owner, found.at) != (begun.owner, begun.at) or found.reply is not None:
                return present
            return None if new is None else msgspec.json.encode(new).decode()

        at = self._gates.clock.now()
        await update_state_record(self._store, StateNamespace.API_ANSWER, id, at=at, decide=decide)

    async def _drop_old(self, now: float) -> None:
        """Delete the answers that nobody asks for any more."""
        for record in await self._store.list_state_records(StateNamespace.API_ANSWER):
            if not _is_kept(msgspec.json.decode(record.value, type=SharedAnswer), now):
                with contextlib.suppress(Conflict):  # another host deletes it, too
                    change = Change(step=Step.STATE, session="", at=now, state_writes=(record.replace_with(None),))
                    await self._store.commit(change)


def _is_kept(answer: SharedAnswer, now: float) -> bool:
    return answer.at <= now < max(answer.at + KEEP_SECONDS, answer.until)
