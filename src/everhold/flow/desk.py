"""Commands -> one commit each. They do not wait behind messages and need no model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from everhold.core import compression, consumers
from everhold.core.commands import compress_arguments, help_text, number
from everhold.core.entries import (
    OWN,
    AddressBound,
    Began,
    Body,
    BranchedFrom,
    Changed,
    Command,
    CompressionRequested,
    ContextReset,
    Draft,
    Ended,
    Entry,
    Heard,
    Kind,
    MemoryNameSet,
    Noted,
    Notified,
    SessionTitled,
    SettingChosen,
    TaskRequested,
    Usage,
)
from everhold.core.ids import session_id
from everhold.core.naming import Origin
from everhold.core.split import split
from everhold.errors import Conflict
from everhold.flow import access, amend, health, memo, waits
from everhold.flow.gates import Bells, Gates
from everhold.flow.plan import plan
from everhold.flow.runtime import Runtime, Runtimes
from everhold.flow.view import view_at
from everhold.ports.store import Change, Claim, CursorUpdate, Opening, Session, StateWrite, Step, Wakeup

MOST_FAILURES: Final = 4
"""A command that fell over so often is given up."""
MOST_LISTED: Final = 50
ALONE: Final = {
    "halt": "/halt is for chats with others; here I go on answering you. /stop ends what is running.",
    "wake": "/wake is for chats with others. Nobody is silenced here.",
    "link": "/link is for direct chats on two platforms. Here you are at my own door: `everhold people link`.",
}
"""What is said about commands that mean nothing between one person and the gateway itself."""
DEFAULT: Final = "default"
"""Instead of a model's name: the one that is configured."""


