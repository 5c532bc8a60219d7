"""Platform accounts: builds and runs the accounts of the present configuration. A failing one does not affect others.

An account is built when its configuration is complete, listens under supervision, and is closed when it is no longer
configured. A change of one account does not affect another, and a change that does not concern the adapter (admission,
the agent) does not rebuild the account. Only one process at a time listens with a token, whatever its home.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from everhold.config import AccountSettings, ConfigProblem, Settings, build_plugin_settings
from everhold.core.commands import COMMAND_MENU
from everhold.engine.state_updates import update_state_record
from everhold.errors import EverholdError, HomeBusy, InvalidRequest, Refused
from everhold.infra.fetch import UrlFetcher
from everhold.infra.home_lock import FileLock
from everhold.infra.plugins import PLATFORM_PLUGINS, PluginCatalogue
from everhold.infra.secret import SecretString
from everhold.ingress.account_leadership import ACCOUNT_LEASE_SECONDS, RENEWALS_PER_LEASE, AccountLeadership
from everhold.ingress.chat_records import ChatAliases
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.hosts import AccountClaim, make_account_name
from everhold.ports.log import EventLogger
from everhold.ports.platform import AcceptMessage, AcceptResult, IncomingMessage, Platform, SupportsClose
from everhold.ports.plugin import AccountContext, FetchUrl, PluginContext
from everhold.ports.store import StateNamespace, Store, make_state_scope

if sys.platform != "win32":
    import pwd

AccountKey = tuple[str, str]
KeepRunning = Callable[[str, Callable[[], Awaitable[None]]], Awaitable[None]]

CLOSE_DELAY_SECONDS: Final = 40.0
"""How long a replaced adapter stays open for its running sends. It is longer than a send may take."""
ADAPTER_ERRORS: Final = (ImportError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, OSError)
"""Errors of a plug-in's adapter that disable its account. Others are bugs and are raised."""
ACCOUNT_POLL_SECONDS: Final = 2.0
"""How often a host checks whether an account that another host receives for is free."""
TOKEN_RETRY_SECONDS: Final = 30.0
"""How often an account checks whether another process still listens with its token."""


@dataclasses.dataclass
class PlatformAccount:
    """The state of one account."""

    key: AccountKey
    agent: str
    settings: BaseModel
    platform: Platform
    secrets: tuple[SecretString, ...]
    task: asyncio.Task[None] | None = None
    problem: str = ""
    """The present problem of its connection."""
    remedy: str = ""
    last_heard_at: float = 0.0
    """When it last received a message."""
    claim: AccountClaim | None = None
    """Held while this host receives for the account, if other hosts share the store."""
    is_held_elsewhere: bool = False
    """Another host receives for it. This one only sends."""


