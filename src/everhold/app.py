"""Builds the object graph and runs it. It is the only module that imports every layer below."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import getpass
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from everhold import __version__
from everhold.admin.backups import StoreBackups, list_copies, render_copy
from everhold.admin.erasure_follower import ErasureFollower
from everhold.admin.forgetting import BackupHolding
from everhold.admin.memory import MemoryAdmin
from everhold.admin.monitoring import GatewayMonitor, ProcessState
from everhold.admin.session_overview import SessionOverview
from everhold.admin.sessions import SessionAdmin
from everhold.admin.trace_export import TraceExport
from everhold.api.log_tail import LogTail
from everhold.assembly.accounts import PlatformAccounts, find_locks_directory
from everhold.assembly.agents import ConfiguredAgents, ToolCollection
from everhold.assembly.builtin_toolbox import FETCH_AGENT, SKILL, BuiltinToolbox
from everhold.assembly.host_membership import HostMembership
from everhold.assembly.machine_needs import list_missing_programs
from everhold.assembly.memory_providers import MemoryProviders
from everhold.assembly.plugin_tools import PluginTools, list_trusted_tools
from everhold.assembly.stores import open_file_store, open_server_store
from everhold.assembly.tool_pins import ToolPinRegistry
from everhold.config import AgentSettings, ConfigProblem, ConfigWatcher, Settings, load_settings, make_plugin_validator
from everhold.config.display import render_problem
from everhold.config.settings import OPERATOR_TOKEN_NAME, ValidatePlugin, list_keys_awaiting_restart
from everhold.config.whole_text import ConfigText
from everhold.core.consumers import TURN
from everhold.core.entries import EntryKind, list_consumed_seqs
from everhold.core.people import HOOK_PLATFORM
from everhold.core.quotas import compute_seconds_left
from everhold.core.roles import PersonRole
from everhold.core.tool_pins import RESERVED_TOOL_NAMES
from everhold.engine import model_waits
from everhold.engine.approvals.decisions import ApprovalService
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.memory.peers import PeerRegistry
from everhold.engine.supervisor import LEASE_SECONDS, WorkerSupervisor
from everhold.errors import InvalidRequest, Refused, StoreError, StoreFull
from everhold.infra.backup_files import choose_directory, list_backups, list_set_aside
from everhold.infra.child_process import ChildProcesses
from everhold.infra.disk_guard import DiskGuard, DiskReserve
from everhold.infra.fetch import UrlFetcher
from everhold.infra.home import Home, add_missing_lines, ensure_home_id, require_store
from everhold.infra.home_lock import HomeLock, hold_machine_locks
from everhold.infra.plugins import MEMORY_PLUGINS, MODEL_PLUGINS, PLATFORM_PLUGINS, TOOL_PLUGINS
from everhold.infra.uploads import MAX_FILE_BYTES, UploadFolder
from everhold.ingress.accept import MessageAcceptor
from everhold.ingress.account_leadership import AccountLeadership
from everhold.ingress.admission import AdmissionControl
from everhold.ingress.chat_records import ChatAliases
from everhold.ingress.held_messages import HeldMessages
from everhold.ingress.hooks import HookReceiver
from everhold.ingress.people import PeopleRegistry
from everhold.ingress.quotas import MessageQuotas
from everhold.ingress.schedules import ScheduleRunner
from everhold.memories.builtin import BuiltinMemory, MemoryIndex, provider as builtin, run_embedding_backfill
from everhold.platforms import agent as between
from everhold.platforms.pull import PullPlatform
from everhold.ports.clock import Clock
from everhold.ports.hosts import CommitHint, HostStatus, make_account_name
from everhold.ports.platform import AcceptResult, IncomingMessage, Platform
from everhold.ports.plugin import SupportsPackageCheck
from everhold.ports.store_files import OpenStore
from everhold.telemetry.log_file import LogFeed
from everhold.telemetry.logs import StructuredLogger
from everhold.telemetry.traces.otlp import CONTENT_VARIABLE, OtlpExporter, read_trace_settings
from everhold.telemetry.traces.spans import ModelDescription
from everhold.tools.attach import AttachTool
from everhold.tools.mcp import MCP_PREFIX, McpServers, list_server_names
from everhold.tools.memory import build_memory_tools
from everhold.tools.schedule import ScheduleTool
from everhold.tools.search import SessionSearchTool
from everhold.tools.send import SendTool

if TYPE_CHECKING:
    from everhold.api.context import ApiContext, RefusalCounts
    from everhold.api.local_server import LocalServer
    from everhold.api.middleware import GuardMiddleware
    from everhold.api.server import HttpServer

DRAIN_SECONDS: Final = 30.0
FIRST_BACKUP_DELAY_SECONDS: Final = 5.0
BACKUP_POLL_SECONDS: Final = 60.0
PAIRING_TIDY_SECONDS: Final = 600.0
"""How often the names of strangers are deleted whose code has expired."""
"""How often the app checks whether a backup is due."""
SHARED_RECORDS_SECONDS: Final = 2.0
"""How often a host looks for what others were told. Messages are decided by what is true when they are committed."""
SKILL_POLL_SECONDS: Final = 5.0
"""How often the folders of skills are read again."""
TRACES_WORK: Final = make_account_name("work", "traces")
TRACES_CLAIM_SECONDS: Final = 5.0
"""How often a host asks for the export of traces that another one holds."""
INDEX_INTERVAL_SECONDS: Final = 2.0
"""How often the search index catches up. A search does not wait for this, because it catches up itself first."""
CAPTURE_RISK: Final = ConfigProblem(
    "what people say is sent to the collector of traces, and forgetting a person does not delete it there",
    f"unset {CONTENT_VARIABLE}",
    path=("traces",),
    fatal=False,
)
_CATALOGUES: Final[dict[str, Any]] = {
    "models": MODEL_PLUGINS, "memories": MEMORY_PLUGINS, "platforms": PLATFORM_PLUGINS, "tools": TOOL_PLUGINS,
}  # fmt: skip


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class SystemRandomSource:
    """The machine's random numbers."""

    bytes = staticmethod(os.urandom)
    random = staticmethod(random.random)


