"""Shared code of the OpenAI-compatible routes: produces the growing reply to a request, with or without a session.

In a session only the messages after the last assistant message are accepted, because the log has the others. Without
a session the request goes to the agent's model unchanged, and nothing is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.api.context import ApiContext
from everhold.api.errors import ApiError, build_limited_error, format_retry_after
from everhold.api.idempotency import TaskKey
from everhold.api.reply_wait import FinalReply, ReplyGrowth, ReplyRestarted, ReplyText, follow_reply
from everhold.api.request import PERSON_HEADER, ApiCall, decode_header
from everhold.api.shared_answers import SharedAnswers
from everhold.core.budget import list_turn_budgets
from everhold.core.entries import Attachment, Began, Ended, EntryKind, Heard, ModelUsage, Stamp, Thought, Took
from everhold.core.people import build_identity
from everhold.core.roles import PersonRole
from everhold.core.tokens import weigh_request
from everhold.core.turn import ModelAnswered, ModelUnreachable, RequestTooLong, TurnBroken
from everhold.engine import effects
from everhold.engine.budgets import BudgetLimit, WorstCaseCost
from everhold.errors import Refused
from everhold.ingress.roles import identify_person
from everhold.platforms import http
from everhold.platforms.http import format_address, with_message_id
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse, ToolSpec
from everhold.ports.platform import IncomingMessage
from everhold.ports.store import BudgetSpend, Change, Step

SESSION_HEADER: Final = "x-everhold-session"
IDEMPOTENCY_KEY_HEADER: Final = "idempotency-key"
LOOK_BACK_ENTRIES: Final = 500
"""The number of entries that are read at once."""
LOOK_BACK_SECONDS: Final = 3_600.0
"""Clients do not repeat a request by themselves after this time."""
REPEAT_SECONDS: Final = 120.0
"""Clients wait for at most a minute before they repeat a request by themselves."""
_LOOK_BACK_KINDS: Final = (EntryKind.HEARD, EntryKind.BEGAN, EntryKind.TOOK, EntryKind.ENDED)
DISCONNECT_CHECK_SECONDS: Final = 0.1
"""After this time the connection is watched for a disconnect. Most requests are answered earlier."""

PASSED_PARAMS: Final = ("temperature", "top_p", "max_tokens", "stop", "seed")


class OpenAIQuery(Struct, frozen=True, kw_only=True):
    """A request of either OpenAI format."""

    agent: str
    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    params: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    """The contents of the attachments of the messages, by their hash."""

    @property
    def max_output_tokens(self) -> int:
        """The caller's limit for the answer in tokens; 0 if none is given."""
        allowed = self.params.get("max_tokens")
        return allowed if isinstance(allowed, int) else 0

    @property
    def new_text(self) -> str:
        """The text of the user messages after the last assistant message."""
        return "\n\n".join(message.text for message in self._list_new() if message.text)

    @property
    def new_attachments(self) -> tuple[Attachment, ...]:
        """The files of the user messages after the last assistant message."""
        return tuple(dict.fromkeys(file for message in self._list_new() for file in message.attachments))

    def _list_new(self) -> list[ModelMessage]:
        last = max((place for place, it in enumerate(self.messages) if it.role == "assistant"), default=-1)
        return [message for message in self.messages[last + 1 :] if message.role == "user"]


async def stream_reply(call: ApiCall, asked: OpenAIQuery, *, stream: bool) -> AsyncIterator[ReplyGrowth]:
    """Return the growing reply, or only its end. Refusals that are known at once are raised before this returns."""
    session = get_header(call, SESSION_HEADER)
    if session:
        return await _stream_session_reply(call, asked, session, stream=stream)
    return _stream_model_reply(call, asked)


# -- with a session ----------------------------------------------------------------------------------------------------


