"""Accounts: which platforms are connected, by the configuration in force now. One account's trouble is its own.

An account is built when it is configured and complete, listens under supervision, and is left when it is not wanted any
more. What changes for one never touches another, and what does not concern its adapter (who may speak, which agent
answers) changes nothing here at all. A token is listened to by one process at a time, whatever home that works for.
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

from pydantic import BaseModel

from everhold.config import AccountSettings, Problem, Settings, plugin_settings
from everhold.core.commands import COMMANDS
from everhold.errors import EverholdError, HomeBusy, Misuse, Refused
from everhold.fetch import Fetcher
from everhold.flow.state import update_state_record
from everhold.moves import Moves
from everhold.plugins import PLATFORMS, Catalogue
from everhold.ports.clock import Chance, Clock
from everhold.ports.log import Log
from everhold.ports.platform import Accept, Incoming, Leaving, Platform, Verdict
from everhold.ports.plugin import Context, Fetch, Station
from everhold.ports.store import StateNamespace, Store, make_state_scope
from everhold.secret import Secret
from everhold.stores.sqlite.lock import HomeLock

if sys.platform != "win32":
    import pwd

Key = tuple[str, str]
Keep = Callable[[str, Callable[[], Awaitable[None]]], Awaitable[None]]

LEAVE_SECONDS: Final = 40.0
"""How long an adapter that was replaced is kept for what it was sending: longer than a send may take."""
FOREIGN: Final = (ImportError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, OSError)
"""What building somebody's adapter may raise, short of bugs we want to see as such."""
LOOK_AGAIN_SECONDS: Final = 30.0
"""How often somebody whose token is listened to elsewhere looks whether it still is."""


@dataclasses.dataclass
class Account:
    """One account as it stands."""

    key: Key
    agent: str
    built_of: BaseModel
    platform: Platform
    secrets: tuple[Secret, ...]
    task: asyncio.Task[None] | None = None
    trouble: str = ""
    """What is wrong with its connection now."""
    remedy: str = ""
    heard: float = 0.0
    """When something was last heard from it."""