class PlatformAccounts:
    """All platform accounts of the configuration. The engine finds their platforms in `platforms`."""

    def __init__(
        self,
        *,
        platforms: MutableMapping[AccountKey, Platform],
        accept: AcceptMessage,
        can_speak: Callable[[IncomingMessage], Awaitable[bool]],
        store: Store,
        log: EventLogger,
        clock: Clock,
        chance: RandomSource,
        directory: Path,
        keep: KeepRunning,
        fetch: FetchUrl | None = None,
        catalogue: PluginCatalogue[Platform] = PLATFORM_PLUGINS,
        locks: Callable[[], Path],
        chat_aliases: ChatAliases | None = None,
        token_retry_seconds: float = TOKEN_RETRY_SECONDS,
        owner: str = "",
        lease_seconds: float = ACCOUNT_LEASE_SECONDS,
    ) -> None:
        """`owner` names this process in the claims of accounts. It matters only if other hosts share the store."""
        self.accounts: dict[AccountKey, PlatformAccount] = {}
        self._platforms = platforms
        self._accept = accept
        self._can_speak = can_speak
        self._store = store
        self._log = log
        self._clock = clock
        self._chance = chance
        self._directory = directory
        self._keep = keep
        self._fetch = fetch or UrlFetcher()
        self._catalogue = catalogue
        self._locks = locks
        self._chat_aliases = chat_aliases or ChatAliases(store, clock=clock, log=log)
        self._token_retry_seconds = token_retry_seconds
        self._leadership = AccountLeadership(store, owner=owner, clock=clock, log=log, lease_seconds=lease_seconds)
        self._poll_seconds = min(ACCOUNT_POLL_SECONDS, lease_seconds / RENEWALS_PER_LEASE)
        self._settings: Settings | None = None
        self._problems: dict[AccountKey, ConfigProblem] = {}
        self._listening = False
        self._closing = asyncio.Event()
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._ending_listeners: dict[asyncio.Task[None], PlatformAccount] = {}
        """Accounts whose listener is ending, and may still hold its tokens."""

    # -- starting and stopping ---------------------------------------------------------------------------------------

    def apply_settings(self, settings: Settings) -> None:
        """Apply a new revision of the configuration. Only accounts whose adapter's settings changed are rebuilt."""
        wanted = {
            (account.platform, account.account): account
            for account in settings.list_accounts()
            if account.enabled and account.is_ready
        }
        self._settings = settings
        self._problems.clear()
        for key in [key for key in self.accounts if key not in wanted]:
            self._close_account(self.accounts.pop(key))
            self._platforms.pop(key, None)
            self._log.info("account.stopped", platform=key[0], account=key[1])
        for key, account in wanted.items():
            self._build_account(key, account)

    def start_listening(self) -> None:
        """Start all listeners. Before, accounts can only send."""
        self._listening = True
        for account in self.accounts.values():
            if account.task is None:
                self._start_listener(account)

    async def stop_listening(self) -> None:
        """Stop all listeners. Accounts can still send."""
        self._listening = False
        tasks = [account.task for account in self.accounts.values() if account.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close all accounts without delay."""
        self._closing.set()
        for account in self.accounts.values():
            self._close_account(account)
        self.accounts.clear()
        await asyncio.gather(*self._closing_tasks, return_exceptions=True)

    # -- state -------------------------------------------------------------------------------------------------------

    def list_problems(self) -> Iterator[ConfigProblem]:
        """The problems of configured accounts, besides those that the configuration reports itself."""
        yield from self._problems.values()
        for (platform, name), account in self.accounts.items():
            if account.problem:
                path = ("platforms", platform, name)
                disables = f"platforms.{platform}.{name}"
                yield ConfigProblem(account.problem, account.remedy, path=path, fatal=False, disables=disables)

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "platform": platform,
                "account": name,
                "agent": account.agent,
                "listening": account.task is not None
                and not account.task.done()
                and not account.problem
                and not account.is_held_elsewhere,
                "elsewhere": account.is_held_elsewhere,
                "trouble": account.problem,
                "heard": account.last_heard_at,
            }
            for (platform, name), account in sorted(self.accounts.items())
        ]

    def list_held(self) -> list[str]:
        """The accounts that this host receives for, if other hosts share the store."""
        return sorted(account.claim.account for account in self.accounts.values() if account.claim is not None)

    # -- building ----------------------------------------------------------------------------------------------------

    def _build_account(self, key: AccountKey, settings: AccountSettings) -> None:
        former = self.accounts.get(key)
        try:
            factory = self._catalogue.load(settings.platform)
            own = build_plugin_settings(settings, factory.Settings)
            if former is not None and former.settings == own:
                former.agent = settings.agent
                return
            account = PlatformAccount(key, settings.agent, own, _MISSING_PLATFORM, tuple(_find_secrets(settings.extra)))
            account.platform = factory(own, self._build_context(account))
        except EverholdError as error:
            self._record_unavailable(key, error)
            return
        except ADAPTER_ERRORS as error:
            failure = InvalidRequest(
                f"its adapter failed: {type(error).__name__}: {error}", remedy="report this to the plug-in's author"
            )
            self._record_unavailable(key, failure)
            return
        self.accounts[key] = account
        self._platforms[key] = account.platform
        if former is not None:
            self._close_account(former)
        if self._listening:
            self._start_listener(account)
        self._log.info("account.started", platform=key[0], account=key[1], agent=settings.agent)

    def _record_unavailable(self, key: AccountKey, error: EverholdError) -> None:
        """Record that an account cannot be built. A former adapter stays in use."""
        path, disables = ("platforms", *key), f"platforms.{key[0]}.{key[1]}"
        self._problems[key] = ConfigProblem(error.message, error.remedy, path=path, fatal=False, disables=disables)
        self._log.warning("account.unavailable", platform=key[0], account=key[1], error=error)

    def _build_context(self, account: PlatformAccount) -> PluginContext:
        platform, name = account.key
        directory = self._directory / "platforms" / platform / name
        log = self._log.bind(platform=platform, account=name)

        def report(trouble: str = "", remedy: str = "") -> None:
            if trouble and trouble != account.problem:
                log.warning("account.failing", error=trouble, remedy=remedy)
            elif account.problem and not trouble:
                log.info("account.connected")
            account.problem, account.remedy = trouble, remedy

        return PluginContext(
            agent=account.agent,
            instance=name,
            directory=directory,
            log=log,
            clock=self._clock,
            blob=self._store.get_blob,
            account_context=AccountContext(
                account=name,
                offsets=StoredPlatformOffsets(
                    self._store, self._clock, platform=platform, account=name, get_claim=lambda: account.claim
                ),
                fetch=self._fetch,
                chance=self._chance,
                sleep=asyncio.sleep,
                commands=COMMAND_MENU,
                report=report,
                add_chat_alias=functools.partial(self._chat_aliases.add_alias, platform),
                can_speak=self._can_speak,
                is_configured_chat=functools.partial(self._is_configured_chat, account.key),
                list_known_senders=functools.partial(self._list_known_senders, account.key),
            ),
        )

    def _is_configured_chat(self, key: AccountKey, chat: str) -> bool:
        """Return whether the configuration says something about a chat of an account."""
        platform, name = key
        account = self._settings.platforms.get(platform, {}).get(name) if self._settings is not None else None
        return account is not None and (chat in account.access.groups or chat in account.chats)

    def _list_known_senders(self, key: AccountKey) -> frozenset[str]:
        """The platform's ids of the senders who may write to an account directly, as far as they are configured."""
        platform, name = key
        settings = self._settings
        account = settings.platforms.get(platform, {}).get(name) if settings is not None else None
        if settings is None or account is None:
            return frozenset()
        agent = settings.agents.get(account.agent)
        allowed = {*account.access.direct, *settings.access.owners, *account.owners, *(agent.owners if agent else ())}
        ids = allowed | {id for id, person in settings.identities.items() if person in allowed}
        prefix = f"{platform}:"
        return frozenset(id.removeprefix(prefix) for id in ids if id.startswith(prefix))

    # -- listening ---------------------------------------------------------------------------------------------------

    def _start_listener(self, account: PlatformAccount) -> None:
        # Two listeners of one account would take each other's messages, also if it was renamed.
        ending = [task for task, former in self._ending_listeners.items() if _is_same_account(account, former)]

        async def listen() -> None:
            if ending:
                await asyncio.wait(ending)
            while True:
                if await self._try_to_listen(account):
                    return
                await asyncio.sleep(self._token_retry_seconds if account.problem else self._poll_seconds)

        platform, name = account.key
        work = self._keep(f"{platform}/{name}", listen)
        account.task = asyncio.get_running_loop().create_task(_await_work(work), name=f"listen {platform}/{name}")

    async def _try_to_listen(self, account: PlatformAccount) -> bool:
        """Listen if no other process does. Return whether the listener ended by itself."""
        if not self._store.is_exclusive:
            return await self._listen_as_holder(account)
        with self._hold_tokens(account) as alone:
            if alone:
                await self._run_listener(account)
        return alone

    async def _listen_as_holder(self, account: PlatformAccount) -> bool:
        """Listen as long as this host holds the account's claim. Of several hosts, only one receives for it. Return
        whether the listener ended by itself.
        """
        was_claimed = has_tokens = False

        async def listen(claim: AccountClaim) -> None:
            nonlocal was_claimed, has_tokens
            was_claimed, account.is_held_elsewhere, account.claim = True, False, claim
            try:
                with self._hold_tokens(account) as has_tokens:
                    if has_tokens:
                        await self._run_listener(account)
            finally:
                account.claim = None

        has_ended = await self._leadership.listen_while_held(make_account_name(*account.key), listen)
        if not was_claimed:
            account.is_held_elsewhere = True
            account.problem = account.remedy = ""
        return has_ended and has_tokens

    async def _run_listener(self, account: PlatformAccount) -> None:
        async def accept(incoming: IncomingMessage) -> AcceptResult:
            if incoming.offset is not None and account.claim is not None:
                offset = msgspec.structs.replace(incoming.offset, claim=account.claim)
                incoming = msgspec.structs.replace(incoming, offset=offset)
            result = await self._accept(incoming)
            account.last_heard_at = self._clock.now()
            return result

        account.problem = account.remedy = ""
        try:
            await account.platform.listen(accept)
        except EverholdError as error:
            account.problem, account.remedy = error.message, error.remedy
            raise
        except BaseException as error:
            account.problem = "" if isinstance(error, asyncio.CancelledError) else type(error).__name__
            raise

    def _close_account(self, account: PlatformAccount) -> None:
        """Close an account: its listener at once, its connections when no send can be running any more."""

        async def leave() -> None:
            if account.task is not None:
                account.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await account.task

        async def close() -> None:
            await asyncio.wait([ended])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_DELAY_SECONDS):
                    await self._closing.wait()
            if isinstance(account.platform, SupportsClose):
                await account.platform.aclose()

        ended = asyncio.get_running_loop().create_task(leave())
        self._ending_listeners[ended] = account
        ended.add_done_callback(self._ending_listeners.pop)
        for task in (ended, asyncio.get_running_loop().create_task(close())):
            self._closing_tasks.add(task)
            task.add_done_callback(self._closing_tasks.discard)

    @contextlib.contextmanager
    def _hold_tokens(self, account: PlatformAccount) -> Iterator[bool]:
        """Lock the account's tokens against all other processes of this user while the block runs."""
        directory = self._locks()
        with contextlib.ExitStack() as held:
            for secret in account.secrets:
                digest = hashlib.sha256(f"{account.key[0]}\0{secret.reveal()}".encode()).hexdigest()
                try:
                    held.enter_context(FileLock(directory / f"{digest[:32]}.lock"))
                except HomeBusy as error:
                    who = error.message.partition(" is using")[0]
                    trouble = f"its token is listened to already, by {who}"
                    remedy = "stop that process, or give this account a token of its own"
                    if trouble != account.problem:
                        platform, name = account.key
                        self._log.warning(
                            "account.failing", platform=platform, account=name, error=trouble, remedy=remedy
                        )
                    account.problem, account.remedy = trouble, remedy
                    yield False
                    return
            yield True


