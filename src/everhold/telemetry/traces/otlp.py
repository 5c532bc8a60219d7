"""Send spans to an OpenTelemetry collector with the OpenTelemetry SDK, which reads the standard `OTEL_*` variables.

Nothing of OpenTelemetry is imported before an exporter is opened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from everhold.errors import InvalidRequest
from everhold.infra.extras import describe_install
from everhold.telemetry.traces import names
from everhold.telemetry.traces.spans import SpanKind, TraceSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

ExportOutcome: TypeAlias = Literal["exported", "failed", "rejected"]
"""`failed`: send the same spans again later. `rejected`: the collector will never take them."""

ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
DISABLED_VARIABLE: Final = "OTEL_SDK_DISABLED"
EXPORTER_VARIABLE: Final = "OTEL_TRACES_EXPORTER"
PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
DELAY_VARIABLE: Final = "OTEL_BSP_SCHEDULE_DELAY"
BATCH_VARIABLE: Final = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
CONTENT_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CONTENT_IN_SPANS: Final = frozenset({"SPAN_ONLY", "SPAN_AND_EVENT", "TRUE"})
DEFAULT_DELAY_MS: Final = 5_000
DEFAULT_BATCH_SPANS: Final = 512
PROTOCOL: Final = "http/protobuf"
SERVICE_NAME: Final = "everhold"
REPAIRABLE_STATUSES: Final = frozenset({401, 403, 404, 407, 408, 429})
"""Statuses of 400 to 499 that say nothing about the spans: an operator repairs the address or the key, or it passes."""


class SpanExporter(Protocol):
    """Sends spans somewhere."""

    def is_sampled(self, trace_id: str) -> bool:
        """Return whether a trace is exported."""

    async def export(self, spans: Sequence[TraceSpan]) -> ExportOutcome: ...

    def close(self) -> None:
        """Give up what is being sent."""


class TraceSettings(Struct, frozen=True, kw_only=True):
    """How traces are exported."""

    delay_seconds: float
    batch_spans: int
    captures_content: bool = False
    """What was said is in the spans, because the operator asked for it."""


def read_trace_settings(environ: Mapping[str, str]) -> TraceSettings | None:
    """Return how traces are exported; None if they are not. Raises InvalidRequest if a variable cannot be followed."""
    if not any(environ.get(name) for name in ENDPOINT_VARIABLES):
        return None
    if environ.get(DISABLED_VARIABLE, "").strip().lower() == "true":
        return None
    exporter = environ.get(EXPORTER_VARIABLE, "").strip().lower()
    if exporter == "none":
        return None
    if exporter not in ("", "otlp"):
        raise InvalidRequest(
            f"{EXPORTER_VARIABLE} is {exporter!r}, so no traces are exported",
            remedy=f"set {EXPORTER_VARIABLE} to otlp or none",
        )
    protocol = next((environ[name] for name in PROTOCOL_VARIABLES if environ.get(name)), PROTOCOL)
    if protocol != PROTOCOL:
        raise InvalidRequest(
            f"the protocol {protocol!r} of {PROTOCOL_VARIABLES[1]} is not supported, so no traces are exported",
            remedy=f"set it to {PROTOCOL}; collectors listen for it on port 4318",
        )
    return TraceSettings(
        delay_seconds=_read_number(environ, DELAY_VARIABLE, DEFAULT_DELAY_MS) / 1000,
        batch_spans=_read_number(environ, BATCH_VARIABLE, DEFAULT_BATCH_SPANS),
        captures_content=environ.get(CONTENT_VARIABLE, "").strip().upper() in CONTENT_IN_SPANS,
    )


def _read_number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return a positive number, or the default. The specification asks to ignore what is none."""
    try:
        return max(1, int(environ.get(name, "") or default))
    except ValueError:
        return default


class OtlpExporter:
    """Sends spans over HTTP. The call blocks, so it runs on a thread that no stop of the process waits for."""

    def __init__(self, version: str) -> None:
        """Raises InvalidRequest if the SDK is not installed."""
        try:
            import requests
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise InvalidRequest(
                f"an OTLP endpoint is set, but OpenTelemetry is not installed ({error.name})",
                remedy=describe_install("otel"),
            ) from error
        resource = Resource.create({"service.version": version}, names.SCHEMA_URL)
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
        self._sampler: Any = TracerProvider(resource=resource, shutdown_on_exit=False).sampler

        class HashedResource(Resource):
            """Its hash is asked for with every span, and computing it takes as long as encoding the span."""

            def __hash__(self) -> int:
                return 1

        self._resource = HashedResource(resource.attributes, resource.schema_url)
        self._scope = InstrumentationScope(names.SCOPE, version, names.SCHEMA_URL)
        self._status = 0
        """The last answer's HTTP status; 0 if there was none."""
        session = requests.Session()
        session.hooks["response"].append(self._note_status)
        self._exporter: Any = OTLPSpanExporter(session=session)

    def is_sampled(self, trace_id: str) -> bool:
        return bool(self._sampler.should_sample(None, int(trace_id, 16), "").decision.is_sampled())

    async def export(self, spans: Sequence[TraceSpan]) -> ExportOutcome:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[ExportOutcome] = loop.create_future()

        def finish(outcome: ExportOutcome) -> None:
            if not done.done():
                done.set_result(outcome)

        def work() -> None:
            outcome: ExportOutcome = "failed"
            try:
                outcome = self._export(spans)
            finally:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(finish, outcome)

        threading.Thread(target=work, name="everhold-traces", daemon=True).start()
        return await done

    def close(self) -> None:
        self._exporter.shutdown()

    def _export(self, spans: Sequence[TraceSpan]) -> ExportOutcome:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._status = 0
        if self._exporter.export([self._convert(span) for span in spans]) is SpanExportResult.SUCCESS:
            return "exported"
        is_refused = 400 <= self._status < 500 and self._status not in REPAIRABLE_STATUSES
        return "rejected" if is_refused else "failed"

    def _note_status(self, response: Any, *_: object, **__: object) -> None:
        self._status = response.status_code

    def _convert(self, span: TraceSpan) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanContext, SpanKind as Kind, Status, StatusCode, TraceFlags

        kinds: dict[SpanKind, Kind] = {
            "internal": Kind.INTERNAL, "client": Kind.CLIENT, "producer": Kind.PRODUCER,
        }  # fmt: skip
        flags = TraceFlags(TraceFlags.SAMPLED)

        def make_context(trace_id: str, span_id: str, *, is_remote: bool = False) -> SpanContext:
            return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=is_remote, trace_flags=flags)

        return ReadableSpan(
            name=span.name,
            context=make_context(span.trace_id, span.span_id),
            parent=make_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(make_context(*link, is_remote=True)) for link in span.links],
            kind=kinds[span.kind],
            status=Status(StatusCode.ERROR) if span.error else Status(),
            start_time=round(span.start * 1e9),
            end_time=round(span.end * 1e9),
            instrumentation_scope=self._scope,
        )
