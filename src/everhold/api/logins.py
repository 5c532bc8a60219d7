"""Logins of browsers, and the codes of login links. The store has hashes only, so a copy of it opens nothing.

A login has two halves. The browser sends the first as a cookie, which no script can read. The page keeps the second
and sends it in a header. Cookies of one host are sent to all its ports, so any server on this machine may receive the
first half; it never receives the second.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from everhold.api.auth import ApiCaller, TokenCredential, find_credential_by_name
from everhold.config.settings import HttpSettings
from everhold.core.callers import (
    CODE_SECONDS,
    LOGIN_SECONDS,
    is_code_alive,
    is_login_alive,
    is_use_due,
)
from everhold.errors import Conflict, NotFound, StoreError
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.store import Change, StateNamespace, StateRecord, StateWrite, Step, Store

ID_BYTES: Final = 8
HALF_BYTES: Final = 32
CODE_BYTES: Final = 16
MAX_LOGINS: Final = 500
"""The limit of logins in a home. The one that was not used for the longest time ends first."""
MAX_TOKEN_LOGINS: Final = 50
"""The limit of one token, so that nobody ends the logins of others by logging in again and again."""
MAX_CODES: Final = 100
MAX_TOKEN_CODES: Final = 20
MAX_AGENT_CHARS: Final = 200
_UNFIT_HASH: Final = hashlib.sha256(b"no such login").hexdigest()


class LoginRecord(Struct, frozen=True, kw_only=True):
    """A login as it is stored."""

    token: str
    """The name of the token that made it."""
    proof: str
    """A keyed hash of that token. The login ends when the token changes."""
    cookie_hash: str
    key_hash: str
    created_at: float
    used_at: float
    browser: str = ""
    """What the browser says it is."""


class LoginCodeRecord(Struct, frozen=True, kw_only=True):
    """The code of a login link as it is stored, under its hash."""

    token: str
    proof: str
    created_at: float


class IssuedLogin(Struct, frozen=True, kw_only=True):
    """A new login. Its halves exist here and in the browser only."""

    id: str
    cookie: str
    key: str
    """The header's value: the id and the second half."""
    created_at: float


