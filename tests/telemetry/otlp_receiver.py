"""An OTLP receiver on loopback, which decodes what an exporter sends."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

from everhold.testing.http_listener import HttpListener, RawHttpRequest, write_response


class OtlpReceiver(HttpListener):
    """Keeps the requests for traces. `status` is what it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 200
        self.requests: list[Any] = []
        """The accepted `ExportTraceServiceRequest`s."""
        self.headers: list[dict[str, str]] = []
        self.refused = 0

    async def serve_request(
        self, received: RawHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        assert (received.method, received.target) == ("POST", "/v1/traces")
        if self.status != 200:
            self.refused += 1
            await write_response(writer, self.status, {}, b"")
            return True
        zipped = received.headers.get("content-encoding") == "gzip"
        body = gzip.decompress(received.body) if zipped else received.body
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        self.headers.append(received.headers)
        await write_response(writer, 200, {"content-type": "application/x-protobuf"}, b"")
        return True

    @property
    def resources(self) -> list[Any]:
        return [it for request in self.requests for it in request.resource_spans]

    @property
    def spans(self) -> list[Any]:
        return [span for it in self.resources for scope in it.scope_spans for span in scope.spans]

    def list_names(self) -> list[str]:
        return [span.name for span in self.spans]


def read_attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource as plain values."""
    return {it.key: _read_value(it.value) for it in owner.attributes}


def _read_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_read_value(it) for it in value.array_value.values]
    return getattr(value, kind)
