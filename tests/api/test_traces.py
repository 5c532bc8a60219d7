"""A gateway exports its turns to an OTLP receiver with the real SDK, and imports nothing of it without an endpoint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.core.trace_ids import make_trace_id
from everhold.errors import InvalidRequest
from everhold.telemetry.traces.otlp import CONTENT_VARIABLE, OtlpExporter, TraceSettings, read_trace_settings
from everhold.testing.model_server import ModelServer
from tests.api.conftest import ApiGateway
from tests.telemetry.otlp_receiver import OtlpReceiver, read_attributes
from tests.waiting import wait_until

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
async def receiver() -> AsyncIterator[OtlpReceiver]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
    async with OtlpReceiver() as running:
        yield running


@pytest.fixture
async def traced(
    tmp_path: Path, model: ModelServer, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ApiGateway]:
    """A gateway that exports to the receiver. The SDK reads the variables of the process."""
    variables = {
        ENDPOINT: receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=abc",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = ApiGateway(tmp_path, model)
    made.environ = variables
    try:
        yield await made.start()
    finally:
        await made.stop()


async def ask(gateway: ApiGateway, text: str) -> str:
    """Ask, wait for the answer, and return the session."""
    async with gateway.client() as client:
        message = {"chat": "c", "text": text}
        answer = await client.post("/api/messages", json=message, headers={"traceparent": CALLER})
        assert answer.status_code == 202, answer.text
        session: str = answer.json()["session"]
    await gateway.wait_until_idle(session)
    return session


async def test_a_turn_reaches_a_collector(traced: ApiGateway, receiver: OtlpReceiver) -> None:
    session = await ask(traced, "a secret word")
    await wait_until(lambda: len(receiver.spans) >= 2)
    (root,) = [span for span in receiver.spans if span.name == "invoke_agent main"]
    began = next(entry for entry in await traced.entries(session) if entry["kind"] == "began")
    assert root.trace_id.hex() == make_trace_id(session, began["seq"])
    (chat,) = [span for span in receiver.spans if span.name.startswith("chat ")]
    assert (chat.trace_id, chat.parent_span_id) == (root.trace_id, root.span_id)
    assert root.start_time_unix_nano <= chat.start_time_unix_nano <= chat.end_time_unix_nano <= root.end_time_unix_nano
    assert abs(root.start_time_unix_nano / 1e9 - began["at"]) < 0.001
    assert read_attributes(chat)["gen_ai.request.model"] == "fake"
    assert read_attributes(chat)["gen_ai.provider.name"] == "openai"
    (resource,) = {it.resource.SerializeToString(): it.resource for it in receiver.resources}.values()
    assert (
        read_attributes(resource).items() >= {"service.name": "everhold", "deployment.environment.name": "test"}.items()
    )
    (scope,) = {it.schema_url for request in receiver.resources for it in request.scope_spans}
    assert scope == "https://opentelemetry.io/schemas/1.41.1"
    assert receiver.headers[0]["x-key"] == "abc"
    (caller,) = root.links
    assert f"00-{caller.trace_id.hex()}-{caller.span_id.hex()}-01" == CALLER
    assert "secret word" not in repr(receiver.requests)


async def test_a_receiver_that_was_down_gets_every_span_of_the_past(traced: ApiGateway, receiver: OtlpReceiver) -> None:
    receiver.status = 401  # a wrong key: an operator repairs it, and the spans are not at fault
    first = await ask(traced, "one")
    await wait_until(lambda: receiver.refused > 0)
    async with traced.client() as client:
        page = (await client.get("/metrics")).text
    behind = next(line for line in page.splitlines() if line.startswith("everhold_trace_behind_seconds "))
    assert float(behind.split()[1]) > 0
    assert "everhold_trace_exports_failed_total 0" not in page
    await traced.stop()
    receiver.status = 200
    await traced.start()
    second = await ask(traced, "two")
    assert first == second
    await wait_until(lambda: receiver.list_names().count("invoke_agent main") == 2)
    assert len({(span.trace_id, span.span_id) for span in receiver.spans}) == len(receiver.spans)


async def test_spans_that_the_receiver_cannot_read_are_dropped(traced: ApiGateway, receiver: OtlpReceiver) -> None:
    receiver.status = 400
    await ask(traced, "one")
    await wait_until(lambda: receiver.refused > 0)
    receiver.status = 200
    await ask(traced, "two")
    await wait_until(lambda: "invoke_agent main" in receiver.list_names())
    assert receiver.list_names().count("invoke_agent main") == 1
    assert "traces.rejected" in traced.log.getvalue()


async def test_words_are_sent_on_request_without_secrets_and_status_says_so(
    traced: ApiGateway, receiver: OtlpReceiver
) -> None:
    await traced.stop()
    traced.environ = {**traced.environ, CONTENT_VARIABLE: "SPAN_ONLY"}
    await traced.start()
    (problem,) = traced.running.describe()["risks"]
    assert CONTENT_VARIABLE in problem["remedy"]
    await ask(traced, "a secret word and sk-abcdefghijklmnopqrstuvwxyz0123456789")
    await wait_until(lambda: len(receiver.spans) >= 2)
    assert "a secret word and" in repr(receiver.requests)
    assert "sk-abcdefghijklmnopqrstuvwxyz0123456789" not in repr(receiver.requests)


# -- the variables


def test_traces_are_off_unless_an_endpoint_is_set() -> None:
    assert read_trace_settings({}) is None
    assert read_trace_settings({ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "TRUE"}) is None
    assert read_trace_settings({ENDPOINT: "http://x", "OTEL_TRACES_EXPORTER": "none"}) is None
    assert read_trace_settings({ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "no"}) is not None
    assert read_trace_settings({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}) == TraceSettings(
        delay_seconds=5.0, batch_spans=512
    )


def test_the_variables_of_batches_are_read() -> None:
    for value, found in (("SPAN_ONLY", True), ("span_and_event", True), ("NO_CONTENT", False), ("EVENT_ONLY", False)):
        settings = read_trace_settings({ENDPOINT: "http://x", CONTENT_VARIABLE: value})
        assert settings is not None
        assert settings.captures_content is found
    asked = {ENDPOINT: "http://x", "OTEL_BSP_SCHEDULE_DELAY": "250", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "many"}
    assert read_trace_settings(asked) == TraceSettings(delay_seconds=0.25, batch_spans=512)


@pytest.mark.parametrize("name, value", [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")])
def test_a_variable_that_cannot_be_followed_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=value) as error:
        read_trace_settings({ENDPOINT: "http://x", name: value})
    assert error.value.remedy


async def test_a_variable_that_cannot_be_followed_is_shown_and_stops_nothing(gateway: ApiGateway) -> None:
    await gateway.stop()
    gateway.environ = {ENDPOINT: "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    await gateway.start()
    (problem,) = gateway.running.describe()["problems"]
    assert "grpc" in problem["message"]
    await ask(gateway, "hello")


def test_a_sampler_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    exporter = OtlpExporter("1.0")
    share = sum(exporter.is_sampled(make_trace_id("s", op)) for op in range(2_000)) / 2_000
    assert 0.2 < share < 0.3
    exporter.close()


OFF = """
import asyncio, sys
from pathlib import Path
from everhold.app import GatewayApp, SystemClock, load_home_settings
from everhold.infra.home import Home
from everhold.telemetry.logs import open_log

async def main():
    home = Home(Path(sys.argv[1])).create()
    home.config.write_text("models: {m: {provider: offline}}\\nagents: {main: {model: m}}\\nhttp: {port: 0}\\n")
    home.config.chmod(0o600)
    log = open_log(clock=SystemClock())
    app = GatewayApp(home, load_home_settings(home, environ={}), log=log, environ={})
    await app.start()
    await app.serve()
    await app.stop(seconds=1)

asyncio.run(main())
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "requests", "google")))
"""


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFF, str(tmp_path / "home")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