class Desk:
    """Obeys the commands of one session, in order."""

    def __init__(self, gates: Gates, claim: Claim, *, runtimes: Runtimes, bells: Bells, day: Callable[[], str]) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtimes = runtimes
        self.bells = bells
        self.day = day
        self.failures = claim.cursor.attempts
        self.log = gates.log.bind(session=claim.session)

    async def run(self) -> None:
        while True:
            session = await self.store.get_session(self.claim.session)
            pending = await self.store.list_pending(session.id)
            entry = next((e for e in pending if isinstance(e.body, Heard) and e.body.command), None)
            if entry is None:
                update = CursorUpdate(idle_at=session.last_seq, attempts=0, error="", release=True)
                await self._commit(Step.CURSOR_SETTLE, (), lane=update)
                return
            try:
                if self.failures >= MOST_FAILURES:
                    await self._give_up(session, entry)
                else:
                    await self._obey(session, entry, pending)
            except Conflict:
                continue  # the session moved while we looked: look again
            self.failures = 0

    async def _give_up(self, session: Session, entry: Entry) -> None:
        """A command that fell over again and again must not keep the others waiting: it ends failed, and says so."""
        assert isinstance(entry.body, Heard)
        runtime = self.runtimes.runtime(session.agent, session.choices)
        reason = self.claim.cursor.error or "it fell over"
        text = f"That command could not be carried out: {reason}"
        told = Notified(
            text=text,
            about="command",
            to=entry.body.origin,
            parts=split(text, runtime.text_limit(entry.body.origin)),
        )
        bodies: tuple[Body, ...] = (
            Began(type="command", takes=(entry.seq,), consumer=consumers.COMMANDS, trigger="failed"),
            told,
            Ended(outcome="failed", reason=reason),
        )
        await self._commit(Step.COMMAND, bodies, seen=session.last_seq, wakes=runtime.voices(bodies))

    async def _obey(self, session: Session, entry: Entry, pending: list[Entry]) -> None:
        assert isinstance(entry.body, Heard)
        assert entry.body.command is not None
        command = entry.body.command
        runtime = self.runtimes.runtime(session.agent, session.choices)
        takes = [entry.seq]
        wakes: list[Wakeup] = []
        changes: tuple[Body, ...] = ()
        state_write: StateWrite | None = None
        match command.name:
            case "new":
                changes, reply = (Changed(change=ContextReset()),), "A fresh start. The session and its memory stay."
                wakes += runtime.turning()
            case "title":
                changes, reply = self._title(session, runtime, entry.body, command.argument)
            case "undo" | "retry":
                amendment = await self._undo(session, command)
                changes, reply = amendment.bodies, amendment.say
                if command.name == "retry" and changes:
                    wakes.append(Wakeup(consumer=consumers.TURN))
                wakes += runtime.remembers() if changes else ()
            case "compress":
                changes, reply = await self._compress(session, runtime, entry.body, command.argument)
                wakes += [Wakeup(consumer=consumers.COMPRESSION)] if changes else []
            case "background":
                if command.argument:
                    task = TaskRequested(text=command.argument, tell=entry.body.origin, stamp=entry.body.stamp)
                    changes, reply = (Changed(change=task),), "I will work on that, and say so here when it is done."
                    wakes.append(Wakeup(consumer=consumers.TASKS))
                else:
                    reply = "Say what to work on: /background TEXT"
            case "stop":
                amendment = await amend.stop(self.store, session)
                changes, reply = amendment.bodies, amendment.say
                # with nothing running, what waits is put aside: still in the log, and unanswered
                aside = [e.seq for e in pending if isinstance(e.body, Heard) and e.body.command is None]
                if not changes and aside:
                    takes += aside
                    reply += f" {len(aside)} waiting messages put aside."
            case "memory":
                changes, reply = await memo.answer(
                    self.gates, self.runtimes, session, runtime, entry.body, command.argument
                )
                wakes += runtime.remembers() if changes else ()
            case "schedule":
                planned = await plan(self.gates, session, entry, command.argument, zone=runtime.zone)
                reply, state_write = planned.say, planned.state_write
            case "halt":
                # what runs is told to end, what waits is put aside: nothing is lost, and nothing is answered
                changes = (await amend.stop(self.store, session)).bodies
                takes += [e.seq for e in pending if isinstance(e.body, Heard) and e.body.command is None]
                reply = "Halted. Nobody answers here until a human says so (/wake)."
            case "wake":
                reply = "Listening again."
            case "queue" | "steer":
                reply = f"Say what: /{command.name} TEXT"
            case "alone":
                reply = ALONE.get(command.argument, "")
                if command.argument == "halt":
                    stopped = await amend.stop(self.store, session)
                    changes, reply = stopped.bodies, f"{stopped.say} {reply}"
            case "barred":
                reply = f"In a group only an owner may use /{command.argument}."
            case "link":
                reply = "Say this in a direct chat with me."
            case "model":
                changes, reply, wakes = self._model(session, runtime, command.argument)
            case "branch":
                reply = await self._branch(session, entry)
            case "resume":
                reply = await self._resume(session, entry, command.argument)
            case "whoami":
                who, at = entry.author.removeprefix("person:"), entry.body.origin
                reply = f"You are {who} at {at.platform}:{at.chat}, in session {session.id}."
            case "status":
                reply = await self._status(session, runtime)
            case "usage":
                reply = await self._usage(session, entry.body.stamp.person)
            case "sessions":
                reply = await self._sessions(session, entry)
            case _:
                reply = help_text()
        told = Notified(
            text=reply,
            about=command.name,
            to=entry.body.origin,
            parts=split(reply, runtime.text_limit(entry.body.origin)),
        )
        quiet = command.name == "halt" and command.argument == "quietly"
        said = changes if quiet else (*changes, told)
        bodies = amend.command(said, trigger=command.name, takes=tuple(sorted(takes)), reader=consumers.COMMANDS)
        wakes += runtime.voices(bodies)
        await self._commit(
            Step.COMMAND,
            bodies,
            by=entry.author,
            seen=session.last_seq,
            wakes=tuple(wakes),
            state_write=state_write,
        )
        self.log.info("command.done", command=command.name)

    # -- what commands do --------------------------------------------------------------------------------------------

    async def _undo(self, session: Session, command: Command) -> amend.Amendment:
        if command.name == "retry":
            return await amend.undo(self.store, session, again=True)
        if command.argument in ("compress", "fold"):
            return await amend.undo(self.store, session, what="compress")
        count = number(command.argument) if command.argument else 1
        if not count:
            return amend.Amendment(say="Say /undo, /undo N for the last N turns, or /undo compress.")
        return await amend.undo(self.store, session, count=count)

    def _title(self, session: Session, runtime: Runtime, heard: Heard, argument: str) -> tuple[tuple[Body, ...], str]:
        """A name to show; with `--memory` also the name that memories file this session under from here on."""
        memory = argument.endswith("--memory")
        title = argument.removesuffix("--memory").strip()
        if not title:
            return (), f"This session is called “{session.title or session.id}”. /title NAME renames it."
        changes: list[Body] = [Changed(change=SessionTitled(title=title, memory=memory))]
        if memory:
            origin = Origin(session=session.id, owner=heard.stamp.person, title=title, address=session.address)
            changes += [
                Changed(change=MemoryNameSet(memory=it, name=runtime.naming(it, origin))) for it in runtime.memories
            ]
        return tuple(changes), f"Named “{title}”." + (" Memories follow." if memory else "")

    def _model(self, session: Session, runtime: Runtime, name: str) -> tuple[tuple[Body, ...], str, list[Wakeup]]:
        """Another model for this session, the configured one again, or just a word about the one it has."""
        if not name:
            chosen = session.choices.get("model", "")
            how = "chosen here" if chosen else "as configured"
            if chosen not in ("", runtime.model):
                how = f"as configured, since {chosen} cannot be used"
            there = f"There are: {', '.join(runtime.choices)}. /model NAME chooses, /model {DEFAULT} goes back."
            return (), f"Model for this session: {runtime.model}, {how}. {there}", []
        value = "" if name == DEFAULT and name not in runtime.choices else name
        if value and (unfit := runtime.unfit(value)):
            return (), unfit, []
        then = self.runtimes.runtime(session.agent, {**session.choices, "model": value})
        reply = f"Model for this session: {then.model}{'' if value else ', as configured'}."
        # what waits for the one before, however long that asked for, is put to this one now
        wakes = [Wakeup(consumer=reader, waits_for=then.whom) for reader in waits.READERS if then.whom]
        return (Changed(change=SettingChosen(setting="model", value=value)),), reply, wakes

    async def _compress(
        self, session: Session, runtime: Runtime, heard: Heard, argument: str
    ) -> tuple[tuple[Body, ...], str]:
        """Ask the fold lane for a compression, or only look at what it would do."""
        keep, focus, preview = compress_arguments(argument)
        view = await view_at(self.store, session, at=session.last_seq + 1)
        plan = compression.plan(view, keep=runtime.keep if keep is None else keep, session=session.id)
        if plan is None:
            return (), "There is nothing to compress."
        if preview:
            return (), compression.preview(plan)
        wanted = CompressionRequested(keep=keep, focus=focus, tell=heard.origin)
        return (Changed(change=wanted),), "I am compressing our conversation. What you write meanwhile is kept."

    async def _branch(self, session: Session, entry: Entry) -> str:
        """Go on in a branch. Committed in the new session first; this one's record follows through its tie lane."""
        assert isinstance(entry.body, Heard)
        address = entry.body.stamp.address
        if not await access.may_lead(self.store, session, author=entry.author, here=address):
            return "This conversation began elsewhere, and is not yours to branch."
        new = session_id(self.gates.clock.now(), self.gates.chance.bytes(10))
        at = entry.seq - 1
        branched = Changed(change=BranchedFrom(parent=session.id, at=at, by=entry.author))
        # an earlier command may have led the address away after this one was heard
        leads_to = await self.store.resolve_address(address) or session.id
        bound = Changed(change=AddressBound(address=address, previous=leads_to, by=entry.author))
        done = await self.gates.commit(
            Change(
                step=Step.BACKLINK,
                session=new,
                at=self.gates.clock.now(),
                opens=Opening(agent=session.agent, address=address, parent=session.id, parent_at=at, bind=False),
                entries=(
                    Draft(body=branched, author=entry.author, dedup=f"branch:{session.id}:{entry.seq}"),
                    Draft(body=bound, author=entry.author),
                ),
                wakeups=(Wakeup(consumer=consumers.BACKLINKS),),
            )
        )
        self.log.info("session.branched", parent=session.id, branch=done.session)
        self.log.info("session.bound", session=done.session, address=address, previous=leads_to)
        self.bells.ring(done.session)
        return f"Branched into session {done.session}. /resume {session.id} brings you back."

    async def _resume(self, session: Session, entry: Entry, name: str) -> str:
        """Bind this address to another session of the same person. Whose they are comes before what they are called."""
        assert isinstance(entry.body, Heard)
        if not name:
            return "Say which one: /resume ID. /sessions lists yours."
        mine = [one async for one in self._open_to(session, entry)]
        led = await self.store.resolve_address(name)
        found = [one for one in mine if one.id == name] or [one for one in mine if _may_mean(name, one, led=led)]
        if not found:
            return f"You have no session {name!r} to go on in here. /sessions lists yours."
        if len(found) > 1:
            some = ", ".join(one.id for one in found[:5])
            return f"{name!r} names {len(found)} sessions of yours: {some}. /resume ID takes one of them."
        target = found[0]
        leads_to = await self.store.resolve_address(entry.body.stamp.address) or session.id
        if target.id == leads_to:
            return f"You are in session {target.id}."
        bound = AddressBound(address=entry.body.stamp.address, previous=leads_to, by=entry.author)
        await self.gates.commit(
            Change(
                step=Step.BACKLINK,
                session=target.id,
                at=self.gates.clock.now(),
                entries=(
                    Draft(body=Changed(change=bound), author=entry.author, dedup=f"resume:{session.id}:{entry.seq}"),
                ),
                wakeups=(Wakeup(consumer=consumers.BACKLINKS),),
            )
        )
        self.log.info("session.bound", session=target.id, address=bound.address, previous=leads_to)
        self.bells.ring(target.id)
        return f"Resumed session {target.id}. /resume {session.id} brings you back."

    def _open_to(self, session: Session, entry: Entry) -> AsyncIterator[Session]:
        """The sessions that whoever speaks may go on in from where they are, newest first."""
        assert isinstance(entry.body, Heard)
        here = entry.body.stamp.address
        return access.open_to(self.store, author=entry.author, agent=session.agent, here=here)

    async def _status(self, session: Session, runtime: Runtime) -> str:
        waiting = f"{session.pending} waiting" if session.pending > 1 else "nothing else waiting"
        lines = [f"session {session.id} · {runtime.models[0].name} · {session.running or 'idle'} · {waiting}"]
        for memory in await health.conditions(self.gates, self.runtimes.attached(), agent=session.agent):
            if memory.state != "well":
                behind = f", {memory.lag} not yet there" if memory.lag else ""
                lines.append(f"memory {memory.memory} is {memory.state}{behind}")
        return "\n".join(lines)

    async def _usage(self, session: Session, person: str) -> str:
        """What this session came to, and whoever asks today, with every agent."""
        total = Usage()
        for entry in await self.store.list_entries(session.id, kinds=(Kind.ENDED,)):
            if isinstance(entry.body, Ended):
                total += entry.body.usage
        today = await self.store.get_spend(f"person:{person}", self.day())
        return (
            f"{total.input} tokens in, {total.output} out, {total.usd:.4f} USD.\n"
            f"You, everywhere, today: {today.tokens} tokens, {today.usd:.4f} USD."
        )

    async def _sessions(self, session: Session, entry: Entry) -> str:
        lines: list[str] = []
        async for one in self._open_to(session, entry):
            if len(lines) == MOST_LISTED:
                lines.append("… and older ones")
                break
            lines.append(f"{one.id} {one.title}".strip())
        return "\n".join(lines) or "You have no sessions."

    async def _commit(
        self,
        step: Step,
        bodies: tuple[Body, ...],
        *,
        by: str = "system",
        seen: int | None = None,
        lane: CursorUpdate | None = None,
        wakes: tuple[Wakeup, ...] = (),
        state_write: StateWrite | None = None,
    ) -> None:
        await self.gates.commit(
            Change(
                step=step,
                session=self.claim.session,
                at=self.gates.clock.now(),
                # what somebody has noted is theirs; the rest is the gateway's doing
                entries=tuple(
                    Draft(body=body, author=by if isinstance(body, Noted) else "system", op=OWN) for body in bodies
                ),
                claim=self.claim,
                seen=seen,
                cursor=lane,
                wakeups=wakes,
                state_writes=() if state_write is None else (state_write,),
            )
        )
        if wakes:
            self.bells.ring(self.claim.session)


def _may_mean(name: str, session: Session, *, led: str | None) -> bool:
    """Whether somebody may mean a session by its title, the beginning of its id, or the address that `led` to it."""
    return session.id == led or session.id.startswith(name) or session.title.casefold() == name.casefold()
