"""What the OpenAI-compatible routes share: from a request to words that grow, with a session or without.

With a session only what follows the last assistant message is heard: the log knows the rest better than any caller.
Without one the request goes to the agent's model as it is, and nothing is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from msgspec import Struct

from everhold.core.entries import Began, Ended, Heard, Kind, Stamp, Thought, Took, Usage
from everhold.core.tokens import weigh_request
from everhold.core.turn import Answered, Broken, Overlong, Unreachable
from everhold.errors import Refused
from everhold.flow import perform
from everhold.flow.purse import Limit, Worst
from everhold.flow.runtime import purses_of
from everhold.platforms.http import address, with_id
from everhold.ports.model import Answer, Message, Request, ToolSpec
from everhold.ports.platform import Incoming
from everhold.ports.store import Change, Spend, Step
from everhold.web.answers import Refusal, seconds
from everhold.web.call import Call
from everhold.web.office import Office
from everhold.web.reply import Growth, Reply, Turned, Words, follow

SESSION: Final = "x-everhold-session"
PERSON: Final = "x-everhold-person"
KEY: Final = "idempotency-key"
LOOK_BACK: Final = 500
"""Entries that are looked at together."""
LOOK_BACK_SECONDS: Final = 3_600.0
"""No client waits so long for an answer and then asks once more by itself."""
REPEAT_SECONDS: Final = 120.0
"""Clients wait for at most a minute before they repeat something by themselves."""
_LOOKED_AT: Final = (Kind.HEARD, Kind.BEGAN, Kind.TOOK, Kind.ENDED)
LEAVE_SECONDS: Final = 0.1
"""After this it is looked whether a caller has left; most are answered before they could."""

PARAMS: Final = ("temperature", "top_p", "max_tokens", "stop", "seed")


class Asked(Struct, frozen=True, kw_only=True):
    """A request of either kind."""

    agent: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    params: dict[str, Any] = {}

    @property
    def most_output(self) -> int:
        """Tokens the caller allows the answer; 0 if they leave it to the model."""
        allowed = self.params.get("max_tokens")
        return allowed if isinstance(allowed, int) else 0

    @property
    def heard(self) -> str:
        """What follows the last assistant message."""
        new: list[str] = []
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            if message.role == "user":
                new.append(message.text)
        return "\n\n".join(reversed(new))


async def grow(call: Call, asked: Asked, *, stream: bool) -> AsyncIterator[Growth]:
    """The answer as it grows, or only its end. Whatever can be refused at once is refused before this returns."""
    session = header(call, SESSION)
    if session:
        return await _in_session(call, asked, session, stream=stream)
    return _without(call, asked)


# -- with a session ----------------------------------------------------------------------------------------------------


async def _in_session(call: Call, asked: Asked, chat: str, *, stream: bool) -> AsyncIterator[Growth]:
    if not asked.heard.strip():
        raise Refusal(400, "misuse", "no user message follows the last assistant message", remedy="add one")
    sender = call.caller.speaks_for(header(call, PERSON))
    message = call.office.incoming(agent=asked.agent, chat=chat, text=asked.heard, sender=sender, id="")
    message = with_id(message, await _id(call, message))
    verdict = await call.office.control.send(message)
    match verdict.outcome:
        case "accepted" | "duplicate":
            return follow(call.office, session=verdict.session, seq=verdict.seq, growing=stream)
        case "differs":
            raise Refusal(
                409,
                "conflict",
                "this Idempotency-Key was used for another message",
                remedy="give a new message a new key",
                headers={"x-should-retry": "false"},
            )
        case _:
            raise Refusal(403, "denied", verdict.reason)


async def _id(call: Call, message: Incoming) -> str:
    """What makes this message recognisable. Clients that repeat by themselves say so and send the very same bytes."""
    if key := header(call, KEY):
        return f"key:{key}"
    digest = hashlib.sha256(call.raw).hexdigest()[:24]
    repeats = call.headers.get("x-stainless-retry-count", "0")
    if repeats != "0":
        found = await call.office.store.get_bound_session(address(message.origin, agent=message.agent))
        if found and (id := await _heard_before(call.office, found[0], f"auto:{digest}:")):
            return id
    return f"auto:{digest}:{call.office.control.gates.chance.bytes(9).hex()}"


async def _heard_before(office: Office, session: str, start: str) -> str:
    """The id of the message that a client repeats: one that is not answered yet, or has just been.

    People say the same twice. What was answered a while ago has reached whoever asked, and they are not asking again.
    """
    now, upto = office.control.gates.clock.now(), (await office.store.get_session(session)).last_seq
    ended: dict[int, float] = {}
    over: dict[int, float | None] = {}
    while upto > 0:
        page = await office.store.list_entries(session, after=max(0, upto - LOOK_BACK), upto=upto, kinds=_LOOKED_AT)
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
        upto -= LOOK_BACK
    return ""


# -- without one -------------------------------------------------------------------------------------------------------


async def _without(call: Call, asked: Asked) -> AsyncIterator[Growth]:
    """Ask the agent's model. With a key a repeat gets the same answer; without, leaving ends the call."""
    pieces: asyncio.Queue[Growth | None] = asyncio.Queue()
    key = header(call, KEY)
    if key:
        digest = hashlib.sha256(call.raw).digest()
        task = call.office.once.start((call.caller.account, key), digest, lambda: _ask(call, asked, pieces))
    else:
        task = asyncio.get_running_loop().create_task(_ask(call, asked, pieces))
    task.add_done_callback(lambda _: pieces.put_nowait(None))
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        yield await asyncio.shield(task)
    finally:
        if not key and not task.done():
            task.cancel()


