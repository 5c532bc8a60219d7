"""The handlers of chat commands, one function per command. `engine/commands/worker.py` finds a handler by the command's
name.

A handler reads, and returns a `CommandResult` that the worker commits. Only `/branch` and `/resume` commit by
themselves, because their entries belong to another session.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final, TypeAlias, TypeVar

from everhold.core import approvals, compression, consumers
from everhold.core.commands import (
    ALONE,
    COMMANDS,
    MISTYPED,
    QUIETLY,
    ParsedSubcommand,
    TitleArguments,
    UndoArguments,
    explain_mistyped,
    parse_count,
    render_help,
)
from everhold.core.entries import (
    AddressBound,
    BranchedFrom,
    Changed,
    CompressionRequested,
    ContextReset,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    EntryKind,
    EntryPinned,
    Heard,
    MemoryNameSet,
    ModelUsage,
    SessionTitled,
    SettingChosen,
    TaskRequested,
    list_consumed_seqs,
)
from everhold.core.ids import make_session_id
from everhold.core.inbox import PendingMessage
from everhold.core.memory_naming import SessionOrigin
from everhold.core.people import PERSON_MEMBER, can_hear
from everhold.core.pins import build_pinned, get_pin_stamp
from everhold.core.roles import ChatPlace, PersonRole, RoleCell, explain_refusal
from everhold.core.schedule import format_local_time
from everhold.core.wording import describe_count
from everhold.engine import model_waits, session_access, session_changes
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.approvals.decisions import (
    AnsweringPerson,
    ApprovalAnswer,
    ApprovalService,
    list_answerable,
)
from everhold.engine.approvals.records import find_request
from everhold.engine.approvals.rules import list_known_rules, revoke_rule
from everhold.engine.commands import memory as commands_memory
from everhold.engine.commands.memory import ForgetRights
from everhold.engine.commands.schedule import run_schedule_command
from everhold.engine.context_cache import list_pins, load_context_at
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.memory import health as memory_health
from everhold.engine.memory.peers import build_peer_registry
from everhold.engine.roles import RoleSource
from everhold.errors import NotFound
from everhold.ports.store import Change, Session, SessionOpening, StateWrite, Step, Store, Wakeup

MOST_LISTED: Final = 50
"""How many sessions `/sessions` lists."""
MAX_SEQ: Final = 10**12
"""No entry has a greater number."""
PAGE_ENTRIES: Final = 200
DEFAULT: Final = "default"
"""Stands for the configured model in `/model`."""
ALONE_REPLIES: Final = {
    "halt": "/halt is for chats with other people, so I continue to answer here. /stop ends the running turn.",
    "wake": "/wake is for chats with other people. No agent is silenced here.",
    "link": "/link is for direct chats on two platforms. In this chat, use `everhold people link` instead.",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """One command that a person gave in a session, and what its handler needs."""

    name: str
    session: Session
    entry: Entry
    """The entry that the command was heard in."""
    heard: Heard
    """The body of that entry."""
    pending: list[PendingMessage]
    """The entries of the session that no operation has consumed."""
    runtime: AgentRuntime
    gates: Gates
    runtimes: AgentRuntimes
    wakeups: Wakeups
    today: str
    roles: RoleSource
    action: str
    """The command with its subcommand, as the table of roles names it."""
    cell: RoleCell
    """What the table says about it in this kind of chat."""
    place: ChatPlace = ChatPlace.DIRECT
    role: PersonRole = PersonRole.MEMBER
    """The role of the sender: the lower of the stamped and the current one."""
    owners: tuple[str, ...] = ()
    """The owners of this chat."""

    @property
    def store(self) -> Store:
        return self.gates.store

    @property
    def usage(self) -> str:
        return COMMANDS[self.name].usage

    def find_waiting_messages(self, authors: Collection[str] | None = None) -> tuple[int, ...]:
        """The seqs of the messages that wait for an answer: of everybody, or of these authors."""
        return tuple(it.seq for it in self.pending if it.command is None and (authors is None or it.author in authors))

    async def list_own_authors(self) -> tuple[str, ...]:
        """All authors that are the sender."""
        return (await self.store.get_people()).list_same_authors(self.entry.author)

    def explain_refusal(self, what: str, needed: PersonRole) -> str:
        return explain_refusal(what, needed=needed, role=self.role, place=self.place, owners=self.owners)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What the worker commits for a command, in one change."""

    reply: str
    """The reply to the person; empty: no reply."""
    changes: tuple[EntryBody, ...] = ()
    takes: tuple[int, ...] = ()
    """Waiting messages that the command consumes, so that no turn answers them."""
    wakes: tuple[Wakeup, ...] = ()
    state_write: StateWrite | None = None


