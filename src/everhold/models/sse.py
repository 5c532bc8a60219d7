"""Server-sent events out of bytes that arrive in any pieces. Knows the framing, not what is in it."""

from __future__ import annotations

from typing import Final

MOST: Final = 16 * 1024 * 1024
"""Bytes of one event. Beyond it the other side is not speaking to us."""
MARK: Final = b"\xef\xbb\xbf"


class Oversized(ValueError):
    """An event that does not end."""


class Events:
    """Feed it bytes, get whole events: (name, data). Comments and unknown fields are passed over."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._fresh = True
        self._after_cr = False
        self._size = 0
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        if self._fresh:
            chunk = bytes(self._rest) + chunk
            self._rest.clear()
            if len(chunk) < 3 and MARK.startswith(chunk):
                self._rest += chunk
                return []
            self._fresh = False
            chunk = chunk.removeprefix(MARK)
        if not chunk:
            return []
        # a CR ends its line at once; an LF that turns out to belong to it ends nothing
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        out: list[tuple[str, bytes]] = []
        if b"\n" in chunk:
            *lines, rest = (bytes(self._rest) + chunk).split(b"\n")
            self._rest = bytearray(rest)
            self._take(lines, out)
        else:
            self._rest += chunk
        if self._size + len(self._rest) > MOST:
            raise Oversized(f"an event of more than {MOST} bytes")
        return out

    def close(self) -> list[tuple[str, bytes]]:
        """The event an ending without a blank line leaves behind: servers forget the last one."""
        out: list[tuple[str, bytes]] = []
        self._take([bytes(self._rest), b""] if self._rest else [b""], out)
        self._rest.clear()
        return out

    def _take(self, lines: list[bytes], out: list[tuple[str, bytes]]) -> None:
        for line in lines:
            if line.startswith(b"data: "):  # most lines
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
