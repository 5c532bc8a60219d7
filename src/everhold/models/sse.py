"""Parses server-sent events from bytes that arrive in any pieces. It knows the framing, not the content."""

from __future__ import annotations

from typing import Final

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of one event. A larger one is not an event stream."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class StreamTooLarge(ValueError):
    """An event that does not end."""


class SseParser:
    """Feed it bytes, get whole events: (name, data). Comments and unknown fields are skipped."""

    def __init__(self) -> None:
        self._unparsed = bytearray()
        self._at_start = True
        self._after_cr = False
        self._size = 0
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        if self._at_start:
            chunk = bytes(self._unparsed) + chunk
            self._unparsed.clear()
            if len(chunk) < 3 and BYTE_ORDER_MARK.startswith(chunk):
                self._unparsed += chunk
                return []
            self._at_start = False
            chunk = chunk.removeprefix(BYTE_ORDER_MARK)
        if not chunk:
            return []
        # a CR ends its line at once; an LF that follows it ends nothing
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        out: list[tuple[str, bytes]] = []
        if b"\n" in chunk:
            *lines, rest = (bytes(self._unparsed) + chunk).split(b"\n")
            self._unparsed = bytearray(rest)
            self._parse_lines(lines, out)
        else:
            self._unparsed += chunk
        if self._size + len(self._unparsed) > MAX_EVENT_BYTES:
            raise StreamTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return out

    def close(self) -> list[tuple[str, bytes]]:
        """Return the event at the end of a stream without a final blank line, which some servers omit."""
        out: list[tuple[str, bytes]] = []
        self._parse_lines([bytes(self._unparsed), b""] if self._unparsed else [b""], out)
        self._unparsed.clear()
        return out

    def _parse_lines(self, lines: list[bytes], out: list[tuple[str, bytes]]) -> None:
        for line in lines:
            if line.startswith(b"data: "):  # the most frequent line
                self._data.append(line[6:])
                self._size += len(line) - 6
            elif line:
                field, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if field == b"data":
                    self._data.append(value)
                    self._size += len(value)
                elif field == b"event":
                    self._name = value
            else:
                if self._data:
                    out.append((self._name.decode("utf-8", "replace"), b"\n".join(self._data)))
                    self._data.clear()
                self._name = b""
                self._size = 0
