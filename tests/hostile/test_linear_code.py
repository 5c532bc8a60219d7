"""Code without patterns also handles foreign input in proportion to its size. The executed lines are counted.

Work inside one call of the interpreter, such as the search in a list or a copy, is not a line. Where code could copy
what it has so far again and again, the copied bytes are counted instead.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from everhold.api.openai_responses import ResponseRequest, _parse_request
from everhold.api.reply_wait import ReplyText
from everhold.api.streaming import ReplyWriter
from everhold.config import Settings
from everhold.core.schedule import MissedRuns
from everhold.engine.commands.schedule import parse_schedule_options
from everhold.hermes.reader.agent_log import CompressionLogLine, summarize_compressions
from everhold.hermes.reader.database import HermesSession
from everhold.hermes.reader.lineage import trace_lineage
from everhold.infra.deep_json import cut_deep_parts
from everhold.models.openai import _StreamedToolCall
from everhold.models.transcript import ThinkTagSplitter
from everhold.platforms.matrix.parsing import MatrixRoom, iterate_rooms

MAX_GROWTH: Final = 2.4
"""How much the lines may grow when the input doubles: twice is linear, four times is quadratic."""


def count_lines(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(former)
    return count


EMPTY: Final = HermesSession(
    id="", source="", user_id="", session_key="", chat_id="", chat_type="", thread_id="", origin={}, model="",
    config={}, parent="", started_at=0.0, ended_at=1.0, end_reason="compression", title="", cwd="", repo="",
    api_calls=0, input_tokens=0, output_tokens=0, cache_read_tokens=0, usd=0.0,
)  # fmt: skip


def make_sessions(count: int, *, parent: Callable[[int], int | None]) -> list[HermesSession]:
    parents = [parent(number) for number in range(count)]
    return [
        EMPTY._replace(id=f"s{number}", parent="" if of is None else f"s{of}", started_at=float(number))
        for number, of in enumerate(parents)
    ]


def trace_chain(count: int) -> None:
    trace_lineage(make_sessions(count, parent=lambda number: number - 1 if number else None), {})


def trace_reversed_chain(count: int) -> None:
    trace_lineage(make_sessions(count, parent=lambda number: number + 1 if number + 1 < count else None), {})


def trace_cycle(count: int) -> None:
    trace_lineage(make_sessions(count, parent=lambda number: (number + 1) % count), {})


def trace_fork(count: int) -> None:
    trace_lineage(make_sessions(count, parent=lambda number: 0 if number else None), {})


def make_lines(count: int, *, sessions: int) -> list[CompressionLogLine]:
    return [
        CompressionLogLine(f"agent.log:{n}", "2026-01-01 00:00:00", "started", f"s{n % sessions}", "", "7")
        for n in range(count)
    ]


def start_often(count: int) -> None:
    summarize_compressions(make_lines(count, sessions=1))


def start_and_end_elsewhere(count: int) -> None:
    ends = [
        CompressionLogLine(f"agent.log:{count + n}", "2026-01-01 00:00:00", "done", f"t{n}", "", "7")
        for n in range(count)
    ]
    summarize_compressions([*make_lines(count, sessions=count), *ends])


def nest_deeply(count: int) -> None:
    cut_deep_parts("[" * count + "]" * count)


@pytest.mark.parametrize(
    "play",
    [trace_chain, trace_reversed_chain, trace_cycle, trace_fork, start_often, start_and_end_elsewhere, nest_deeply],
)
def test_twice_the_input_takes_twice_the_lines(play: Callable[[int], None]) -> None:
    small, large = count_lines(lambda: play(200)), count_lines(lambda: play(400))
    assert small > 200
    assert large / small < MAX_GROWTH, f"{small:,} lines become {large:,}"


def test_a_nested_search_is_found() -> None:
    def compare_all(count: int) -> int:
        return sum(
            one == other
            for one in range(count)
            for other in range(count)
        )  # fmt: skip

    small, large = count_lines(lambda: compare_all(100)), count_lines(lambda: compare_all(200))
    assert large / small > MAX_GROWTH


def test_no_session_of_a_cycle_is_lost() -> None:
    """A cycle of parents with a branch: every session is in exactly one chain."""
    sessions = make_sessions(6, parent=lambda number: (number + 1) % 3 if number < 3 else number - 3)
    for order in (sessions, sessions[::-1]):
        lineage = trace_lineage(order, {})
        assert sorted(id for chain in lineage.chains for id in chain.ids) == sorted(it.id for it in sessions)


# -- copies ------------------------------------------------------------------------------------------------------------


def measure_peak(work: Callable[[], object]) -> int:
    """Return how many bytes are held at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def rename_members(count: int) -> int:
    """Every member of a room changes the display name, which is a membership event."""
    room = MatrixRoom(members={f"@m{number}:example.org": f"m{number}" for number in range(count)})
    past = {"prev_content": {"membership": "join", "displayname": "x"}}
    events = [
        {"type": "m.room.member", "state_key": f"@m{number}:example.org", "unsigned": past} for number in range(count)
    ]
    return measure_peak(lambda: list(iterate_rooms(room, events)))


