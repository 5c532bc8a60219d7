"""Builds the object graph once, and runs it. The only file that imports every room."""

from __future__ import annotations

import asyncio
import functools
import getpass
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from everhold import __version__
from everhold.accounts import Accounts, locks_directory
from everhold.agents import Agents
from everhold.backups import Backups, copy_json, kept, list_copies, set_aside
from everhold.config import AgentSettings, Problem, Settings, Watcher, load, plugin_validator
from everhold.config.settings import ValidatePlugin, waiting_for_restart
from everhold.control import Control
from everhold.core.consumers import TURN
from everhold.core.entries import Kind, takes_of
from everhold.errors import StoreError, StoreFull
from everhold.flow import waits
from everhold.flow.accept import Accept
from everhold.flow.gates import Bells, Gates
from everhold.flow.supervise import Supervisor
from everhold.home import Home
from everhold.instances import Instances
from everhold.logs import Logger
from everhold.memories.builtin import Builtin, Index, keep_filling, provider as builtin
from everhold.memory import Memory
from everhold.moves import Moves
from everhold.platforms import agent as between
from everhold.platforms.reading import Reading
from everhold.plugins import MEMORIES, MODELS, PLATFORMS, TOOLS
from everhold.ports.clock import Clock
from everhold.ports.platform import Incoming, Platform, Verdict
from everhold.ports.store import Change, Step
from everhold.ports.tool import Tool
from everhold.reception import Reception
from everhold.schedules import Schedules
from everhold.stores.sqlite.ballast import Ballast
from everhold.stores.sqlite.lock import HomeLock
from everhold.stores.sqlite.room import Room, RoomyStore
from everhold.toolbox import Toolbox
from everhold.tools.attach import Attach
from everhold.tools.mcp import Servers, servers_of
from everhold.tools.memory import memory_tools
from everhold.tools.search import Search
from everhold.tools.send import Send
from everhold.web.tail import Tail

if TYPE_CHECKING:
    from everhold.web.guard import Guard
    from everhold.web.local_server import LocalServer
    from everhold.web.office import Office
    from everhold.web.server import Server as Web

DRAIN_SECONDS: Final = 30.0
BACKUP_FIRST_SECONDS: Final = 5.0
BACKUP_LOOK_SECONDS: Final = 60.0
"""How often it is looked whether a copy of the store is due."""
INDEX_SECONDS: Final = 2.0
"""How often the search index catches up by itself. A search never waits for it: it catches up first."""
_CATALOGUES: Final[dict[str, Any]] = {
    "models": MODELS, "memories": MEMORIES, "platforms": PLATFORMS, "tools": TOOLS,
}  # fmt: skip


class SystemClock:
    """The machine's own time."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class SystemChance:
    """The machine's own randomness."""

    bytes = staticmethod(os.urandom)
    random = staticmethod(random.random)


