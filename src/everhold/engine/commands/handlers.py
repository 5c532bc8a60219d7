"""The handlers of chat commands, one function per command. `engine/commands/worker.py` finds a handler by the command's
name.

A handler reads, and returns a `CommandResult` that the worker commits. Only `/branch` and `/resume` commit by
themselves, because their entries belong to another session.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

from everhold.core import compression, consumers
from everhold.core.commands import (
    ALONE,
    BARRED,
    COMMANDS,
    QUIETLY,
    ParsedSubcommand,
    TitleArguments,
    UndoArguments,
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
    Heard,
    MemoryNameSet,
    ModelUsage,
    SessionTitled,
    SettingChosen,
    TaskRequested,
)
from everhold.core.ids import make_session_id
from everhold.core.memory_naming import SessionOrigin
from everhold.core.wording import describe_count
from everhold.engine import model_waits, session_access, session_changes
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.commands import memory as commands_memory
from everhold.engine.commands.schedule import run_schedule_command
from everhold.engine.context_cache import load_context_at
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.memory import health as memory_health
from everhold.ports.store import Change, Session, SessionOpening, StateWrite, Step, Store, Wakeup

MOST_LISTED: Final = 50
"""How many sessions `/sessions` lists."""
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
    pending: list[Entry]
    """The entries of the session that no operation has consumed."""
    runtime: AgentRuntime
    gates: Gates
    runtimes: AgentRuntimes
    wakeups: Wakeups
    today: str

    @property
    def store(self) -> Store:
        return self.gates.store

    @property
    def usage(self) -> str:
        return COMMANDS[self.name].usage

    def find_waiting_messages(self) -> tuple[int, ...]:
        """The seqs of the messages that wait for an answer."""
        return tuple(it.seq for it in self.pending if isinstance(it.body, Heard) and it.body.command is None)


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
"""Name -> handler, for every command of the table and for `BARRED` and `ALONE`."""


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
        amendment = await session_changes.plan_undo(request.store, request.session, what="compress")
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
        view, keep=request.runtime.keep_turns if keep is None else keep, session=session.id
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


# -- turns and tasks ---------------------------------------------------------------------------------------------------


@handles("stop")
async def stop_turn(request: CommandRequest, _: str) -> CommandResult:
    """Stop the running turn. Without one, put waiting messages aside: they stay in the log and are not answered."""
    amendment = await session_changes.plan_stop(request.store, request.session)
    aside = () if amendment.bodies else request.find_waiting_messages()
    put_aside = f" {describe_count(len(aside), 'waiting message')} put aside." if aside else ""
    return CommandResult(reply=amendment.reply + put_aside, changes=amendment.bodies, takes=aside)


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
    task = TaskRequested(text=text, tell=request.heard.origin, stamp=request.heard.stamp)
    return CommandResult(
        reply="I am working on that, and will report here when it is done.",
        changes=(Changed(change=task),),
        wakes=(Wakeup(consumer=consumers.TASKS),),
    )


@handles("schedule")
async def change_schedules(request: CommandRequest, argument: str) -> CommandResult:
    planned = await run_schedule_command(
        request.gates, request.session, request.entry, argument, zone=request.runtime.zone
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
        person = request.heard.stamp.person
        origin = SessionOrigin(session=session.id, owner=person, title=title, address=session.address)
        runtime = request.runtime
        changes += [
            Changed(change=MemoryNameSet(memory=it, name=runtime.choose_memory_name(it, origin)))
            for it in runtime.memories
        ]
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
    """Bind this address to a branch. The branch is committed first, and the backlink worker writes the backlink into
    this session.
    """
    gates, session, entry, address = request.gates, request.session, request.entry, request.heard.stamp.address
    if not await session_access.can_bind_address(gates.store, session, author=entry.author, here=address):
        return CommandResult(
            reply="This conversation began in another chat and belongs to another person, so you cannot branch it."
        )
    new = make_session_id(gates.clock.now(), gates.chance.bytes(10))
    at = entry.seq - 1
    branched = Changed(change=BranchedFrom(parent=session.id, at=at, by=entry.author))
    # An earlier command may have bound the address elsewhere after this one was heard.
    leads_to = await gates.store.resolve_address(address) or session.id
    bound = Changed(change=AddressBound(address=address, previous=leads_to, by=entry.author))
    done = await gates.commit(
        Change(
            step=Step.BACKLINK,
            session=new,
            at=gates.clock.now(),
            opens=SessionOpening(agent=session.agent, address=address, parent=session.id, parent_at=at, bind=False),
            entries=(
                EntryDraft(body=branched, author=entry.author, dedup=f"branch:{session.id}:{entry.seq}"),
                EntryDraft(body=bound, author=entry.author),
            ),
            wakeups=(Wakeup(consumer=consumers.BACKLINKS),),
        )
    )
    log = gates.log.bind(session=session.id)
    log.info("session.branched", parent=session.id, branch=done.session)
    log.info("session.bound", session=done.session, address=address, previous=leads_to)
    request.wakeups.notify(done.session)
    return CommandResult(reply=f"Branched into session {done.session}. /resume {session.id} brings you back.")


@handles("resume")
async def resume_session(request: CommandRequest, name: str) -> CommandResult:
    """Bind this address to another session of the same person."""
    if not name:
        return CommandResult(reply=f"Name a session: {request.usage}. /sessions lists yours.")
    # Select by ownership first and by name second, so that a name cannot select a session of another person.
    mine = [one async for one in _list_open_sessions(request)]
    led = await request.store.resolve_address(name)
    found = [one for one in mine if one.id == name] or [one for one in mine if _may_mean(name, one, led=led)]
    if not found:
        return CommandResult(reply=f"You have no session {name!r} that can be continued here. /sessions lists yours.")
    if len(found) > 1:
        some = ", ".join(one.id for one in found[:5])
        return CommandResult(
            reply=f"{name!r} matches {len(found)} of your sessions: {some}. Choose one with /resume ID."
        )
    leads_to = await request.store.resolve_address(request.heard.stamp.address) or request.session.id
    if found[0].id == leads_to:
        return CommandResult(reply=f"You are in session {leads_to}.")
    await _bind_address(request, found[0].id, previous=leads_to)
    return CommandResult(reply=f"Resumed session {found[0].id}. /resume {request.session.id} brings you back.")


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


def _list_open_sessions(request: CommandRequest) -> AsyncIterator[Session]:
    """Return the sessions that the sender may continue at this address, newest first."""
    here = request.heard.stamp.address
    return session_access.list_bindable_sessions(
        request.store, author=request.entry.author, agent=request.session.agent, here=here
    )


def _may_mean(name: str, session: Session, *, led: str | None) -> bool:
    """Return whether `name` is a session's title, the beginning of its id, or an address that is bound to it."""
    return session.id == led or session.id.startswith(name) or session.title.casefold() == name.casefold()


