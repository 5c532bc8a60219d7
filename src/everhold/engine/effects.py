"""Call models, tools, platforms and plug-ins, and turn their results and exceptions into events.

Adapters and plug-ins are foreign code. Whatever they raise becomes an event that a turn can handle, never a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from everhold.core.attachments import build_attachment
from everhold.core.entries import ModelUsage, Returned, Thought, strip_surrogates, strip_surrogates_deep
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
from everhold.errors import (
    EverholdError,
    InDoubt,
    InvalidRequest,
    LeaseLost,
    OperatorNeeded,
    Overloaded,
    Refused,
    TooLong,
    Transient,
)
from everhold.ports.model import Model, ModelRequest, ModelResponse
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult
from everhold.telemetry.metric_registry import MetricRegistry
from everhold.telemetry.metrics import COST_USD_TOTAL, MODEL_SECONDS, TOKENS_TOTAL, TOOL_SECONDS

T = TypeVar("T")

MAX_ECHOED_CHARS: Final = 200
"""Characters of unreadable arguments that are shown to the model that wrote them."""
TOOL_START_SECONDS: Final = 15.0
"""How long a turn waits for tools that are starting."""


async def ask_models(
    gates: Gates,
    models: Sequence[Model],
    request: ModelRequest,
    *,
    agent: str,
    deadline: float,
    record: Callable[[ModelResponse], Thought],
    on_text: Callable[[str | None], None] | None = None,
) -> TurnEvent:
    """Ask the first model, and the next one if it cannot answer. A repeated model call is harmless, so a lost answer
    is, too.

    `agent` is for whom it is asked. `on_text` receives the text as it grows, and None if the text so far is discarded.
    """
    reasons: list[str] = []
    waits: list[float] = []
    remedies: list[str] = []
    refusals = 0
    for model in models:
        try:
            with gates.metrics.time_call(MODEL_SECONDS, model.name):
                answer = await _ask_one_model(gates, model, request, deadline=deadline, on_text=on_text)
            _count_usage(gates.metrics, agent, model.name, answer.usage)
        except TooLong as error:
            return RequestTooLong(reason=str(error))
        except (Overloaded, Transient) as error:
            reasons.append(f"{model.name}: {error}")
            if error.retry_after is not None:
                waits.append(error.retry_after)
            if isinstance(error, OperatorNeeded):
                remedies.append(f"{model.name}: {error.remedy or 'see the log'}")
        except InDoubt as error:
            reasons.append(str(error))
        except (Refused, EverholdError) as error:
            reasons.append(f"{model.name}: {error}")
            refusals += 1
            if refusals == len(models):  # a model that is only unavailable may accept the request later
                return TurnBroken(reason=f"the model refused: {error}")
        except Exception as error:  # a model adapter is foreign code; its bug must not stop the session
            gates.log.error("model.failed", model=model.name, error=error)
            reasons.append(f"{model.name}: {type(error).__name__}")
        else:
            return ModelAnswered(strip_surrogates_deep(record(answer)))
    # Another model may answer later by itself, unless every one of them needs an operator.
    remedy = "; ".join(dict.fromkeys(remedies)) if len(remedies) == len(models) else ""
    return ModelUnreachable(reason="; ".join(reasons), retry_after=min(waits) if waits else None, remedy=remedy)


def _count_usage(metrics: MetricRegistry, agent: str, model: str, usage: ModelUsage) -> None:
    fresh = usage.input - usage.cached
    for type_, tokens in (("input", fresh), ("cached", usage.cached), ("output", usage.output)):
        metrics.count(TOKENS_TOTAL, agent, model, type_, amount=max(tokens, 0))
    metrics.count(COST_USD_TOTAL, agent, model, amount=max(usage.usd, 0.0))


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
        on_text(strip_surrogates(piece)[0])  # a piece may end with half a surrogate pair

    try:
        return await gates.call(what, lambda: model.answer(request, on_text=hear), deadline=deadline)
    except Exception:  # the stream has ended in any case; the caller handles the error
        if grown:
            on_text(None)
        raise


async def wait_for_tools(gates: Gates, coming: Callable[[], Awaitable[None]]) -> bool:
    """Wait for tools that are starting. The turn continues without tools that take longer."""
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
    """Run a tool for a call. A failure is the result of the call, and the model sees it.

    `still_ours` raises LeaseLost if another worker took over the operation. That worker waits for the tool's deadline
    before it probes, so a worker that lost its claim must not start the tool.
    """
    if tool is None:
        result = ToolResult(text=f"There is no tool {task.call.tool!r}.", error=True)
    elif (written := task.call.unparsed_arguments) is not None:
        # Many tools ignore unknown arguments and would do something that was not asked for.
        text = explain_invalid_arguments(task.call.tool, written)
        result = strip_surrogates_deep(ToolResult(text=text, error=True))
    else:
        with gates.metrics.time_call(TOOL_SECONDS, tool.spec.name) as timer:
            result = strip_surrogates_deep(await _attempt_tool(gates, tool, task, context, still_ours))
            timer.outcome = "error" if result.error else "done"
    files = tuple(build_attachment(file.data, name=file.name, media=file.media) for file in result.files)
    returned = Returned(
        call=task.call.id, text=result.text, error=result.error, files=files, attached=tuple(result.attached)
    )
    return ToolFinished(returned), result


def explain_invalid_arguments(tool: str, written: str) -> str:
    """Return what the model is told about a call whose arguments are no JSON object."""
    return (
        f"{tool} was not run: its arguments are not a JSON object. Call it again with all arguments. They were: "
        f"{written[:MAX_ECHOED_CHARS]}"
    )


async def _attempt_tool(
    gates: Gates, tool: Tool, task: RunTool, context: ToolContext, still_ours: Callable[[], Awaitable[object]] | None
) -> ToolResult:
    name = tool.spec.name
    try:
        if task.how == "probe":
            # The worker that started it may be stalled and not dead, so the tool may still run until its deadline.
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
        return ToolResult(text=f"{error}. It may have been done: check before you repeat it.", error=True)
    except LeaseLost:
        raise
    except EverholdError as error:
        return ToolResult(text=str(error), error=True)
    except Exception as error:  # a tool is foreign code; the model sees its exception as the result
        gates.log.warning("tool.failed", tool=name, error=error)
        return ToolResult(text=f"{name} failed: {type(error).__name__}: {error}", error=True)


def _check_result(name: str, answer: object) -> ToolResult:
    if not isinstance(answer, ToolResult):
        raise InvalidRequest(
            f"{name} returned a {type(answer).__name__} instead of a ToolResult; what it did is unknown"
        )
    return answer


async def deliver_outside(what: str, work: Callable[[], Awaitable[T]], gates: Gates, *, deadline: float) -> T:
    """Call a platform or provider. An unclear error means in doubt, because the call may have succeeded."""
    try:
        return await gates.call(what, work, deadline=deadline)
    except EverholdError:
        raise
    except Exception as error:  # an unknown exception of an adapter does not tell whether the call succeeded
        raise InDoubt(f"{what} failed: {type(error).__name__}: {error}") from error


def call_plugin(what: str, work: Callable[[], T]) -> T:
    """Call a plug-in function that is not awaited. Its exception is wrapped, with the name of the plug-in."""
    try:
        return work()
    except EverholdError:
        raise
    except Exception as error:  # the caller continues without the plug-in and reports it
        raise InvalidRequest(
            f"{what} failed: {type(error).__name__}: {error}", remedy="`everhold plugin test` may show why"
        ) from error


async def close_within(work: Awaitable[object], *, seconds: float) -> str:
    """Close a foreign object within `seconds`; return what went wrong, or nothing."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return f"it did not end within {seconds:g} s"
    except Exception as error:  # the object is discarded anyway, so the failure is only logged
        return f"{type(error).__name__}: {error}"
    return ""
