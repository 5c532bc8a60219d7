"""A model server on loopback: chat completions and messages in the vendors' formats, with their failures.

It answers as scripted, keeps the exact bytes of requests, and refuses what the real servers refuse, with their error
texts. It needs only the standard library. `python -m everhold.testing.model_server 8080` runs it as a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from everhold.testing.http_listener import (
    HttpListener,
    RawHttpRequest,
    abort_connection,
    format_head,
    write_response,
)
from everhold.testing.model_dialects import (
    CREATED_AT,
    AnthropicReplyRenderer,
    DroppedConnection as DroppedConnection,
    HangingConnection as HangingConnection,
    ModelServerReply as ModelServerReply,
    ModelServerScript as ModelServerScript,
    ModelServerStatus as ModelServerStatus,
    ModelServerStep as ModelServerStep,
    OpenaiReplyRenderer,
    ReceivedModelRequest as ReceivedModelRequest,
    StreamFault as StreamFault,
    VendorFailure as VendorFailure,
    dump_json,
    estimate_tokens,
    make_rate_limit_failure as make_rate_limit_failure,
    sign_thinking as sign_thinking,
)
from everhold.testing.model_rules import (
    count_prompt_tokens,
    find_completion_error,
    find_messages_error,
    iter_cacheable_blocks,
    make_failure_reply,
    make_invalid_reply,
)

CACHE_LOOKBACK_BLOCKS: Final = 20


class ModelServer(HttpListener):
    """`async with ModelServer() as server:`, then point a model at `server.openai` or `server.anthropic`."""

    def __init__(
        self,
        *,
        default: ModelServerScript | None = None,
        key: str | None = None,
        models: Sequence[str] | None = None,
        context_tokens: int | None = None,
        strict: bool = True,
    ) -> None:
        super().__init__()
        self.default: ModelServerScript = default if default is not None else _echo_request
        self.key = key
        self.models = models
        self.context_tokens = context_tokens
        self.strict = strict
        self.requests: list[ReceivedModelRequest] = []
        self._steps: deque[ModelServerScript] = deque()
        self._released: asyncio.Event | None = None
        self._cache: set[str] = set()

    # -- use

    @property
    def openai(self) -> str:
        return f"{self.url}/v1"

    @property
    def anthropic(self) -> str:
        return self.url

    def add_steps(self, *steps: ModelServerScript) -> None:
        """Set the steps for the next requests, one each. After them the default applies."""
        self._steps.extend(steps)

    def hold(self) -> asyncio.Event:
        """Delay every answer until this event is set."""
        self._released = asyncio.Event()
        return self._released

    @property
    def last_request(self) -> ReceivedModelRequest:
        return self.requests[-1]

    # -- a connection

    async def serve_request(
        self, received: RawHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        method, path, headers, body = received
        request = ReceivedModelRequest(method=method, path=path, headers=headers, body=body)
        self.requests.append(request)
        if self._released is not None:
            await self._released.wait()
        return await self._answer_request(request, writer)

    async def _answer_request(self, received: ReceivedModelRequest, writer: asyncio.StreamWriter) -> bool:
        """Handle one request and return whether the connection may be reused."""
        step = self._next_step(received)
        match step:
            case HangingConnection():
                await asyncio.Event().wait()
            case DroppedConnection(reset=reset):
                abort_connection(writer) if reset else writer.close()
                return False
            case VendorFailure():
                step = make_failure_reply(step, received.dialect)
                await _write_whole(writer, step.status, step.headers, step.body)
            case ModelServerStatus():
                await _write_whole(writer, step.status, step.headers, step.body)
            case ModelServerReply():
                return await self._send_reply(step, received, writer)
        return True

    def _next_step(self, received: ReceivedModelRequest) -> ModelServerStep:
        path = received.path.split("?")[0]
        if received.method == "GET" and path.endswith("/models"):
            names = self.models if self.models is not None else ["fake"]
            listed = [{"id": name, "object": "model", "created": CREATED_AT, "owned_by": "everhold"} for name in names]
            return ModelServerStatus(status=200, body={"object": "list", "data": listed})
        if received.method != "POST" or not path.endswith(("/chat/completions", "/messages")):
            return ModelServerStatus(status=404, body={"error": {"message": f"Invalid URL ({received.method} {path})"}})
        if (refusal := self._find_refusal(received)) is not None:
            return refusal
        steps = self._steps.popleft() if self._steps else self.default
        return steps(received) if callable(steps) else steps

    def _find_refusal(self, received: ReceivedModelRequest) -> ModelServerStatus | None:
        anthropic = received.dialect == "anthropic"
        if self.key is not None:
            bearer = received.headers.get("authorization") == f"Bearer {self.key}"
            # Anthropic documents x-api-key; its own SDK sends a bearer token
            if not bearer and not (anthropic and received.headers.get("x-api-key") == self.key):
                return make_failure_reply(VendorFailure(kind="unauthorized"), received.dialect)
        try:
            body = received.json
        except ValueError:
            return make_invalid_reply(received.dialect, "We could not parse the JSON body of your request.")
        if self.models is not None and body.get("model") not in self.models:
            return make_failure_reply(VendorFailure(kind="not_found"), received.dialect)
        if self.strict:
            wrong = (find_messages_error if anthropic else find_completion_error)(body, received.headers)
            if wrong:
                return make_invalid_reply(received.dialect, wrong)
        if self.context_tokens is not None:
            tokens, most = count_prompt_tokens(body), self.context_tokens
            if anthropic and tokens > most:
                return make_invalid_reply("anthropic", f"prompt is too long: {tokens} tokens > {most} maximum")
            if not anthropic and tokens > most:
                message = (
                    f"This model's maximum context length is {most} tokens. However, your messages resulted in "
                    f"{tokens} tokens. Please reduce the length of the messages."
                )
                return make_invalid_reply("openai", message, code="context_length_exceeded", param="messages")
        return None

    # -- answers

    async def _send_reply(
        self, reply: ModelServerReply, received: ReceivedModelRequest, writer: asyncio.StreamWriter
    ) -> bool:
        body = received.json
        anthropic = received.dialect == "anthropic"
        streaming = bool(body.get("stream")) if reply.stream is None else reply.stream
        counts = self._count_usage(body, reply, anthropic=anthropic)
        render: type[OpenaiReplyRenderer | AnthropicReplyRenderer] = (
            AnthropicReplyRenderer if anthropic else OpenaiReplyRenderer
        )
        rendered = render(reply, body, counts, len(self.requests))
        headers = {"x-request-id": rendered.id} if not anthropic else {"request-id": rendered.id}
        if streaming:
            return await _write_stream(writer, reply, headers, rendered)
        data = json.dumps(rendered.render_whole()).encode()
        if reply.cut is None:
            await _write_whole(writer, 200, headers, data)
            return True
        writer.write(
            format_head(200, {**headers, "content-type": "application/json", "content-length": str(len(data))})
        )
        half = b"\x00\xff{" if reply.cut.kind == "garbage" else data[: len(data) // 2]
        return await _break_connection(writer, reply.cut.kind, half)

    def _count_usage(self, body: Any, reply: ModelServerReply, *, anthropic: bool) -> dict[str, int]:
        wrote = estimate_tokens(reply.text + reply.reasoning) + sum(
            estimate_tokens(json.dumps(call.arguments)) for call in reply.calls
        )
        read = count_prompt_tokens(body)
        if anthropic:
            cached, written = self._count_anthropic_cached(body)
            return {
                "read": max(1, read - cached - written),
                "cached": cached,
                "written": written,
                "wrote": max(1, wrote),
            }
        return {"read": read, "cached": self._count_openai_cached(body), "written": 0, "wrote": max(1, wrote)}

    def _count_openai_cached(self, body: Any) -> int:
        """Return the cached tokens. Prefixes of 1,024 tokens and more are cached in steps of 128."""
        text = dump_json([body.get("tools", []), body["messages"]])
        prefix, marks, begin = hashlib.sha256(), [], 0
        for end in range(1024 * 4, len(text) + 1, 128 * 4):
            prefix.update(text[begin:end].encode())
            marks.append(prefix.copy().hexdigest())
            begin = end
        hits = next((len(marks) - i for i, mark in enumerate(reversed(marks)) if mark in self._cache), 0)
        self._cache.update(marks)
        return 1024 + 128 * (hits - 1) if hits else 0

    def _count_anthropic_cached(self, body: Any) -> tuple[int, int]:
        """Return the cached tokens. A marked block caches everything before it; the lookup covers the marked blocks and
        the 20 before each."""
        blocks: list[tuple[str, bool]] = []
        for part in iter_cacheable_blocks(body):
            plain = {key: value for key, value in part.items() if key != "cache_control"}
            blocks.append((dump_json(plain), "cache_control" in part))
        prefix, sizes, digests, size = hashlib.sha256(), [0], [""], 0
        for text, _ in blocks:
            prefix.update(text.encode())
            size += estimate_tokens(text)
            sizes.append(size)
            digests.append(prefix.hexdigest())
        marked = [index + 1 for index, (_, mark) in enumerate(blocks) if mark]
        hit = 0
        for end in marked:
            for candidate in range(end, max(0, end - CACHE_LOOKBACK_BLOCKS), -1):
                if digests[candidate] in self._cache:
                    hit = max(hit, candidate)
                    break
        self._cache.update(digests[end] for end in marked)
        last = marked[-1] if marked else 0
        return sizes[hit], max(0, sizes[last] - sizes[hit])


def _echo_request(received: ReceivedModelRequest) -> ModelServerStep:
    user_messages = [message for message in received.json["messages"] if message["role"] == "user"]
    content = user_messages[-1]["content"] if user_messages else ""
    if isinstance(content, list):
        content = " ".join(part.get("text", "") for part in content)
    return ModelServerReply(text=f"You said: {content}")


# -- bytes -------------------------------------------------------------------------------------------------------------


async def _write_whole(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: Any) -> None:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    kind = {} if "content-type" in headers else {"content-type": "application/json"}
    await write_response(writer, status, {**kind, **headers}, data)


async def _write_stream(
    writer: asyncio.StreamWriter,
    reply: ModelServerReply,
    headers: Mapping[str, str],
    rendered: OpenaiReplyRenderer | AnthropicReplyRenderer,
) -> bool:
    kind = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
    writer.write(format_head(200, {**kind, **headers, "cache-control": "no-cache"}))
    await writer.drain()
    cut = reply.cut
    for number, event in enumerate(rendered.render_events()):
        if cut is not None and number == cut.after:
            match cut.kind:
                case "repeat":
                    for _ in range(cut.times - 1):
                        await _write_chunk(writer, event, reply)
                case "error":
                    await _write_chunk(writer, rendered.render_error(), reply)
                    break
                case "done":
                    await _write_chunk(writer, rendered.render_end(), reply)
                    break
                case "garbage":
                    await _write_chunk(writer, b"data: \xff\xfe<html>\n\n", reply)
                case "alive":
                    while True:
                        await _write_chunk(writer, rendered.render_keepalive(), reply)
                        await asyncio.sleep(0.01)
                case _:
                    return await _break_connection(writer, cut.kind, b"")
        await _write_chunk(writer, event, reply)
        if reply.pause_seconds:
            await asyncio.sleep(reply.pause_seconds)
    if reply.linger:
        await asyncio.Event().wait()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _write_chunk(writer: asyncio.StreamWriter, event: bytes, reply: ModelServerReply) -> None:
    if reply.newline != "\n":
        event = event.replace(b"\n", reply.newline.encode())
    step = reply.bytes_per_write or len(event)
    for at in range(0, len(event), step):
        piece = event[at : at + step]
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()


async def _break_connection(writer: asyncio.StreamWriter, how: str, last: bytes) -> bool:
    writer.write(last)
    await writer.drain()
    if how == "hang":
        await asyncio.Event().wait()
    if how == "end" and not last:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
    if how == "reset":
        abort_connection(writer)
    return False


async def _run_server(port: int) -> None:
    server = ModelServer()
    await server.start(port)
    sys.stdout.write(f"openai {server.openai}  anthropic {server.anthropic}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run_server(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
