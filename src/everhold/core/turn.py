"""A turn as a state machine: `advance_turn(turn, event, effects) -> (turn, action)`.

The state contains only what is recorded. Resuming a turn after a crash applies the same function to the same entries,
and continues at the first step that was not recorded. Nothing here waits, calls or runs anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from everhold.core.approvals import AFTER_WAITING_TEXT
from everhold.core.entries import (
    ApprovalRequested,
    Attachment,
    Began,
    Called,
    Ended,
    Entry,
    EntryBody,
    EntryKind,
    ModelUsage,
    Returned,
    Thought,
    Took,
    ToolCall,
    list_consumed_seqs,
)
from everhold.ports.tool import ToolEffect

MAX_ROUNDS: Final = 60
"""A turn that asked the model this often ends failed, because it is probably in a loop."""
MAX_TURN_ATTEMPTS: Final = 5
"""A turn that failed this often in one process ends failed. A turn whose processes ended so often is given up for now:
it is tried again once a process has run for a while (`compute_stable_seconds`)."""
FIRST_STABLE_SECONDS: Final = 60.0
MAX_STABLE_SECONDS: Final = 3_600.0

NO_REFUSALS: Final[Mapping[str, str]] = {}
UNKNOWN_OUTCOME_TEXT: Final = (
    "This was started before a restart, and it is unknown whether it was completed. "
    "Check before you do it again, and tell the person if it matters."
)
SPENT_TOOL_TEXT: Final = (
    "Not called: an earlier attempt to answer this message already called {tool}, {outcome}, and had to start over. "
    "It is not called again, so that nothing happens twice. Tell the person; they can ask for it again."
)
NOT_RUN_TEXT: Final = "Not run: the turn ended before this call was started."

SEND_LESS_REMEDY: Final = (
    "send it in smaller parts, or choose a model with a larger window (/model) and then /retry. In later turns I see "
    "only its beginning and end; /undo removes it"
)
WAITING_NOTICE: Final = "The rest waits for permission."
CUT_OFF_NOTICE: Final = "My answer was cut off at the model's length limit. Write “go on” to get the rest."
START_OVER_REMEDY: Final = "/retry tries again, /new starts with an empty context"


class TurnState(Struct, frozen=True, kw_only=True):
    """The recorded state of an operation."""

    session: str
    op: int
    takes: tuple[int, ...] = ()
    rounds: int = 0
    open_calls: tuple[ToolCall, ...] = ()
    """Calls of the newest thought that have no result yet, in order."""
    started_calls: Mapping[str, Called] = {}
    """The calls among `open_calls` that were started."""
    usage: ModelUsage = ModelUsage()
    attempts: int = 1
    resumed: bool = False
    """The turn was started by another worker, so a started call may be done, half done, or not done."""
    ended: bool = False
    attached: tuple[Attachment, ...] = ()
    """Files that are sent with the reply."""
    is_waiting: bool = False
    """A call of the newest thought waits for a person's approval."""
    has_requests: bool = False
    """Some call of the turn waits for a person's approval, so the turn may end without a reply."""


# -- events: what happened ---------------------------------------------------------------------------------------------


class TurnOpened(Struct, frozen=True):
    """The turn begins or resumes."""


class BodiesRecorded(Struct, frozen=True):
    """These bodies are committed."""

    bodies: tuple[EntryBody, ...]


class ModelAnswered(Struct, frozen=True):
    """The model answered."""

    thought: Thought


class ToolFinished(Struct, frozen=True):
    """A tool returned. The effect runner commits its notes and messages together with the result."""

    returned: Returned


class ModelUnreachable(Struct, frozen=True, kw_only=True):
    """No model could be asked."""

    reason: str
    retry_after: float | None = None
    remedy: str = ""
    """What an operator has to do; empty if a model may answer without that."""


class RequestTooLong(Struct, frozen=True, kw_only=True):
    """The request does not fit the model."""

    reason: str


class TurnBroken(Struct, frozen=True, kw_only=True):
    """The turn cannot continue, and a retry would not help."""

    reason: str
    remedy: str = ""
    """What helps instead of a retry."""
    stubs: tuple[int, ...] = ()
    """Messages that do not fit the model by themselves."""


class TurnCutShort(Struct, frozen=True):
    """A person stopped the turn, or a message interrupted it."""

    outcome: Literal["stopped", "interrupted"]
    usage: ModelUsage = ModelUsage()
    """The estimated cost of the model call that was abandoned."""


TurnEvent: TypeAlias = (
    TurnOpened
    | BodiesRecorded
    | ModelAnswered
    | ToolFinished
    | ModelUnreachable
    | RequestTooLong
    | TurnBroken
    | TurnCutShort
)


