"""One effect in the world -> one event for the turn. The room where foreign code is caught.

Models and tools are other people's code: whatever they raise becomes an event a turn can act on, never a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from everhold.core.attachments import attachment
from everhold.core.entries import Returned, Thought, clean, cleansed
from everhold.core.turn import Answered, Broken, Event, Overlong, Ran, Run, Unreachable
from everhold.errors import EverholdError, InDoubt, LeaseLost, Misuse, Overloaded, Refused, TooLong, Transient
from everhold.flow.gates import Gates
from everhold.ports.model import Answer, Model, Request
from everhold.ports.tool import Effect, Result, Tool, ToolContext

T = TypeVar("T")

MOST_WRITTEN: Final = 200
"""Characters of arguments that could not be read, as they are shown to the model that wrote them."""
COMING_SECONDS: Final = 15.0
"""How long a turn waits for tools that are being started."""


async def ask(
    gates: Gates,
    models: Sequence[Model],
    request: Request,
    *,
    deadline: float,
    record: Callable[[Answer], Thought],
    on_text: Callable[[str | None], None] | None = None,
) -> Event:
    """Ask the first model, and the next where one cannot answer. Asking again is harmless, so a lost answer is too.

    `on_text` gets the text as it grows, and None where what it got so far is no part of an answer after all.
    """
    reasons: list[str] = []
    waits: list[float] = []
    refusals = 0
    for model in models:
        try:
            answer = await _answer(gates, model, request, deadline=deadline, on_text=on_text)
        except TooLong as error:
            return Overlong(reason=str(error))
        except (Overloaded, Transient) as error:
            reasons.append(f"{model.name}: {error}")
            if error.retry_after is not None:
                waits.append(error.retry_after)
        except InDoubt as error:
            reasons.append(str(error))
        except (Refused, EverholdError) as error:
            reasons.append(f"{model.name}: {error}")
            refusals += 1
            if refusals == len(models):  # one that is only away may take it when it is back
                return Broken(reason=f"the model refused: {error}")
        except Exception as error:  # a model adapter is foreign code; its bug must not take the session down
            gates.log.error("model.failed", model=model.name, error=error)
            reasons.append(f"{model.name}: {type(error).__name__}")
        else:
            return Answered(cleansed(record(answer)))
    return Unreachable(reason="; ".join(reasons), retry_after=min(waits) if waits else None)


async def _answer(
    gates: Gates, model: Model, request: Request, *, deadline: float, on_text: Callable[[str | None], None] | None
) -> Answer:
    what = f"model {model.name}"
    if on_text is None:
        return await gates.call(what, lambda: model.answer(request), deadline=deadline)
    grown = False

    def hear(piece: str) -> None:
        nonlocal grown
        grown = True
        on_text(clean(piece)[0])  # whoever reads along gets text: half a character cannot be sent on

    try:
        return await gates.call(what, lambda: model.answer(request, on_text=hear), deadline=deadline)
    except Exception:  # whatever it was, no more of this will come; who asked decides what it means
        if grown:
            on_text(None)
        raise


async def wait_for_tools(gates: Gates, coming: Callable[[], Awaitable[None]]) -> bool:
    """Give tools that are being started their time. The turn goes on without those that take longer."""
    with contextlib.suppress(InDoubt):
        await gates.call("tools being started", coming, deadline=COMING_SECONDS)
    return True


async def run(
    gates: Gates,
    tool: Tool | None,
    task: Run,
    context: ToolContext,
    *,
    still_ours: Callable[[], Awaitable[object]] | None = None,
) -> tuple[Event, Result]:
    """Run a tool for a call. Its failure is its result, and reaches the model.

    `still_ours` raises LeaseLost if somebody else took the operation over: whoever did waits out a tool's deadline
    before it asks what was done, so nobody may begin a run that was theirs only before.
    """
    if tool is None:
        result = Result(text=f"There is no tool {task.call.tool!r}.", error=True)
    elif (written := task.call.unreadable) is not None:
        # many a tool passes over what it does not know, and would do something nobody asked for
        text = f"{task.call.tool} was not run: its arguments are no JSON object. Call it again with all of them."
        result = cleansed(Result(text=f"{text} They were: {written[:MOST_WRITTEN]}", error=True))
    else:
        result = cleansed(await _attempt(gates, tool, task, context, still_ours))
    files = tuple(attachment(file.data, name=file.name, media=file.media) for file in result.files)
    returned = Returned(
        call=task.call.id, text=result.text, error=result.error, files=files, attached=tuple(result.attached)
    )
    return Ran(returned), result


async def _attempt(
    gates: Gates, tool: Tool, task: Run, context: ToolContext, still_ours: Callable[[], Awaitable[object]] | None
) -> Result:
    name = tool.spec.name
    try:
        if task.how == "probe":
            # whoever started it may be stalled, not dead: until its deadline it may be done yet
            await gates.sleep(tool.deadline)
            done = await gates.call(f"probe of {name}", lambda: tool.probe(context), deadline=tool.deadline)
            if done is not None:
                return _result(name, done)
        since = gates.clock.monotonic()
        if still_ours is not None and tool.effect is Effect.PROBE:
            await still_ours()
        left = since + tool.deadline - gates.clock.monotonic()
        run = gates.call(f"tool {name}", lambda: tool.run(dict(task.call.arguments), context), deadline=left)
        return _result(name, await run)
    except InDoubt as error:
        return Result(text=f"{error}. It may have been done all the same: check before repeating it.", error=True)
    except LeaseLost:
        raise
    except EverholdError as error:
        return Result(text=str(error), error=True)
    except Exception as error:  # a tool is foreign code; what it raises is what the model gets to see
        gates.log.warning("tool.failed", tool=name, error=error)
        return Result(text=f"{name} failed: {type(error).__name__}: {error}", error=True)


def _result(name: str, answer: object) -> Result:
    if not isinstance(answer, Result):
        raise Misuse(f"{name} gave back a {type(answer).__name__}, no Result; what it did is not known")
    return answer


async def hand_over(what: str, work: Callable[[], Awaitable[T]], gates: Gates, *, deadline: float) -> T:
    """A call to a platform or provider. What it does not say clearly is in doubt: it may have happened."""
    try:
        return await gates.call(what, work, deadline=deadline)
    except EverholdError:
        raise
    except Exception as error:  # an adapter that raises something of its own has told us nothing about the far side
        raise InDoubt(f"{what} failed: {type(error).__name__}: {error}") from error


def foreign(what: str, work: Callable[[], T]) -> T:
    """A call into a plug-in that is not awaited: to build it, to ask what it offers. Its bug gets a name."""
    try:
        return work()
    except EverholdError:
        raise
    except Exception as error:  # whoever asked goes on without it, and says so
        raise Misuse(
            f"{what} failed: {type(error).__name__}: {error}", remedy="`everhold plugin test` may show why"
        ) from error


async def let_go(work: Awaitable[object], *, seconds: float) -> str:
    """Something foreign that is to end within `seconds`; what went wrong with it, or nothing."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return f"it did not end within {seconds:g} s"
    except Exception as error:  # it is being got rid of: that it fails at this is worth a line, and no more
        return f"{type(error).__name__}: {error}"
    return ""
