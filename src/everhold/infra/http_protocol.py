"""uvicorn's HTTP/1.1 protocol with a limit for the head of a request and for what surrounds a chunked body, because the
parser itself has none."""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
FEED_BYTES: Final = 32 * 1024
"""How much is parsed before the limit is checked again."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection on which no request can use more memory than its head and its body may have."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_bytes = 0

    def close_idle(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # the client does not read, and `close()` would wait for it
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), FEED_BYTES):
            if not self.transport.is_closing():
                self._feed_data(data[start : start + FEED_BYTES])

    def _feed_data(self, data: bytes) -> None:
        self._head_bytes += len(data)  # before parsing, because the end of a request resets the count
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self._in_head or not self.cycle.response_started:
                self.send_400_response("The request head is too long.")
            else:
                self.close_idle()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what follows a chunked body is no header: no proxy has checked it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.cycle.response_complete:
            # each byte of a body permits one byte around it: sizes and extensions of chunks, and trailers
            self._head_bytes -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()
