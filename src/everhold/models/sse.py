"""Server-sent events out of bytes that arrive in any pieces. Knows the framing, not what is in it."""

from __future__ import annotations

from typing import Final

MOST: Final = 16 * 1024 * 1024
"""Bytes of one event. Beyond it the other side is not speaking to us."""


class Oversized(ValueError):
    """An event that does not end."""


class Events:
    """Feed it bytes, get whole events: (name, data). Comments and unknown fields are passed over."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._fresh = True
        self._size = 0
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        self._rest += chunk
        if self._fresh:
            if b"\xef\xbb\xbf".startswith(self._rest[:3]) and len(self._rest) < 3:
                return []
            self._fresh = False
            if self._rest.startswith(b"\xef\xbb\xbf"):
                del self._rest[:3]
        if b"\n" not in chunk and b"\r" not in chunk and not self._rest.startswith(b"\r"):
            self._limit(len(self._rest))
            return []
        # a CR at the very end may be half of a CRLF
        held = self._rest.endswith(b"\r")
        whole = bytes(self._rest[:-1] if held else self._rest)
        if b"\r" in whole:
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = whole.split(b"\n")
        self._rest = bytearray(lines.pop())
        if held:
            self._rest += b"\r"
        out: list[tuple[str, bytes]] = []
        for line in lines:
            self._line(line, out)
        self._limit(len(self._rest))
        return out

    def close(self) -> list[tuple[str, bytes]]:
        """The event an ending without a blank line leaves behind: servers forget the last one."""
        out: list[tuple[str, bytes]] = []
        if self._rest:
            self._line(bytes(self._rest).rstrip(b"\r"), out)
            self._rest.clear()
        self._line(b"", out)
        return out

    def _line(self, line: bytes, out: list[tuple[str, bytes]]) -> None:
        if not line:
            if self._data:
                out.append((self._name.decode("utf-8", "replace"), b"\n".join(self._data)))
                self._data = []
            self._name = b""
            self._size = 0
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value)
        elif field == b"event":
            self._name = value

    def _limit(self, rest: int) -> None:
        if self._size + rest > MOST:
            raise Oversized(f"an event of more than {MOST} bytes")