def local_user() -> str:
    """Who runs this process; at this machine nobody else is believed to speak."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id
        return "me"


def settings_of(home: Home, *, environ: Mapping[str, str], last_good: bool = False) -> Settings:
    """What is configured in `home`, checked with every plug-in it names."""
    return load(home, environ=environ, validate_plugin=plugin_check(), last_good=last_good)


def plugin_check() -> ValidatePlugin:
    """Asks the installed plug-ins what they think of their sections."""
    return plugin_validator(lambda group, name: _CATALOGUES[group].load(name).Settings)


class App:
    """Everything that works for one home, from taking its lock to letting go of it.

    `__init__` builds the objects in seven steps. A step uses only what the steps before it have built; callbacks that
    it hands out (`self.accept`, lambdas) may use more, because nobody calls them before `start`.
    """

    def __init__(
        self, home: Home, settings: Settings, *, log: Logger, environ: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        self.home = home
        self.started = settings
        """What this process was started with; some of it stays in force until the next start."""
        self.environ = environ
        self.log = log
        log.redaction.hide(*(secret.reveal() for secret in settings.secrets()))
        self.clock = clock or SystemClock()
        self.chance = SystemChance()
        self._open_store()
        self._build_agents(settings)
        self._build_ingress()
        self._build_engine()
        self._build_outside()
        self._build_admin(settings)
        self._build_api()
        self.tasks: list[asyncio.Task[None]] = []

    # -- building, in this order -------------------------------------------------------------------------------------

    def _open_store(self) -> None:
        """Take the home's lock and open the store. `gates` are the only way from the engine to store and clock."""
        home, log, chance = self.home, self.log, self.chance
        self.lock = HomeLock(home.lock).take()
        try:
            self.store = RoomyStore.open(home.store, chance=chance, backups=home.backups)
        except BaseException:
            self.lock.release()
            raise
        if self.store.saved is not None:
            log.info("store.upgraded", backup=str(self.store.saved))
        self.room = Room(Ballast(home.ballast), log=log)
        """Nothing is accepted while the disk has none."""
        self.store.on_full = self.room.ran_out
        self.bells = Bells()
        owner = f"{os.getpid()}-{chance.bytes(6).hex()}"
        self.gates = Gates(store=self.store, clock=self.clock, chance=chance, log=log, owner=owner)

    def _build_agents(self, settings: Settings) -> None:
        """Each agent with its models, memories and tools, from the settings. `platforms` grows as accounts connect."""
        home, log = self.home, self.log
        self.platforms: dict[tuple[str, str], Platform] = {
            ("terminal", ""): Reading("terminal"),
            ("http", ""): Reading("http"),
        }
        self.index = Index(home.index, models=home.models)
        self.toolbox = Toolbox(log=log, clock=self.clock, directory=home.path / "tools")
        self.agents = Agents(
            settings,
            store=self.store,
            log=log,
            clock=self.clock,
            directory=home.path,
            platforms=self.platforms,
            tools=self._tools,
            memories=Instances(
                settings,
                log=log,
                clock=self.clock,
                directory=home.path / "memories",
                own={builtin.NAME: self._builtin},
            ),
            coming=lambda agent: self.mcp.coming(agent),
        )

    def _build_ingress(self) -> None:
        """The way of a message into the log: who may speak, then the commit."""
        log = self.log
        self.moves = Moves(self.store, clock=self.clock, log=log)
        self.reception = Reception(
            moves=self.moves,
            settings=lambda: self.agents.settings,
            store=self.store,
            platforms=self.platforms,
            clock=self.clock,
            chance=self.chance,
            log=log,
        )
        self.door = Accept(self.gates, reception=self.reception, bells=self.bells)

    def _build_engine(self) -> None:
        """The supervisor starts a worker for every cursor that is due: turns, commands, deliveries, memories."""
        self.watchers: list[Any] = []
        """Whoever wants to see replies grow: (session, op, piece)."""
        self.supervisor = Supervisor(
            self.gates,
            runtimes=self.agents,
            bells=self.bells,
            day=self.agents.day,
            on_text=self._on_text,
        )

    def _build_outside(self) -> None:
        """What runs beside the engine and reaches the outside: platform accounts, schedules, MCP servers."""
        home, log, environ = self.home, self.log, self.environ
        self.accounts = Accounts(
            platforms=self.platforms,
            accept=self.accept,
            store=self.store,
            log=log,
            clock=self.clock,
            chance=self.chance,
            directory=home.path,
            keep=self.keep,
            locks=lambda: locks_directory(environ),
            moves=self.moves,
        )
        self.schedules = Schedules(
            self.store, accept=self.accept, clock=self.clock, zone=lambda: self.agents.settings.zone, log=log
        )
        self.mcp = Servers(
            environ=environ,
            directory=home.path,
            log=log,
            keep=self.supervisor.keep,
            changed=lambda server: self.agents.renew(lambda agent: server in servers_of(agent)),
        )

    def _build_admin(self, settings: Settings) -> None:
        """What operators do: look into sessions, change the configuration, copy the store, ask and clean memory."""
        home, log, environ = self.home, self.log, self.environ
        self.control = Control(
            self.gates,
            bells=self.bells,
            accept=self.accept,
            runtimes=self.agents,
            erasures=home.erasures,
            holding=self._holding,
        )
        self.watcher = Watcher(
            home,
            settings,
            load=lambda: settings_of(home, environ=environ),
            swap=self._adopt,
            log=log,
            monotonic=self.clock.monotonic,
            sleep=asyncio.sleep,
        )
        self.backups = Backups(home.backups, copy=self.store.copy, now=self.clock.now)
        self.memory = Memory(
            self.control,
            agents=lambda: tuple(self.agents.settings.agents),
            people=lambda person: self.agents.settings.goes_by(person),
            backups=lambda: len(kept(home.backups)),
            set_aside=lambda: set_aside(home.backups),
            wipe=lambda: self.index.wiped(self.store),
        )

    def _build_api(self) -> None:
        """How operators and clients reach this process, and how they follow a session while it grows."""
        self.tail = Tail()
        self.store.on_commit = self._committed
        self.watchers += [self.tail.grew]
        self.role = "gateway"
        """What this process is for: a gateway stays, a `chat` or `send` goes again and leaves its work to the next."""
        self.since = self.clock.now()
        self.url = ""
        """Where people find the page, empty while there is none."""
        self.web: Web | None = None
        self.local_server: LocalServer | None = None

    # -- working -----------------------------------------------------------------------------------------------------

    async def accept(self, incoming: Incoming) -> Verdict:
        """The door, with the configuration as it is now. A full disk is said, not swallowed."""
        await self.watcher.fresh()
        self.room.demand()
        return await self.door(incoming)

    async def keep(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` for ever. Who fell for want of room goes on as soon as there is some: by then, the patience of
        whoever starts it again may have grown to minutes."""

        async def with_room() -> None:
            while True:
                try:
                    return await work()
                except StoreFull as error:
                    self.log.error("store.failed", what=what, error=error)
                    await self.room.wait()

        await self.supervisor.keep(what, with_room)

    async def start(self, *, listen: bool = True) -> int:
        """Take up what was left and begin to work; how many messages wait for an answer.

        Without `listen` nothing is heard from platforms: for a process that answers somebody and goes.
        """
        await self.store.revoke_leases(owner=self.gates.owner, at=self.clock.now())
        await self.control.reapply_erasures()
        await self.memory.take_up()
        self.room.ballast.take_aboard()
        waiting = await self._unanswered()
        await self.reception.open()
        self._connect_agents()
        self.mcp.adopt(self.agents.settings.mcp, self.agents.settings.agents.values())
        await waits.look_through(self.gates, self.agents, self.bells)
        for name, work in (
            ("dispatch", self.supervisor.dispatch),
            ("renew", self.supervisor.renew),
            ("config", self.watcher.run),
            ("index", self._keep_index),
            ("fill", self._fill_index),
            ("backup", self._keep_backups),
            ("forgetting", self.memory.keep_finishing),
            ("room", self.room.keep_looking),
        ):
            self.tasks.append(asyncio.create_task(self.keep(name, work), name=name))
        self.accounts.adopt(self.agents.settings)
        if listen:
            self.accounts.listen()
            task = self.keep("schedules", self.schedules.run)
            self.tasks.append(asyncio.create_task(task, name="schedules"))
        await self._open_local_server()
        return waiting

    async def _open_local_server(self) -> None:
        from everhold.web.local_server import LocalServer  # a command that only looks needs no server

        self.local_server = LocalServer(self.api, self.home.api_socket, monotonic=self.clock.monotonic, log=self.log)
        await self.local_server.open()

    @functools.cached_property
    def api(self) -> Guard:
        """The API, which the servers serve and commands without a gateway call in this process."""
        from everhold.web.application import application  # it takes a while to import, and not every command needs it

        return application(self.office)

    @functools.cached_property
    def office(self) -> Office:
        """What the API's handlers work with."""
        from everhold.web.office import GatewayServices, Office
        from everhold.web.once import Once

        return Office(
            control=self.control,
            memory=self.memory,
            local=local_user(),
            agents=self.agents,
            tail=self.tail,
            log=self.log,
            fresh=self.watcher.fresh,
            trouble=self._trouble,
            scrub=self.log.redaction.scrub,
            once=Once(monotonic=self.clock.monotonic),
            purses=self.supervisor.purses,
            gateway=GatewayServices(
                role=lambda: self.role,
                describe=self.about,
                back_up=self._back_up,
                list_backups=lambda: list_copies(self.home.backups),
                pairing=self.reception.pairing,
                schedules=self.schedules,
                whisper=self.reception.whisper,
            ),
        )

    async def serve(self, *, port: int | None = None) -> str:
        """Open HTTP, on `port` or the configured one; where people find the page."""
        from everhold.web.server import Server as Web  # only a gateway needs it

        http = self.watcher.settings.http
        self.web = Web(self.office, self.api, host=http.host, port=http.port if port is None else port)
        await self.web.start()
        self.url = self.web.url
        return self.url

    async def stop(self, *, seconds: float = DRAIN_SECONDS) -> None:
        """Give what runs some time, then let go. Everything that is not finished resumes at the next start."""
        await self.accounts.hush()
        await self.supervisor.drain(seconds)
        self.tail.close()
        if self.web is not None:
            await self.web.stop()
        if self.local_server is not None:
            await self.local_server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        await self.reception.close()
        await self.accounts.close()
        await self.mcp.close()
        await self.agents.close()
        await self.index.close()
        await self.store.close()
        self.lock.release()

    # -- reporting ---------------------------------------------------------------------------------------------------

    @property
    def broken(self) -> StoreError | None:
        """Why this process must end and start anew, if it must."""
        return self.store.broken

    def _trouble(self) -> str:
        """Why nothing is accepted now, if so."""
        return str(self.broken) if self.broken else "the disk is full" if self.room.full else ""

    def about(self) -> dict[str, Any]:
        """What this process says about itself."""
        settings, refused = self.watcher.settings, self.watcher.refused
        return {
            "version": __version__,
            "pid": os.getpid(),
            "role": self.role,
            "running": bool(self.tasks),
            "since": self.since,
            "home": str(self.home.path),
            "url": self.url,
            "revision": settings.revision,
            "day": self.agents.day(),
            "default_agent": settings.default_agent,
            "agents": [agent_json(agent, settings) for agent in settings.agents.values()],
            "problems": [problem_json(problem) for problem in self._problems()],
            "accounts": self.accounts.about(),
            **self.reception.about(),
            "restart": self._waiting_for_restart(settings),
            "refused": [problem_json(problem) for problem in refused.problems] if refused else [],
            "store": self._trouble(),
        }

    def _problems(self) -> tuple[Problem, ...]:
        return (
            *self.watcher.settings.problems,
            *self.mcp.problems(),
            *self.toolbox.problems(),
            *self.agents.memories.problems(),
            *self.accounts.problems(),
        )

    def _waiting_for_restart(self, settings: Settings) -> list[str]:
        # a process without a page of its own does not care where one would be
        return [
            key
            for key in waiting_for_restart(self.started, settings)
            if self.web is not None or not key.startswith("http.")
        ]

    # -- a changed configuration -------------------------------------------------------------------------------------

    def _adopt(self, settings: Settings) -> None:
        self.log.redaction.hide(*(secret.reveal() for secret in settings.secrets()))
        if (keys := self._waiting_for_restart(settings)) and keys != self._waiting_for_restart(self.agents.settings):
            self.log.warning(
                "config.restart_needed", keys=keys, remedy="restart everhold; until then they are as before"
            )
        self.agents.adopt(settings)
        self._connect_agents()
        if self.tasks:
            self.mcp.adopt(settings.mcp, settings.agents.values())
            self.accounts.adopt(settings)
            self.tasks.append(asyncio.create_task(self._hasten(), name="hasten"))

    async def _hasten(self) -> None:
        """Something was changed: what waits after a failure is tried at once. A corrected key may be all it took.

        What was held back for a fuller batch goes out, too: what becomes of its memory nobody knows.
        """
        await waits.look_through(self.gates, self.agents, self.bells)
        await self.supervisor.release()
        if await self.store.retry_now(at=self.clock.now()):
            self.bells.work.set()

    def _connect_agents(self) -> None:
        """Every agent has a way to the others' doors; whom it may write to is its tool's business."""
        for name in self.agents.settings.agents:
            self.platforms.setdefault((between.NAME, name), between.Between(name, self.accept))

    # -- keeping up: index, backups ----------------------------------------------------------------------------------

    async def _keep_index(self) -> None:
        """Take in what was committed, a little after it was. Whoever searches meanwhile does the same for the rest."""
        warm = False
        while True:
            while await self.index.catch_up(self.store):
                pass
            if not warm:
                await self.index.warm()
                warm = True
            await asyncio.sleep(INDEX_SECONDS)

    async def _holding(self, text: str, limit: int) -> list[tuple[str, int]]:
        return await self.index.holding(self.store, text, limit=limit)

    async def _fill_index(self) -> None:
        self.log.debug("index.level", found_by=self.index.level)  # `status` says it, too
        await keep_filling(self.index, self.log, self.clock)

    def _builtin(self, agent: str) -> Builtin:
        return Builtin(index=self.index, store=self.store, agent=agent)

    async def _keep_backups(self) -> None:
        """A copy every so often, unless nothing was said since the last one. A start does not wait for it."""
        await asyncio.sleep(BACKUP_FIRST_SECONDS)
        while True:
            wanted = self.watcher.settings.backup
            due = wanted.every_hours > 0 and self.backups.wait(wanted.every_hours) <= 0 and not self.room.full
            if due and self.role == "gateway" and await self._has_grown():
                try:
                    await self._back_up("")
                except (StoreError, OSError) as error:
                    self.log.error("backup.failed", error=error)
            await asyncio.sleep(BACKUP_LOOK_SECONDS)

    async def _has_grown(self) -> bool:
        last = await self.store.last_pos()
        return last > 0 and last != self.backups.newest_pos()

    async def _back_up(self, to: str) -> dict[str, Any]:
        made = await self.backups.take(to=Path(to) if to else None)
        gone = self.backups.prune(self.watcher.settings.backup.keep) if made.sound and not to else []
        how = self.log.info if made.sound else self.log.error
        how("backup.done", path=str(made.path), bytes=made.bytes, entries=made.entries, sound=made.sound)
        return copy_json(made, gone)

    # -- what the parts ask for --------------------------------------------------------------------------------------

    def _tools(self, settings: AgentSettings) -> dict[str, Tool]:
        tools: dict[str, Tool] = {}
        if settings.send_to:
            tools["send"] = Send(settings.name, settings.send_to)
        if "attach" in settings.tools:
            tools["attach"] = Attach(self.store)
        if "memory" in settings.tools:
            tools |= memory_tools(self.agents.facts, limits=settings.facts.limits)
        if "session_search" in settings.tools:
            tools["session_search"] = Search(self._builtin(settings.name), self.store)
        tools |= self.mcp.tools(settings)
        return tools | self.toolbox.tools(settings, self.agents.settings.tools, taken=tools)

    def _committed(self, change: Change) -> None:
        self.tail.committed(change)
        if change.step is Step.COMMAND:
            self.bells.ring(change.session)  # whoever is at work there may have been told to stop

    async def _unanswered(self) -> int:
        """How many messages have no answer: those that wait, and those a turn had taken when everything stopped."""
        count = await self.store.count_waiting()
        for lane in await self.store.list_cursors(consumer=TURN, waiting=True):
            for turn in await self.store.list_operations(lane.session, types=("turn",), states=("running",)):
                kinds = (Kind.BEGAN, Kind.TOOK)
                its = await self.store.list_entries(lane.session, after=turn.first - 1, kinds=kinds)
                count += len(takes_of(entry for entry in its if entry.op == turn.op))
        return count

    def _on_text(self, session: str, op: int, piece: str | None) -> None:
        for watcher in self.watchers:
            watcher(session, op, piece)


def problem_json(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "key": problem.key,
        "message": problem.message,
        "remedy": problem.remedy,
        "fatal": problem.fatal,
        "disables": problem.disables,
    }


def agent_json(agent: AgentSettings, settings: Settings) -> dict[str, Any]:
    missing = [name for model in dict.fromkeys(agent.models()) for name in settings.models[model].missing]
    return {
        "name": agent.name,
        "model": agent.model,
        "fallback": list(agent.fallback),
        "memories": [memory.name for memory in agent.memories],
        "tools": list(dict.fromkeys((*agent.tools, *(("send",) if agent.send_to else ())))),
        "missing": missing,
        "budget": {"usd": agent.budget.usd_per_day, "tokens": agent.budget.tokens_per_day},
    }