CommandHandler: TypeAlias = Callable[[CommandRequest, Any], Awaitable[CommandResult]]
"""Takes the request and what the command's `CommandSpec.parse` returned."""
Handler = TypeVar("Handler", bound=CommandHandler)

COMMAND_HANDLERS: Final[dict[str, CommandHandler]] = {}
"""Name -> handler, for every command of the table and for `ALONE` and `MISTYPED`."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a function as the handler of these commands."""

    def register(handler: Handler) -> Handler:
        for name in names:
            if name in COMMAND_HANDLERS:
                raise ValueError(f"/{name} has two handlers")
            COMMAND_HANDLERS[name] = handler
        return handler

    return register


async def handle_command(request: CommandRequest, argument: str) -> CommandResult:
    """Carry out a command. A log may hold a command that this version does not know; it is answered with the help."""
    name = request.name if request.name in COMMAND_HANDLERS else "help"
    spec = COMMANDS.get(name)
    return await COMMAND_HANDLERS[name](request, argument if spec is None else spec.parse(argument))


# -- the context -------------------------------------------------------------------------------------------------------


@handles("new")
async def start_fresh_context(request: CommandRequest, _: str) -> CommandResult:
    return CommandResult(
        reply="The context is empty now. The session and its memory stay.",
        changes=(Changed(change=ContextReset()),),
        wakes=tuple(request.runtime.list_switch_wakeups()),
    )


@handles("undo")
async def undo_turns(request: CommandRequest, arguments: UndoArguments) -> CommandResult:
    if arguments.compression:
        amendment = await session_changes.plan_undo(
            request.store, request.session, what="compress", hard_tokens=request.runtime.hard_limit_tokens
        )
    elif arguments.turns:
        amendment = await session_changes.plan_undo(request.store, request.session, count=arguments.turns)
    else:
        return CommandResult(reply="Use /undo, /undo N for the last N turns, or /undo compress.")
    wakes = tuple(request.runtime.list_memory_wakeups()) if amendment.bodies else ()
    return CommandResult(reply=amendment.reply, changes=amendment.bodies, wakes=wakes)


@handles("retry")
async def retry_turn(request: CommandRequest, _: str) -> CommandResult:
    amendment = await session_changes.plan_undo(request.store, request.session, again=True)
    wakes = (Wakeup(consumer=consumers.TURN), *request.runtime.list_memory_wakeups()) if amendment.bodies else ()
    return CommandResult(reply=amendment.reply, changes=amendment.bodies, wakes=wakes)


@handles("compress")
async def request_compression(request: CommandRequest, arguments: tuple[int | None, str, bool]) -> CommandResult:
    """Ask the compression worker for a compression, or only show what it would do."""
    keep, focus, preview = arguments
    session = request.session
    view = await load_context_at(request.store, session, at=session.last_seq + 1)
    planned = compression.plan_compression(
        view,
        keep=request.runtime.keep_turns if keep is None else keep,
        session=session.id,
        window=request.runtime.models[0].context_tokens,
    )
    if planned is None:
        return CommandResult(reply="There is nothing to compress.")
    if preview:
        return CommandResult(reply=compression.render_preview(planned))
    return CommandResult(
        reply="I am compressing our conversation. I answer what you write now afterwards.",
        changes=(Changed(change=CompressionRequested(keep=keep, focus=focus, tell=request.heard.origin)),),
        wakes=(Wakeup(consumer=consumers.COMPRESSION),),
    )


@handles("pin")
async def pin_entry(request: CommandRequest, argument: str) -> CommandResult:
    """Pin the sender's last message, an entry by its number, or the text of the command itself."""
    number = parse_count(argument, most=MAX_SEQ)
    if number is not None:
        seq = number
    else:
        seq = request.entry.seq if argument else await _find_last_message(request)
    if not seq:
        return CommandResult(reply=f"You have no message here to pin. Use {request.usage}.")
    if refusal := await _explain_unpinnable(request, seq):
        return CommandResult(reply=refusal)
    amendment = await session_changes.plan_pin(
        request.store,
        request.session,
        seq,
        by=request.entry.author,
        window=request.runtime.models[0].context_tokens,
    )
    return CommandResult(reply=amendment.reply, changes=amendment.bodies)