class Accounts:
    """Every platform account that the configuration names. `platforms` is where the flows look them up."""

    def __init__(
        self,
        *,
        platforms: MutableMapping[Key, Platform],
        accept: Accept,
        store: Store,
        log: Log,
        clock: Clock,
        chance: Chance,
        directory: Path,
        keep: Keep,
        fetch: Fetch | None = None,
        catalogue: Catalogue[Platform] = PLATFORMS,
        locks: Callable[[], Path],
        moves: Moves | None = None,
        look_again: float = LOOK_AGAIN_SECONDS,
    ) -> None:
        self.accounts: dict[Key, Account] = {}
        self._platforms = platforms
        self._accept = accept
        self._store = store
        self._log = log
        self._clock = clock
        self._chance = chance
        self._directory = directory
        self._keep = keep
        self._fetch = fetch or Fetcher()
        self._catalogue = catalogue
        self._locks = locks
        self._moves = moves or Moves(store, clock=clock, log=log)
        self._look_again = look_again
        self._settings: Settings | None = None
        self._problems: dict[Key, Problem] = {}
        self._listening = False
        self._closing = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()
        self._ending: dict[asyncio.Task[None], Account] = {}
        """Whose listener is being ended, and may hold its tokens still."""

    # -- what is wanted ----------------------------------------------------------------------------------------------

    def adopt(self, settings: Settings) -> None:
        """Another revision is in force. Only accounts whose adapter would be built otherwise are touched."""
        wanted = {(it.platform, it.account): it for it in settings.accounts() if it.enabled and it.ready}
        self._settings = settings
        self._problems.clear()
        for key in [key for key in self.accounts if key not in wanted]:
            self._leave(self.accounts.pop(key))
            self._platforms.pop(key, None)
            self._log.info("account.left", platform=key[0], account=key[1])
        for key, account in wanted.items():
            self._take(key, account)

    def listen(self) -> None:
        """Begin to hear. Until then accounts can only speak."""
        self._listening = True
        for account in self.accounts.values():
            if account.task is None:
                self._start(account)

    async def hush(self) -> None:
        """Hear nothing more; what is to be said can still be said."""
        self._listening = False
        tasks = [account.task for account in self.accounts.values() if account.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Leave every account at once."""
        self._closing.set()
        for account in self.accounts.values():
            self._leave(account)
        self.accounts.clear()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    # -- how it is ---------------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[Problem]:
        """What keeps configured accounts from working, besides what the configuration itself told."""
        yield from self._problems.values()
        for (platform, name), account in self.accounts.items():
            if account.trouble:
                path = ("platforms", platform, name)
                disables = f"platforms.{platform}.{name}"
                yield Problem(account.trouble, account.remedy, path=path, fatal=False, disables=disables)

    def about(self) -> list[dict[str, Any]]:
        return [
            {
                "platform": platform,
                "account": name,
                "agent": account.agent,
                "listening": account.task is not None and not account.task.done() and not account.trouble,
                "trouble": account.trouble,
                "heard": account.heard,
            }
            for (platform, name), account in sorted(self.accounts.items())
        ]

    # -- building ----------------------------------------------------------------------------------------------------

    def _take(self, key: Key, settings: AccountSettings) -> None:
        former = self.accounts.get(key)
        try:
            factory = self._catalogue.load(settings.platform)
            own = plugin_settings(settings, factory.Settings)
            if former is not None and former.built_of == own:
                former.agent = settings.agent
                return
            account = Account(key, settings.agent, own, _NOBODY, tuple(_secrets(settings.extra)))
            account.platform = factory(own, self._context(account))
        except EverholdError as error:
            self._unavailable(key, error)
            return
        except FOREIGN as error:
            fell = Misuse(f"its adapter fell: {type(error).__name__}: {error}", remedy="please tell whoever wrote it")
            self._unavailable(key, fell)
            return
        self.accounts[key] = account
        self._platforms[key] = account.platform
        if former is not None:
            self._leave(former)
        if self._listening:
            self._start(account)
        self._log.info("account.taken", platform=key[0], account=key[1], agent=settings.agent)

    def _unavailable(self, key: Key, error: EverholdError) -> None:
        """An account cannot be built. One that worked goes on working as it was."""
        path, disables = ("platforms", *key), f"platforms.{key[0]}.{key[1]}"
        self._problems[key] = Problem(error.message, error.remedy, path=path, fatal=False, disables=disables)
        self._log.warning("account.unavailable", platform=key[0], account=key[1], error=error)

    def _context(self, account: Account) -> Context:
        platform, name = account.key
        directory = self._directory / "platforms" / platform / name
        log = self._log.bind(platform=platform, account=name)

        def report(trouble: str = "", remedy: str = "") -> None:
            if trouble and trouble != account.trouble:
                log.warning("account.trouble", error=trouble, remedy=remedy)
            elif account.trouble and not trouble:
                log.info("account.well")
            account.trouble, account.remedy = trouble, remedy

        return Context(
            agent=account.agent,
            instance=name,
            directory=directory,
            log=log,
            clock=self._clock,
            blob=self._store.get_blob,
            station=Station(
                account=name,
                positions=Ledger(self._store, self._clock, platform=platform, account=name),
                fetch=self._fetch,
                chance=self._chance,
                sleep=asyncio.sleep,
                commands=COMMANDS,
                report=report,
                moved=functools.partial(self._moves.moved, platform),
                friends=functools.partial(self._friends, account.key),
            ),
        )

    def _friends(self, key: Key) -> frozenset[str]:
        """The ids of those who may write to an account directly, as far as the configuration names them."""
        platform, name = key
        settings = self._settings
        account = settings.platforms.get(platform, {}).get(name) if settings is not None else None
        if settings is None or account is None:
            return frozenset()
        allowed = {*account.access.direct, *settings.access.owners}
        ids = allowed | {id for id, person in settings.identities.items() if person in allowed}
        prefix = f"{platform}:"
        return frozenset(id.removeprefix(prefix) for id in ids if id.startswith(prefix))

    # -- listening ---------------------------------------------------------------------------------------------------

    def _start(self, account: Account) -> None:
        # two listeners of one account would take each other's messages, also if it has another name now
        behind = [task for task, former in self._ending.items() if _same(account, former)]

        async def listen() -> None:
            if behind:
                await asyncio.wait(behind)
            while True:
                with self._alone(account) as alone:
                    if alone:
                        return await self._hear(account)
                await asyncio.sleep(self._look_again)

        platform, name = account.key
        work = self._keep(f"{platform}/{name}", listen)
        account.task = asyncio.get_running_loop().create_task(_run(work), name=f"listen {platform}/{name}")

    async def _hear(self, account: Account) -> None:
        async def accept(incoming: Incoming) -> Verdict:
            verdict = await self._accept(incoming)
            account.heard = self._clock.now()
            return verdict

        account.trouble = account.remedy = ""
        try:
            await account.platform.listen(accept)
        except EverholdError as error:
            account.trouble, account.remedy = error.message, error.remedy
            raise
        except BaseException as error:
            account.trouble = "" if isinstance(error, asyncio.CancelledError) else type(error).__name__
            raise

    def _leave(self, account: Account) -> None:
        """End an account: its listener at once, its connections when nothing can be under way through them."""

        async def leave() -> None:
            if account.task is not None:
                account.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await account.task

        async def close() -> None:
            await asyncio.wait([ended])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._closing.wait()
            if isinstance(account.platform, Leaving):
                await account.platform.aclose()

        ended = asyncio.get_running_loop().create_task(leave())
        self._ending[ended] = account
        ended.add_done_callback(self._ending.pop)
        for task in (ended, asyncio.get_running_loop().create_task(close())):
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    @contextlib.contextmanager
    def _alone(self, account: Account) -> Iterator[bool]:
        """Hold the account's tokens against every other process of this user, for as long as the block lasts."""
        directory = self._locks()
        with contextlib.ExitStack() as held:
            for secret in account.secrets:
                digest = hashlib.sha256(f"{account.key[0]}\0{secret.reveal()}".encode()).hexdigest()
                try:
                    held.enter_context(HomeLock(directory / f"{digest[:32]}.lock"))
                except HomeBusy as error:
                    who = error.message.partition(" is using")[0]
                    trouble = f"its token is listened to already: {who} does"
                    remedy = "stop that one, or give this account a token of its own"
                    if trouble != account.trouble:
                        platform, name = account.key
                        self._log.warning(
                            "account.trouble", platform=platform, account=name, error=trouble, remedy=remedy
                        )
                    account.trouble, account.remedy = trouble, remedy
                    yield False
                    return
            yield True


def _same(one: Account, other: Account) -> bool:
    """Whether two accounts are one to the far side: of one name, or with one token."""
    tokens = {secret.reveal() for secret in one.secrets} & {secret.reveal() for secret in other.secrets}
    return one.key == other.key or (one.key[0] == other.key[0] and bool(tokens))


class Ledger:
    """An account's positions. Implements `ports.plugin.Positions`."""

    def __init__(self, store: Store, clock: Clock, *, platform: str, account: str) -> None:
        self._store = store
        self._clock = clock
        self._scope = make_state_scope(platform, account)

    async def read(self, name: str) -> str | None:
        record = await self._store.get_state_record(StateNamespace.PLATFORM_OFFSET, name, scope=self._scope)
        return None if record is None else record.value

    async def move(self, name: str, value: str) -> None:
        # an account has one reader, and its last word counts: a conflict can only be with its own messages
        await update_state_record(
            self._store,
            StateNamespace.PLATFORM_OFFSET,
            name,
            scope=self._scope,
            at=self._clock.now(),
            decide=lambda _: value or None,
        )


class _Nobody:
    """Stands in an account's place while it is being built."""


_NOBODY: Final[Any] = _Nobody()


async def _run(work: Awaitable[None]) -> None:
    await work


def _secrets(value: object) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _secrets(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _secrets(item)


def locks_directory(environ: Mapping[str, str], *, user_home: Callable[[], Path | None] | None = None) -> Path:
    """A directory of this user's own that every everhold on this machine looks into.

    It lies in the user's home as the system knows it: what a shell, a service and a job of cron's are told about
    places for such files differs, a temporary directory is swept, and then they would not see each other's locks.
    """
    if named := environ.get("EVERHOLD_LOCKS", "").strip():
        return _own(Path(named))
    home = (user_home or _user_home)()
    if home is not None and home.is_dir():
        path = home / ".local" / "state" / "everhold"
        with contextlib.suppress(OSError):  # not ours to write to, or read-only: so it is for all of us
            path.parent.mkdir(parents=True, exist_ok=True)
            return _own(path)
    return _own(Path(tempfile.gettempdir()) / (f"everhold-{os.getuid()}" if os.name == "posix" else "everhold"))


def _user_home() -> Path | None:
    if sys.platform == "win32":
        return Path.home()
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def _own(path: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    state = os.lstat(path)
    if os.name == "posix" and (
        not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077
    ):
        raise Refused(f"{path} is not a directory of this user's alone", remedy=f"remove it, or chmod 700 {path}")
    return path
