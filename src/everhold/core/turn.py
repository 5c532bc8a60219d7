"""One turn as a state machine: `step(turn, event) -> (turn, effect)`.

The state is only what is recorded, so taking up a turn after a crash is the same function over the same entries: it
goes on at the first thing that was not recorded. Nothing in here waits, asks or runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from everhold.core.entries import (
    Attachment,
    Began,
    Body,
    Call,
    Called,
    Ended,
    Entry,
    Returned,
    Thought,
    Took,
    Usage,
)
from everhold.ports.tool import Effect

MOST_ROUNDS: Final = 60
"""A turn that asked the model this often is going in circles."""
MOST_ATTEMPTS: Final = 5
"""A turn that fell over this often ends failed."""

UNKNOWN_OUTCOME: Final = (
    "This was started before a restart and nobody can tell whether it was completed. "
    "Check before you do it again, and say so to the person if it matters."
)
NOT_RUN: Final = "Not run: the turn ended before this call was started."

SEND_LESS: Final = (
    "send it in smaller parts, or choose a model with a larger window (/model) and then /retry. What you write next is "
    "answered with only its beginning and end in view; /undo takes it out altogether"
)
CUT_OFF: Final = "My answer was cut off at the model's length limit. Say “go on”, and I do."
START_OVER: Final = "/retry tries it again, /new begins without what was said before"


class Turn(Struct, frozen=True, kw_only=True):
    """What is recorded of an operation."""

    session: str
    op: int
    takes: tuple[int, ...] = ()
    rounds: int = 0
    open: tuple[Call, ...] = ()
    """Calls of the newest thought that have no result yet, in order."""
    started: Mapping[str, Called] = {}
    """Those of them that were started."""
    usage: Usage = Usage()
    attempts: int = 1
    left_over: bool = False
    """Taken up from somebody else: what is started may be done, half done, or not."""
    over: bool = False
    attached: tuple[Attachment, ...] = ()
    """Files that go with its reply."""


# -- events: what happened ---------------------------------------------------------------------------------------------


class Opened(Struct, frozen=True):
    """The turn begins, or is taken up again."""


class Recorded(Struct, frozen=True):
    """These bodies are committed."""

    bodies: tuple[Body, ...]


class Answered(Struct, frozen=True):
    """The model answered."""

    thought: Thought


class Ran(Struct, frozen=True):
    """A tool came back. Its notes and sayings are committed with the result, by whoever performs."""

    returned: Returned


class Unreachable(Struct, frozen=True, kw_only=True):
    """No model could be asked now."""

    reason: str
    retry_after: float | None = None


class Overlong(Struct, frozen=True, kw_only=True):
    """The request does not fit the model."""

    reason: str


class Broken(Struct, frozen=True, kw_only=True):
    """It cannot go on, and trying again will not help."""

    reason: str
    remedy: str = ""
    """What helps instead of trying again."""
    stubs: tuple[int, ...] = ()
    """Messages that do not fit the model by themselves."""


class CutShort(Struct, frozen=True):
    """Somebody stopped the turn, or something more urgent came."""

    outcome: Literal["stopped", "interrupted"]
    usage: Usage = Usage()
    """About what the call has cost that was given up for it."""


Event: TypeAlias = Opened | Recorded | Answered | Ran | Unreachable | Overlong | Broken | CutShort


# -- effects: what to do next ------------------------------------------------------------------------------------------


class Ask(Struct, frozen=True):
    """Ask the model, after letting the mailbox steer."""


class Record(Struct, frozen=True):
    """Commit these bodies under the operation."""

    bodies: tuple[Body, ...]


class Run(Struct, frozen=True, kw_only=True):
    """Run a tool. `again`: with the same key, after a restart. `probe`: ask whether it was done, and run it if not."""

    call: Call
    key: str
    how: Literal["first", "again", "probe"] = "first"


class Finish(Struct, frozen=True, kw_only=True):
    """End the turn in one commit: these bodies, the reply if there is one, and `ended`."""

    ended: Ended
    bodies: tuple[Body, ...] = ()
    reply: str = ""
    attached: tuple[Attachment, ...] = ()
    """Files that go with the reply."""
    notice: str = ""
    """What the chat is told instead of, or beside, a reply."""
    given_up: Usage = Usage()
    """What a call has cost whose answer nobody waited for."""


class Wait(Struct, frozen=True, kw_only=True):
    """Nobody to ask now. `release`: nothing was done yet, so the messages become pending again."""

    release: bool
    reason: str
    retry_after: float | None = None


class Shrink(Struct, frozen=True, kw_only=True):
    """The context must become smaller before the next question."""

    reason: str


Task: TypeAlias = Ask | Record | Run | Finish | Wait | Shrink


# -- the machine -------------------------------------------------------------------------------------------------------


def replay(entries: Iterable[Entry], *, session: str, op: int, attempts: int = 1, left_over: bool = False) -> Turn:
    """The turn that an operation's recorded entries stand for."""
    bodies = tuple(entry.body for entry in entries if entry.body is not None)
    turn = Turn(session=session, op=op, attempts=attempts, left_over=left_over)
    return _record(turn, bodies)