async def _find_last_message(request: CommandRequest) -> int:
    """Return the last message of the sender before the command; 0 if there is none."""
    own, upto = await request.list_own_authors(), request.entry.seq - 1
    while upto > 0:
        after = max(0, upto - PAGE_ENTRIES)
        for entry in reversed(
            await request.store.list_entries(request.session.id, after=after, upto=upto, kinds=(EntryKind.HEARD,))
        ):
            if isinstance(entry.body, Heard) and entry.body.command is None and entry.author in own:
                return entry.seq
        upto = after
    return 0


async def _explain_unpinnable(request: CommandRequest, seq: int) -> str:
    """Return why the sender may not pin an entry; empty if they may. An entry that somebody here did not hear is
    treated as if it did not exist.
    """
    missing = f"This session has no entry {seq} that can be pinned here."
    try:
        entry = await request.store.get_entry(request.session.id, seq)
    except NotFound:
        return missing
    stamp = get_pin_stamp(entry)
    if not await _is_audible(request, entry):
        return missing
    if request.cell.others is None or request.cell.allows_others(request.role):
        return ""
    if stamp is not None and entry.author in await request.list_own_authors():
        return ""
    return request.explain_refusal("Pinning another's words", request.cell.others)


async def _is_audible(request: CommandRequest, entry: Entry) -> bool:
    """Return whether everybody in this chat may see an entry. In a direct chat an identity may have been unlinked
    since; what has no stamp there, such as the result of a tool, is of that chat.
    """
    stamp = get_pin_stamp(entry)
    if stamp is None and request.place is ChatPlace.DIRECT:
        return True
    present = (await request.store.get_people()).expand_audience(request.heard.stamp.audience)
    return stamp is not None and can_hear(present, stamp.audience, entry.at)


@handles("unpin")
async def unpin_entry(request: CommandRequest, argument: str) -> CommandResult:
    number = parse_count(argument, most=MAX_SEQ)
    if number is None and argument != "all":
        return CommandResult(reply=f"Use {request.usage}. /pins lists the numbers.")
    own = None if request.cell.allows_others(request.role) else await request.list_own_authors()
    amendment = await session_changes.plan_unpin(
        request.store, request.session, number, can_remove=lambda one: own is None or one.pin.by in own
    )
    return CommandResult(reply=amendment.reply, changes=amendment.bodies)


@handles("pins")
async def show_pins(request: CommandRequest, _: str) -> CommandResult:
    """List the pins that everybody present may see. Nothing is quoted, because the erasure of an entry would not reach
    its words in this reply.
    """
    pins = await list_pins(request.store, request.session.id, at=request.session.last_seq + 1)
    lines = [
        f"{one.pin.seq} of {shown.who}, {describe_count(len(shown.text), 'character')}, pinned by {one.pin.by}"
        for one in pins
        if (shown := build_pinned(one.entry)) is not None and await _is_audible(request, one.entry)
    ]
    return CommandResult(reply="\n".join(lines) or f"Nothing is pinned. {COMMANDS['pin'].usage} pins something.")


# -- turns and tasks ---------------------------------------------------------------------------------------------------


@handles("stop")
async def stop_turn(request: CommandRequest, _: str) -> CommandResult:
    """Stop the running turn. Without one, put waiting messages aside: they stay in the log and are not answered.

    In a shared group, people below member stop only the turn that they asked for, and put only their own messages
    aside.
    """
    amendment = await session_changes.plan_stop(request.store, request.session)
    own = None if request.cell.allows_others(request.role) else await request.list_own_authors()
    if own is not None and amendment.bodies and not await _has_asked_for_turn(request, own):
        assert request.cell.others is not None, "only a difference between own and others' turns ends here"
        return CommandResult(reply=request.explain_refusal("Stopping another person's turn", request.cell.others))
    aside = () if amendment.bodies else request.find_waiting_messages(own)
    put_aside = f" {describe_count(len(aside), 'waiting message')} put aside." if aside else ""
    return CommandResult(reply=amendment.reply + put_aside, changes=amendment.bodies, takes=aside)


