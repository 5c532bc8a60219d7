"""Files reach models by upload, inline and by address, and are stored once with their message."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.api.rate_limits import SlotCounter
from everhold.core.attachments import build_attachment
from everhold.core.entries import Heard
from everhold.errors import InvalidRequest, NotFound, Transient
from everhold.infra import uploads
from everhold.infra.home import write_file
from everhold.infra.uploads import KEEP_SECONDS, MAX_FILE_BYTES, UploadFolder
from everhold.ports.plugin import FetchedContent
from everhold.testing.contracts.store_scenario import SeededRandom
from everhold.testing.model_server import ModelServer
from tests.api.conftest import ADA, BOB, ApiGateway
from tests.waiting import wait_until

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 4
DATA = base64.b64encode(PNG).decode()
KINDS = ["/v1/chat/completions", "/v1/responses"]


async def upload(client: httpx2.AsyncClient, data: bytes = PNG, **query: str) -> httpx2.Response:
    query = {"name": "a.png", "media": "image/png"} | query
    return await client.post("/api/files", params=query, content=data)


async def read_files(gateway: ApiGateway, session: str) -> list[Heard]:
    log = await gateway.running.store.read_log(session)
    return [entry.body for entry in log if isinstance(entry.body, Heard)]


async def test_an_uploaded_picture_reaches_the_model_and_is_stored_once(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    uploaded = await upload(client, name="../photo\n.png")
    assert (uploaded.status_code, uploaded.json()["name"]) == (201, "photo.png")
    id = uploaded.json()["id"]
    message = {"chat": "x", "text": "what is it?", "files": [id], "id": "m1"}
    first = await client.post("/api/messages", json=message)
    assert (await client.post("/api/messages", json=message)).json() == first.json(), "a repeat is recognised"
    session = first.json()["session"]
    (heard,) = await read_files(gateway, session)
    assert heard.attachments == (build_attachment(PNG, name="photo.png", media="image/png"),)
    assert await gateway.running.store.get_blob(heard.attachments[0].blob) == PNG
    await gateway.wait_until_idle(session)
    assert DATA in json.dumps(model.requests[-1].json)


async def test_an_upload_counts_for_its_uploader_only(gateway: ApiGateway) -> None:
    async with gateway.client(ADA) as ada, gateway.client(BOB) as bob, gateway.client("") as nobody:
        id = (await upload(ada)).json()["id"]
        message = {"chat": "x", "text": "what is it?", "files": [id]}
        assert (await bob.post("/api/messages", json=message)).status_code == 404
        assert (await ada.post("/api/messages", json={**message, "files": ["../../.env"]})).status_code == 404
        assert (await ada.post("/api/messages", json=message)).status_code == 202
        assert (await upload(nobody)).status_code == 401
        assert (await upload(ada, b"")).status_code == 400
        assert (await upload(ada, b"x" * 20_000_000)).status_code == 201
        assert (await ada.post("/api/messages", content=b" " * 1_100_000)).status_code == 413, "other bodies stay small"


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("session", ["", "pics"])
async def test_openai_formats_carry_pictures_and_files(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer, path: str, session: str
) -> None:
    seen: list[str] = []

    async def fetch(url: str, **_: Any) -> FetchedContent:
        seen.append(url)
        return FetchedContent(data=PNG + b"web", media="image/png")

    gateway.running.api_context.fetch = fetch
    id = (await upload(client, PNG + b"up")).json()["id"]
    text = f"data:text/plain;base64,{base64.b64encode(b'hello file').decode()}"
    big = PNG + b"x" * 1_500_000
    inline, address = f"data:image/png;base64,{base64.b64encode(big).decode()}", "https://example.org/a.png?key=1"
    if "chat" in path:
        parts: list[Any] = [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": inline}},
            {"type": "image_url", "image_url": {"url": address, "detail": "low"}},
            {"type": "file", "file": {"filename": "n.txt", "file_data": text}},
            {"type": "file", "file": {"file_id": id}},
        ]
    else:
        parts = [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": inline},
            {"type": "input_image", "image_url": address},
            {"type": "input_file", "filename": "n.txt", "file_data": text},
            {"type": "input_file", "file_id": id},
        ]
    key = "messages" if "chat" in path else "input"
    headers = {"x-everhold-session": session} if session else {}
    answer = await client.post(path, json={"model": "main", key: [{"role": "user", "content": parts}]}, headers=headers)
    assert answer.status_code == 200, answer.text
    asked = json.dumps(model.requests[-1].json)
    for data in (big, PNG + b"web", PNG + b"up"):
        assert base64.b64encode(data).decode() in asked
    assert "| hello file" in asked
    assert seen == [address]
    stored = await gateway.running.store.read_feed()
    assert bool(stored) is bool(session)
    if session:
        (heard,) = [entry.body for entry in stored if isinstance(entry.body, Heard)]
        assert [it.name for it in heard.attachments] == ["", "a.png", "n.txt", "a.png"]
    else:
        assert await gateway.running.store.get_blob(build_attachment(big).blob) is None


@pytest.mark.parametrize("path", KINDS)
async def test_bad_files_are_refused_by_name(client: httpx2.AsyncClient, path: str) -> None:
    key, role = ("messages" if "chat" in path else "input"), "user"
    many = [{"type": "image_url", "image_url": {"url": f"data:,{number}"}} for number in range(30)]
    for content, words in (
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "must be a data: or an https: URL"),
        ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}], "has no public address"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}], "not base64"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}], "0 bytes"),
        ([{"type": "input_file", "filename": "x"}], "without file_data"),
        ([{"type": "input_file", "file_id": "f" * 32}], "there is no uploaded file"),
        ([{"type": "video", "x": 1}], "only user messages"),
        (many, "may have 20 files"),
    ):
        answer = await client.post(path, json={"model": "main", key: [{"role": role, "content": content}]})
        assert 400 <= answer.status_code < 500, (content, answer.text)
        assert words in answer.text


async def test_a_part_that_names_two_uploads_is_no_error_of_ours(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    id = (await upload(client)).json()["id"]
    part = {"type": "input_file", "file": {"file_id": id}, "file_id": "another"}
    asked = {"model": "main", "input": [{"role": "user", "content": [part]}]}
    answer = await client.post("/v1/responses", json=asked)
    assert answer.status_code == 400, answer.text
    assert "http.failed" not in gateway.log.getvalue()


@pytest.mark.parametrize(
    "data, reason",
    [
        ({"file_data": "data:text/plain," + "%41" * 40_000}, "base64"),
        ({"file_data": DATA, "filename": "x" * 900_000 + "/a.png"}, ""),
    ],
    ids=["quoted", "name"],
)
async def test_a_part_that_takes_long_to_read_is_bounded(
    gateway: ApiGateway, client: httpx2.AsyncClient, data: dict[str, str], reason: str
) -> None:
    asked = {"model": "main", "input": [{"role": "user", "content": [{"type": "input_file", **data}]}]}
    answer = await client.post("/v1/responses", json=asked, headers={"x-everhold-session": "x"})
    assert answer.status_code == (400 if reason else 200), answer.text
    assert reason in answer.text


async def test_the_files_of_all_requests_fit_into_the_memory(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    """What a token names in many requests at once is counted before it is read, and until they end."""
    context = gateway.running.api_context
    context.file_bytes = SlotCounter(2 * (MAX_FILE_BYTES + 1_000))
    fetching, fetched = asyncio.Event(), asyncio.Event()

    async def fetch(url: str, *, headers: Mapping[str, str] | None = None) -> FetchedContent:
        fetching.set()
        await fetched.wait()
        return FetchedContent(data=PNG, media="image/png")

    context.fetch = fetch
    picture = {"type": "image_url", "image_url": {"url": "https://pictures.example/a.png"}}
    asked = {"model": "main", "messages": [{"role": "user", "content": [picture]}]}
    first = asyncio.create_task(client.post("/v1/chat/completions", json=asked, headers={"x-everhold-session": "a"}))
    await fetching.wait()
    second = await client.post("/v1/chat/completions", json=asked, headers={"x-everhold-session": "b"})
    assert (second.status_code, second.json()["error"]["type"]) == (429, "quota")
    async with gateway.client(ADA) as ada:
        other = asyncio.create_task(ada.post("/v1/chat/completions", json=asked))
        await wait_until(lambda: context.file_bytes.used == 2 * MAX_FILE_BYTES)
        fetched.set()
        assert ((await first).status_code, (await other).status_code) == (200, 200)
    await wait_until(lambda: context.file_bytes.used == 0)


@pytest.mark.parametrize("kind", ["messages", "parts", "text", "tools"])
async def test_a_request_with_files_may_be_large_by_its_files_only(client: httpx2.AsyncClient, kind: str) -> None:
    """Reading so many messages, or so long a text, would stop all others for seconds."""
    picture = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG * 60_000).decode()}"},
    }
    message: dict[str, Any] = {"role": "user", "content": [picture]}
    asked: dict[str, Any] = {"model": "main", "messages": [message]}
    assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
    match kind:
        case "messages":
            asked["messages"] += [{"role": "user", "content": "a"}] * 80_000
        case "parts":
            message["content"] += [{"type": "text", "text": ""}] * 80_000
        case "text":
            message["content"] += [{"type": "text", "text": "a" * 2_100_000}]
        case _:
            asked["tools"] = [{"type": "function", "function": {"name": "f", "description": "a" * 2_100_000}}]
    refused = await client.post("/v1/chat/completions", json=asked)
    assert refused.status_code == 413, refused.text
    assert "besides the files" in refused.text


def test_uploads_are_limited_and_end_after_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    folder = UploadFolder(tmp_path / "uploads", now=lambda: now, random_bytes=SeededRandom(1).bytes)
    monkeypatch.setattr(uploads, "MAX_OWNER_BYTES", 25)
    kept = folder.save(b"x" * 10, account="t", owner="a", name="n", media="m")
    folder.save(b"x" * 10, account="t", owner="a", name="n", media="m")
    with pytest.raises(Transient):
        folder.save(b"x" * 10, account="t", owner="a", name="n", media="m")
    folder.save(b"x" * 10, account="t", owner="b", name="n", media="m")
    with pytest.raises(InvalidRequest):
        folder.save(b"", account="t", owner="c", name="n", media="m")
    assert folder.read(kept.id, owner="a") == (kept, b"x" * 10)
    assert (tmp_path / "uploads" / f"{kept.id}.bin").stat().st_mode & 0o777 == 0o600
    now += KEEP_SECONDS
    with pytest.raises(NotFound):
        folder.read(kept.id, owner="a")
    assert folder.tidy() == []
    assert list((tmp_path / "uploads").iterdir()) == []


def test_the_users_of_a_service_together_leave_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service names its users as it likes, so each could be another one."""
    folder = UploadFolder(tmp_path / "uploads", now=lambda: 1.0, random_bytes=SeededRandom(1).bytes)
    monkeypatch.setattr(uploads, "MAX_ACCOUNT_FILES", 3)
    monkeypatch.setattr(uploads, "MAX_ACCOUNT_BYTES", 40)
    for user in "abc":
        folder.save(b"x", account="token:s", owner=f"token:s/{user}", name="n", media="m")
    with pytest.raises(Transient):
        folder.save(b"x", account="token:s", owner="token:s/d", name="n", media="m")
    folder.save(b"x" * 30, account="token:other", owner="token:other/e", name="n", media="m")
    with pytest.raises(Transient):
        folder.save(b"x" * 30, account="token:other", owner="token:other/f", name="n", media="m")


def test_an_upload_that_is_being_stored_is_not_tidied_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread tidies between the two files of an upload."""
    folder = UploadFolder(tmp_path / "uploads", now=lambda: 1.0, random_bytes=SeededRandom(1).bytes)
    write, others = write_file, ThreadPoolExecutor(max_workers=1)
    tidied: list[Future[Any]] = []

    def write_beside_others(path: Path, data: bytes) -> None:
        write(path, data)
        tidied.append(others.submit(folder.tidy))
        wait(tidied, timeout=0.05)  # it may have to wait for this upload

    monkeypatch.setattr(uploads, "write_file", write_beside_others)
    record = folder.save(PNG, account="t", owner="a", name="n", media="m")
    assert [it.result() for it in tidied]
    assert folder.read(record.id, owner="a") == (record, PNG)
    others.shutdown()