class LoginRegistry:
    """Makes, finds and ends logins. Every process of a home uses the same records."""

    def __init__(
        self, store: Store, *, clock: Clock, chance: RandomSource, local: str, settings: Callable[[], HttpSettings]
    ) -> None:
        """`settings` returns the settings in force; `local` is the name of the user who runs the gateway."""
        self._store = store
        self._clock = clock
        self._chance = chance
        self._local = local
        self._settings = settings

    # -- codes -------------------------------------------------------------------------------------------------------

    async def create_code(self, credential: TokenCredential) -> tuple[str, float]:
        """Make a code for one login with the rights of a token. Return the code and when it ends."""
        now = self._clock.now()
        await self._remove_dead_codes(now, credential.scope.token)
        code = self._chance.bytes(CODE_BYTES).hex()
        key = _hash(code)
        record = LoginCodeRecord(
            token=credential.scope.token, proof=_prove_token(key, credential.secret), created_at=now
        )
        await self._write(StateNamespace.LOGIN_CODE, key, record, version=0)
        return code, now + CODE_SECONDS

    async def find_code(self, code: str) -> TokenCredential | None:
        """Return the credential that a code stands for, and leave the code."""
        key = _hash(code)
        record = await self._store.get_state_record(StateNamespace.LOGIN_CODE, key)
        if record is None:
            return None
        found = msgspec.json.decode(record.value, type=LoginCodeRecord)
        return self._find_credential(found.token, key, found.proof)

    async def redeem_code(self, code: str) -> TokenCredential | None:
        """Return the credential that a code stands for, and take the code away. None if it is not valid."""
        key = _hash(code)
        record = await self._store.get_state_record(StateNamespace.LOGIN_CODE, key)
        if record is None:
            return None
        try:
            await self._commit(record.replace_with(None))
        except Conflict:  # somebody else has redeemed it
            return None
        found = msgspec.json.decode(record.value, type=LoginCodeRecord)
        if not is_code_alive(created_at=found.created_at, now=self._clock.now()):
            return None
        return self._find_credential(found.token, key, found.proof)

    # -- logins ------------------------------------------------------------------------------------------------------

    async def create_login(self, credential: TokenCredential, *, browser: str) -> IssuedLogin:
        now = self._clock.now()
        await self._remove_dead_logins(now, credential.scope.token)
        id, cookie, key = (self._chance.bytes(size).hex() for size in (ID_BYTES, HALF_BYTES, HALF_BYTES))
        record = LoginRecord(
            token=credential.scope.token,
            proof=_prove_token(id, credential.secret),
            cookie_hash=_hash(cookie),
            key_hash=_hash(key),
            created_at=now,
            used_at=now,
            browser=browser[:MAX_AGENT_CHARS],
        )
        await self._write(StateNamespace.LOGIN, id, record, version=0)
        return IssuedLogin(id=id, cookie=cookie, key=f"{id}.{key}", created_at=now)

    async def find_caller(self, id: str, *, cookie: str, key: str) -> ApiCaller | None:
        """Return the caller with this login, with the rights that its token has now. Both halves must fit."""
        record = await self._store.get_state_record(StateNamespace.LOGIN, id)
        found = None if record is None else msgspec.json.decode(record.value, type=LoginRecord)
        # both are compared, also for an unknown id, so the duration reveals nothing
        fits_cookie = hmac.compare_digest(_hash(cookie), found.cookie_hash if found else _UNFIT_HASH)
        fits_key = hmac.compare_digest(_hash(key), found.key_hash if found else _UNFIT_HASH)
        if record is None or found is None or not (fits_cookie and fits_key):
            return None
        now = self._clock.now()
        credential = self._find_credential(found.token, id, found.proof)
        if credential is None or not is_login_alive(used_at=found.used_at, now=now):
            return None
        if is_use_due(used_at=found.used_at, now=now):
            await self._record_use(record, msgspec.structs.replace(found, used_at=now))
        return credential.to_caller(login=id, login_at=found.created_at)

    async def list_logins(self) -> list[tuple[str, LoginRecord]]:
        """Return the logins that are valid now, the newest first."""
        now = self._clock.now()
        found = [
            (it.key, login)
            for it, login in await self._load_logins()
            if is_login_alive(used_at=login.used_at, now=now)
            and self._find_credential(login.token, it.key, login.proof) is not None
        ]
        return sorted(found, key=lambda it: it[1].created_at, reverse=True)

    async def end_login(self, id: str) -> None:
        """End a login. It is refused from the next request on. Raises NotFound."""
        while True:
            record = await self._store.get_state_record(StateNamespace.LOGIN, id)
            if record is None:
                raise NotFound(f"there is no login {id!r}", remedy="`everhold logins` lists the logins")
            try:
                await self._commit(record.replace_with(None))
            except Conflict:  # it was used at this moment, which changes its record
                continue
            return

    async def end_all(self) -> None:
        """End all logins and codes, because a restored store may contain some that had ended."""
        for namespace in (StateNamespace.LOGIN, StateNamespace.LOGIN_CODE):
            for record in await self._store.list_state_records(namespace):
                await self._remove(record)

    # -- records -----------------------------------------------------------------------------------------------------

    def _find_credential(self, token: str, salt: str, proof: str) -> TokenCredential | None:
        """Return the credential of the token called `token`, if it still has the value that was proven."""
        credential = find_credential_by_name(token, self._settings(), local=self._local)
        if credential is None or not hmac.compare_digest(_prove_token(salt, credential.secret), proof):
            return None
        return credential

    async def _load_logins(self) -> list[tuple[StateRecord, LoginRecord]]:
        records = await self._store.list_state_records(StateNamespace.LOGIN)
        return [(it, msgspec.json.decode(it.value, type=LoginRecord)) for it in records]

    async def _remove_dead_logins(self, now: float, token: str) -> None:
        """Remove the logins that have ended, and the oldest if there are too many, before one of `token` is made."""
        found = await self._load_logins()
        alive = [it for it in found if now - it[1].used_at < LOGIN_SECONDS]
        alive.sort(key=lambda it: it[1].used_at)
        keep = _select_kept([(it.key, login.token) for it, login in alive], token, own=MAX_TOKEN_LOGINS, all=MAX_LOGINS)
        for record, _ in found:
            if record.key not in keep:
                await self._remove(record)

    async def _remove_dead_codes(self, now: float, token: str) -> None:
        codes = await self._store.list_state_records(StateNamespace.LOGIN_CODE)
        made = [(it, msgspec.json.decode(it.value, type=LoginCodeRecord)) for it in codes]
        alive = [it for it in made if is_code_alive(created_at=it[1].created_at, now=now)]
        alive.sort(key=lambda it: it[1].created_at)
        keep = _select_kept([(it.key, code.token) for it, code in alive], token, own=MAX_TOKEN_CODES, all=MAX_CODES)
        for record in codes:
            if record.key not in keep:
                await self._remove(record)

    async def _record_use(self, record: StateRecord, used: LoginRecord) -> None:
        try:
            await self._write(record.namespace, record.key, used, version=record.version)
        except (Conflict, StoreError):
            return  # another request recorded it, the login has ended, or the disk is full; a later use is recorded

    async def _remove(self, record: StateRecord) -> None:
        try:
            await self._commit(record.replace_with(None))
        except Conflict:
            return  # another process removed it, or it was used

    async def _write(self, namespace: StateNamespace, key: str, value: Struct, *, version: int) -> None:
        text = msgspec.json.encode(value).decode()
        await self._commit(StateWrite(namespace=namespace, key=key, value=text, version=version))

    async def _commit(self, write: StateWrite) -> None:
        await self._store.commit(Change(step=Step.STATE, session="", at=self._clock.now(), state_writes=(write,)))


def _select_kept(alive: list[tuple[str, str]], token: str, *, own: int, all: int) -> set[str]:
    """Return which records (key, token), oldest first, stay when one of `token` is added. Its own oldest go first."""
    extra = {key for key, _ in [it for it in alive if it[1] == token][: -(own - 1)]}
    return {key for key, _ in [it for it in alive if it[0] not in extra][-(all - 1) :]}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _prove_token(salt: str, secret: str) -> str:
    """Return a hash of a token that differs for each login, so that equal tokens cannot be recognised."""
    return hmac.digest(salt.encode(), secret.encode("utf-8", "surrogatepass"), "sha256").hex()
