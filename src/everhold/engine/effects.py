"""One effect in the world -> one event for the turn. The room where foreign code is caught.

Models and tools are other people's code: whatever they raise becomes an event a turn can act on, never a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from everhold.core.attachments import build_attachment
from everhold.core.entries import Returned, Thought, strip_surrogates, strip_surrogates_deep
from everhold.core.turn import (
    ModelAnswered,
    ModelUnreachable,
    RequestTooLong,
    RunTool,
    ToolFinished,
    TurnBroken,
    TurnEvent,
)
from everhold.engine.gates import Gates
from everhold.errors import EverholdError, InDoubt, InvalidRequest, LeaseLost, Overloaded, Refused, TooLong, Transient
from everhold.ports.model import Model, ModelRequest, ModelResponse
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult

T = TypeVar("T")

MAX_ECHOED_CHARS: Final = 200
"""Characters of arguments that could not be read, as they are shown to the model that wrote them."""
TOOL_START_SECONDS: Final = 15.0
"""How long a turn waits for tools that are being started."""


async def ask_models(
    gates: Gates,
    models: Sequence[Model],
    request: ModelRequest,
    *,
    deadline: float,
    record: Callable[[ModelResponse], Thought],
    on_text: Callable[[str | None], None] | None = None,
) -> TurnEvent:
    """Ask the first model, and the next where one cannot answer. Asking again is harmless, so a lost answer is too.

    `on_text` gets the text as it grows, and None where what it got so far is no part of an answer after all.
    """
    reasons: list[str] = []
    waits: list[float] = []
    refusals = 0
    for model in models:
        try:
            answer = await _ask_one_model(gates, model, request, deadline=deadline, on_text=on_text)
        except TooLong as error:
            return RequestTooLong(reason=str(error))
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
                return TurnBroken(reason=f"the model refused: {error}")
        except Exception as error:  # a model adapter is foreign code; its bug must not take the session down
            gates.log.error("model.failed", model=model.name, error=error)
            reasons.append(f"{model.name}: {type(error).__name__}")
        else:
            return ModelAnswered(strip_surrogates_deep(record(answer)))
    return ModelUnreachable(reason="; ".join(reasons), retry_after=min(waits) if waits else None)


async def _ask_one_model(
    gates: Gates, model: Model, request: ModelRequest, *, deadline: float, on_text: Callable[[str | None], None] | None
) -> ModelResponse:
    what = f"model {model.name}"
    if on_text is None:
        return await gates.call(what, lambda: model.answer(request), deadline=deadline)
    grown = False

    def hear(piece: str) -> None:
        nonlocal grown
        grown = True
        on_text(strip_surrogates(piece)[0])  # whoever reads along gets text: half a character cannot be sent on

    try:
        return await gates.call(what, lambda: model.answer(request, on_text=hear), deadline=deadline)
    except Exception:  # whatever it was, no more of this will come; who asked decides what it means
        if grown:
            on_text(None)
        raise


async def wait_for_tools(gates: Gates, coming: Callable[[], Awaitable[None]]) -> bool:
    """Give tools that are being started their time. The turn goes on without those that take longer."""
    with contextlib.suppress(InDoubt):
        await gates.call("tools being started", coming, deadline=TOOL_START_SECONDS)
    return True


async def run_tool(
    gates: Gates,
    tool: Tool | None,
    task: RunTool,
    context: ToolContext,
    *,
    still_ours: Callable[[], Awaitable[object]] | None = None,
) -> tuple[TurnEvent, ToolResult]:
    """Run a tool for a call. Its failure is its result, and reaches the model.

    `still_ours` raises LeaseLost if somebody else took the operation over: whoever did waits out a tool's deadline
    before it asks what was done, so nobody may begin a run that was theirs only before.
    """
    if tool is None:
        result = ToolResult(text=f"There is no tool {task.call.tool!r}.", error=True)
    elif (written := task.call.unparsed_arguments) is not None:
        # many a tool passes over what it does not know, and would do something nobody asked for
        text = f"{task.call.tool} was not run: its arguments are no JSON object. Call it again with all of them."
        result = strip_surrogates_deep(ToolResult(text=f"{text} They were: {written[:MAX_ECHOED_CHARS]}", error=True))
    else:
        result = strip_surrogates_deep(await _attempt_tool(gates, tool, task, context, still_ours))
    files = tuple(build_attachment(file.data, name=file.name, media=file.media) for file in result.files)
    returned = Returned(
        call=task.call.id, text=result.text, error=result.error, files=files, attached=tuple(result.attached)
    )
    return ToolFinished(returned), result


async def _attempt_tool(
    gates: Gates, tool: Tool, task: RunTool, context: ToolContext, still_ours: Callable[[], Awaitable[object]] | None
) -> ToolResult:
    name = tool.spec.name
    try:
        if task.how == "probe":
            # whoever started it may be stalled, not dead: until its deadline it may be done yet
            await gates.sleep(tool.deadline)
            done = await gates.call(f"probe of {name}", lambda: tool.probe(context), deadline=tool.deadline)
            if done is not None:
                return _check_result(name, done)
        since = gates.clock.monotonic()
        if still_ours is not None and tool.effect is ToolEffect.PROBE:
            await still_ours()
        left = since + tool.deadline - gates.clock.monotonic()
        run = gates.call(f"tool {name}", lambda: tool.run(dict(task.call.arguments), context), deadline=left)
        return _check_result(name, await run)
    except InDoubt as error:
        return ToolResult(text=f"{error}. It may have been done all the same: check before repeating it.", error=True)
    except LeaseLost:
        raise
    except EverholdError as error:
        return ToolResult(text=str(error), error=True)
    except Exception as error:  # a tool is foreign code; what it raises is what the model gets to see
        gates.log.warning("tool.failed", tool=name, error=error)
        return ToolResult(text=f"{name} failed: {type(error).__name__}: {error}", error=True)


def _check_result(name: str, answer: object) -> ToolResult:
    if not isinstance(answer, ToolResult):
        raise InvalidRequest(f"{name} gave back a {type(answer).__name__}, no Result; what it did is not known")
    return answer


async def deliver_outside(what: str, work: Callable[[], Awaitable[T]], gates: Gates, *, deadline: float) -> T:
    """A call to a platform or provider. What it does not say clearly is in doubt: it may have happened."""
    try:
        return await gates.call(what, work, deadline=deadline)
    except EverholdError:
        raise
    except Exception as error:  # an adapter that raises something of its own has told us nothing about the far side
        raise InDoubt(f"{what} failed: {type(error).__name__}: {error}") from error


def call_plugin(what: str, work: Callable[[], T]) -> T:
    """A call into a plug-in that is not awaited: to build it, to ask what it offers. Its bug gets a name."""
    try:
        return work()
    except EverholdError:
        raise
    except Exception as error:  # whoever asked goes on without it, and says so
        raise InvalidRequest(
            f"{what} failed: {type(error).__name__}: {error}", remedy="`everhold plugin test` may show why"
        ) from error


async def close_within(work: Awaitable[object], *, seconds: float) -> str:
    """Something foreign that is to end within `seconds`; what went wrong with it, or nothing."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return f"it did not end within {seconds:g} s"
    except Exception as error:  # it is being got rid of: that it fails at this is worth a line, and no more
        return f"{type(error).__name__}: {error}"
    return ""
