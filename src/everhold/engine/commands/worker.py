"""The command worker: each command becomes one commit. Commands do not wait for pending messages and need no model.

`engine/commands/handlers.py` has the handler of each command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from everhold.core import consumers
from everhold.core.commands import describe_action, get_command_roles, name_action
from everhold.core.entries import OWN_OPERATION, Began, Ended, Entry, EntryBody, EntryDraft, Heard, Noted, Notified
from everhold.core.inbox import PendingMessage
from everhold.core.message_split import split_text
from everhold.core.roles import PersonRole, explain_refusal
from everhold.engine import session_changes
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.commands.handlers import CommandRequest, CommandResult, handle_command
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.roles import RoleSource, find_entry_role, find_heard_place
from everhold.engine.session_access import is_foreign_session
from everhold.errors import Conflict
from everhold.ports.store import Change, Claim, CursorUpdate, Session, StateWrite, Step, Wakeup

CARRIED_OUT_BY_ADMISSION: Final = frozenset({"halt", "wake"})
MAX_FAILURES: Final = 4
"""A command that crashed so often is given up."""


PARTED_REPLY: Final = (
    "I did not do that, because this chat no longer belongs to the person of that conversation. Please send it again."
)


class CommandWorker:
    """Handles the commands of one session, in order."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        runtimes: AgentRuntimes,
        roles: RoleSource,
        wakeups: Wakeups,
        get_today: Callable[[], str],
    ) -> None:
        self.gates = gates
        self.store = gates.store
        self.claim = claim
        self.runtimes = runtimes
        self.roles = roles
        self.wakeups = wakeups
        self.get_today = get_today
        self.failures = claim.cursor.attempts
        self.log = gates.log.bind(session=claim.session)

    async def run(self) -> None:
        while True:
            session = await self.store.get_session(self.claim.session)
            pending = await self.store.scan_pending(session.id)
            first = next((it for it in pending if it.command), None)
            if first is None:
                update = CursorUpdate(idle_at=session.last_seq, attempts=0, error="", release=True)
                await self._commit(Step.CURSOR_SETTLE, (), update=update)
                return
            entry = await self.store.get_entry(session.id, first.seq)
            if not isinstance(entry.body, Heard):
                continue  # it was erased meanwhile
            try:
                if self.failures >= MAX_FAILURES:
                    await self._give_up(session, entry)
                else:
                    await self._handle(session, entry, pending)
            except Conflict:
                continue  # the session changed after we read it: read it again
            self.failures = 0

    async def _give_up(self, session: Session, entry: Entry) -> None:
        """End a command that crashed repeatedly, so that the next commands are not delayed, and notify the person."""
        assert isinstance(entry.body, Heard)
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        reason = self.claim.cursor.error or "it crashed"
        text = f"That command could not be carried out: {reason}"
        notice = _notice(entry.body, text, about="command", runtime=runtime)
        bodies: tuple[EntryBody, ...] = (
            Began(type="command", takes=(entry.seq,), consumer=consumers.COMMANDS, trigger="failed"),
            notice,
            Ended(outcome="failed", reason=reason),
        )
        await self._commit(Step.COMMAND, bodies, seen=session.last_seq, wakeups=runtime.list_platform_wakeups(bodies))

    async def _handle(self, session: Session, entry: Entry, pending: list[PendingMessage]) -> None:
        """Run the command's handler, and commit the result as one operation."""
        assert isinstance(entry.body, Heard)
        assert entry.body.command is not None
        heard, command = entry.body, entry.body.command
        runtime = self.runtimes.get_runtime(session.agent, session.choices)
        standing = await find_entry_role(self.roles, entry)
        # The admission has carried out these already, with the role of that time.
        role = heard.role if command.name in CARRIED_OUT_BY_ADMISSION else standing.role
        place = find_heard_place(heard)
        cell = get_command_roles(command)[place]
        request = CommandRequest(
            name=command.name,
            session=session,
            entry=entry,
            heard=heard,
            pending=pending,
            runtime=runtime,
            gates=self.gates,
            runtimes=self.runtimes,
            wakeups=self.wakeups,
            today=self.get_today(),
            roles=self.roles,
            action=name_action(command),
            cell=cell,
            place=place,
            role=PersonRole.STRANGER if role is None else role,
            owners=standing.owners,
        )
        if role is None or (cell.role is not None and not cell.allows(role)):
            refusal = explain_refusal(
                describe_action(request.action),
                needed=cell.role or PersonRole.MEMBER,
                role=role,
                place=place,
                owners=standing.owners,
            )
            self.log.info("command.refused", command=command.name, role=None if role is None else role.label)
            result = CommandResult(reply=refusal)
        elif await self._has_left_session(session, entry):
            result = CommandResult(reply=PARTED_REPLY)
        else:
            result = await handle_command(request, command.argument)
        notices = (_notice(heard, result.reply, about=command.name, runtime=runtime),) if result.reply else ()
        takes = tuple(sorted((entry.seq, *result.takes)))
        bodies = session_changes.wrap_as_command(
            (*result.changes, *notices), trigger=command.name, takes=takes, consumer=consumers.COMMANDS
        )
        await self._commit(
            Step.COMMAND,
            bodies,
            by=entry.author,
            seen=session.last_seq,
            wakeups=(*result.wakes, *runtime.list_platform_wakeups(bodies)),
            state_write=result.state_write,
        )
        self.log.info("command.completed", command=command.name)

    async def _has_left_session(self, session: Session, entry: Entry) -> bool:
        """Return whether the session belongs to another person, because an identity was unlinked since the command."""
        people = await self.gates.store.get_people()
        sender = entry.author.removeprefix("person:")
        return people.has_parted_since(sender) and await is_foreign_session(
            self.gates.store, session, people, (sender,)
        )

    async def _commit(
        self,
        step: Step,
        bodies: tuple[EntryBody, ...],
        *,
        by: str = "system",
        seen: int | None = None,
        update: CursorUpdate | None = None,
        wakeups: tuple[Wakeup, ...] = (),
        state_write: StateWrite | None = None,
    ) -> None:
        await self.gates.commit(
            Change(
                step=step,
                session=self.claim.session,
                at=self.gates.clock.now(),
                # The person is the author of their notes; the gateway is the author of the other entries.
                entries=tuple(
                    EntryDraft(body=body, author=by if isinstance(body, Noted) else "system", op=OWN_OPERATION)
                    for body in bodies
                ),
                claim=self.claim,
                seen=seen,
                cursor=update,
                wakeups=wakeups,
                state_writes=() if state_write is None else (state_write,),
            )
        )
        if wakeups:
            self.wakeups.notify(self.claim.session)


def _notice(heard: Heard, text: str, *, about: str, runtime: AgentRuntime) -> Notified:
    """Return a notice to the chat that a command came from."""
    return Notified(text=text, about=about, to=heard.origin, parts=split_text(text, runtime.text_limit(heard.origin)))