def test_twice_as_many_renamed_members_take_twice_the_memory() -> None:
    small, large = rename_members(500), rename_members(1_000)
    assert large / small < MAX_GROWTH, f"{small:,} bytes become {large:,}"


class CopiedText(str):
    """A text that counts how many characters are copied when it is added to another one."""

    copied = 0

    def __radd__(self, other: str) -> str:
        CopiedText.copied += len(other) + len(self)
        return str.__add__(other, self)


def write_long_reply(count: int) -> int:
    """A model sends its reply letter by letter."""
    CopiedText.copied, writer = 0, ReplyWriter()
    for _ in range(count):
        writer.write_growth(ReplyText(CopiedText("a")))
    assert writer.written_text == "a" * count
    return CopiedText.copied


def test_a_reply_in_many_pieces_is_copied_once() -> None:
    assert write_long_reply(1_000) <= 1_000


async def test_many_tool_calls_of_one_message_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of a megabyte has room for twenty thousand of them."""
    copied, replace = 0, msgspec.structs.replace

    def count_copies(message: Any, **changes: Any) -> Any:
        nonlocal copied
        copied += len(changes.get("calls", ()))
        return replace(message, **changes)

    monkeypatch.setattr(msgspec.structs, "replace", count_copies)
    made = [{"type": "function_call", "call_id": f"c{number}", "name": "x"} for number in range(500)]
    items = [*made, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *made[:3]]
    agents = SimpleNamespace(settings=Settings())
    context = SimpleNamespace(agents=agents)
    call: Any = SimpleNamespace(resolve_agent=lambda name: name, context=context, raw_body=b"")
    asked = await _parse_request(call, ResponseRequest(model="main", input=items))
    assert [(message.role, len(message.calls)) for message in asked.messages] == [
        ("assistant", 500), ("user", 0), ("assistant", 3),
    ]  # fmt: skip
    assert copied <= 503, f"{copied:,} calls were copied"


@pytest.mark.parametrize("beginning", ["", "<think>a</think>"])
def test_much_white_space_before_an_answer_is_copied_once(beginning: str) -> None:
    splitter = ThinkTagSplitter()
    splitter.feed(beginning)
    CopiedText.copied = 0
    for _ in range(1_000):
        assert splitter.feed(CopiedText(" ")) == ("", "")
    assert CopiedText.copied <= 1_000
    assert splitter.feed("b") == ("", "b" if beginning else " " * 1_000 + "b")


def test_an_endless_name_of_a_tool_is_not_collected() -> None:
    call = _StreamedToolCall("c")
    for number in range(5_000):
        call.add({"name": f"{number}"}, {})
    assert len(call.name) < 2_000


def test_options_of_a_command_that_are_repeated_do_not_copy_its_text_each_time() -> None:
    """One command had 3.6 s of work on the event loop for 900 KB of them."""
    repeated = " --skip-missed" * 2_000
    assert parse_schedule_options(f"x{repeated}")[0] == f"x{repeated.removesuffix(' --skip-missed')}"
    assert parse_schedule_options("x --skip-missed --to a --to b") == ("x --skip-missed --to a", "b", MissedRuns.LATEST)
    lines = [count_lines(lambda n=n: parse_schedule_options("x" + " --to a" * n)) for n in (10, 1_000)]  # type: ignore[misc]
    assert lines[0] == lines[1]
