"""The objects that the handlers use, and the rules for which sessions a caller may see. Built by app.py."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from everhold.admin.memory import MemoryAdmin
from everhold.admin.session_overview import SessionOverview
from everhold.admin.sessions import SessionAdmin
from everhold.api.auth import ApiCaller, RequestHead
from everhold.api.idempotency import IdempotentTasks
from everhold.api.log_tail import LogTail
from everhold.api.logins import LoginRegistry
from everhold.api.rate_limits import RateLimit, RateLimitBuckets, SlotCounter
from everhold.assembly.agents import ConfiguredAgents
from everhold.assembly.home_setup import HomeSetup
from everhold.config.settings import HttpSettings, Settings
from everhold.config.whole_text import ConfigText
from everhold.core.entries import ChatLocation
from everhold.core.people import PERSON_MEMBER, build_identity
from everhold.core.quotas import QuotaRefusal
from everhold.core.roles import PersonRole
from everhold.engine import session_access
from everhold.engine.approvals.decisions import ApprovalService
from everhold.engine.budgets import BudgetLedger
from everhold.errors import NotFound
from everhold.infra.uploads import UploadFolder
from everhold.ingress.hooks import HookReceiver
from everhold.ingress.pairing import PairingRegistry
from everhold.ingress.people import PeopleRegistry
from everhold.ingress.schedules import ScheduleRunner
from everhold.platforms import http
from everhold.ports.log import EventLogger
from everhold.ports.platform import IncomingMessage
from everhold.ports.plugin import FetchUrl
from everhold.ports.store import Session, Store
from everhold.telemetry.log_file import LogFeed
from everhold.telemetry.metrics import MetricDefinition, MetricValue

if TYPE_CHECKING:
    from everhold.api.reply_wait import FinalReply

MAX_CACHED_OWNERS: Final = 10_000
MAX_STREAMS: Final = 256
MAX_HELD_FILE_BYTES: Final = 400_000_000
"""Of all requests together. A token has half of them."""
MAX_OPERATOR_STREAMS: Final = 128
PERSONAL_RATE: Final = RateLimit(burst=10, per_second=1 / 30)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusalCounts:
    """What was refused since the process began, for the metrics."""

    limited: Mapping[str, float]
    """Messages by the quota that refused them."""
    held: int
    unparsed: Mapping[str, float]
    closed_connections: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatewayServices:
    """Operations of the whole process, for operators."""

    role: Callable[[], str]
    """`gateway`, or the name of the command that works without one."""
    describe: Callable[[], dict[str, Any]]
    """Returns version, agents, accounts and problems of the process."""
    back_up: Callable[[str], Awaitable[dict[str, Any]]]
    """Copies the store, to a path if one is given, and returns what the copy contains."""
    list_backups: Callable[[], list[dict[str, Any]]]
    pairing: PairingRegistry
    people: PeopleRegistry
    schedules: ScheduleRunner
    approvals: ApprovalService
    hooks: HookReceiver
    list_tools: Callable[[], Awaitable[list[dict[str, Any]]]]
    """Returns what the owner has seen of each tool server, and what waits for a confirmation."""
    list_trusted_tools: Callable[[], list[dict[str, Any]]]
    """Returns the tools that run as code in this process, and which agents use them."""
    confirm_tools: Callable[[str, str], Awaitable[dict[str, Any]]]
    """(server, digest) -> what is offered from now on."""
    take_note: Callable[[str, PersonRole, ChatLocation, int], Awaitable[QuotaRefusal | None]]
    """(identity, role, chat, size) -> the quota that refuses a note."""
    count_refusals: Callable[[], RefusalCounts]
    collect_metrics: Callable[[], Awaitable[dict[MetricDefinition, MetricValue]]]
    """Returns the metrics of the process and its store."""
    describe_hosts: Callable[[], Awaitable[dict[str, Any]]]
    """Returns the hosts of a shared store, and what each holds."""
    drain: Callable[[], Awaitable[None]]
    """Makes this gateway take nothing new, and end."""
    logs: LogFeed
    config: ConfigText
    reload_config: Callable[[], None]
    """Puts config.yaml in force now."""
    setup: HomeSetup
    whisper: Callable[[ChatLocation, str], None]
    """Sends a text to a chat without recording it in a session."""


async def _confirm_nobody(head: RequestHead) -> ApiCaller | None:
    return None


@dataclasses.dataclass(kw_only=True)
class ApiContext:
    """The objects of one server."""

    control: SessionAdmin
    memory: MemoryAdmin
    overview: SessionOverview
    local_person: str
    """The user who runs this process: the sender of requests through `api.sock` and with the operator token."""
    agents: ConfiguredAgents
    tail: LogTail
    uploads: UploadFolder
    fetch: FetchUrl
    """Fetches a file that a request names by its address."""
    log: EventLogger
    load_fresh_settings: Callable[[], Awaitable[Settings]]
    """Returns the settings, including an edit made before this call."""
    get_trouble: Callable[[], str]
    """Returns why no message can be accepted now; empty if messages can be accepted."""
    redact_text: Callable[[str], str]
    """Returns a text with its secrets removed."""
    idempotent_tasks: IdempotentTasks[FinalReply]
    budgets: BudgetLedger
    gateway: GatewayServices
    logins: LoginRegistry
    confirm_caller: Callable[[RequestHead], Awaitable[ApiCaller | None]] = _confirm_nobody
    """Identifies the caller of a request again. Set by the application."""
    check_failed_login: Callable[[RequestHead, HttpSettings], None] = lambda head, settings: None
    """Refuses the request if too many logins failed at its address. Set by the application."""
    check_login: Callable[[str], None] = lambda token: None
    """Refuses the request if there were too many logins with this token. Set by the application."""
    first_text_wait_seconds: float = 10.0
    """How long a stream waits for the first text before it starts. A failure until then gets its own HTTP status."""
    streams: SlotCounter = dataclasses.field(default_factory=lambda: SlotCounter(MAX_STREAMS))
    """Open event streams of all callers except operators."""
    file_bytes: SlotCounter = dataclasses.field(default_factory=lambda: SlotCounter(MAX_HELD_FILE_BYTES))
    """Bytes of files that requests hold in memory."""
    operator_streams: SlotCounter = dataclasses.field(default_factory=lambda: SlotCounter(MAX_OPERATOR_STREAMS))
    personal_requests: RateLimitBuckets = dataclasses.field(init=False)
    """How often an account may have everything searched for one person."""
    _owners: OrderedDict[str, tuple[str, float]] = dataclasses.field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        monotonic = self.control.gates.clock.monotonic
        self.personal_requests = RateLimitBuckets(PERSONAL_RATE, monotonic=monotonic)

    @property
    def store(self) -> Store:
        return self.control.store

    def now(self) -> float:
        return self.control.gates.clock.now()

    def build_incoming_message(
        self, caller: ApiCaller, *, agent: str, chat: str, text: str, sender: str, id: str, trace: str = ""
    ) -> IncomingMessage:
        """Return a message from `sender` in their chat of this name. If the caller speaks for another, it says so.
        `trace` is the request's `traceparent`."""
        origin = http.locate_chat(chat=chat, sender=sender, local=sender == self.local_person, id=id)
        via = caller.account if caller.operator and sender != caller.sender else ""
        return http.build_incoming_message(agent=agent, text=text, sender=sender, origin=origin, via=via, trace=trace)

    async def find_session(self, caller: ApiCaller, name: str) -> Session:
        """Return a session that this caller may see. Raises NotFound for others."""
        if caller.operator:
            session = await self.control.find_session(name)
            if caller.scope.can_use(session.agent):
                return session
        else:
            with contextlib.suppress(NotFound):
                session = await self.store.get_session(name)
                if await self.can_see(caller, session.id):
                    return session
        raise NotFound(f"there is no session {name!r}", remedy="GET /api/sessions lists the sessions")

    async def list_sessions(self, caller: ApiCaller, *, limit: int, after: str = "") -> list[Session]:
        """Return the newest sessions that this caller may see and that are older than `after`."""
        if caller.operator and not caller.scope.agents:
            return await self.store.list_sessions(limit=limit, after=after, newest_first=True)
        seen: list[Session] = []
        authors = () if caller.operator else await self.list_authors(caller)
        while page := (
            await self.store.list_sessions(limit=limit, after=after, newest_first=True)
            if caller.operator
            else await self.store.list_sessions_begun_by(authors=authors, limit=limit, after=after)
        ):
            seen += [session for session in page if await self.can_see(caller, session.id)]
            after = page[-1].id
            if len(seen) >= limit:
                break
        return seen[:limit]

    async def can_see(self, caller: ApiCaller, session: str) -> bool:
        """Whether the caller may see the session, within the agents of its token.

        Operators see all sessions, a person those that they own, and a service those of its users.
        """
        if caller.scope.agents and not caller.scope.can_use((await self.store.get_session(session)).agent):
            return False
        if caller.operator:
            return True
        owner, began_at = await self._find_start(session)
        owner = owner.removeprefix(PERSON_MEMBER)
        if caller.owned_senders and not caller.sender.startswith(caller.owned_senders):
            return owner.startswith(build_identity(http.NAME, caller.owned_senders))
        if caller.owned_senders:
            return owner == _identify_caller(caller)
        return (await self.store.get_people()).belongs_to(owner, _identify_caller(caller), at=began_at)

    async def list_authors(self, caller: ApiCaller) -> tuple[str, ...]:
        """Return the authors under which the log knows the caller's person. A service's user is known under one."""
        if caller.owned_senders:
            return (f"{PERSON_MEMBER}{_identify_caller(caller)}",)
        people = await self.store.get_people()
        return people.list_same_authors(f"{PERSON_MEMBER}{_identify_caller(caller)}")

    async def _find_start(self, session: str) -> tuple[str, float]:
        """Return the owner of a session, and when it began. It is cached because it never changes."""
        if session in self._owners:
            self._owners.move_to_end(session)
            return self._owners[session]
        found = await session_access.find_session_start(self.store, await self.store.get_session(session))
        if not found[1]:
            return found  # no message was heard yet
        self._owners[session] = found
        if len(self._owners) > MAX_CACHED_OWNERS:
            self._owners.popitem(last=False)
        return found


def _identify_caller(caller: ApiCaller) -> str:
    return build_identity(http.NAME, caller.resolve_sender("") if caller.owned_senders else caller.sender)
