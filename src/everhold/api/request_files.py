"""Files in requests: uploads, and the pictures and documents in OpenAI's formats, inline or by their address.

An address is fetched from the public internet only (infra/fetch.py).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.responses import Response

from everhold.api.errors import ApiError, build_json_response
from everhold.api.middleware import MAX_BODY_BYTES
from everhold.api.openai_input import extract_text, is_text_part
from everhold.api.request import ApiCall
from everhold.core.attachments import build_attachment, sanitize_file_name
from everhold.core.entries import Attachment
from everhold.errors import Refused
from everhold.infra.uploads import MAX_FILE_BYTES

T = TypeVar("T")

MAX_REQUEST_BYTES: Final = 28_000_000
"""The limit of a request with files: 20 MB in base64, and the text."""
MAX_BESIDES_FILES: Final = 2_000_000
"""The limit of a request with files without what is in them. Base64 may be longer than its text, by escapes."""
MAX_MARKS: Final = 200_000
"""Marks of JSON, which base64 has not, in a request with files. Decoding it would stop all others for seconds."""
MAX_UPLOAD_BYTES: Final = MAX_FILE_BYTES
MAX_ADDRESSES: Final = 10
MAX_ADDRESS_CHARS: Final = 4_000
MAX_QUOTED_CHARS: Final = 100_000
"""Of a data: URL without base64, because reading it takes long."""
_AUDIO_MEDIA: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}


async def upload_file(call: ApiCall) -> Response:
    """Store a file for a message that follows."""
    media = call.query.get("media") or call.headers.get("content-type", "").partition(";")[0].strip()
    record = await asyncio.to_thread(
        call.context.uploads.save,
        call.raw_body,
        account=call.caller.account,
        owner=find_upload_owner(call),
        name=sanitize_file_name(call.query.get("name", "")),
        media=media[:100],
    )
    shown = {"id": record.id, "name": record.name, "media": record.media, "size": record.size}
    return build_json_response(shown, status=201)


def find_upload_owner(call: ApiCall) -> str:
    """Return whose upload counts in this request. A service uploads for each of its users."""
    return f"{call.caller.account}/{call.caller.resolve_sender('')}"


def decode_request(call: ApiCall, type: type[T]) -> T:
    """Return the body of a request that may contain files."""
    body = call.raw_body
    if len(body) > MAX_BODY_BYTES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_MARKS:
        raise _build_too_large_error()
    return call.decode_body(type)


class RequestFiles:
    """The files of one request. What it holds in memory is counted until the request ends."""

    def __init__(self, call: ApiCall) -> None:
        self.contents: dict[str, bytes] = {}
        """By their hash."""
        self._call = call
        self._most = call.context.agents.settings.quotas.files.per_message
        self._held = 0
        self._fetched: dict[str, tuple[bytes, str]] = {}
        self._uploads: dict[str, tuple[bytes, str, str]] = {}
        self._count = 0

    @classmethod
    async def load(cls, call: ApiCall, contents: Iterable[Any]) -> RequestFiles:
        """Fetch what message contents name by an address, and read what they name by an id."""
        files = cls(call)
        parts = [part for content in contents if isinstance(content, list) for part in content]
        if (size := len(call.raw_body)) > MAX_BODY_BYTES:
            if size - sum(map(_count_inline_chars, parts)) > MAX_BESIDES_FILES:
                raise _build_too_large_error()
            files._hold(size)
        addresses = list(dict.fromkeys(url for part in parts for url in _list_addresses(part)))
        if len(addresses) > MAX_ADDRESSES:
            raise _build_bad_request(f"a request may name {MAX_ADDRESSES} files by their address", "send them inline")
        for url in addresses:
            await files._fetch(url)
        for id in dict.fromkeys(id for part in parts for id in _list_ids(part)):
            await files.add_upload(id)
        files._count = 0  # what the messages name is counted when they are read
        return files

    async def add_upload(self, id: str) -> Attachment:
        """Add an uploaded file, and return its attachment."""
        call = self._call
        with self._hold_for_now():
            record, data = await asyncio.to_thread(call.context.uploads.read, id, owner=find_upload_owner(call))
        self._uploads[id] = data, record.name, record.media
        return self._add(data, record.name, record.media)

    async def _fetch(self, url: str) -> None:
        with self._hold_for_now():
            try:
                found = await self._call.context.fetch(url)
            except Refused as error:
                raise _build_bad_request(error.message, error.remedy) from error
        self._add(found.data, "", found.media)
        self._fetched[url] = found.data, found.media

    def _hold(self, size: int) -> None:
        """Count bytes until the request ends. Raises ApiError if it would be too many."""
        slots, account = self._call.context.file_bytes, self._call.caller.account
        if not slots.take(account, most=slots.total // 2, count=size):
            raise _build_busy_error(is_full=slots.used + size > slots.total)
        if not self._held:
            self._call.on_end(self._release_all)
        self._held += size

    @contextlib.contextmanager
    def _hold_for_now(self) -> Iterator[None]:
        """Count the largest file while one is read whose size is not known yet."""
        self._hold(MAX_FILE_BYTES)
        try:
            yield
        finally:
            self._call.context.file_bytes.release(self._call.caller.account, count=MAX_FILE_BYTES)
            self._held -= MAX_FILE_BYTES

    def _release_all(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._call.context.file_bytes.release(self._call.caller.account, count=held)

    def read_content(self, content: Any, where: str) -> tuple[str, tuple[Attachment, ...]]:
        """Return the text and the files of a user's message."""
        if not isinstance(content, list):
            return extract_text(content, where), ()
        texts = [extract_text([part], where) for part in content if is_text_part(part)]
        files = [self._read_part(part, where) for part in content if not is_text_part(part)]
        return "\n".join(texts), tuple(files)

    def _read_part(self, part: Any, where: str) -> Attachment:
        match part:
            case {"type": "image_url", "image_url": {"url": str(url)}} | {
                "type": "input_image" | "image_url",
                "image_url": str(url),
            }:
                return self._add_address(url, "", where)
            case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
                return self._add(_decode_base64(data, where), f"audio.{form}"[:20], _AUDIO_MEDIA.get(form, "audio/*"))
            case {"type": "file", "file": dict(file)}:
                return self._read_file(file, where)
            case {"type": "input_file" | "input_image"}:
                return self._read_file(part, where)
            case _:
                extract_text([part], where)  # says what is wrong with it
                raise AssertionError

    def _read_file(self, file: dict[str, Any], where: str) -> Attachment:
        match file:
            case {"file_id": str(id)} if id in self._uploads:
                return self._add(*self._uploads[id])
            case {"file_data": str(data)}:
                return self._add_address(data, _get_name(file), where)
            case {"file_url": str(url)}:
                return self._add_address(url, _get_name(file), where)
            case _:
                raise _build_bad_request(f"{where} holds a file without file_data, file_url or file_id")

    def _add_address(self, url: str, name: str, where: str) -> Attachment:
        if url in self._fetched:
            data, media = self._fetched[url]
            return self._add(data, name or sanitize_file_name(url.partition("?")[0]), media)
        head, comma, body = url.partition(",") if url.startswith("data:") else ("", "", url)
        media, *options = head.removeprefix("data:").split(";")
        if comma and "base64" not in options:
            if len(body) > MAX_QUOTED_CHARS:
                raise _build_bad_request(f"{where} holds a file that is long and not in base64", "send it in base64")
            return self._add(unquote_to_bytes(body), name, media)
        return self._add(_decode_base64(body, where), name, media)

    def _add(self, data: bytes, name: str, media: str) -> Attachment:
        self._count += 1
        if self._count > self._most:
            raise _build_bad_request(f"a request may have {self._most} files", "send the others in another message")
        if not data or len(data) > MAX_FILE_BYTES:
            raise _build_bad_request(f"a file has {len(data):,} bytes, and may have {MAX_FILE_BYTES:,}")
        attachment = build_attachment(data, name=name, media=media)
        if attachment.blob not in self.contents:
            self._hold(len(data))
            self.contents[attachment.blob] = data
        return attachment


