"""Every way a model server can fail, on a real socket. Each becomes the error that says what to do next."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import time
import traceback
from email.utils import formatdate
from types import FrameType
from typing import Any

import pytest

from everhold.core.entries import ToolCall
from everhold.errors import EverholdError, InvalidRequest, OperatorNeeded, Overloaded, Refused, TooLong
from everhold.models.openai import OpenAIModel
from everhold.models.settings import OpenAISettings
from everhold.ports.model import ModelMessage, ModelRequest, ToolSpec
from everhold.testing.model_server import (
    DroppedConnection,
    HangingConnection,
    ModelServer,
    ModelServerReply,
    ModelServerStatus,
    ModelServerStep,
    StreamFault,
    VendorFailure,
    make_rate_limit_failure,
)
from tests.models.conftest import KEY, Connect, SystemClock
from tests.waiting import LIMIT_SECONDS

HELLO = ModelRequest(system="Be brief.", messages=(ModelMessage(role="user", text="hello"),))
TOOL = ToolSpec(name="note", description="", parameters={"type": "object", "properties": {}})
LONG = ModelServerReply(text="one two three four five six seven eight")
PATIENT = dict.fromkeys(("connect", "first_byte", "idle", "total"), LIMIT_SECONDS)
"""Deadlines that no test reaches. Each test shortens the one that it checks."""


async def fails(model: Any, kind: type[EverholdError], request: ModelRequest = HELLO) -> Any:
    """Return the error, after a check of what it shows in logs."""
    with pytest.raises(EverholdError) as raised:
        await model.answer(request)
    error = raised.value
    assert type(error) is kind, error
    whole = "".join(traceback.format_exception(error)) + repr(error) + str(error.remedy) + repr(model)
    assert KEY not in whole
    assert error.__context__ is None, "a transport error would bring the request and its headers along"
    assert error.__cause__ is None
    assert "fake" in str(error)
    assert "127.0.0.1" in str(error)
    return error


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", [VendorFailure(kind="too_long"), VendorFailure(kind="server_error"), DroppedConnection()]
)
async def test_a_failure_does_not_keep_its_request_in_memory(
    server: ModelServer, connect: Connect, step: ModelServerStep
) -> None:
    """A cycle would keep it until the next full garbage collection, and one after the other fills the memory."""
    server.add_steps(step)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(EverholdError):
            await connect().answer(HELLO)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = [it for it in gc.garbage if isinstance(it, EverholdError | FrameType)]
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    assert kept == []


@pytest.mark.parametrize("kind", ["rate_limit", "server_error", "overloaded", "billing"])
async def test_temporary_failures_are_overloaded(server: ModelServer, connect: Connect, kind: Any) -> None:
    server.add_steps(VendorFailure(kind=kind))
    error = await fails(connect(), OperatorNeeded if kind == "billing" else Overloaded)
    assert error.retry_after is None
    assert (kind == "billing") == ("credit" in error.remedy)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 529])
async def test_these_statuses_are_temporary(server: ModelServer, connect: Connect, status: int) -> None:
    server.add_steps(ModelServerStatus(status=status, body=b"<html><body><h1>Bad Gateway</h1></body></html>"))
    error = await fails(connect(), Overloaded)
    assert "Bad Gateway" in str(error)
    assert "<h1>" not in str(error)


async def test_too_long_is_recognised(server: ModelServer, connect: Connect) -> None:
    server.add_steps(VendorFailure(kind="too_long"))
    await fails(connect(), TooLong)
    server.context_tokens = 50
    long = ModelRequest(system="", messages=(ModelMessage(role="user", text="many words " * 100),))
    await fails(connect(), TooLong, long)
    server.add_steps(ModelServerStatus(status=413, body=b""))
    server.context_tokens = None
    await fails(connect(), TooLong)


@pytest.mark.parametrize(
    "kind, remedy",
    [("unauthorized", "api_key_env"), ("forbidden", "key"), ("not_found", "base_url"), ("invalid", "params")],
)
async def test_permanent_failures_are_refused_with_a_remedy(
    server: ModelServer, connect: Connect, kind: Any, remedy: str
) -> None:
    server.add_steps(VendorFailure(kind=kind))
    error = await fails(connect(), Refused if kind == "invalid" else OperatorNeeded)
    assert remedy in error.remedy


async def test_a_wrong_key_is_refused_and_never_shown(server: ModelServer, connect: Connect) -> None:
    server.key = "another"
    error = await fails(connect(), OperatorNeeded)
    assert "401" in str(error)
    assert "sk-fake" not in str(error), "even a masked key tells something"


async def test_a_server_that_repeats_the_key_is_masked(server: ModelServer, connect: Connect) -> None:
    said = f"bad header Authorization: Bearer {KEY}, x-api-key={KEY}"
    server.add_steps(ModelServerStatus(status=400, body={"error": {"message": said, "type": "invalid_request_error"}}))
    await fails(connect(), Refused)
    server.add_steps(ModelServerStatus(status=500, body=said.encode()))
    await fails(connect(), Overloaded)


async def test_a_redirect_is_not_followed(server: ModelServer, connect: Connect) -> None:
    server.add_steps(ModelServerStatus(status=301, headers={"location": f"{server.url}/elsewhere"}))
    error = await fails(connect(), Refused)
    assert "base_url" in error.remedy
    assert len(server.requests) == 1


# -- waits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step, seconds",
    [
        (make_rate_limit_failure("7"), 7.0),
        (make_rate_limit_failure("1.5"), 1.5),
        (make_rate_limit_failure("9", retry_after_ms="1250"), 1.25),
        (
            make_rate_limit_failure(
                formatdate(1_800_000_030, usegmt=True), date=formatdate(1_800_000_000, usegmt=True)
            ),
            30.0,
        ),
        (make_rate_limit_failure(None, x_ratelimit_reset_requests="6m0s", x_ratelimit_remaining_requests="0"), 360.0),
        (
            make_rate_limit_failure(
                None,
                date=formatdate(1_800_000_000, usegmt=True),
                anthropic_ratelimit_tokens_reset="2027-01-15T08:00:42Z",
                anthropic_ratelimit_tokens_remaining="0",
                anthropic_ratelimit_requests_reset="2027-01-15T08:10:00Z",
                anthropic_ratelimit_requests_remaining="5",
            ),
            42.0,
        ),
    ],
)
async def test_the_requested_retry_delay_is_passed_on(
    server: ModelServer, connect: Connect, step: ModelServerStep, seconds: float
) -> None:
    server.add_steps(step)
    error = await fails(connect(), Overloaded)
    assert error.retry_after == seconds


async def test_no_request_is_repeated(server: ModelServer, connect: Connect) -> None:
    server.default = make_rate_limit_failure("0")
    await fails(connect(), Overloaded)
    server.default = DroppedConnection()
    await fails(connect(), Overloaded)
    assert len(server.requests) == 2


# -- the wire ----------------------------------------------------------------------------------------------------------


async def test_a_missing_server_is_overloaded(connect: Connect) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    error = await fails(connect(base_url=f"http://127.0.0.1:{port}/v1"), Overloaded)
    assert f"127.0.0.1:{port}" in str(error)
    assert "runs" in error.remedy


async def test_a_connection_that_is_never_made_times_out(connect: Connect) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fill = [socket.socket() for _ in range(8)]
        try:
            for one in fill:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
            waits = {**PATIENT, "connect": 0.2}
            error = await fails(connect(base_url=f"http://127.0.0.1:{port}", deadline_seconds=waits), Overloaded)
        finally:
            for one in fill:
                one.close()
    assert "no connection within 0.2 s" in str(error)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_connection_closed_without_an_answer_is_reported(
    server: ModelServer, connect: Connect, reset: bool
) -> None:
    server.add_steps(DroppedConnection(reset=reset))
    await fails(connect(), Overloaded)


async def test_silence_before_the_first_byte_times_out(server: ModelServer, connect: Connect) -> None:
    server.add_steps(HangingConnection())
    error = await fails(connect(deadline_seconds={**PATIENT, "first_byte": 0.25}), Overloaded)
    assert "no first byte within 0.25 s" in str(error)
    assert "deadline_seconds" in error.remedy


@pytest.mark.parametrize("after", [1, 3])
async def test_silence_during_a_stream_times_out(server: ModelServer, connect: Connect, after: int) -> None:
    server.add_steps(ModelServerReply(text=LONG.text, cut=StreamFault(kind="hang", after=after)))
    error = await fails(connect(deadline_seconds={**PATIENT, "idle": 0.2}), Overloaded)
    assert "no next piece within 0.2 s" in str(error)


async def test_headers_without_a_body_time_out(server: ModelServer, connect: Connect) -> None:
    server.add_steps(ModelServerReply(text=LONG.text, cut=StreamFault(kind="hang", after=0)))
    error = await fails(connect(deadline_seconds={**PATIENT, "first_byte": 0.25}), Overloaded)
    assert "no first byte" in str(error)


async def test_keep_alives_do_not_extend_the_deadline(server: ModelServer, connect: Connect) -> None:
    server.add_steps(ModelServerReply(text=LONG.text, cut=StreamFault(kind="alive", after=2)))
    error = await fails(connect(deadline_seconds={**PATIENT, "total": 0.5}), Overloaded)
    assert "no whole answer within 0.5 s" in str(error)


async def test_a_slow_stream_is_waited_for(server: ModelServer, connect: Connect) -> None:
    server.add_steps(ModelServerReply(text=LONG.text, pause_seconds=0.4))
    began = time.monotonic()
    waits = {**PATIENT, "first_byte": 3.0, "idle": 3.0}
    assert (await connect(deadline_seconds=waits).answer(HELLO)).text == LONG.text
    assert time.monotonic() - began > 3.0, "it was not slow enough to see anything"


@pytest.mark.parametrize("how", ["end", "done", "drop", "reset", "garbage", "error"])
@pytest.mark.parametrize("after", [1, 2, 4, 9])
async def test_a_broken_stream_is_never_a_complete_answer(
    server: ModelServer, connect: Connect, how: Any, after: int
) -> None:
    server.add_steps(ModelServerReply(text=LONG.text, cut=StreamFault(kind=how, after=after)))
    heard: list[str] = []
    model = connect()
    with pytest.raises(Overloaded):
        await model.answer(HELLO, on_text=heard.append)
    assert LONG.text.startswith("".join(heard))
    assert (await model.answer(HELLO)).text.startswith("You said"), "the connection works for the next request"


@pytest.mark.parametrize("how", ["drop", "reset", "garbage"])
async def test_a_broken_complete_answer_is_an_error(server: ModelServer, connect: Connect, how: Any) -> None:
    server.add_steps(ModelServerReply(text=LONG.text, cut=StreamFault(kind=how)))
    await fails(connect(stream=False), Overloaded)


async def test_a_call_cut_at_any_event_is_detected(server: ModelServer, connect: Connect) -> None:
    """Cut after every event in turn, a call whose arguments happen to parse never slips through."""
    call = ToolCall(id="call_1", tool="note", arguments={"text": "x" * 30})
    request = ModelRequest(system="", messages=HELLO.messages, tools=(TOOL,))
    model = connect()
    whole = 0
    for after in range(20):
        server.add_steps(
            ModelServerReply(text="so", calls=(call,), reasoning="hm", cut=StreamFault(kind="end", after=after))
        )
        try:
            answer = await model.answer(request)
        except Overloaded:
            assert not whole, "once the answer is complete, later cuts do not matter"
        else:
            assert answer.calls[0].arguments == call.arguments
            whole += 1
    assert whole


async def test_repeated_equal_deltas_are_all_kept(server: ModelServer, connect: Connect) -> None:
    server.add_steps(ModelServerReply(text="ha " * 300, pieces=("ha ",) * 300))
    assert (await connect().answer(HELLO)).text == "ha " * 300
    model = connect()
    second = 2 if isinstance(model, OpenAIModel) else 4
    server.add_steps(ModelServerReply(text="one two three", cut=StreamFault(kind="repeat", after=second, times=50)))
    assert (await model.answer(HELLO)).text == "one" + " two" * 50 + " three"


@pytest.mark.parametrize("end", [{"linger": True}, {"done": False}, {"done": False, "linger": True}])
async def test_an_answer_without_the_final_marker_is_complete(
    server: ModelServer, connect: Connect, end: dict[str, bool]
) -> None:
    server.add_steps(ModelServerReply(text="done", done=end.get("done", True), linger=end.get("linger", False)))
    assert (await connect(deadline_seconds={"tail": 0.1}).answer(HELLO)).text == "done"


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
async def test_deltas_may_be_cut_at_any_byte(server: ModelServer, connect: Connect, size: int, newline: str) -> None:
    text = "Grüße 🌍 — naïve"
    server.add_steps(ModelServerReply(text=text, bytes_per_write=size, newline=newline))
    heard: list[str] = []
    assert (await connect().answer(HELLO, on_text=heard.append)).text == text == "".join(heard)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b"<html>login</html>", b'{"choices": []}', b"\xff" * 99])
async def test_a_200_without_an_answer_is_an_error(server: ModelServer, connect: Connect, body: bytes) -> None:
    for kind in ("application/json", "text/html", "text/event-stream"):
        server.add_steps(ModelServerStatus(status=200, body=body, headers={"content-type": kind}))
        await fails(connect(), Overloaded)


async def test_an_error_inside_a_200_is_raised(server: ModelServer, openai: Connect) -> None:
    model = openai()
    for code, kind in [(502, Overloaded), (429, Overloaded), (400, Refused), ("context_length_exceeded", TooLong)]:
        body = {"error": {"message": "upstream", "code": code}}
        server.add_steps(ModelServerStatus(status=200, body=body))
        await fails(model, kind)
        frame = b"data: " + json.dumps(body).encode() + b"\n\n"
        server.add_steps(ModelServerStatus(status=200, body=frame, headers={"content-type": "text/event-stream"}))
        await fails(model, kind)


@pytest.mark.parametrize("reason", ["error", "network_error", "insufficient_system_resource"])
async def test_a_finish_reason_of_a_failure_is_an_error(server: ModelServer, openai: Connect, reason: str) -> None:
    server.add_steps(ModelServerReply(text="half", finish=reason))
    await fails(openai(), Overloaded)


@pytest.mark.parametrize(
    "vendor, finish, kind",
    [
        ("openai", "content_filter", Refused),
        ("openai", "length", Refused),
        ("openai", "tool_calls", Overloaded),
        ("anthropic", "refusal", Refused),
        ("anthropic", "max_tokens", Refused),
        ("anthropic", "model_context_window_exceeded", TooLong),
    ],
)
async def test_an_empty_answer_is_explained(
    server: ModelServer, openai: Connect, anthropic: Connect, vendor: str, finish: str, kind: type[EverholdError]
) -> None:
    model = openai() if vendor == "openai" else anthropic()
    server.add_steps(
        ModelServerReply(finish=finish), ModelServerReply(text="something", finish=finish), ModelServerReply()
    )
    await fails(model, kind)
    assert (await model.answer(HELLO)).text == "something"
    silent = await model.answer(HELLO)
    assert (silent.text, silent.calls) == ("", ()), "a model may choose to say nothing"


async def test_a_full_window_is_reported_as_too_long(server: ModelServer, openai: Connect) -> None:
    server.add_steps(ModelServerReply(finish="length"))
    await fails(openai(context_tokens=256), TooLong, ModelRequest(system="x" * 2000, messages=HELLO.messages))


async def test_cancelling_closes_the_connection(server: ModelServer, connect: Connect) -> None:
    server.add_steps(ModelServerReply(text=LONG.text, cut=StreamFault(kind="hang", after=4)))
    heard = asyncio.Event()
    model = connect()
    task = asyncio.ensure_future(model.answer(HELLO, on_text=lambda _: heard.set()))
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await model.answer(HELLO)).text.startswith("You said")


async def test_one_connection_serves_many_answers(server: ModelServer, connect: Connect) -> None:
    model = connect()
    for _ in range(5):
        await model.answer(HELLO)
    assert server.connections == 1


@pytest.mark.parametrize("key", ["line\nbreak", "curly\u201cquote", "tab\tkey"])
def test_a_key_that_is_not_valid_in_a_header_is_refused_at_once(key: str) -> None:
    with pytest.raises(InvalidRequest, match="authorization header of model fake") as raised:
        OpenAIModel(OpenAISettings(name="fake", api_key=key), clock=SystemClock())  # type: ignore[arg-type]
    assert key not in str(raised.value)


async def test_many_concurrent_requests_are_answered(server: ModelServer, connect: Connect) -> None:
    server.default = lambda received: ModelServerReply(text=json.dumps(received.json["messages"][-1]))
    model = connect()
    requests = [ModelRequest(system="", messages=(ModelMessage(role="user", text=f"number {n}."),)) for n in range(60)]
    answers = await asyncio.gather(*(model.answer(request) for request in requests))
    assert all(f"number {n}." in answer.text for n, answer in enumerate(answers))


async def test_no_log_line_contains_the_key(
    server: ModelServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    server.add_steps(
        ModelServerReply(text="fine"),
        VendorFailure(kind="unauthorized"),
        DroppedConnection(),
        ModelServerReply(text="x", cut=StreamFault(kind="reset")),
    )
    model = connect(headers={"x-extra": "canary-header-value"})
    assert (await model.answer(HELLO)).text == "fine"
    for _ in range(3):
        with pytest.raises(EverholdError):
            await model.answer(HELLO)
    assert KEY in str(server.last_request.headers)
    assert "canary-header-value" in str(server.last_request.headers)
    assert KEY not in caplog.text
    assert "canary-header-value" not in caplog.text


@pytest.mark.parametrize("url", ["", "api.openai.com/v1", "ftp://x/v1", "http://", "https://me:secret@x.example/v1"])
def test_an_invalid_base_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidRequest, match="base_url"):
        OpenAIModel(OpenAISettings(name="fake", base_url=url), clock=SystemClock())
