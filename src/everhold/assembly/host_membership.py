"""This process as one of the hosts of a shared store: registers, renews, drains and leaves. Compares configurations.

Each host publishes a digest for every key of its configuration. The digests are keyed with random bytes that are in the
store, so equal values have equal digests on all hosts, and a digest tells nothing to whoever sees only the digests.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from everhold import __version__
from everhold.config import Settings
from everhold.config.settings import list_given_fields
from everhold.config.values import ConfigSection
from everhold.core.hosts import find_version_conflict
from everhold.engine.state_updates import update_state_record
from everhold.errors import Refused, StoreError
from everhold.infra.secret import SecretString
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.hosts import HostRecord, HostStatus, HostVersion
from everhold.ports.log import EventLogger
from everhold.ports.store import StateNamespace, Store

HOST_LEASE_SECONDS: Final = 15.0
"""A host that did not renew its registration for this long counts as dead."""
RENEWALS_PER_LEASE: Final = 3
DIGEST_CHARS: Final = 12
_KEY_RECORD: Final = "digest_key"
_LOCAL_KEYS: Final = ("store", "http.host", "http.port", "backup")
"""Keys that may differ between hosts."""


class HostMembership:
    """The registration of this process. Without a shared store, `join` and the rest do nothing."""

    def __init__(
        self,
        store: Store,
        *,
        owner: str,
        name: str,
        clock: Clock,
        chance: RandomSource,
        log: EventLogger,
        lease_seconds: float = HOST_LEASE_SECONDS,
    ) -> None:
        self.is_draining = False
        """Set before this process ends. It stays so."""
        self.differences: dict[str, tuple[str, ...]] = {}
        """Other host -> the keys of the configuration that differ there."""
        self.clock_difference = 0.0
        """How many seconds this machine's clock is ahead of the store's."""
        self._store = store
        self._clock = clock
        self._chance = chance
        self._log = log
        self._lease = lease_seconds
        self._owner = owner
        self.name = name
        self._url = ""
        self._renewed_at = clock.monotonic()
        self._digests: dict[str, str] = {}

    @property
    def is_shared(self) -> bool:
        return not self._store.is_exclusive

    @property
    def record(self) -> HostRecord:
        version = HostVersion(program=__version__, schema=self._store.schema_version)
        return HostRecord(id=self._owner, name=self.name, version=version, url=self._url)

    async def join(self) -> None:
        """Register. Raises Refused if a host runs whose version cannot work beside this one."""
        if not self.is_shared:
            return
        own = self.record
        # Look first, because a host that is refused must not be seen by others.
        if reason := find_version_conflict(own.version, await self._store.list_hosts()):
            raise Refused(reason, remedy="upgrade one version at a time, and stop the old hosts first")
        others = await self._store.register_host(own, lease=self._lease)
        if reason := find_version_conflict(own.version, others):
            await self._store.remove_host(own.id)
            raise Refused(reason, remedy="upgrade one version at a time, and stop the old hosts first")
        self._renewed_at = self._clock.monotonic()
        self._log.info("host.joined", host=self.name, others=[it.host.name for it in others])

    @property
    def is_cut_off(self) -> bool:
        """Whether the registration ended because the store did not answer, so that this host cannot accept anything."""
        return self.is_shared and self._clock.monotonic() - self._renewed_at > self._lease

    async def keep_renewing(self) -> None:
        """Renew the registration until cancelled."""
        while self.is_shared:
            await asyncio.sleep(self._lease / RENEWALS_PER_LEASE)
            try:
                await self.renew()
            except StoreError as error:
                self._log.warning("host.renewal_failed", error=error)

    async def renew(self) -> None:
        """Renew the registration now, and look at the others."""
        if not self.is_shared:
            return
        if not await self._store.renew_host(self._owner, lease=self._lease, is_draining=self.is_draining):
            await self._store.register_host(self.record, lease=self._lease)
        self._renewed_at = self._clock.monotonic()
        self.clock_difference = self._clock.now() - await self._store.get_time()
        await self._compare()

    async def leave(self) -> None:
        """Remove the registration, so that nobody waits for it to end."""
        if not self.is_shared:
            return
        try:
            await self._remove_digests()
            await self._store.remove_host(self._owner)
        except StoreError as error:
            self._log.warning("host.renewal_failed", error=error)

    async def announce(self, url: str) -> None:
        """Tell other hosts where this one serves its API."""
        self._url = url
        if self.is_shared:
            await self._store.register_host(self.record, lease=self._lease)

    async def start_draining(self) -> None:
        """Tell the others that this process ends."""
        if self.is_draining:
            return
        self.is_draining = True
        self._log.info("host.draining", host=self.name)
        if self.is_shared:
            await self._store.renew_host(self._owner, lease=self._lease, is_draining=True)

    async def list_hosts(self) -> list[HostStatus]:
        return await self._store.list_hosts() if self.is_shared else []

    # -- configurations ----------------------------------------------------------------------------------------------

    async def publish_settings(self, settings: Settings) -> None:
        """Publish the digests of a configuration, and compare it with those of the others."""
        if not self.is_shared:
            return
        key = await self._load_digest_key()
        digests = {name: _compute_digest(value, key) for name, value in flatten_settings(settings)}
        if digests != self._digests:
            self._digests = digests
            await self._write_digests(msgspec.json.encode(digests).decode())
        await self._compare()

    async def _compare(self) -> None:
        if not self._digests:
            return
        alive = {it.host.id: it.host.name for it in await self._store.list_hosts() if it.is_alive}
        found: dict[str, tuple[str, ...]] = {}
        for record in await self._store.list_state_records(StateNamespace.HOST_SETTINGS):
            if record.key == self._owner or record.key not in alive:
                continue
            other = msgspec.json.decode(record.value, type=dict[str, str])
            keys = [key for key in {**self._digests, **other} if self._digests.get(key) != other.get(key)]
            if keys:
                found[alive[record.key]] = tuple(sorted(keys))
        if found != self.differences:
            self.differences = found
            for host, names in found.items():
                self._log.warning(
                    "host.settings_differ", host=host, keys=list(names), remedy="give every host the same configuration"
                )

    async def _load_digest_key(self) -> bytes:
        fresh = self._chance.bytes(16).hex()
        value = await update_state_record(
            self._store, StateNamespace.STORE_KEY, _KEY_RECORD, at=self._clock.now(), decide=lambda it: it or fresh
        )
        return bytes.fromhex(value or fresh)

    async def _write_digests(self, value: str | None) -> None:
        await update_state_record(
            self._store, StateNamespace.HOST_SETTINGS, self._owner, at=self._clock.now(), decide=lambda _: value
        )

    async def _remove_digests(self) -> None:
        if self._digests:
            await self._write_digests(None)
        alive = {it.host.id for it in await self._store.list_hosts() if it.is_alive}
        for record in await self._store.list_state_records(StateNamespace.HOST_SETTINGS):
            if record.key not in alive:  # a host that was killed
                await update_state_record(
                    self._store,
                    StateNamespace.HOST_SETTINGS,
                    record.key,
                    at=self._clock.now(),
                    decide=lambda _: None,
                )


def flatten_settings(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield each key of the configuration in force with its value, without those that may differ between hosts."""
    for key, value in _flatten("", settings):
        if not any(f"{key}.".startswith(f"{local}.") for local in _LOCAL_KEYS):
            yield key, value


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, ConfigSection):
        fields = {name: getattr(value, name) for name in list_given_fields(type(value))}
        secrets = {
            name: secret
            for name in type(value).model_fields
            if name not in fields and isinstance(secret := getattr(value, name), SecretString)
        }
        extra = getattr(value, "extra", {})
        for name, item in {**fields, **secrets, **(extra if isinstance(extra, Mapping) else {})}.items():
            yield from _flatten(f"{path}.{name}" if path else name, item)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flatten(f"{path}.{name}", item)
    else:
        yield path, value


def _compute_digest(value: Any, key: bytes) -> str:
    def render(item: Any) -> str:
        if isinstance(item, SecretString):
            return item.reveal()
        if isinstance(item, tuple):
            return "[" + ",".join(map(render, item)) + "]"
        if isinstance(item, ConfigSection):
            return "{" + ",".join(f"{name}={render(part)}" for name, part in _flatten("", item)) + "}"
        return repr(item)

    return hashlib.blake2b(render(value).encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()[
        :DIGEST_CHARS
    ]
