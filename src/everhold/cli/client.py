"""The client of the API that all commands use, with a gateway or in process. Responses are plain JSON.

It imports only the standard library, so that a command to a running gateway starts fast.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

from everhold.cli.errors import read_error
from everhold.cli.transport import ApiResponse, ApiTransport, GatewayGone, make_foreign_error
from everhold.errors import Conflict, EverholdError, InvalidRequest, NotFound, Refused, Transient

ENTRIES_PER_PAGE: Final = 200
SESSIONS_PER_PAGE: Final = 500
DEAD_LETTERS_PER_PAGE: Final = 500
IMPORT_BYTES: Final = 4 << 20
"""The maximum size of Markdown in one request."""
MAX_MEMORIES: Final = 100
"""The API's limit for hits."""
SNAPSHOT: Final = ".snapshot."
_FOLLOWED: Final = ("entry", "delta", "reset")


class ApiClient:
    """The operations of the API. Raises the API's errors as everhold's errors, and GatewayGone."""

    def __init__(self, transport: ApiTransport) -> None:
        self.transport = transport

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def find_session(self, name: str) -> dict[str, Any]:
        """Return the session that an id, a unique prefix, a title, an address or `last` refers to."""
        if not name:
            raise NotFound("the session's name is empty", remedy="`everhold sessions list` shows the sessions")
        found: dict[str, Any] = (await self._get("/api/sessions", name=name))["sessions"][0]
        return found

    async def list_sessions(self, *, limit: int) -> dict[str, Any]:
        """Return the newest sessions, from as many pages as needed."""
        sessions: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None and len(sessions) < limit:
            size = min(SESSIONS_PER_PAGE, limit - len(sessions))
            page = await self._get("/api/sessions", limit=size, after=after)
            sessions += page["sessions"]
            after = page["next"]
        return {"sessions": sessions}

    async def read_entries(self, session: str, *, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield the entries of the session with this id, read page by page."""
        while True:
            path = f"/api/sessions/{_quote(session)}/entries"
            page = (await self._get(path, after=after, limit=ENTRIES_PER_PAGE))["entries"]
            for entry in page:
                after = entry["seq"]
                yield entry
            if len(page) < ENTRIES_PER_PAGE:
                return

    async def show_context(self, name: str, *, at: int | None = None) -> dict[str, Any]:
        name, mark, compression = name.partition(SNAPSHOT)
        id = (await self.find_session(name))["id"] + mark + compression
        return await self._get(f"/api/sessions/{_quote(id)}/context", at=at)

    async def list_compressions(self, name: str) -> dict[str, Any]:
        return await self._get(f"{await self._find_path(name)}/compressions")

    async def show_compression_diff(self, name: str, *, compression: int) -> dict[str, Any]:
        return await self._get(f"{await self._find_path(name)}/compressions/{compression}/diff")

    async def search_entries(self, text: str, *, limit: int) -> dict[str, Any]:
        return await self._get("/api/entries", q=text, limit=limit)

    async def undo_operations(self, name: str, *, what: str, count: int) -> dict[str, Any]:
        return await self._post(f"{await self._find_path(name)}/undo", what=what, count=count)

    async def list_pins(self, name: str) -> dict[str, Any]:
        return await self._get(f"{await self._find_path(name)}/pins")

    async def pin_entry(self, name: str, seq: int) -> dict[str, Any]:
        return await self._post(f"{await self._find_path(name)}/pin", seq=seq)

    async def unpin_entry(self, name: str, seq: int | None) -> dict[str, Any]:
        return await self._post(f"{await self._find_path(name)}/unpin", seq=seq)

    async def compress_session(self, name: str, *, keep: int | None, focus: str, preview: bool) -> dict[str, Any]:
        return await self._post(f"{await self._find_path(name)}/compress", keep=keep, focus=focus, preview=preview)

    async def stop_turn(self, name: str) -> dict[str, Any]:
        return await self._post(f"{await self._find_path(name)}/stop")

    # -- messages ------------------------------------------------------------------------------------------------------

    async def find_chat_location(self, name: str, *, agent: str = "") -> dict[str, Any]:
        """Return the location for messages to the chat or session called `name`."""
        return await self._get("/api/chat-locations", name=name, agent=agent)

    async def upload_file(self, data: bytes, *, name: str, media: str) -> dict[str, Any]:
        return await self._send_request("POST", f"/api/files?{_render_query(name=name, media=media)}", data)

    async def send_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return its `session` and `seq` after the commit. A repeated `id` has no effect."""
        try:
            return await self._post("/api/messages", **message)
        except Conflict:
            raise InvalidRequest(
                f"another text was sent under the id {message.get('id')!r}", remedy="choose another --id"
            ) from None
        except Refused as error:
            raise Refused(error.message, remedy=error.remedy or "everhold agents") from None

    async def follow_session(self, session: str, *, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """Yield entries of a session as `{"entry": …}`, and hints as `{"delta": {op, at, text}}`, `{"reset": …}`."""
        target = f"/api/events?{_render_query(session=session, after_seq=after)}"
        async with self.transport.open("GET", target, None) as response:
            if response.status != 200:
                raise await _read_refusal(response)
            async for event, data in _parse_events(response.body):
                if event in _FOLLOWED:
                    yield {event: data}
        raise GatewayGone("the gateway ended the stream", remedy="`everhold logs` may show why")

    # -- the gateway ---------------------------------------------------------------------------------------------------

    async def show_health(self) -> dict[str, Any]:
        """Return version and role of the process that answers."""
        return await self._get("/health")

    async def list_hosts(self) -> dict[str, Any]:
        return await self._get("/api/hosts")

    async def start_draining(self) -> dict[str, Any]:
        return await self._post("/api/drain")

    async def show_status(self) -> dict[str, Any]:
        return await self._get("/api/status")

    async def list_agents(self) -> dict[str, Any]:
        return await self._get("/api/agents")

    async def run_audit(
        self, session: str | None = None, report_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> dict[str, Any]:
        """Return the report. `report_progress` receives how many entries were read, and how many there are."""
        target = f"/api/audit?{_render_query(session=session, stream=1)}"
        async with self.transport.open("GET", target, None) as response:
            if response.status != 200:
                raise await _read_refusal(response)
            async for event, data in _parse_events(response.body):
                match event:
                    case "progress":
                        report_progress(data["done"], data["total"])
                    case "report":
                        return cast(dict[str, Any], data)
                    case "error":
                        raise EverholdError(data["message"], remedy=data["remedy"])
        raise GatewayGone("the gateway ended the audit", remedy="`everhold logs` may show why")

    async def create_backup(self, *, to: str = "") -> dict[str, Any]:
        return await self._post("/api/backups", to=to)

    async def list_dead_letters(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            page = await self._get("/api/dead-letters", after=after, limit=DEAD_LETTERS_PER_PAGE)
            found += page["dead_letters"]
            after = page["next"]
        return {"dead_letters": found}

    async def replay_dead_letters(self, ids: list[int]) -> dict[str, Any]:
        """Replay these dead letters, or all if the list is empty."""
        return await self._post("/api/dead-letters/replay", ids=ids or None)

    # -- logins --------------------------------------------------------------------------------------------------------

    async def create_login_code(self, *, token: str = "") -> dict[str, Any]:
        return await self._post("/api/login-codes", token=token)

    async def list_logins(self) -> dict[str, Any]:
        return await self._get("/api/logins")

    async def end_login(self, id: str) -> dict[str, Any]:
        return await self._post(f"/api/logins/{_quote(id)}/end")

    # -- people --------------------------------------------------------------------------------------------------------

    async def list_people(self) -> dict[str, Any]:
        return await self._get("/api/people")

    async def link_identity(self, identity: str, person: str, *, since: float | None = None) -> dict[str, Any]:
        return await self._post("/api/people/link", identity=identity, person=person, since=since)

    async def name_person(self, person: str, name: str) -> dict[str, Any]:
        return await self._post("/api/people/name", person=person, name=name)

    async def list_peers(self) -> dict[str, Any]:
        return await self._get("/api/people/peers")

    async def assign_peer(self, memory: str, peer: str, identity: str) -> dict[str, Any]:
        return await self._post("/api/people/peers", memory=memory, peer=peer, identity=identity)

    async def list_people_events(self, *, after: int = 0, limit: int = 100) -> dict[str, Any]:
        return await self._get("/api/people/events", after=after, limit=limit)

    async def unlink_identity(self, identity: str) -> dict[str, Any]:
        return await self._post("/api/people/unlink", identity=identity)

    async def list_pairing(self) -> dict[str, Any]:
        return await self._get("/api/pairing")

    async def approve_pairing(self, code: str, *, person: str) -> dict[str, Any]:
        return await self._post("/api/pairing/approve", code=code, person=person)

    async def revoke_pairing(self, identity: str) -> dict[str, Any]:
        return await self._post("/api/pairing/revoke", identity=identity)

    async def list_tools(self) -> dict[str, Any]:
        return await self._get("/api/tools")

    async def confirm_tools(self, server: str, digest: str) -> dict[str, Any]:
        return await self._post(f"/api/tools/{_quote(server)}/confirm", digest=digest)

    async def list_hooks(self) -> dict[str, Any]:
        return await self._get("/api/hooks")

    async def test_hook(self, name: str, *, body: str, headers: dict[str, str], send: bool) -> dict[str, Any]:
        return await self._post(f"/api/hooks/{_quote(name)}/test", body=body, headers=headers, send=send)

    async def list_schedules(self) -> dict[str, Any]:
        return await self._get("/api/schedules")

    async def delete_schedule(self, id: str) -> dict[str, Any]:
        return await self._post(f"/api/schedules/{_quote(id)}/delete")

    async def list_approvals(self) -> dict[str, Any]:
        return await self._get("/api/approvals")

    async def show_approval(self, id: str) -> dict[str, Any]:
        return await self._get(f"/api/approvals/{_quote(id)}")

    async def answer_approval(self, id: str, *, decision: str, digest: str, note: str) -> dict[str, Any]:
        return await self._post(f"/api/approvals/{_quote(id)}", decision=decision, digest=digest, note=note)

    async def list_rules(self) -> dict[str, Any]:
        return await self._get("/api/rules")

    async def revoke_rule(self, id: str) -> dict[str, Any]:
        return await self._post(f"/api/rules/{_quote(id)}/revoke")

    # -- memory --------------------------------------------------------------------------------------------------------

    async def add_note(self, name: str, text: str) -> dict[str, Any]:
        session = await self.find_session(name)
        return await self._post("/api/notes", session=session["id"], text=text)

    async def show_memory_status(self) -> dict[str, Any]:
        return await self._get("/api/memory/status")

    async def search_memory(self, text: str, *, agent: str, person: str, limit: int) -> dict[str, Any]:
        return await self._get("/api/memory/search", q=text, agent=agent, person=person, limit=min(limit, MAX_MEMORIES))

    async def explain_answer(self, name: str, *, at: int | None) -> dict[str, Any]:
        return await self._get(f"{await self._find_path(name)}/why", at=at)

    async def compare_memories(self, *, agent: str, person: str, limit: int) -> dict[str, Any]:
        return await self._post("/api/memory/compare", agent=agent, person=person, limit=limit)

    async def resend_to_memory(self, memory: str, *, since: float, agent: str, dry_run: bool) -> dict[str, Any]:
        path = f"/api/memory/providers/{_quote(memory)}/resend"
        return await self._post(path, since=since, agent=agent, dry_run=dry_run)

    async def backfill_memory(
        self, memory: str, *, agent: str, since: float, until: float | None, per_minute: int, dry_run: bool
    ) -> dict[str, Any]:
        path = f"/api/memory/providers/{_quote(memory)}/backfill"
        return await self._post(path, agent=agent, since=since, until=until, per_minute=per_minute, dry_run=dry_run)

    async def rekey_memory(self, memory: str, *, person: str, agent: str, dry_run: bool) -> dict[str, Any]:
        path = f"/api/memory/providers/{_quote(memory)}/rekey"
        return await self._post(path, person=person, agent=agent, dry_run=dry_run)

    async def forget_person(self, person: str, *, dry_run: bool, rebuild: bool = False) -> dict[str, Any]:
        return await self._post("/api/memory/forget", person=person, dry_run=dry_run, rebuild=rebuild)

    async def list_erasures(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._get("/api/memory/erasures"))["erasures"]
        return found

    async def accept_remainders(self, erasure: str) -> dict[str, Any]:
        return await self._post(f"/api/memory/erasures/{_quote(erasure)}/accept")

    async def export_person(self, person: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the records of a person's export."""
        target = f"/api/memory/export?{_render_query(person=person)}"
        async with self.transport.open("GET", target, None) as response:
            if response.status != 200:
                raise await _read_refusal(response)
            async for line in _split_lines(response.body):
                yield json.loads(line)

    async def show_memory_files(self, person: str) -> list[dict[str, str]]:
        files: list[dict[str, str]] = (await self._get("/api/memory/files", person=person))["files"]
        return files

    async def import_memory_files(self, name: str, files: dict[str, str], *, dry_run: bool) -> dict[str, Any]:
        """Import the files, in as many requests as their size requires."""
        session = (await self.find_session(name))["id"]
        total: dict[str, Any] = {}
        for batch in _batch_files(files):
            done = await self._post("/api/memory/import", session=session, files=batch, dry_run=dry_run)
            for key in ("files", "facts", "notes", "noted"):
                done[key] = total.get(key, type(done[key])()) + done[key]
            total = done
        return total

    async def send_mcp_message(self, message: bytes, *, agent: str) -> bytes:
        """Pass on a message of an MCP client and return the answer; empty for a notification."""
        async with self.transport.open("POST", f"/mcp?{_render_query(agent=agent)}", message) as response:
            if not 200 <= response.status < 300:
                raise await _read_refusal(response)
            return await _read_all(response)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _find_path(self, name: str) -> str:
        return f"/api/sessions/{_quote((await self.find_session(name))['id'])}"

    async def _get(self, path: str, **query: str | int | None) -> dict[str, Any]:
        text = _render_query(**query)
        return await self._send_request("GET", f"{path}?{text}" if text else path, None)

    async def _post(self, path: str, **body: Any) -> dict[str, Any]:
        given = {name: value for name, value in body.items() if value is not None}
        # a terminal may hand over bytes that are no text; they become replacement characters
        text = json.dumps(given, ensure_ascii=False).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        return await self._send_request("POST", path, text.encode())

    async def _send_request(self, method: str, target: str, body: bytes | None) -> dict[str, Any]:
        async with self.transport.open(method, target, body) as response:
            if not 200 <= response.status < 300:
                raise await _read_refusal(response)
            body = await _read_all(response)
        try:
            content = json.loads(body)
        except ValueError:
            raise make_foreign_error() from None
        if not isinstance(content, dict):
            raise make_foreign_error()
        return content


async def _read_all(response: ApiResponse) -> bytes:
    return b"".join([piece async for piece in response.body])


async def _read_refusal(response: ApiResponse) -> Exception:
    body = await _read_all(response)
    if not response.is_json:  # uvicorn sent it, not the API
        if response.status == 503:
            return Transient("too many commands at once", remedy="try again")
        if response.status == 500:
            return GatewayGone("the gateway ended before it answered", remedy="`everhold logs` may show why")
        return read_error(response.status, None)
    try:
        return read_error(response.status, json.loads(body))
    except ValueError:
        return read_error(response.status, None)


async def _split_lines(body: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        raise GatewayGone("the gateway ended during its answer", remedy="try again")


async def _parse_events(body: AsyncIterator[bytes]) -> AsyncGenerator[tuple[str, Any], None]:
    """Yield name and data of server-sent events."""
    event, data = "", ""
    async with aclosing(_split_lines(body)) as lines:
        async for line in lines:
            name, _, value = line.decode().partition(":")
            if name == "event":
                event = value.removeprefix(" ")
            elif name == "data":
                data = value.removeprefix(" ")
            elif not line:
                if data:
                    yield event, json.loads(data)
                event, data = "", ""


def _batch_files(files: dict[str, str]) -> list[dict[str, str]]:
    batches: list[dict[str, str]] = [{}]
    size = 0
    for name, text in files.items():
        if size and size + len(text) > IMPORT_BYTES:
            batches.append({})
            size = 0
        batches[-1][name] = text
        size += len(text)
    return batches


def _render_query(**query: str | int | None) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "")}
    for value in given.values():
        _require_text(str(value))
    return urlencode(given)


def _quote(part: str) -> str:
    _require_text(part)
    return quote(part, safe="")


def _require_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name!r} contains invalid characters", remedy="write names in UTF-8") from None