def is_final_answer(event: TurnEvent) -> bool:
    """Return whether the model answered and wants no tool, so that the turn ends."""
    return isinstance(event, ModelAnswered) and not event.thought.calls


# -- effects: what to do next ------------------------------------------------------------------------------------------


class AskModel(Struct, frozen=True):
    """Ask the model, after the inbox had the chance to steer."""


class RecordBodies(Struct, frozen=True):
    """Commit these bodies under the operation."""

    bodies: tuple[EntryBody, ...]


class RunTool(Struct, frozen=True, kw_only=True):
    """Run a tool. `again`: with the same key, after a restart. `probe`: ask whether it was done, and run it if not."""

    call: ToolCall
    key: str
    how: Literal["first", "again", "probe"] = "first"


class FinishTurn(Struct, frozen=True, kw_only=True):
    """End the turn in one commit: these bodies, the reply if there is one, and `ended`."""

    ended: Ended
    bodies: tuple[EntryBody, ...] = ()
    reply: str = ""
    attached: tuple[Attachment, ...] = ()
    """Files that are sent with the reply."""
    notice: str = ""
    """A notice to the chat, instead of a reply or in addition to it."""
    abandoned_usage: ModelUsage = ModelUsage()
    """The estimated cost of a call that was abandoned."""


class WaitForModel(Struct, frozen=True, kw_only=True):
    """No model can be asked now. `release`: nothing was done yet, so the messages become pending again."""

    release: bool
    reason: str
    retry_after: float | None = None
    remedy: str = ""
    """What an operator has to do; empty if a model may answer without that."""


class ShrinkContext(Struct, frozen=True, kw_only=True):
    """The context must become smaller before the next model call."""

    reason: str


TurnAction: TypeAlias = AskModel | RecordBodies | RunTool | FinishTurn | WaitForModel | ShrinkContext


# -- the machine -------------------------------------------------------------------------------------------------------


def compute_stable_seconds(starts: int) -> float:
    """How long a process must have run before it tries a turn that earlier processes started so often."""
    if starts <= MAX_TURN_ATTEMPTS:
        return 0.0
    return min(FIRST_STABLE_SECONDS * 2.0 ** min(starts - MAX_TURN_ATTEMPTS - 1, 10), MAX_STABLE_SECONDS)


def rebuild_turn(
    entries: Iterable[Entry], *, session: str, op: int, attempts: int = 1, left_over: bool = False
) -> TurnState:
    """Return the turn that an operation's recorded entries describe."""
    bodies = tuple(entry.body for entry in entries if entry.body is not None)
    turn = TurnState(session=session, op=op, attempts=attempts, resumed=left_over)
    return _apply_bodies(turn, bodies)


def advance_turn(
    turn: TurnState,
    event: TurnEvent,
    effects: Mapping[str, ToolEffect],
    refusals: Mapping[str, str] = NO_REFUSALS,
    *,
    because: str = "",
    request: ApprovalRequested | None = None,
) -> tuple[TurnState, TurnAction]:
    """Return the next action after `event`. `effects` has each tool's effect; a tool that is not in it is `once`.

    `refusals` has the tools that this turn may not use, each with the reason that the model is told. `because` is why
    the next call may run; it is recorded when the call starts. `request` is made instead of running the next call;
    the model gets the text in `refusals`.
    """
    assert not turn.ended, "a turn that has ended takes no more events"
    match event:
        case TurnOpened():
            if turn.attempts > MAX_TURN_ATTEMPTS:
                return turn, _fail_turn(turn, f"it was started {turn.attempts - 1} times and never ended")
            return turn, _choose_next_action(turn, effects, refusals, because, request)
        case BodiesRecorded(bodies):
            turn = structs.replace(_apply_bodies(turn, bodies), resumed=False)
            return turn, _choose_next_action(turn, effects, refusals, because, request)
        case ModelAnswered(thought):
            return turn, _choose_action_after_answer(turn, thought, effects, refusals, because)
        case ToolFinished(returned):
            return turn, RecordBodies((returned,))
        case ModelUnreachable(reason=reason, retry_after=retry_after, remedy=remedy):
            return turn, WaitForModel(release=turn.rounds == 0, reason=reason, retry_after=retry_after, remedy=remedy)
        case RequestTooLong(reason=reason):
            return turn, ShrinkContext(reason=reason)
        case TurnBroken(reason=reason, remedy=remedy, stubs=stubs):
            return turn, _fail_turn(turn, reason, remedy=remedy, stubs=stubs)
        case TurnCutShort(outcome, usage):
            ended = Ended(outcome=outcome, usage=turn.usage + usage)
            return turn, FinishTurn(ended=ended, bodies=_close_open_calls(turn), abandoned_usage=usage)