async def _stream_session_reply(
    call: ApiCall, asked: OpenAIQuery, chat: str, *, stream: bool
) -> AsyncIterator[ReplyGrowth]:
    files = asked.new_attachments
    if not asked.new_text.strip() and not files:
        raise ApiError(400, "invalid_request", "no user message follows the last assistant message", remedy="add one")
    sender = call.caller.resolve_sender(get_header(call, PERSON_HEADER))
    message = call.context.build_incoming_message(
        call.caller, agent=asked.agent, chat=chat, text=asked.new_text, sender=sender, id="", trace=call.traceparent
    )
    message = with_message_id(message, await _derive_message_id(call, message))
    message = msgspec.structs.replace(
        message,
        by_operator=call.caller.operator,
        attachments=files,
        files=tuple(asked.files[file.blob] for file in files),
    )
    verdict = await call.context.control.send_message(message)
    match verdict.outcome:
        case "accepted" | "duplicate":
            return follow_reply(call.context, session=verdict.session, seq=verdict.seq, growing=stream)
        case "differs":
            raise ApiError(
                409,
                "conflict",
                "this Idempotency-Key was used for another message",
                remedy="give a new message a new key",
                headers={"x-should-retry": "false"},
            )
        case "limited":
            raise build_limited_error(verdict)
        case _:
            raise ApiError(403, "denied", verdict.reason)


async def _derive_message_id(call: ApiCall, message: IncomingMessage) -> str:
    """Return an id by which a repeat is recognised. A client that retries says so and sends the same bytes."""
    if key := get_header(call, IDEMPOTENCY_KEY_HEADER):
        return f"key:{key}"
    digest = hashlib.sha256(call.raw_body).hexdigest()[:24]
    repeats = call.headers.get("x-stainless-retry-count", "0")
    if repeats != "0":
        found = await call.context.store.get_bound_session(format_address(message.origin, agent=message.agent))
        if found and (id := await _find_repeated_message(call.context, found[0], f"auto:{digest}:")):
            return id
    return f"auto:{digest}:{call.context.control.gates.chance.bytes(9).hex()}"


async def _find_repeated_message(context: ApiContext, session: str, start: str) -> str:
    """Return the id of the message that a client repeats: one that is unanswered, or was answered a moment ago.

    A message with the same text that was answered longer ago is not a repeat, because people send the same text twice.
    """
    now, upto = context.control.gates.clock.now(), (await context.store.get_session(session)).last_seq
    ended: dict[int, float] = {}
    over: dict[int, float | None] = {}
    while upto > 0:
        page = await context.store.list_entries(
            session, after=max(0, upto - LOOK_BACK_ENTRIES), upto=upto, kinds=_LOOK_BACK_KINDS
        )
        for entry in reversed(page):
            match entry.body:
                case Ended(outcome=outcome) if outcome != "released":
                    ended[entry.op or 0] = entry.at
                case Began(takes=takes) | Took(takes=takes):
                    for seq in takes:
                        over.setdefault(seq, ended.get(entry.op or 0))
                case Heard(origin=origin) if origin.message.startswith(start):
                    answered = over.get(entry.seq)
                    return origin.message if answered is None or now - answered < REPEAT_SECONDS else ""
                case _:
                    pass
        if page and now - page[0].at > LOOK_BACK_SECONDS:
            break
        upto -= LOOK_BACK_ENTRIES
    return ""


# -- without a session -------------------------------------------------------------------------------------------------


async def _stream_model_reply(call: ApiCall, asked: OpenAIQuery) -> AsyncIterator[ReplyGrowth]:
    """Call the agent's model. With a key a repeat gets the same answer; without one a disconnect cancels the call."""
    pieces: asyncio.Queue[ReplyGrowth | None] = asyncio.Queue()
    key = get_header(call, IDEMPOTENCY_KEY_HEADER)
    if key:
        digest = hashlib.sha256(call.raw_body).digest()
        sender = call.caller.resolve_sender(get_header(call, PERSON_HEADER))
        known = TaskKey(call.caller.account, sender, key)
        task = call.context.idempotent_tasks.start(
            known, digest, lambda: _answer_once(call, known, digest, lambda: _call_model(call, asked, pieces))
        )
    else:
        task = asyncio.get_running_loop().create_task(_call_model(call, asked, pieces))
    task.add_done_callback(lambda _: pieces.put_nowait(None))
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        yield await asyncio.shield(task)
    finally:
        if not key and not task.done():
            task.cancel()