async def _ask(call: Call, asked: Asked, pieces: asyncio.Queue[Growth | None]) -> Reply:
    office = call.office
    runtime = office.agents.runtime(asked.agent, {})
    person = await office.person(call.caller.speaks_for(header(call, PERSON)))
    # nothing is kept of what is said, but what it costs is: it comes out of the same purses as everything else
    limits = runtime.limits(Stamp(person=person))[:2]
    request = Request(
        system="\n\n".join(part for part in (runtime.system, asked.system) if part),
        messages=asked.messages,
        tools=asked.tools,
        params=asked.params,
    )
    weight, grown = weigh_request(request), list[str]()
    reading, writing = runtime.meter.most(weight), asked.most_output or runtime.most_output
    worst = Worst(usd=runtime.price(reading, writing), tokens=reading + writing)

    def on_text(piece: str | None) -> None:
        grown.append(piece or "")
        pieces.put_nowait(Turned() if piece is None else Words(piece))

    async with _allowed(office, limits, worst):
        try:
            event = await perform.ask(
                office.control.gates,
                runtime.models,
                request,
                deadline=runtime.model_deadline,
                record=_thought,
                on_text=on_text,
            )
        except asyncio.CancelledError:  # the caller left; what was asked is paid for all the same
            await _pay(office, asked.agent, person, runtime.given_up(weight, "".join(grown)))
            raise
        if isinstance(event, Answered):
            await _pay(office, asked.agent, person, event.thought.usage)
    match event:
        case Answered(thought):
            id = office.control.gates.chance.bytes(12).hex()
            cut = thought.finish == "length"
            return Reply(id=id, text=thought.text, usage=thought.usage, calls=thought.calls, cut=cut)
        case Unreachable(reason=reason, retry_after=wait):
            headers = {"retry-after": seconds(wait)} if wait is not None else {}
            raise Refusal(503, "overloaded", office.scrub(reason), remedy="try again", headers=headers)
        case Overlong(reason=reason):
            raise Refusal(400, "too_long", office.scrub(reason), remedy="send less")
        case Broken(reason=reason):
            raise Refusal(502, "refused", office.scrub(reason), headers={"x-should-retry": "false"})
        case _:
            raise AssertionError(event)


@contextlib.asynccontextmanager
async def _allowed(office: Office, limits: Sequence[Limit], worst: Worst) -> AsyncIterator[None]:
    try:
        async with office.purses.reserved(limits, worst):
            yield
    except Refused as error:
        headers = {"x-should-retry": "false"}
        raise Refusal(429, "refused", error.message, remedy=error.remedy or "", headers=headers) from error


async def _pay(office: Office, agent: str, person: str, usage: Usage) -> None:
    gates, tokens = office.control.gates, usage.input + usage.output
    if tokens:
        spends = [
            Spend(budget=purse, day=office.agents.day(), usd=usage.usd, tokens=tokens)
            for purse in purses_of(agent, Stamp(person=person))[:2]
        ]
        await gates.store.commit(Change(step=Step.SPEND, session="", at=gates.clock.now(), spends=tuple(spends)))


def _thought(answer: Answer) -> Thought:
    return Thought(
        text=answer.text,
        calls=answer.calls,
        reasoning=answer.reasoning,
        model=answer.model,
        usage=answer.usage,
        finish=answer.finish,
    )


# -- both --------------------------------------------------------------------------------------------------------------


def header(call: Call, name: str) -> str:
    """A header's text; names that are not ASCII come as UTF-8."""
    raw = call.headers.get(name, "").strip()
    try:
        text = raw.encode("latin-1").decode()
    except UnicodeError:
        text = raw
    if len(text) > 200 or not text.isprintable():
        raise Refusal(400, "misuse", f"{name} must be at most 200 printable characters")
    return text


async def primed(call: Call, growth: AsyncIterator[Growth]) -> AsyncIterator[Growth]:
    """The same, after its beginning has come or has been waited for: an early failure is raised here."""

    async def begin() -> Growth:
        async for more in growth:
            if not isinstance(more, Turned):
                return more
        raise AssertionError("an answer ends with what was recorded")

    first = asyncio.ensure_future(begin())
    await asyncio.wait((first,), timeout=call.office.patience)
    if first.done():
        first.result()
    return _chained(first, growth)


async def _chained(first: asyncio.Future[Growth], growth: AsyncIterator[Growth]) -> AsyncIterator[Growth]:
    try:
        yield await first
        async for more in growth:
            yield more
    finally:
        first.cancel()


async def whole(call: Call, growth: AsyncIterator[Growth]) -> Reply | None:
    """The record, once it is there; None if the caller left before."""

    reading, left = asyncio.current_task(), False
    reply: Reply | None = None
    gone: asyncio.Future[None] | None = None
    assert reading is not None

    def leave(_: object) -> None:
        nonlocal left
        left = True
        reading.cancel()

    def look_out() -> None:
        nonlocal gone
        gone = asyncio.ensure_future(call.left())
        gone.add_done_callback(leave)

    alarm = asyncio.get_running_loop().call_later(LEAVE_SECONDS, look_out)
    try:
        async for more in growth:  # to its end: what is left in the middle has to be closed by somebody
            if isinstance(more, Reply):
                reply = more
    except asyncio.CancelledError:
        if not left:
            raise
        reading.uncancel()
    finally:
        alarm.cancel()
        if gone is not None:
            gone.remove_done_callback(leave)
            gone.cancel()
    return reply