def step(turn: Turn, event: Event, effects: Mapping[str, Effect]) -> tuple[Turn, Task]:
    """What follows from `event`. `effects` says what each tool's repeat would do; a tool not in it is `once`."""
    assert not turn.over, "a turn that has ended takes no more events"
    match event:
        case Opened():
            if turn.attempts > MOST_ATTEMPTS:
                return turn, _fail(turn, f"it was started {turn.attempts - 1} times and never came to an end")
            return turn, _next(turn, effects)
        case Recorded(bodies):
            turn = structs.replace(_record(turn, bodies), left_over=False)
            return turn, _next(turn, effects)
        case Answered(thought):
            return turn, _answered(turn, thought, effects)
        case Ran(returned):
            return turn, Record((returned,))
        case Unreachable(reason=reason, retry_after=retry_after):
            return turn, Wait(release=turn.rounds == 0, reason=reason, retry_after=retry_after)
        case Overlong(reason=reason):
            return turn, Shrink(reason=reason)
        case Broken(reason=reason, remedy=remedy, stubs=stubs):
            return turn, _fail(turn, reason, remedy=remedy, stubs=stubs)
        case CutShort(outcome, usage):
            ended = Ended(outcome=outcome, usage=turn.usage + usage)
            return turn, Finish(ended=ended, bodies=_close(turn), given_up=usage)


def _record(turn: Turn, bodies: tuple[Body, ...]) -> Turn:
    for body in bodies:
        match body:
            case Began(takes=takes) | Took(takes=takes):
                turn = structs.replace(turn, takes=turn.takes + takes)
            case Thought(calls=calls, usage=usage):
                turn = structs.replace(turn, rounds=turn.rounds + 1, open=calls, started={}, usage=turn.usage + usage)
            case Called(call=call):
                turn = structs.replace(turn, started={**turn.started, call: body})
            case Returned(call=call, attached=attached):
                files = tuple(dict.fromkeys((*turn.attached, *attached)))
                turn = structs.replace(turn, open=tuple(c for c in turn.open if c.id != call), attached=files)
            case Ended():
                turn = structs.replace(turn, over=True)
            case _:
                pass  # notes, sayings and notices do not move a turn
    return turn


def _next(turn: Turn, effects: Mapping[str, Effect]) -> Task:
    """The first thing that is not recorded yet."""
    if not turn.open:
        if turn.rounds >= MOST_ROUNDS:
            return _fail(turn, f"the model was asked {turn.rounds} times without coming to an answer")
        return Ask()
    call = turn.open[0]
    effect = effects.get(call.tool, Effect.ONCE)
    called = turn.started.get(call.id)
    if called is None:
        if effect is Effect.PURE:
            return Run(call=call, key=_key(turn, call))
        return Record((_called(turn, call, effect),))
    if not turn.left_over:
        return Run(call=call, key=called.key)
    # what it was when it started counts, not what it is configured to be now
    match called.effect:
        case Effect.KEYED:
            return Run(call=call, key=called.key, how="again")
        case Effect.PROBE:
            return Run(call=call, key=called.key, how="probe")
        case _:
            return Record((Returned(call=call.id, text=UNKNOWN_OUTCOME, error=True, unknown=True),))


def _answered(turn: Turn, thought: Thought, effects: Mapping[str, Effect]) -> Task:
    thought = structs.replace(thought, calls=_distinct(thought.calls, turn.rounds))
    if not thought.calls:
        usage = turn.usage + thought.usage
        reply = thought.text if thought.text.strip() else ", ".join(file.name or "a file" for file in turn.attached)
        if not reply:
            reason = "the model answered nothing"
            return Finish(
                ended=Ended(outcome="failed", reason=reason, usage=usage),
                bodies=(thought,),
                notice=_failure_notice(reason),
            )
        notice = CUT_OFF if thought.finish == "length" else ""
        return Finish(ended=Ended(usage=usage), bodies=(thought,), reply=reply, attached=turn.attached, notice=notice)
    # the first call's start can be recorded together with the thought: both come before anything runs
    first = thought.calls[0]
    effect = effects.get(first.tool, Effect.ONCE)
    after = _record(turn, (thought,))
    if effect is Effect.PURE:
        return Record((thought,))
    return Record((thought, _called(after, first, effect)))


def _called(turn: Turn, call: Call, effect: Effect) -> Called:
    return Called(call=call.id, tool=call.tool, effect=effect, key=_key(turn, call))


def _key(turn: Turn, call: Call) -> str:
    """The same whenever this very call is made again, and never for another."""
    return f"{turn.session}:{turn.op}:{turn.rounds}:{call.id}"


def _distinct(calls: tuple[Call, ...], round_: int) -> tuple[Call, ...]:
    """Calls with ids that can be told apart: some models leave them out or give them twice."""
    given = {call.id for call in calls}
    made = (id for n in itertools.count() if (id := f"call-{round_}-{n}") not in given)
    seen: set[str] = set()
    distinct: list[Call] = []
    for call in calls:
        if not call.id or call.id in seen:
            call = structs.replace(call, id=next(made))
        seen.add(call.id)
        distinct.append(call)
    return tuple(distinct)


def _close(turn: Turn) -> tuple[Body, ...]:
    """A result for every open call, so that calls and results never part."""
    return tuple(
        Returned(call=call.id, text=UNKNOWN_OUTCOME, error=True, unknown=True)
        if call.id in turn.started
        else Returned(call=call.id, text=NOT_RUN, error=True)
        for call in turn.open
    )


def _fail(turn: Turn, reason: str, *, remedy: str = "", stubs: tuple[int, ...] = ()) -> Finish:
    return Finish(
        ended=Ended(outcome="failed", reason=reason, usage=turn.usage, stubs=stubs),
        bodies=_close(turn),
        notice=_failure_notice(reason, remedy),
    )


def _failure_notice(reason: str, remedy: str = "") -> str:
    return f"I could not answer: {reason}. Your message is kept; {remedy or '/retry tries it again'}."