async def _answer_once(
    call: ApiCall, key: TaskKey, digest: bytes, work: Callable[[], Awaitable[FinalReply]]
) -> FinalReply:
    """Answer by `work`, or with the answer of another host. A repeat at another host receives the answer as a whole."""
    if call.context.store.is_exclusive:
        return await work()
    return await SharedAnswers(call.context.control.gates).answer_once(key, digest, work)


async def _call_model(call: ApiCall, asked: OpenAIQuery, pieces: asyncio.Queue[ReplyGrowth | None]) -> FinalReply:
    context = call.context
    runtime = context.agents.get_runtime(asked.agent, {})
    person = build_identity(http.NAME, call.caller.resolve_sender(get_header(call, PERSON_HEADER)))
    # the messages are not stored, but their cost counts towards the same budgets as that of turns
    limits = runtime.limits(Stamp(person=person), await find_payer_role(call, asked.agent, person))[:2]
    request = ModelRequest(
        system="\n\n".join(part for part in (runtime.system, asked.system) if part),
        messages=asked.messages,
        tools=asked.tools,
        params=asked.params,
        files=asked.files,
    )
    weight, grown = weigh_request(request), list[str]()
    reading, writing = runtime.meter.estimate_max_tokens(weight), asked.max_output_tokens or runtime.max_output_tokens
    worst = WorstCaseCost(usd=runtime.price_usd(reading, writing), tokens=reading + writing)

    def on_text(piece: str | None) -> None:
        grown.append(piece or "")
        pieces.put_nowait(ReplyRestarted() if piece is None else ReplyText(piece))

    async with _reserve_budget(context, limits, worst):
        try:
            event = await effects.ask_models(
                context.control.gates,
                runtime.models,
                request,
                agent=runtime.agent,
                deadline=runtime.model_deadline_seconds,
                record=_to_thought,
                on_text=on_text,
            )
        except asyncio.CancelledError:  # the caller disconnected; the provider charges for the call anyway
            await _record_spending(
                context, asked.agent, person, runtime.estimate_abandoned_usage(weight, "".join(grown))
            )
            raise
        if isinstance(event, ModelAnswered):
            await _record_spending(context, asked.agent, person, event.thought.usage)
    match event:
        case ModelAnswered(thought):
            id = context.control.gates.chance.bytes(12).hex()
            cut = thought.finish == "length"
            return FinalReply(id=id, text=thought.text, usage=thought.usage, calls=thought.calls, is_truncated=cut)
        case ModelUnreachable(reason=reason, remedy=remedy) if remedy:
            raise ApiError(
                502,
                "operator_needed",
                context.redact_text(reason),
                remedy="the operator has to act: `everhold status` names the cause",
                headers={"x-should-retry": "false"},
            )
        case ModelUnreachable(reason=reason, retry_after=wait):
            headers = {"retry-after": format_retry_after(wait)} if wait is not None else {}
            raise ApiError(503, "overloaded", context.redact_text(reason), remedy="try again", headers=headers)
        case RequestTooLong(reason=reason):
            raise ApiError(400, "too_long", context.redact_text(reason), remedy="send less")
        case TurnBroken(reason=reason):
            raise ApiError(502, "refused", context.redact_text(reason), headers={"x-should-retry": "false"})
        case _:
            raise AssertionError(event)