def _apply_bodies(turn: TurnState, bodies: tuple[EntryBody, ...]) -> TurnState:
    for body in bodies:
        match body:
            case Began(takes=takes) | Took(takes=takes):
                turn = structs.replace(turn, takes=turn.takes + takes)
            case Thought(calls=calls, usage=usage):
                turn = structs.replace(
                    turn,
                    rounds=turn.rounds + 1,
                    open_calls=calls,
                    started_calls={},
                    usage=turn.usage + usage,
                    is_waiting=False,
                )
            case ApprovalRequested():
                turn = structs.replace(turn, is_waiting=True, has_requests=True)
            case Called(call=call):
                turn = structs.replace(turn, started_calls={**turn.started_calls, call: body})
            case Returned(call=call, attached=attached):
                files = tuple(dict.fromkeys((*turn.attached, *attached)))
                turn = structs.replace(
                    turn, open_calls=tuple(c for c in turn.open_calls if c.id != call), attached=files
                )
            case Ended():
                turn = structs.replace(turn, ended=True)
            case _:
                pass  # notes, messages and notices do not change the state
    return turn


def list_new_calls(event: TurnEvent) -> tuple[ToolCall, ...]:
    """Return the calls that an event adds to a turn."""
    match event:
        case ModelAnswered(thought):
            return thought.calls
        case BodiesRecorded(bodies):
            return tuple(call for body in bodies if isinstance(body, Thought) for call in body.calls)
        case _:
            return ()


def list_spent_tools(entries: Sequence[Entry], heard: Collection[int], tools: Collection[str]) -> dict[str, str]:
    """Return those of `tools` with which a turn that was taken back has acted for one of the `heard` messages, each
    with what the model is told. `entries` are those of the earlier turn. If it was erased which tool it was, it is any.

    A tool acted if its call was recorded before it started, whatever its effect: the new turn's call has another key.
    A pure tool acted if a message was sent with its result.
    """
    if set(heard).isdisjoint(list_consumed_seqs(entries)):
        return {}
    returned = {entry.body.call for entry in entries if isinstance(entry.body, Returned) and not entry.body.unknown}
    found: dict[str, str] = {}
    for tool, call in _list_acting_calls(entries):
        if tool in tools:
            outcome = "which returned a result" if call in returned else "and it is unknown whether that was completed"
            found[tool] = SPENT_TOOL_TEXT.format(tool=tool, outcome=outcome)
        elif not tool:
            unknown = {it: SPENT_TOOL_TEXT.format(tool=it, outcome="or another such tool") for it in tools}
            found = {**unknown, **found}
    return found


def _list_acting_calls(entries: Iterable[Entry]) -> Iterator[tuple[str, str]]:
    """Yield tool and call id of every call that acted; empty texts if they were erased."""
    tools: dict[str, str] = {}
    last_call = ""
    for entry in entries:
        match entry.body:
            case Thought(calls=calls):
                tools.update({it.id: it.tool for it in calls})
            case Called(tool=tool, call=call):
                yield tool, call
            case Returned(call=call):
                last_call = call
            case None if entry.kind is EntryKind.CALLED:
                yield "", ""
            case None if entry.kind is EntryKind.RETURNED:
                last_call = ""
        # A turn that was taken back has no reply, so a tool sent it, or gave work to a sub-agent.
        if entry.kind in (EntryKind.SAID, EntryKind.CHANGED):
            yield tools.get(last_call, ""), last_call


def _choose_next_action(
    turn: TurnState,
    effects: Mapping[str, ToolEffect],
    refusals: Mapping[str, str],
    because: str,
    request: ApprovalRequested | None,
) -> TurnAction:
    """Return the first action that is not recorded yet."""
    if not turn.open_calls:
        if turn.rounds >= MAX_ROUNDS:
            return _fail_turn(turn, f"the model was asked {turn.rounds} times without giving an answer")
        return AskModel()
    call = turn.open_calls[0]
    effect = effects.get(call.tool, ToolEffect.ONCE)
    called = turn.started_calls.get(call.id)
    if called is None:
        if turn.is_waiting and (effect is not ToolEffect.PURE or call.tool in refusals):
            return RecordBodies((Returned(call=call.id, text=AFTER_WAITING_TEXT, error=True),))
        if request is not None:
            waits = Returned(call=call.id, text=refusals[call.tool], approval=request.id)
            return RecordBodies((request, waits))
        if call.tool in refusals:
            return RecordBodies((Returned(call=call.id, text=refusals[call.tool], error=True),))
        if effect is ToolEffect.PURE:
            return RunTool(call=call, key=_build_call_key(turn, call))
        return RecordBodies((_build_called(turn, call, effect, because),))
    if not turn.resumed:
        return RunTool(call=call, key=called.key)
    # The effect at the start of the call counts, not the effect that is configured now.
    match called.effect:
        case ToolEffect.KEYED:
            return RunTool(call=call, key=called.key, how="again")
        case ToolEffect.PROBE:
            return RunTool(call=call, key=called.key, how="probe")
        case _:
            return RecordBodies((Returned(call=call.id, text=UNKNOWN_OUTCOME_TEXT, error=True, unknown=True),))