async def _has_asked_for_turn(request: CommandRequest, authors: Collection[str]) -> bool:
    """Return whether a message of these authors asked for the running turn."""
    running = await request.store.list_operations(request.session.id, types=("turn",), states=("running",))
    for turn in running:
        steps = await request.store.list_entries(
            request.session.id, after=turn.first - 1, kinds=(EntryKind.BEGAN, EntryKind.TOOK)
        )
        for seq in list_consumed_seqs(step for step in steps if step.op == turn.op):
            taken = await request.store.get_entry(request.session.id, seq)
            if isinstance(taken.body, Heard) and taken.body.asks and taken.author in authors:
                return True
    return False


@handles("halt")
async def halt_session(request: CommandRequest, argument: str) -> CommandResult:
    """Stop the running turn and put waiting messages aside. The admission has already silenced the chat."""
    amendment = await session_changes.plan_stop(request.store, request.session)
    reply = "" if argument == QUIETLY else "Halted. No agent answers here until a human sends /wake."
    return CommandResult(reply=reply, changes=amendment.bodies, takes=request.find_waiting_messages())


@handles("wake")
async def confirm_wake(_request: CommandRequest, _: str) -> CommandResult:
    return CommandResult(reply="The agents in this chat answer again.")


@handles("queue", "steer")
async def ask_for_text(request: CommandRequest, _: str) -> CommandResult:
    """Ask for the text. With a text these commands are messages, so they do not arrive here."""
    return CommandResult(reply=f"Add a text: {request.usage}")


@handles("background")
async def request_task(request: CommandRequest, text: str) -> CommandResult:
    if not text:
        return CommandResult(reply=f"Add a task: {request.usage}")
    task = TaskRequested(text=text, tell=request.heard.origin, stamp=request.heard.stamp, role=request.role)
    return CommandResult(
        reply="I am working on that, and will report here when it is done.",
        changes=(Changed(change=task),),
        wakes=(Wakeup(consumer=consumers.TASKS),),
    )


@handles("schedule")
async def change_schedules(request: CommandRequest, argument: str) -> CommandResult:
    planned = await run_schedule_command(
        request.gates,
        request.session,
        request.entry,
        argument,
        zone=request.runtime.zone,
        send_to=request.runtime.send_to,
    )
    return CommandResult(reply=planned.reply, state_write=planned.state_write)


# -- the session -------------------------------------------------------------------------------------------------------


@handles("title")
async def change_title(request: CommandRequest, arguments: TitleArguments) -> CommandResult:
    """Change the title. With `--memory`, memories also use the new name from now on."""
    session, title = request.session, arguments.title
    if not title:
        return CommandResult(reply=f"This session is called “{session.title or session.id}”. /title NAME renames it.")
    changes: list[EntryBody] = [Changed(change=SessionTitled(title=title, memory=arguments.memory))]
    if arguments.memory:
        person, runtime = request.heard.stamp.person, request.runtime
        peers = build_peer_registry(request.gates, request.runtimes)
        for memory in runtime.memories:
            owner = await peers.find_current_peer(memory, session.agent, person) or person
            origin = SessionOrigin(session=session.id, owner=owner, title=title, address=session.address)
            name = runtime.choose_memory_name(memory, origin)
            changes.append(Changed(change=MemoryNameSet(memory=memory, name=name)))
    follow = " Memories use the new name, too." if arguments.memory else ""
    return CommandResult(reply=f"Named “{title}”.{follow}", changes=tuple(changes))


@handles("model")
async def choose_model(request: CommandRequest, name: str) -> CommandResult:
    """Choose another model for this session, return to the configured one, or show the current one."""
    session, runtime = request.session, request.runtime
    if not name:
        return CommandResult(reply=_describe_model(session, runtime))
    value = "" if name == DEFAULT and name not in runtime.model_choices else name
    if value and (unfit := runtime.explain_unfit_model(value)):
        return CommandResult(reply=unfit)
    then = request.runtimes.get_runtime(session.agent, {**session.choices, "model": value})
    return CommandResult(
        reply=f"Model for this session: {then.model}{'' if value else ', as configured'}.",
        changes=(Changed(change=SettingChosen(setting="model", value=value)),),
        # Wake up operations that wait for the previous model, so that they retry with this one now.
        wakes=tuple(
            Wakeup(consumer=consumer, waits_for=then.waits_for)
            for consumer in model_waits.MODEL_CONSUMERS
            if then.waits_for
        ),
    )