@handles("sessions")
async def list_sessions(request: CommandRequest, _: str) -> CommandResult:
    lines: list[str] = []
    async for one in _list_open_sessions(request):
        if len(lines) == MOST_LISTED:
            lines.append("… and older ones")
            break
        lines.append(f"{one.id} {one.title}".strip())
    return CommandResult(reply="\n".join(lines) or "You have no sessions.")


# -- memory ------------------------------------------------------------------------------------------------------------


@handles("memory")
async def use_memory(request: CommandRequest, arguments: ParsedSubcommand) -> CommandResult:
    changes, reply = await commands_memory.run_memory_command(
        request.gates, request.runtimes, request.session, request.runtime, request.heard, arguments
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
        if memory.state != "well":
            backlog = f", {memory.lag} not yet stored" if memory.lag else ""
            lines.append(f"memory {memory.memory} is {memory.state}{backlog}")
    return CommandResult(reply="\n".join(lines))


@handles("usage")
async def show_usage(request: CommandRequest, _: str) -> CommandResult:
    """Show what this session has cost, and what the sender has spent today with all agents."""
    total = ModelUsage()
    for entry in await request.store.list_entries(request.session.id, kinds=(EntryKind.ENDED,)):
        if isinstance(entry.body, Ended):
            total += entry.body.usage
    today = await request.store.get_spend(f"person:{request.heard.stamp.person}", request.today)
    return CommandResult(
        reply=f"{total.input} tokens in, {total.output} out, {total.usd:.4f} USD.\n"
        f"You today, with all agents: {today.tokens} tokens, {today.usd:.4f} USD."
    )


@handles("whoami")
async def show_identity(request: CommandRequest, _: str) -> CommandResult:
    who, at = request.entry.author.removeprefix("person:"), request.heard.origin
    return CommandResult(reply=f"You are {who} at {at.platform}:{at.chat}, in session {request.session.id}.")


@handles("link")
async def refuse_link(_request: CommandRequest, _: str) -> CommandResult:
    """Refuse the command outside direct chats. In direct chats the admission handles it."""
    return CommandResult(reply="Use this command in a direct chat with me.")


@handles("help")
async def show_help(_request: CommandRequest, _: str) -> CommandResult:
    return CommandResult(reply=render_help())


# -- commands that the admission has replaced ------------------------------------------------------------------------


@handles(BARRED)
async def refuse_command(_request: CommandRequest, name: str) -> CommandResult:
    return CommandResult(reply=f"In a group only an owner may use /{name}.")


@handles(ALONE)
async def explain_local_command(request: CommandRequest, name: str) -> CommandResult:
    reply = ALONE_REPLIES.get(name, "")
    if name != "halt":
        return CommandResult(reply=reply)
    amendment = await session_changes.plan_stop(request.store, request.session)
    return CommandResult(reply=f"{amendment.reply} {reply}", changes=amendment.bodies)