def _choose_action_after_answer(
    turn: TurnState, thought: Thought, effects: Mapping[str, ToolEffect], refusals: Mapping[str, str], because: str
) -> TurnAction:
    thought = structs.replace(thought, calls=_make_ids_distinct(thought.calls, turn.rounds))
    if not thought.calls:
        usage = turn.usage + thought.usage
        reply = thought.text if thought.text.strip() else ", ".join(file.name or "a file" for file in turn.attached)
        if not reply and turn.has_requests:
            return FinishTurn(ended=Ended(usage=usage), bodies=(thought,), notice=WAITING_NOTICE)
        if not reply:
            reason = "the model answered nothing"
            return FinishTurn(
                ended=Ended(outcome="failed", reason=reason, usage=usage),
                bodies=(thought,),
                notice=_render_failure(reason),
            )
        notice = CUT_OFF_NOTICE if thought.finish == "length" else ""
        return FinishTurn(
            ended=Ended(usage=usage), bodies=(thought,), reply=reply, attached=turn.attached, notice=notice
        )
    # The start of the first call is recorded together with the thought, because both come before anything runs.
    first = thought.calls[0]
    effect = effects.get(first.tool, ToolEffect.ONCE)
    after = _apply_bodies(turn, (thought,))
    if effect is ToolEffect.PURE or first.tool in refusals:
        return RecordBodies((thought,))
    return RecordBodies((thought, _build_called(after, first, effect, because)))


def find_next_call(turn: TurnState, event: TurnEvent) -> ToolCall | None:
    """Return the call that the turn starts next if nothing refuses it; None if it does not start one now."""
    match event:
        case ModelAnswered(thought):
            return thought.calls[0] if thought.calls else None
        case BodiesRecorded(bodies):
            turn = _apply_bodies(turn, bodies)
        case TurnOpened():
            pass
        case _:
            return None
    call = turn.open_calls[0] if turn.open_calls else None
    return call if call is not None and call.id not in turn.started_calls else None


def _build_called(turn: TurnState, call: ToolCall, effect: ToolEffect, because: str) -> Called:
    return Called(call=call.id, tool=call.tool, effect=effect, key=_build_call_key(turn, call), because=because)


def _build_call_key(turn: TurnState, call: ToolCall) -> str:
    """Return the key of a call. A repeat of this call has the same key, and no other call has it."""
    return f"{turn.session}:{turn.op}:{turn.rounds}:{call.id}"


def _make_ids_distinct(calls: tuple[ToolCall, ...], round_: int) -> tuple[ToolCall, ...]:
    """Return the calls with unique ids, because some models omit ids or repeat them."""
    given = {call.id for call in calls}
    made = (id for n in itertools.count() if (id := f"call-{round_}-{n}") not in given)
    seen: set[str] = set()
    distinct: list[ToolCall] = []
    for call in calls:
        if not call.id or call.id in seen:
            call = structs.replace(call, id=next(made))
        seen.add(call.id)
        distinct.append(call)
    return tuple(distinct)


def _close_open_calls(turn: TurnState) -> tuple[EntryBody, ...]:
    """Return a result for every open call, because every call in the log needs a result."""
    return tuple(
        Returned(call=call.id, text=UNKNOWN_OUTCOME_TEXT, error=True, unknown=True)
        if call.id in turn.started_calls
        else Returned(call=call.id, text=NOT_RUN_TEXT, error=True)
        for call in turn.open_calls
    )


def _fail_turn(turn: TurnState, reason: str, *, remedy: str = "", stubs: tuple[int, ...] = ()) -> FinishTurn:
    return FinishTurn(
        ended=Ended(outcome="failed", reason=reason, usage=turn.usage, stubs=stubs),
        bodies=_close_open_calls(turn),
        notice=_render_failure(reason, remedy),
    )


def _render_failure(reason: str, remedy: str = "") -> str:
    return f"I could not answer: {reason}. Your message is kept; {remedy or '/retry tries again'}."