def _describe_model(session: Session, runtime: AgentRuntime) -> str:
    chosen = session.choices.get("model", "")
    how = "chosen for this session" if chosen else "as configured"
    if chosen not in ("", runtime.model):
        how = f"as configured, since {chosen} cannot be used"
    choices = f"Available: {', '.join(runtime.model_choices)}. /model NAME chooses one, /model {DEFAULT} resets it."
    return f"Model for this session: {runtime.model}, {how}. {choices}"


@handles("branch")
async def branch_session(request: CommandRequest, _: str) -> CommandResult:
    """Bind this address to a branch of this session."""
    session, stamp = request.session, request.heard.stamp
    fit = await session_access.compare_audience(request.store, session, audience=stamp.audience)
    if fit is session_access.SessionFit.OTHER:
        return CommandResult(
            reply="This conversation began in another chat, and somebody here cannot read it, so it cannot be branched."
        )
    branch = await _start_branch(request, session, at=request.entry.seq - 1)
    return CommandResult(reply=f"Branched into session {branch}. /resume {session.id} brings you back.")


async def _start_branch(request: CommandRequest, parent: Session, *, at: int) -> str:
    """Bind this address to a new branch of `parent`; return its id. The branch is committed first, and the backlink
    worker writes the backlink into the parent.
    """
    gates, session, entry, address = request.gates, request.session, request.entry, request.heard.stamp.address
    new = make_session_id(gates.clock.now(), gates.chance.bytes(10))
    branched = Changed(change=BranchedFrom(parent=parent.id, at=at, by=entry.author))
    # An earlier command may have bound the address elsewhere after this one was heard.
    leads_to = await gates.store.resolve_address(address) or session.id
    bound = Changed(change=AddressBound(address=address, previous=leads_to, by=entry.author))
    pins = [
        Changed(change=EntryPinned(seq=one.pin.seq, session=one.pin.session or parent.id, by=one.pin.by))
        for one in await list_pins(gates.store, parent.id, at=at + 1)
    ]
    done = await gates.commit(
        Change(
            step=Step.BACKLINK,
            session=new,
            at=gates.clock.now(),
            opens=SessionOpening(agent=session.agent, address=address, parent=parent.id, parent_at=at, bind=False),
            entries=(
                EntryDraft(body=branched, author=entry.author, dedup=f"branch:{session.id}:{entry.seq}"),
                EntryDraft(body=bound, author=entry.author),
                *(EntryDraft(body=pin, author=entry.author) for pin in pins),
            ),
            wakeups=(Wakeup(consumer=consumers.BACKLINKS),),
        )
    )
    log = gates.log.bind(session=session.id)
    log.info("session.branched", parent=parent.id, branch=done.session)
    log.info("session.bound", session=done.session, address=address, previous=leads_to)
    request.wakeups.notify(done.session)
    return done.session


@handles("resume")
async def resume_session(request: CommandRequest, name: str) -> CommandResult:
    """Bind this address to another session with the same audience. If fewer people are present here than in that
    session, continue in a branch, so that words from here never become part of it.
    """
    if not name:
        return CommandResult(reply=f"Name a session: {request.usage}. /sessions lists them.")
    # Select by audience first and by name second, so that a name cannot select a session of another person.
    open_sessions = [one async for one in _list_open_sessions(request)]
    led = await request.store.resolve_address(name)
    found = [it for it in open_sessions if it[0].id == name] or [
        it for it in open_sessions if _may_mean(name, it[0], led=led)
    ]
    if not found:
        return CommandResult(reply=_explain_no_session(request, name))
    if len(found) > 1:
        some = ", ".join(one.id for one, _ in found[:5])
        return CommandResult(reply=f"{name!r} matches {len(found)} sessions: {some}. Choose one with /resume ID.")
    chosen, fit = found[0]
    leads_to = await request.store.resolve_address(request.heard.stamp.address) or request.session.id
    if chosen.id == leads_to:
        return CommandResult(reply=f"You are in session {leads_to}.")
    if fit is session_access.SessionFit.SMALLER:
        branch = await _start_branch(request, chosen, at=chosen.last_seq)
        return CommandResult(
            reply=f"Session {chosen.id} belongs to a group, so I continue here in a copy of it: session {branch}. "
            f"The group does not see what you write here. /resume {request.session.id} brings you back."
        )
    await _bind_address(request, chosen.id, previous=leads_to)
    return CommandResult(reply=f"Resumed session {chosen.id}. /resume {request.session.id} brings you back.")