async def find_payer_role(call: ApiCall, agent: str, person: str) -> PersonRole:
    """Return the role that decides about the quotas of a caller whose message is not stored."""
    settings = call.context.agents.settings
    label = identify_person(person, await call.context.store.get_people()).label
    is_owner = label and label in (*settings.access.owners, *settings.get_agent(agent).owners)
    return PersonRole.OWNER if is_owner or call.caller.operator else PersonRole.MEMBER


@contextlib.asynccontextmanager
async def _reserve_budget(
    context: ApiContext, limits: Sequence[BudgetLimit], worst: WorstCaseCost
) -> AsyncIterator[None]:
    try:
        async with context.budgets.prepare_reservation(limits, worst):
            yield
    except Refused as error:
        headers = {"x-should-retry": "false"}
        raise ApiError(429, "refused", error.message, remedy=error.remedy or "", headers=headers) from error


async def _record_spending(context: ApiContext, agent: str, person: str, usage: ModelUsage) -> None:
    gates, tokens = context.control.gates, usage.input + usage.output
    if tokens:
        spends = [
            BudgetSpend(budget=budget, day=context.agents.get_today(), usd=usage.usd, tokens=tokens)
            for budget in list_turn_budgets(agent, Stamp(person=person))[:2]
        ]
        await gates.store.commit(Change(step=Step.SPEND, session="", at=gates.clock.now(), spends=tuple(spends)))


def _to_thought(answer: ModelResponse) -> Thought:
    return Thought(
        text=answer.text,
        calls=answer.calls,
        reasoning=answer.reasoning,
        model=answer.model,
        usage=answer.usage,
        finish=answer.finish,
    )


# -- with and without a session ----------------------------------------------------------------------------------------


def get_header(call: ApiCall, name: str) -> str:
    """Return a header's text, decoded as UTF-8 if possible."""
    text = decode_header(call.headers.get(name, ""))
    if len(text) > 200 or not text.isprintable():
        raise ApiError(400, "invalid_request", f"{name} must be at most 200 printable characters")
    return text


async def prime_stream(call: ApiCall, growth: AsyncIterator[ReplyGrowth]) -> AsyncIterator[ReplyGrowth]:
    """Wait for the first text and return the complete stream. An early failure is raised here, so it gets a status."""

    async def read_first() -> ReplyGrowth:
        async for more in growth:
            if not isinstance(more, ReplyRestarted):
                return more
        raise AssertionError("a reply ends with the committed text")

    first = asyncio.ensure_future(read_first())
    await asyncio.wait((first,), timeout=call.context.first_text_wait_seconds)
    if first.done():
        first.result()
    return _chain_stream(first, growth)


async def _chain_stream(
    first: asyncio.Future[ReplyGrowth], growth: AsyncIterator[ReplyGrowth]
) -> AsyncIterator[ReplyGrowth]:
    try:
        yield await first
        async for more in growth:
            yield more
    finally:
        first.cancel()


async def collect_reply(call: ApiCall, growth: AsyncIterator[ReplyGrowth]) -> FinalReply | None:
    """Return the final reply, or None if the caller disconnected before."""
    reading, left = asyncio.current_task(), False
    reply: FinalReply | None = None
    disconnected: asyncio.Future[None] | None = None
    assert reading is not None

    def on_disconnect(_: object) -> None:
        nonlocal left
        left = True
        reading.cancel()

    def watch_connection() -> None:
        nonlocal disconnected
        disconnected = asyncio.ensure_future(call.wait_for_disconnect())
        disconnected.add_done_callback(on_disconnect)

    alarm = asyncio.get_running_loop().call_later(DISCONNECT_CHECK_SECONDS, watch_connection)
    try:
        async for more in growth:  # to the end, because a generator left in the middle would have to be closed
            if isinstance(more, FinalReply):
                reply = more
    except asyncio.CancelledError:
        if not left:
            raise
        reading.uncancel()
    finally:
        alarm.cancel()
        if disconnected is not None:
            disconnected.remove_done_callback(on_disconnect)
            disconnected.cancel()
    return reply