def _list_addresses(part: Any) -> Iterator[str]:
    """Yield the addresses of a part that have to be fetched."""
    match part:
        case {"image_url": {"url": str(url)}} | {"image_url": str(url)} | {"file_url": str(url)}:
            if not url.startswith("data:"):
                if len(url) > MAX_ADDRESS_CHARS or not url.startswith(("https://", "http://")):
                    raise _build_bad_request("an address must be a data: or an https: URL")
                yield url


def _list_ids(part: Any) -> Iterator[str]:
    match part:
        case {"file": {"file_id": str(id)}} | {"file_id": str(id)}:
            yield id


def _count_inline_chars(part: Any) -> int:
    """Return how many characters of a part are the content of a file."""
    match part:
        case {"image_url": {"url": str(data)}} | {"image_url": str(data)} | {"input_audio": {"data": str(data)}}:
            return len(data)
        case {"file": {"file_data": str(data)}} | {"file_data": str(data)}:
            return len(data)
        case _:
            return 0


def _get_name(file: dict[str, Any]) -> str:
    name = file.get("filename")
    return name[-MAX_ADDRESS_CHARS:] if isinstance(name, str) else ""


def _decode_base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _build_bad_request(f"{where} holds a file whose data is not base64") from None


def _build_too_large_error() -> ApiError:
    message = f"a request may have {MAX_BESIDES_FILES:,} bytes besides the files in it"
    return ApiError(413, "too_large", message, remedy="send less text, or an excerpt as a file")


def _build_busy_error(*, is_full: bool) -> ApiError:
    message, headers = "too many files are in use by requests", {"retry-after": "5"}
    if is_full:
        return ApiError(503, "busy", message, remedy="try again", headers=headers)
    return ApiError(429, "quota", f"{message} of this token", remedy="wait for the others", headers=headers)


def _build_bad_request(message: str, remedy: str = "") -> ApiError:
    return ApiError(400, "invalid_request", message, remedy=remedy)