def _explain_no_session(request: CommandRequest, name: str) -> str:
    """Return why a session cannot be continued here. In a group this does not tell whether the session exists."""
    if request.place is ChatPlace.DIRECT:
        return f"You have no session {name!r} that can be continued here. /sessions lists yours."
    return (
        f"No session {name!r} began in this chat, so it cannot be continued here. A private session is never continued "
        "in a group, not even by an owner, because everybody here would read it. /sessions lists the sessions of this "
        "chat."
    )


async def _bind_address(request: CommandRequest, session: str, *, previous: str) -> None:
    gates, entry, address = request.gates, request.entry, request.heard.stamp.address
    bound = Changed(change=AddressBound(address=address, previous=previous, by=entry.author))
    key = f"resume:{request.session.id}:{entry.seq}"
    await gates.commit(
        Change(
            step=Step.BACKLINK,
            session=session,
            at=gates.clock.now(),
            entries=(EntryDraft(body=bound, author=entry.author, dedup=key),),
            wakeups=(Wakeup(consumer=consumers.BACKLINKS),),
        )
    )
    gates.log.info("session.bound", session=session, address=address, previous=previous)
    request.wakeups.notify(session)


def _list_open_sessions(request: CommandRequest) -> AsyncIterator[tuple[Session, session_access.SessionFit]]:
    """Return the sessions that may continue at this address, newest first. In a group these are sessions that began in
    this chat.
    """
    return session_access.list_fitting_sessions(
        request.store, author=request.entry.author, agent=request.session.agent, here=request.heard.stamp
    )


def _may_mean(name: str, session: Session, *, led: str | None) -> bool:
    """Return whether `name` is a session's title, the beginning of its id, or an address that is bound to it."""
    return session.id == led or session.id.startswith(name) or session.title.casefold() == name.casefold()


@handles("sessions")
async def list_sessions(request: CommandRequest, _: str) -> CommandResult:
    lines: list[str] = []
    async for one, _fit in _list_open_sessions(request):
        if len(lines) == MOST_LISTED:
            lines.append("… and older ones")
            break
        lines.append(f"{one.id} {one.title}".strip())
    return CommandResult(reply="\n".join(lines) or "You have no sessions.")


# -- memory ------------------------------------------------------------------------------------------------------------


@handles("memory")
async def use_memory(request: CommandRequest, arguments: ParsedSubcommand) -> CommandResult:
    changes, reply = await commands_memory.run_memory_command(
        request.gates,
        request.runtimes,
        request.session,
        request.runtime,
        request.heard,
        arguments,
        rights=ForgetRights(
            sender="" if request.cell.allows_others(request.role) else request.entry.author.removeprefix(PERSON_MEMBER),
            refusal=request.explain_refusal(
                "Taking back another person's note", request.cell.others or PersonRole.OWNER
            ),
        ),
    )
    return CommandResult(
        reply=reply, changes=changes, wakes=tuple(request.runtime.list_memory_wakeups()) if changes else ()
    )


# -- questions ---------------------------------------------------------------------------------------------------------


@handles("status")
async def show_status(request: CommandRequest, _: str) -> CommandResult:
    session = request.session
    waiting = f"{session.pending} waiting" if session.pending > 1 else "no other message waiting"
    lines = [f"session {session.id} · {request.runtime.models[0].name} · {session.running or 'idle'} · {waiting}"]
    for memory in await memory_health.collect_conditions(
        request.gates, request.runtimes.list_memories(), agent=session.agent
    ):
        if memory.state != "healthy":
            backlog = f", {memory.backlog} not yet stored" if memory.backlog else ""
            lines.append(f"memory {memory.memory} is {memory.state}{backlog}")
    return CommandResult(reply="\n".join(lines))


@handles("usage")
async def show_usage(request: CommandRequest, _: str) -> CommandResult:
    """Show what this session has cost; in a direct chat also what the sender has spent today with all agents."""
    total = ModelUsage()
    for entry in await request.store.list_entries(request.session.id, kinds=(EntryKind.ENDED,)):
        if isinstance(entry.body, Ended):
            total += entry.body.usage
    session = f"{total.input} tokens in, {total.output} out, {total.usd:.4f} USD."
    if request.place is not ChatPlace.DIRECT:
        return CommandResult(reply=session)
    today = [await request.store.get_spend(author, request.today) for author in await request.list_own_authors()]
    tokens, usd = sum(it.tokens for it in today), sum(it.usd for it in today)
    return CommandResult(reply=f"{session}\nYou today, with all agents: {tokens} tokens, {usd:.4f} USD.")