def _is_same_account(one: PlatformAccount, other: PlatformAccount) -> bool:
    """Return whether two accounts are the same for the platform: with the same name, or with the same token."""
    tokens = {secret.reveal() for secret in one.secrets} & {secret.reveal() for secret in other.secrets}
    return one.key == other.key or (one.key[0] == other.key[0] and bool(tokens))


class StoredPlatformOffsets:
    """An account's offsets. Implements `ports.plugin.PlatformOffsets`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        platform: str,
        account: str,
        get_claim: Callable[[], AccountClaim | None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._get_claim = get_claim
        self._scope = make_state_scope(platform, account)

    async def read(self, name: str) -> str | None:
        record = await self._store.get_state_record(StateNamespace.PLATFORM_OFFSET, name, scope=self._scope)
        return None if record is None else record.value

    async def advance(self, name: str, value: str) -> None:
        # An account has one listener, so a conflict can only be with the offset of its own message.
        await update_state_record(
            self._store,
            StateNamespace.PLATFORM_OFFSET,
            name,
            scope=self._scope,
            at=self._clock.now(),
            decide=lambda _: value or None,
            account=self._get_claim(),
        )


class _MissingPlatform:
    """Placeholder for the platform of an account while that is being built."""


_MISSING_PLATFORM: Final[Any] = _MissingPlatform()


async def _await_work(work: Awaitable[None]) -> None:
    await work


def _find_secrets(value: object) -> Iterator[SecretString]:
    if isinstance(value, SecretString):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _find_secrets(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _find_secrets(item)


def find_locks_directory(environ: Mapping[str, str], *, user_home: Callable[[], Path | None] | None = None) -> Path:
    """A private directory of this user that all everhold processes on this machine use for locks.

    It is in the user's home directory according to the system's user database. Environment variables such as TMPDIR
    differ between a shell, a service and a cron job, and temporary directories are cleaned up, so the processes would
    not see each other's locks there.
    """
    if named := environ.get("EVERHOLD_LOCKS", "").strip():
        return _require_own_directory(Path(named))
    home = (user_home or _find_user_home)()
    if home is not None and home.is_dir():
        path = home / ".local" / "state" / "everhold"
        with contextlib.suppress(OSError):  # not writable, and so for all processes of this user
            path.parent.mkdir(parents=True, exist_ok=True)
            return _require_own_directory(path)
    return _require_own_directory(
        Path(tempfile.gettempdir()) / (f"everhold-{os.getuid()}" if os.name == "posix" else "everhold")
    )


def _find_user_home() -> Path | None:
    if sys.platform == "win32":
        return Path.home()
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def _require_own_directory(path: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    state = os.lstat(path)
    if os.name == "posix" and (
        not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077
    ):
        raise Refused(f"{path} is not a private directory of this user", remedy=f"remove it, or chmod 700 {path}")
    return path