def get_local_user() -> str:
    """The name of the user who runs this process. Local callers are this person."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id
        return "me"


def load_home_settings(home: Home, *, environ: Mapping[str, str], last_good: bool = False) -> Settings:
    """Load the settings of `home`, and validate them with every plug-in that they name."""
    return load_settings(home, environ=environ, validate_plugin=build_plugin_check(), last_good=last_good)


def build_plugin_check() -> ValidatePlugin:
    """Return a function that validates a plug-in's section with the installed plug-in."""
    return make_plugin_validator(lambda group, name: _CATALOGUES[group].load(name).Settings, _check_plugin_package)


def _check_plugin_package(group: str, name: str) -> None:
    factory = _CATALOGUES[group].load(name)
    if isinstance(factory, SupportsPackageCheck):
        factory.check_package()


class OpenedHome(NamedTuple):
    """The lock of a home, and the store of this home."""

    lock: HomeLock
    store: OpenStore


class GatewayApp:
    """The process of one home, from acquiring its lock to releasing it.

    `__init__` builds the objects in seven steps. A step uses only what earlier steps have built. Callbacks that it
    passes on (`self.accept`, lambdas) may use more, because they are not called before `start`.
    """

    def __init__(
        self,
        home: Home,
        settings: Settings,
        *,
        log: StructuredLogger,
        environ: Mapping[str, str],
        clock: Clock | None = None,
        opened: OpenedHome | None = None,
    ) -> None:
        """Use `open`, unless the store is a file. `opened` is the home's lock and a store on a server."""
        self.home = home
        self.start_settings = settings
        """The settings at the start of this process. Some of them stay in force until the next start."""
        self.environ = environ
        self.log = log
        log.redaction.add_secrets(*(secret.reveal() for secret in settings.list_secrets()))
        self.clock = clock or SystemClock()
        self.chance = SystemRandomSource()
        self._open_store(opened)
        self._build_agents(settings)
        self._build_ingress()
        self._build_engine()
        self._build_outside()
        self._build_admin(settings)
        self._build_api()
        self.tasks: list[asyncio.Task[None]] = []
        self.drain_requested = asyncio.Event()

    @classmethod
    async def open(
        cls,
        home: Home,
        settings: Settings,
        *,
        log: StructuredLogger,
        environ: Mapping[str, str],
        clock: Clock | None = None,
    ) -> GatewayApp:
        """Open the configured store, and build the objects."""
        if not settings.store.is_server:
            return cls(home, settings, log=log, environ=environ, clock=clock)
        log.redaction.add_secrets(*(secret.reveal() for secret in settings.list_secrets()))
        lock = HomeLock(home.lock).acquire()
        try:
            store = await open_server_store(home, settings.store, chance=SystemRandomSource())
        except BaseException:
            lock.release()
            raise
        try:
            return cls(home, settings, log=log, environ=environ, clock=clock, opened=OpenedHome(lock, store))
        except BaseException:
            await store.close()
            lock.release()
            raise

    # -- building, in this order -------------------------------------------------------------------------------------

    def _open_store(self, opened: OpenedHome | None) -> None:
        """Acquire the home's lock and open the store. The engine uses store and clock only through `gates`."""
        home, log, chance = self.home, self.log, self.chance
        self.machine_locks = contextlib.ExitStack()
        opened = opened or self._open_file_store()
        self.lock, self.store = opened
        if self.store.upgrade_backup is not None:
            log.info("store.upgraded", backup=str(self.store.upgrade_backup))
        self.disk_guard = DiskGuard(DiskReserve(home.disk_reserve), log=log)
        """Refuses messages while the disk is full."""
        self.store.on_full = self.disk_guard.report_full
        self.wakeups = Wakeups()
        owner = f"{os.getpid()}-{chance.bytes(6).hex()}"
        self.gates = Gates(
            store=self.store,
            clock=self.clock,
            chance=chance,
            log=log,
            owner=owner,
            redact=log.redaction.scrub_text,
        )
        self.hosts = HostMembership(
            self.store,
            owner=owner,
            name=self.start_settings.store.host_name or socket.gethostname(),
            clock=self.clock,
            chance=chance,
            log=log,
            lease_seconds=self.start_settings.store.lease_seconds / 2,
        )

    def _open_file_store(self) -> OpenedHome:
        if self.start_settings.store.is_server:
            raise AssertionError("a store on a server is opened by `GatewayApp.open`")
        lock = HomeLock(self.home.lock).acquire()
        try:
            require_store(self.home)
            return OpenedHome(lock, open_file_store(self.home, chance=self.chance, now=self.clock.now))
        except BaseException:
            lock.release()
            raise

    def _build_agents(self, settings: Settings) -> None:
        """Build the agents with their models, memories and tools. Accounts add their platforms to `platforms` later."""
        home, log = self.home, self.log
        self.platforms: dict[tuple[str, str], Platform] = {
            ("terminal", ""): PullPlatform("terminal"),
            ("http", ""): PullPlatform("http"),
            (HOOK_PLATFORM, ""): PullPlatform(HOOK_PLATFORM),
        }
        self.index = MemoryIndex(home.index, models=home.models)
        self.children = ChildProcesses(home.path)
        """Starts the programs that are not trusted."""
        self.plugin_tools = PluginTools(log=log, clock=self.clock, directory=home.path / "tools")
        self.toolbox = BuiltinToolbox(
            home=home.path,
            store=self.store,
            clock=self.clock,
            children=self.children,
            environ=self.environ,
            search=lambda: self.agents.settings.search,
            host="" if self.store.is_exclusive else self.hosts.name,
        )
        self.agents = ConfiguredAgents(
            settings,
            store=self.store,
            log=log,
            clock=self.clock,
            directory=home.path,
            platforms=self.platforms,
            tools=self._build_tools,
            memories=MemoryProviders(
                settings,
                log=log,
                clock=self.clock,
                directory=home.path / "memories",
                home=home.path,
                own_factories={builtin.NAME: self._build_builtin_memory},
            ),
            wait_for_tools=lambda agent: self.mcp.get_startup_wait(agent),
            local_user=get_local_user(),
        )

    def _build_ingress(self) -> None:
        """Build admission and the accept commit, which bring a message into the log."""
        log = self.log
        self.peers = PeerRegistry(
            self.gates,
            find_client=self.agents.find_memory,
            list_memories=lambda agent: [it.name for it in self.agents.settings.get_agent(agent).memories],
            list_agents=lambda: self.agents.settings.agents,
            get_revision=lambda: self.agents.settings,
        )
        self.agents.memories.peers = self.peers
        self.chat_aliases = ChatAliases(self.store, clock=self.clock, log=log)
        self.admission = AdmissionControl(
            chat_aliases=self.chat_aliases,
            settings=lambda: self.agents.settings,
            store=self.store,
            platforms=self.platforms,
            clock=self.clock,
            chance=self.chance,
            log=log,
            people=PeopleRegistry(
                self.store,
                settings=lambda: self.agents.settings,
                clock=self.clock,
                chance=self.chance,
                log=log,
                local_user=get_local_user(),
            ),
            load_settings=self._load_settings,
        )
        self.quotas = MessageQuotas(
            self.store,
            settings=lambda: self.agents.settings.quotas,
            clock=self.clock,
            log=log,
            get_today=self.agents.get_today,
            get_seconds_left=lambda: compute_seconds_left(self.clock.now(), self.agents.settings.zone),
        )
        self.acceptor = MessageAcceptor(
            self.gates,
            admit=self.admission,
            wakeups=self.wakeups,
            peers=self.peers,
            quotas=self.quotas,
            shared_records=self.admission.shared_records,
            tell=self.admission.send_outside_session,
        )
        self.held_messages = HeldMessages(
            self.gates,
            acceptor=self.acceptor,
            accept=self.accept,
            platforms=self.platforms,
            settings=lambda: self.agents.settings.quotas.files,
            is_halted=self.admission.is_halted,
            prepare=self._prepare_accept,
        )
        self.quotas.list_held = self.held_messages.list_waiting

    def _build_engine(self) -> None:
        """Build the supervisor, which starts a worker for every due cursor: turns, commands, deliveries, memories."""
        self.text_watchers: list[Any] = []
        """Functions that receive the text of replies while they are generated: (session, op, delta)."""
        self.supervisor = WorkerSupervisor(
            self.gates,
            runtimes=self.agents,
            wakeups=self.wakeups,
            roles=self.admission.roles,
            get_today=self.agents.get_today,
            on_text=self._on_text,
            peers=self.peers,
            poll_seconds=None if self.store.is_exclusive else self.start_settings.store.poll_seconds,
            lease_seconds=LEASE_SECONDS if self.store.is_exclusive else self.start_settings.store.lease_seconds,
        )

    def _build_outside(self) -> None:
        """Build what runs besides the engine: platform accounts, schedules, MCP servers."""
        home, log, environ = self.home, self.log, self.environ
        self.accounts = PlatformAccounts(
            platforms=self.platforms,
            accept=self.held_messages,
            can_speak=self.admission.can_speak,
            store=self.store,
            log=log,
            clock=self.clock,
            chance=self.chance,
            directory=home.path,
            keep=self.keep_running,
            locks=lambda: find_locks_directory(environ),
            chat_aliases=self.chat_aliases,
            owner=self.gates.owner,
            lease_seconds=self.start_settings.store.lease_seconds / 2,
        )
        self.schedules = ScheduleRunner(
            self.store, accept=self.accept, clock=self.clock, zone=lambda: self.agents.settings.zone, log=log
        )
        self.hooks = HookReceiver(
            self.store, settings=lambda: self.agents.settings, accept=self.accept, clock=self.clock
        )
        self.tool_pins = ToolPinRegistry(self.store, clock=self.clock, log=log)
        self.mcp = McpServers(
            environ=environ,
            directory=home.path / "mcp",
            children=self.children,
            log=log,
            keep=self.supervisor.keep_running,
            changed=lambda server: self.agents.invalidate(lambda agent: server in list_server_names(agent)),
            review=self.tool_pins.review,
            list_taken=self._list_taken_names,
        )

    def _build_admin(self, settings: Settings) -> None:
        """Build what operators use: session administration, the configuration watcher, backups, memory
        administration.
        """
        home, log, environ = self.home, self.log, self.environ
        self.session_admin = SessionAdmin(
            self.gates,
            wakeups=self.wakeups,
            accept=self.accept,
            runtimes=self.agents,
            erasures=home.erasures,
            search_index=self._search_index,
        )
        self.watcher = ConfigWatcher(
            home,
            settings,
            load=lambda: load_home_settings(home, environ=environ),
            swap=self._apply_settings,
            log=log,
            monotonic=self.clock.monotonic,
            sleep=asyncio.sleep,
        )
        directory = choose_directory(home, settings.backup.directory)
        self.backups = StoreBackups(directory, files=self.store.files, now=self.clock.now)
        self.overview = SessionOverview(home.overview, get_day=self._get_day)
        self.backup_problem = ""
        """Why the last copy could not be made."""
        self.memory_admin = MemoryAdmin(
            self.session_admin,
            agents=lambda: tuple(self.agents.settings.agents),
            backups=self._find_backups_before,
            set_aside=lambda: list_set_aside(home.backups),
            wipe_index=self._wipe_derived_files,
        )
        self.erasure_follower = ErasureFollower(
            self.memory_admin.records,
            file=home.erasures,
            directory=directory if settings.backup.directory else None,
        )
        self.memory_admin.personal_data.remove_folders = self.toolbox.workspaces.remove_folders_of
        self.monitor = GatewayMonitor(
            self.gates,
            home=home.path,
            get_backup_directory=lambda: self.backups.directory,
            has_backups=self.store.files is not None,
            has_grown=self._has_grown,
            list_hosts=self.hosts.list_hosts,
            describe=self._describe_process,
        )
        self.session_admin.on_audit = self.monitor.record_audit
        self.trace_problem: ConfigProblem | None = None
        """Why traces are not exported although a collector is configured."""
        self.traces = self._build_trace_export()

    def _build_trace_export(self) -> TraceExport | None:
        """Return the export of traces, if a collector is configured. The SDK is imported only then."""
        try:
            trace_settings = read_trace_settings(self.environ)
            exporter = None if trace_settings is None else OtlpExporter(__version__)
        except InvalidRequest as error:
            self.trace_problem = ConfigProblem(str(error), error.remedy, path=("traces",), fatal=False)
            self.log.warning("traces.off", error=error, remedy=error.remedy)
            return None
        if trace_settings is None or exporter is None:
            return None
        return TraceExport(
            self.store,
            exporter=exporter,
            settings=trace_settings,
            describe_model=self._describe_model,
            clock=self.clock,
            log=self.log,
            metrics=self.gates.metrics,
            redact=self.log.redaction.scrub_text,
        )

    def _describe_model(self, name: str) -> ModelDescription:
        model = self.agents.settings.models.get(name)
        return ModelDescription() if model is None else ModelDescription(provider=model.provider, name=model.name)

    async def _keep_exporting_traces(self) -> None:
        """Export traces, on one host at a time."""
        traces = self.traces
        if traces is None or self.role != "gateway":
            return None
        if self.store.is_exclusive:
            return await traces.run()
        leadership = AccountLeadership(self.store, owner=self.gates.owner, clock=self.clock, log=self.log)
        while True:
            await leadership.listen_while_held(TRACES_WORK, lambda _: traces.run())
            await asyncio.sleep(TRACES_CLAIM_SECONDS)

    async def _wipe_derived_files(self) -> None:
        await self.index.wipe_erased(self.store)
        await self.overview.wipe_erased(self.store)

    def _build_api(self) -> None:
        """Prepare the servers for operators and clients, and the tail with which they follow a session."""
        self.tail = LogTail(self.store.notifier)
        self.store.notifier.subscribe(self._on_commit)
        self.uploads = UploadFolder(self.home.path / "uploads", now=self.clock.now, random_bytes=self.chance.bytes)
        self.text_watchers += [self.tail.on_reply_text]
        self._last_increment = self.clock.monotonic()
        self.role = "gateway"
        """The purpose of this process. A gateway keeps running; a `chat` or `send` ends and leaves its work to the next
        process."""
        self.started_at = self.clock.now()
        self.url = ""
        """The URL of the console, empty while it is not served."""
        self.http_server: HttpServer | None = None
        self.local_server: LocalServer | None = None

    async def _load_settings(self) -> Settings:
        """Return the settings for a worker. An edit made before counts, also for who is who."""
        await self.watcher.get_fresh_settings()
        return await self.admission.people.apply_settings()

    # -- running -----------------------------------------------------------------------------------------------------

    async def accept(self, incoming: IncomingMessage) -> AcceptResult:
        """Accept a message with the present configuration. Raises StoreFull while the disk is full."""
        await self._prepare_accept()
        return await self.acceptor(incoming)

    async def _prepare_accept(self) -> None:
        await self.watcher.get_fresh_settings()
        self.disk_guard.require_space()

    async def keep_running(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` for ever. If it fails because the disk is full, restart it as soon as there is space, because the
        supervisor's delay may have grown to minutes by then."""

        async def wait_out_full_disk() -> None:
            while True:
                try:
                    return await work()
                except StoreFull as error:
                    self.log.error("store.failed", what=what, error=error)
                    await self.disk_guard.wait_for_space()

        await self.supervisor.keep_running(what, wait_out_full_disk)

    async def reapply_erasures(self, *, restored: bool = False) -> int:
        """Erase again what a restored store has brought back, and continue unfinished forgettings in the log. Return
        the number of entries that were erased again.
        """
        # first the people, because afterwards nobody knows who could read what is erased
        count = await self.memory_admin.resume_erasures(restored=restored)
        return count + await self.session_admin.reapply_erasures()

    def _hold_machine_locks(self) -> None:
        """Refuse to work on a copy of a home that is in use, or at a path whose previous home is still in use."""
        home_id = ensure_home_id(self.home, random_bytes=self.chance.bytes)
        try:
            directory = find_locks_directory(self.environ)
        except (OSError, Refused) as error:
            self.log.warning("home.unlocked", error=error, remedy="set EVERHOLD_LOCKS to a private directory")
            return
        self.machine_locks.enter_context(hold_machine_locks(directory, home=self.home.path, home_id=home_id))

    async def start(self, *, listen: bool = True) -> int:
        """Resume unfinished work and start all tasks. Return how many messages wait for an answer.

        Without `listen`, platform accounts and schedules do not start, for a process that ends after one answer.
        """
        await self.hosts.join()
        if self.store.is_exclusive:
            self._hold_machine_locks()
            await self.store.revoke_leases(owner=self.gates.owner)
        else:
            self.erasure_follower.fetch()
        await self.reapply_erasures()
        self.disk_guard.reserve.allocate()
        waiting = await self._count_unanswered()
        await self.admission.shared_records.refresh()
        await self._apply_people()
        self._connect_agents()
        self.mcp.apply_settings(self.agents.settings.mcp, self.agents.settings.agents.values())
        await self._probe_machine()
        await model_waits.recheck_all_waits(self.gates, self.agents, self.wakeups)
        for name, work in (
            ("dispatch", self.supervisor.dispatch),
            ("renew", self.supervisor.keep_renewing_leases),
            ("config", self.watcher.run),
            ("index", self._keep_index),
            ("overview", self._keep_overview),
            ("fill", self._fill_index),
            ("backup", self._keep_backups),
            ("forgetting", self.memory_admin.keep_finishing_unfinished),
            ("rebuilding", self.memory_admin.rebuilder.keep_rebuilding),
            ("disk_guard", self.disk_guard.watch_space),
            ("pairing", self._keep_tidying_pairing),
            ("hosts", self.hosts.keep_renewing),
            ("skills", self._keep_skills),
            ("held", self._keep_taking_over),
            ("shared_records", self._keep_shared_records),
            ("erasures", self._keep_erasures),
            ("loop_lag", self.monitor.keep_probing_loop),
            ("traces", self._keep_exporting_traces),
        ):
            self.tasks.append(asyncio.create_task(self.keep_running(name, work), name=name))
        self.accounts.apply_settings(self.agents.settings)
        if listen:
            await self.held_messages.resume()
            self.accounts.start_listening()
            task = self.keep_running("schedules", self.schedules.run)
            self.tasks.append(asyncio.create_task(task, name="schedules"))
        await self._open_local_server()
        await self.hosts.publish_settings(self.agents.settings)
        return waiting

    async def _open_local_server(self) -> None:
        from everhold.api.local_server import LocalServer  # imported here, because most commands need no server

        self.local_server = LocalServer(self.api, self.home.api_socket, monotonic=self.clock.monotonic, log=self.log)
        await self.local_server.open()

    @functools.cached_property
    def api(self) -> GuardMiddleware:
        """The API. The servers serve it, and commands without a gateway call it in this process."""
        from everhold.api.application import build_application  # the import is slow, and not every command needs it

        return build_application(self.api_context)

    @functools.cached_property
    def api_context(self) -> ApiContext:
        """The objects that the API's handlers use."""
        from everhold.api.context import ApiContext, GatewayServices
        from everhold.api.idempotency import IdempotentTasks
        from everhold.api.logins import LoginRegistry
        from everhold.assembly.home_setup import HomeSetup

        config = ConfigText(
            self.home,
            environ=self.environ,
            validate_plugin=build_plugin_check(),
            get_start_settings=lambda: self.start_settings,
            now=self.clock.now,
        )
        return ApiContext(
            control=self.session_admin,
            memory=self.memory_admin,
            overview=self.overview,
            local_person=get_local_user(),
            agents=self.agents,
            tail=self.tail,
            uploads=self.uploads,
            fetch=UrlFetcher(most_bytes=MAX_FILE_BYTES, agent=FETCH_AGENT),
            log=self.log,
            load_fresh_settings=self.watcher.get_fresh_settings,
            get_trouble=self._explain_not_accepting,
            redact_text=self.log.redaction.scrub_text,
            idempotent_tasks=IdempotentTasks(monotonic=self.clock.monotonic),
            budgets=self.supervisor.budgets,
            logins=LoginRegistry(
                self.store,
                clock=self.clock,
                chance=self.chance,
                local=get_local_user(),
                settings=lambda: self.watcher.settings.http,
            ),
            gateway=GatewayServices(
                role=lambda: self.role,
                describe=self.describe,
                back_up=self._make_backup,
                list_backups=lambda: list_copies(self.backups.directory),
                pairing=self.admission.pairing,
                people=self.admission.people,
                schedules=self.schedules,
                approvals=ApprovalService(
                    self.gates, runtimes=self.agents, wakeups=self.wakeups, roles=self.admission.roles
                ),
                hooks=self.hooks,
                list_tools=self._list_tool_servers,
                list_trusted_tools=self._list_trusted_tools,
                confirm_tools=self.confirm_tools,
                take_note=self.quotas.take_note,
                count_refusals=self._count_refusals,
                collect_metrics=self.monitor.collect,
                describe_hosts=self._describe_hosts,
                drain=self.request_drain,
                logs=LogFeed(self.home.logs / "everhold.log", self.log),
                config=config,
                setup=HomeSetup(self.home, environ=self.environ, config=config, clock=self.clock, chance=self.chance),
                reload_config=self.watcher.reload,
                whisper=self.admission.send_outside_session,
            ),
        )

    async def serve(self, *, port: int | None = None) -> str:
        """Serve HTTP on `port` or the configured one. Return the URL of the console."""
        from everhold.api.server import HttpServer  # only a gateway needs it

        http = self.watcher.settings.http
        self.http_server = HttpServer(
            self.api_context, self.api, host=http.host, port=http.port if port is None else port
        )
        await self.http_server.start()
        self.url = self.http_server.url
        await self.hosts.announce(self.url)
        return self.url

    async def create_login_link(self) -> str:
        """Return a link that logs an operator in once; empty if there is no operator token."""
        from everhold.api.auth import find_credential_by_name

        http = self.watcher.settings.http
        credential = find_credential_by_name(OPERATOR_TOKEN_NAME, http, local=self.api_context.local_person)
        if credential is None:
            return ""
        code, _ = await self.api_context.logins.create_code(credential)
        return f"{self.url}/#code={code}"

    async def stop(self, *, seconds: float = DRAIN_SECONDS) -> None:
        """Wait up to `seconds` for running work, then close everything. Unfinished work resumes at the next start."""
        if self.tasks:
            await self._announce_drain()
        await self.accounts.stop_listening()
        await self.held_messages.close()
        until = self.clock.monotonic() + seconds
        await self.supervisor.drain(seconds)
        if not self.store.is_exclusive:  # other hosts answer what callers of this one wait for
            await self.tail.finish_reply_waits(max(0.0, until - self.clock.monotonic()))
        self.tail.close()
        if self.http_server is not None:
            await self.http_server.stop()
        if self.local_server is not None:
            await self.local_server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        if self.traces is not None:
            await self.traces.close()
        await self.monitor.close()
        await self.admission.close_sends()
        await self.quotas.close()
        await self.accounts.close()
        await self.mcp.close()
        await self.agents.close()
        await self.index.close()
        await self.overview.close()
        await self.hosts.leave()
        await self.store.close()
        self.machine_locks.close()
        self.lock.release()

    async def request_drain(self) -> None:
        """Take nothing new from now on, and ask the command that runs this process to stop it."""
        await self._announce_drain()
        self.drain_requested.set()

    async def settle(self, hurry: asyncio.Event) -> None:
        """Say that this process ends, and work unchanged until proxies have noticed it."""
        await self._announce_drain()
        seconds = self.watcher.settings.drain.settle_seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await hurry.wait()

    async def _announce_drain(self) -> None:
        """Say at once, here and to other hosts, that this process takes nothing new."""
        try:
            await self.hosts.start_draining()
        except StoreError as error:
            self.log.error("store.failed", what="drain", error=error)

    # -- reporting ---------------------------------------------------------------------------------------------------

    @property
    def fatal_error(self) -> StoreError | None:
        """Why this process must end, if it must."""
        return self.store.find_fault()

    def _explain_not_accepting(self) -> str:
        """Why messages are not accepted now; empty if they are."""
        if fault := self.fatal_error:
            return str(fault)
        if self.hosts.is_draining:
            return "the gateway is draining"
        if self.hosts.is_cut_off:
            return "the store does not answer"
        return "the disk is full" if self.disk_guard.is_full else ""

    def describe(self) -> dict[str, Any]:
        """The state of this process, for `status`."""
        settings, refused = self.watcher.settings, self.watcher.refused
        return {
            "version": __version__,
            "pid": os.getpid(),
            "role": self.role,
            "running": bool(self.tasks),
            "since": self.started_at,
            "home": str(self.home.path),
            "url": self.url,
            "revision": settings.revision,
            "day": self.agents.get_today(),
            "default_agent": settings.default_agent,
            "agents": [render_agent(agent, settings) for agent in settings.agents.values()],
            "problems": [render_problem(problem) for problem in self._list_problems()],
            "risks": [render_problem(problem) for problem in self._list_risks()],
            "accounts": self._describe_accounts(),
            **self.admission.describe(),
            "limited": self.quotas.describe(),
            "held": self.held_messages.count(),
            "unparsed": dict(self.admission.unparsed),
            "restart": self._list_restart_settings(settings),
            "refused": [render_problem(problem) for problem in refused.problems] if refused else [],
            "store": self._explain_not_accepting(),
            "store_kind": "sqlite" if self.store.files is not None else "postgresql",
            "host": self.hosts.record.name,
            "draining": self.hosts.is_draining,
            "held_accounts": self.accounts.list_held(),
        }

    def _describe_process(self) -> ProcessState:
        return ProcessState(
            version=__version__,
            store_kind="sqlite" if self.store.files is not None else "postgresql",
            accounts={(it["platform"], it["account"]): it["listening"] for it in self.accounts.describe()},
            held_accounts=self.accounts.list_held(),
            held_cursors=self.supervisor.workers_by_consumer,
            agents=len(self.agents.settings.agents),
            today=self.agents.get_today(),
            is_draining=self.hosts.is_draining,
            is_ready=not self._explain_not_accepting(),
            trace_behind_seconds=0.0 if self.traces is None else self.traces.get_seconds_behind(),
        )

    async def _describe_hosts(self) -> dict[str, Any]:
        """The hosts of a shared store, for `everhold hosts`."""
        return {
            "shared": self.hosts.is_shared,
            "hosts": [
                render_host(it, own=it.host.id == self.gates.owner, differ=self.hosts.differences)
                for it in await self.hosts.list_hosts()
            ],
            "hints": self.store.notifier.reaches_other_hosts,
            "clock_difference_seconds": self.hosts.clock_difference,
        }

    def _describe_accounts(self) -> list[dict[str, Any]]:
        held = self.held_messages.describe()
        return [{**it, "held": held.get((it["platform"], it["account"]))} for it in self.accounts.describe()]

    def _count_refusals(self) -> RefusalCounts:
        from everhold.api.context import RefusalCounts  # not every command needs the API

        return RefusalCounts(
            limited={quota.value: float(count) for quota, count in self.quotas.refused.items()},
            held=self.held_messages.count(),
            unparsed={sender: float(count) for sender, count in self.admission.unparsed.items()},
            closed_connections=0 if self.http_server is None else self.http_server.pool.closed,
        )

    def _list_problems(self) -> tuple[ConfigProblem, ...]:
        servers = self.mcp.list_problems()
        reported = {problem.path for problem in servers}
        return (
            *self.watcher.settings.problems,
            *servers,
            *(it for it in list_missing_programs(self.agents.settings, self.environ) if it.path not in reported),
            *self.plugin_tools.list_problems(),
            *self.toolbox.list_problems(self.agents.settings.agents.values()),
            *self.agents.memories.list_problems(),
            *(_build_alias_problem(*problem) for problem in self.peers.alias_problems),
            *self.accounts.list_problems(),
            *self._list_backup_problems(),
            *((self.trace_problem,) if self.trace_problem is not None else ()),
        )

    def _list_backup_problems(self) -> list[ConfigProblem]:
        if not self.backup_problem:
            return []
        remedy = f"make sure that {self.backups.directory} exists, is writable and has space"
        return [ConfigProblem(self.backup_problem, remedy, path=("backup",), fatal=False)]

    def _list_risks(self) -> tuple[ConfigProblem, ...]:
        """What works as configured and is dangerous."""
        agents = self.agents.settings.agents.values()
        return (
            *self.mcp.list_risks(),
            *self.toolbox.list_risks(agents),
            *self.agents.memories.list_risks(),
            *([CAPTURE_RISK] if self.traces is not None and self.traces.captures_content else []),
        )

    def _list_restart_settings(self, settings: Settings) -> list[str]:
        # the settings of HTTP do not matter to a process that does not serve it
        return [
            key
            for key in list_keys_awaiting_restart(self.start_settings, settings)
            if self.http_server is not None or not key.startswith("http.")
        ]

    # -- a changed configuration -------------------------------------------------------------------------------------

    def _apply_settings(self, settings: Settings) -> None:
        self.log.redaction.add_secrets(*(secret.reveal() for secret in settings.list_secrets()))
        if (keys := self._list_restart_settings(settings)) and keys != self._list_restart_settings(
            self.agents.settings
        ):
            self.log.warning(
                "config.restart_needed", keys=keys, remedy="restart everhold; until then the old values stay in force"
            )
        self.agents.apply_settings(settings)
        self.backups.directory = choose_directory(self.home, settings.backup.directory)
        self._connect_agents()
        if self.tasks:
            self.mcp.apply_settings(settings.mcp, settings.agents.values())
            self.accounts.apply_settings(settings)
            self.tasks.append(asyncio.create_task(self._apply_people(), name="people"))
            self.tasks.append(asyncio.create_task(self._probe_machine(), name="probe_machine"))
            self.tasks.append(asyncio.create_task(self._retry_now(), name="retry_now"))
            self.tasks.append(asyncio.create_task(self.hosts.publish_settings(settings), name="hosts"))

    async def _probe_machine(self) -> None:
        """Find out which built-in tools work on this machine, and offer those."""
        agents = self.agents.settings.agents.values()
        has_new_tools = await self.toolbox.probe_machine(agents)
        if await self.toolbox.refresh_skills(agents) or has_new_tools:
            self.agents.invalidate(lambda _: True)

    async def _keep_skills(self) -> None:
        """Offer skills that were installed, changed or removed, from the next turn on."""
        while True:
            await asyncio.sleep(SKILL_POLL_SECONDS)
            if await self.toolbox.refresh_skills(self.agents.settings.agents.values()):
                self.agents.invalidate(lambda agent: SKILL in agent.tools)

    async def _apply_people(self) -> None:
        """Link people as configured, and record the names in memories that follow from it."""
        await self.admission.people.apply_settings()
        await self.peers.settle()

    async def _retry_now(self) -> None:
        """Retry everything that waits after a failure, because the changed configuration may have repaired it.

        Items that wait for a fuller batch are delivered, too, because their memory may have been reconfigured.
        """
        await model_waits.recheck_all_waits(self.gates, self.agents, self.wakeups)
        await self.supervisor.release_held_memories()
        if await self.store.retry_now():
            self.wakeups.work_available.set()

    def _connect_agents(self) -> None:
        """Give every agent a platform for messages to other agents. Its `send` tool checks whom it may write to."""
        for name in self.agents.settings.agents:
            self.platforms.setdefault((between.NAME, name), between.AgentPlatform(name, self.accept))

    # -- index and backups -------------------------------------------------------------------------------------------

    async def _keep_index(self) -> None:
        """Index new entries periodically. A search indexes the remaining ones itself."""
        warm = False
        while True:
            await self.index.catch_up_to_end(self.store)
            if not warm:
                await self.index.warm_cache()
                warm = True
            await asyncio.sleep(INDEX_INTERVAL_SECONDS)

    async def _keep_overview(self) -> None:
        """Follow the log for the lists of sessions. A list reads the last entries itself."""
        while True:
            await self.overview.catch_up_to_end(self.store)
            await asyncio.sleep(INDEX_INTERVAL_SECONDS)

    def _get_day(self, at: float) -> str:
        return datetime.fromtimestamp(at, self.agents.settings.zone).date().isoformat()

    async def _search_index(self, text: str, limit: int) -> list[tuple[str, int]]:
        return await self.index.find_entries_with_words(self.store, text, limit=limit)

    async def _fill_index(self) -> None:
        self.log.debug("index.level_changed", found_by=self.index.embedding_level)  # `status` shows it, too
        await run_embedding_backfill(self.index, self.log, self.clock)

    def _build_builtin_memory(self, agent: str) -> BuiltinMemory:
        return BuiltinMemory(index=self.index, store=self.store, agent=agent)

    async def _keep_backups(self) -> None:
        """Make a backup periodically, unless nothing was committed since the last one. A start does not wait for it."""
        await asyncio.sleep(FIRST_BACKUP_DELAY_SECONDS)
        while True:
            if self.role == "gateway" and not self.disk_guard.is_full and self.store.files is not None:
                # An increment does not wait for a full backup that fails; it continues the last one.
                problems = [
                    await self._try_backup(self._make_due_backup),
                    await self._try_backup(self._make_due_increment),
                ]
                self.backup_problem = next(filter(None, problems), "")
            await asyncio.sleep(min(BACKUP_POLL_SECONDS, max(1.0, self._get_seconds_until_increment())))

    async def _try_backup(self, make: Callable[[], Awaitable[None]]) -> str:
        """Make a copy; return the error if that failed."""
        try:
            self._require_backup_directory()
            self._copy_erasures()
            await make()
        except (StoreError, OSError) as error:
            if str(error) != self.backup_problem:  # it is tried again every minute
                self.log.error("backup.failed", error=error)
            return str(error)
        return ""

    async def _make_due_backup(self) -> None:
        every_hours = self.watcher.settings.backup.every_hours
        if every_hours > 0 and self.backups.get_seconds_until_due(every_hours) <= 0 and await self._has_grown():
            await self._make_backup("")

    async def _make_due_increment(self) -> None:
        if self._get_seconds_until_increment() <= 0:
            await self._make_increment()

    def _require_backup_directory(self) -> None:
        """Raise StoreError if the configured directory is missing. It is not created, because its disk may be away."""
        if self.watcher.settings.backup.directory and not self.backups.directory.is_dir():
            raise StoreError(
                f"there is no directory {self.backups.directory}, so nothing is backed up",
                remedy="mount its disk, or create the directory",
            )

    def _get_seconds_until_increment(self) -> float:
        minutes = self.watcher.settings.backup.increment_minutes
        return self._last_increment + minutes * 60 - self.clock.monotonic() if minutes > 0 else BACKUP_POLL_SECONDS

    async def _make_increment(self) -> None:
        self._last_increment = self.clock.monotonic()
        made = await self.backups.make_increment()
        if made is not None:
            self.log.debug("backup.incremented", path=str(made.path), upto=made.upto_pos)

    def _copy_erasures(self) -> None:
        """Keep the erasures file beside backups outside of the home, so that a restore after the loss of this disk
        erases again, too. Lines of an earlier home stay there.
        """
        if self.backups.directory != self.home.backups:
            add_missing_lines(self.home.erasures, self.backups.directory / self.home.erasures.name)

    async def _keep_erasures(self) -> None:
        """Keep the list of what hosts of a shared store erase. A store of one host has it already."""
        if self.store.is_exclusive:
            await asyncio.Event().wait()
        await self.erasure_follower.run()

    async def _has_grown(self) -> bool:
        last = await self.store.last_pos()
        return last > 0 and last != self.backups.find_newest_pos()

    def _find_backups_before(self, at: float) -> BackupHolding:
        """The backups that contain what was in the store at that time, and when the last of them is replaced."""
        settings = self.watcher.settings.backup
        held = [it for it in list_backups(self.backups.directory) if it.at <= at]
        # those in the home stay when another directory is configured, and nothing replaces them
        former = list_backups(self.home.backups) if self.backups.directory != self.home.backups else []
        left = sum(it.at <= at for it in former)
        if not held or left or not settings.every_hours or not all(it.is_sound for it in held):
            return BackupHolding(len(held) + left)
        return BackupHolding(len(held), held[-1].at + settings.keep * settings.every_hours * 3_600)

    async def _make_backup(self, to: str) -> dict[str, Any]:
        if not to:
            self._require_backup_directory()
        made = await self.backups.make_backup(to=Path(to) if to else None)
        pruned = self.backups.prune(self.watcher.settings.backup.keep) if made.is_sound and not to else []
        how = self.log.info if made.is_sound else self.log.error
        how("backup.completed", path=str(made.path), bytes=made.size_bytes, entries=made.entries, sound=made.is_sound)
        return render_copy(made, pruned)

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def _list_taken_names(self, settings: AgentSettings) -> frozenset[str]:
        """The names that no tool server or plug-in gets: those of built-in tools and of the agent's memories."""
        return RESERVED_TOOL_NAMES | frozenset(self.agents.memories.list_tools(settings.name))

    async def _list_tool_servers(self) -> list[dict[str, Any]]:
        servers = self.agents.settings.mcp
        return [found for found in await self.tool_pins.list_servers() if found["server"] in servers]

    def _list_trusted_tools(self) -> list[dict[str, Any]]:
        return list_trusted_tools(self.agents.settings)

    async def confirm_tools(self, server: str, digest: str) -> dict[str, Any]:
        """Offer the new and changed tools of a server, after the owner looked at them."""
        done = await self.tool_pins.confirm(server, digest)
        self.mcp.recheck(server)
        return done

    def _build_tools(self, settings: AgentSettings) -> ToolCollection:
        found = ToolCollection(settings.tool_needs)
        if settings.send_to:
            found.add("send", {"send": SendTool(settings.name, settings.send_to)})
        if "attach" in settings.tools:
            found.add("attach", {"attach": AttachTool(self.store)})
        if "memory" in settings.tools:
            found.add("memory", build_memory_tools(self.agents.fact_cache, limits=settings.facts.limits))
        if "session_search" in settings.tools:
            memory = self._build_builtin_memory(settings.name)
            search = SessionSearchTool(memory, self.store, notes=self.agents.fact_cache)
            found.add("session_search", {"session_search": search})
        if "schedule" in settings.tools:
            schedule = ScheduleTool(
                self.store, self.clock, self.chance, lambda: self.agents.settings.zone, settings.send_to
            )
            found.add("schedule", {"schedule": schedule})
        for name, tools in self.toolbox.build_tools(settings).items():
            found.add(name, tools)
        # What a server or a plug-in says about its tools gives them no rights.
        for name, server_tool in self.mcp.get_tools(settings).items():
            found.add(f"{MCP_PREFIX}{server_tool.server}", {name: server_tool}, least=PersonRole.MEMBER)
        sections, taken = self.agents.settings.tools, {*found.tools, *self._list_taken_names(settings)}
        for name, tool in self.plugin_tools.list_named_tools(settings, sections, taken=taken):
            found.add(name, {tool.spec.name: tool}, least=PersonRole.MEMBER)
        return found

    async def _keep_taking_over(self) -> None:
        if self.role == "gateway":
            await self.held_messages.keep_taking_over()

    async def _keep_shared_records(self) -> None:
        """Notice what other hosts were told: silenced chats, for the status, and confirmed tools."""
        while not self.store.is_exclusive:
            await asyncio.sleep(SHARED_RECORDS_SECONDS)
            if await self.admission.shared_records.refresh():
                for server in self.agents.settings.mcp:
                    self.mcp.recheck(server)

    async def _keep_tidying_pairing(self) -> None:
        """Delete the names of strangers who were not admitted."""
        while True:
            await self.admission.pairing.tidy_requests()
            await asyncio.to_thread(self.uploads.tidy)
            await asyncio.sleep(PAIRING_TIDY_SECONDS)

    def _on_commit(self, hint: CommitHint) -> None:
        self.tail.on_commit(hint)
        self.wakeups.on_commit(hint)

    async def _count_unanswered(self) -> int:
        """The number of messages without an answer: pending ones, and those of turns that were interrupted."""
        count = await self.store.count_waiting()
        for cursor in await self.store.list_cursors(consumer=TURN, waiting=True):
            for turn in await self.store.list_operations(cursor.session, types=("turn",), states=("running",)):
                kinds = (EntryKind.BEGAN, EntryKind.TOOK)
                entries = await self.store.list_entries(cursor.session, after=turn.first - 1, kinds=kinds)
                count += len(list_consumed_seqs(entry for entry in entries if entry.op == turn.op))
        return count

    def _on_text(self, session: str, op: int, delta: str | None) -> None:
        for watcher in self.text_watchers:
            watcher(session, op, delta)


def render_host(status: HostStatus, *, own: bool, differ: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    host = status.host
    return {
        "id": host.id,
        "name": host.name,
        "version": host.version.program,
        "schema": host.version.schema,
        "url": host.url,
        "alive": status.is_alive,
        "draining": status.is_draining,
        "own": own,
        "started_seconds": status.seconds_since_start,
        "renewed_seconds": status.seconds_since_renewal,
        "accounts": list(status.accounts),
        "cursors": dict(status.cursors),
        "settings_differ": [] if own else list(differ.get(host.name, ())),
    }


def render_agent(agent: AgentSettings, settings: Settings) -> dict[str, Any]:
    missing = [name for model in dict.fromkeys(agent.list_models()) for name in settings.models[model].missing]
    return {
        "name": agent.name,
        "model": agent.model,
        "fallback": list(agent.fallback),
        "memories": [memory.name for memory in agent.memories],
        "tools": list(dict.fromkeys((*agent.tools, *(("send",) if agent.send_to else ())))),
        "missing": missing,
        "budget": {"usd": agent.budget.usd_per_day, "tokens": agent.budget.tokens_per_day},
    }


def _build_alias_problem(memory: str, alias: str, identities: Sequence[str]) -> ConfigProblem:
    return ConfigProblem(
        f"{alias!r} could mean {' or '.join(identities)}, so it has no effect",
        f"write the identity, for example {identities[0]}",
        path=("memories", memory, "user_peer_aliases"),
        fatal=False,
    )