@handles("whoami")
async def show_identity(request: CommandRequest, _: str) -> CommandResult:
    identity, at = request.entry.author.removeprefix(PERSON_MEMBER), request.heard.origin
    label = (await request.store.get_people()).find_label(identity)
    who = f"{label} ({identity})" if label else identity
    return CommandResult(
        reply=f"You are {who} at {at.platform}:{at.chat}, in session {request.session.id}. "
        f"Your role here is {request.role.label}."
    )


# -- approvals ---------------------------------------------------------------------------------------------------------


@handles("approvals")
async def list_approvals(request: CommandRequest, typed: str) -> CommandResult:
    """List the calls that the sender may allow, and those that this conversation waits for; or show one whole."""
    service, who = _open_service(request)
    zone = request.runtime.zone
    word, _, rest = typed.strip().partition(" ")
    if word == "rules":
        rules = [it for it in await list_known_rules(service, who) if it.can_revoke]
        shown = [
            approvals.render_rule(it.id, it.rule, it.requested.call, until=format_local_time(it.rule.until, zone))
            for it in rules
        ]
        return CommandResult(reply="\n".join(shown) or "No answer made a rule that you may revoke.")
    if word == "revoke":
        return CommandResult(reply=(await revoke_rule(service, rest, who)).text)
    listed = await list_answerable(service, who, session=request.session.id)
    if typed:
        id = await service.find_id(typed)
        found = await find_request(request.store, id) if id in {it.id for it in listed} else None
        if found is None:
            return CommandResult(reply=f"There is no open request {id or typed!r} for you. /approvals lists them.")
        until = format_local_time(found.body.expires, zone)
        return CommandResult(reply=approvals.render_request(found.body, found.call, until=until))
    lines = [approvals.render_line(it.id, it.record, until=format_local_time(it.record.until, zone)) for it in listed]
    return CommandResult(reply="\n".join(lines) or "No call waits for permission here.")


@handles("approve")
async def approve_call(request: CommandRequest, argument: ParsedSubcommand) -> CommandResult:
    word = argument.text.lower()
    if not argument.word or word not in ("", "always", "once"):
        return CommandResult(reply=f"Name a request: {request.usage}. /approvals lists them.")
    return await _answer_request(request, argument.word, ApprovalAnswer(allow=True, always=word == "always"))


@handles("deny")
async def deny_call(request: CommandRequest, argument: ParsedSubcommand) -> CommandResult:
    if not argument.word:
        return CommandResult(reply=f"Name a request: {request.usage}. /approvals lists them.")
    return await _answer_request(request, argument.word, ApprovalAnswer(allow=False, note=argument.text))


async def _answer_request(request: CommandRequest, id: str, answer: ApprovalAnswer) -> CommandResult:
    """Answer a request in the session that asked. That commit comes first; a repeat finds it and says the same."""
    service, who = _open_service(request)
    return CommandResult(reply=(await service.answer(id, answer, who)).text)


def _open_service(request: CommandRequest) -> tuple[ApprovalService, AnsweringPerson]:
    service = ApprovalService(request.gates, runtimes=request.runtimes, wakeups=request.wakeups, roles=request.roles)
    identity = request.entry.author.removeprefix(PERSON_MEMBER)
    who = AnsweringPerson(
        by=request.entry.author, origin=request.heard.origin, is_operator=request.runtime.is_operator(identity)
    )
    return service, who


@handles("link")
async def refuse_link(_request: CommandRequest, _: str) -> CommandResult:
    """Refuse the command outside direct chats. In direct chats the admission handles it."""
    return CommandResult(reply="Use this command in a direct chat with me.")


@handles("help")
async def show_help(_request: CommandRequest, _: str) -> CommandResult:
    return CommandResult(reply=render_help())


# -- commands that ingress has replaced ------------------------------------------------------------------------------


@handles(ALONE)
async def explain_local_command(request: CommandRequest, name: str) -> CommandResult:
    reply = ALONE_REPLIES.get(name, "")
    if name != "halt":
        return CommandResult(reply=reply)
    amendment = await session_changes.plan_stop(request.store, request.session)
    return CommandResult(reply=f"{amendment.reply} {reply}", changes=amendment.bodies)


@handles(MISTYPED)
async def suggest_another_command(_request: CommandRequest, word: str) -> CommandResult:
    return CommandResult(reply=explain_mistyped(word))
