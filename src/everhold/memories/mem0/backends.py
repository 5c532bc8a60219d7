"""Mem0 through its own package, over the network or in this process: the same four methods, each in a thread.

The package's clients block, and one of them sends a request when it is created. Telemetry is off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from everhold.errors import InDoubt, Transient
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.memories.errors import build_memory_error
from everhold.memories.sdk import load_module

if TYPE_CHECKING:
    from everhold.memories.mem0.settings import Mem0Settings

T = TypeVar("T")
REMEDY: Final = describe_install("mem0")
PAGE_SIZE: Final = 100
MAX_LOCAL_RESULTS: Final = 10_000
"""The library returns 20 results unless a limit is given, and does not say that there are more."""


class Mem0Backend(Protocol):
    async def add(self, text: str, *, user: str, metadata: Mapping[str, Any], infer: bool) -> None:
        """Store a text. Returns when Mem0 reports it as stored; raises InDoubt while that is open."""

    async def search(self, text: str, *, user: str, marks: Mapping[str, str], limit: int) -> list[dict[str, Any]]: ...

    async def list_memories(self, user: str, where: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """Return the memories of a user whose metadata has one of the given values under each given name."""

    async def get(self, memory: str) -> dict[str, Any] | None:
        """Return a memory, or None if there is none."""

    async def delete(self, memory: str) -> bool:
        """Delete a memory and return whether it existed. Safe to repeat."""

    async def purge_history(self, memories: Sequence[str], texts: Sequence[str]) -> int:
        """Delete what the backend keeps of deleted memories and of messages with these texts. Return how much."""

    async def count_history(self, memories: Sequence[str]) -> int:
        """Return how much the backend still keeps of deleted memories."""

    async def close(self) -> None: ...


async def load_mem0_package(directory: PurePath) -> Any:
    """Import the package with settings that stop its telemetry and its writes into the user's home directory."""
    os.environ.setdefault("MEM0_TELEMETRY", "False")
    os.environ.setdefault("MEM0_DIR", str(directory))
    return await load_module("mem0", offers="MemoryClient", remedy=REMEDY)


class Mem0PlatformBackend:
    """Mem0's platform, over the network."""

    def __init__(self, settings: Mem0Settings, directory: PurePath) -> None:
        self._settings = settings
        self._directory = directory
        self._client: Any = None
        self._client_lock = asyncio.Lock()

    async def add(self, text: str, *, user: str, metadata: Mapping[str, Any], infer: bool) -> None:
        answer = await self._call(
            "adding a memory",
            lambda client: client.add(
                [{"role": "user", "content": text}], user_id=user, metadata=dict(metadata), infer=infer
            ),
            writes=True,
        )
        event = _get_event_id(answer)
        if not event:
            raise InDoubt("Mem0 accepted a memory but named no event for it")
        await self._wait_for_event(event)

    async def _wait_for_event(self, event: str) -> None:
        """Wait some time for a queued event to end."""
        loop = asyncio.get_running_loop()
        until, wait = loop.time() + self._settings.confirm_seconds, 0.05
        while self._settings.confirm:
            try:
                answer = await self._call(
                    "asking about an event", lambda client: _get_json(client, f"/v1/event/{event}/")
                )
            except Mem0NotFound as error:
                raise InDoubt("Mem0 accepted a memory but no longer knows its event") from error
            status = answer.get("status") if isinstance(answer, dict) else None
            if status == "SUCCEEDED":
                return
            if status == "FAILED":
                raise Transient("Mem0 could not store a memory that it had accepted")
            if loop.time() + wait > until:
                raise InDoubt("Mem0 accepted a memory but has not stored it yet")
            await asyncio.sleep(wait)
            wait = min(2.0, wait * 2)

    async def search(self, text: str, *, user: str, marks: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
        answer = await self._call(
            "searching", lambda client: client.search(text, filters={"user_id": user}, top_k=limit)
        )
        return _get_results(answer)

    async def list_memories(self, user: str, where: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        conditions: list[dict[str, Any]] = [{"user_id": user}]
        for name, values in where.items():
            conditions.append({"OR": [{"metadata": {name: value}} for value in values]})
        found: list[dict[str, Any]] = []
        page = 1
        while True:
            number = page
            answer = await self._call(
                "listing memories",
                lambda client, number=number: client.get_all(
                    filters={"AND": conditions}, page=number, page_size=PAGE_SIZE
                ),
            )
            results = _get_results(answer)
            found += results
            if len(results) < PAGE_SIZE:
                return found
            page += 1

    async def get(self, memory: str) -> dict[str, Any] | None:
        try:
            found = await self._call("reading a memory", lambda client: client.get(memory))
        except Mem0NotFound:
            return None
        return found if isinstance(found, dict) and found.get("id") else None

    async def delete(self, memory: str) -> bool:
        try:
            await self._call("deleting a memory", lambda client: client.delete(memory))
        except Mem0NotFound:
            return False
        return True

    async def purge_history(self, memories: Sequence[str], texts: Sequence[str]) -> int:
        return 0  # its history cannot be read or deleted through its API

    async def count_history(self, memories: Sequence[str]) -> int:
        return 0

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.client.close)

    async def _call(self, what: str, question: Callable[..., T], *, writes: bool = False) -> T:
        async with self._client_lock:
            if self._client is None:
                module = await load_mem0_package(self._directory)
                with self._translate_errors("saying hello", writes=False):
                    self._client = await asyncio.to_thread(self._create_client, module)
        client = self._client
        with self._translate_errors(what, writes=writes):
            return await asyncio.to_thread(question, client)

    def _create_client(self, module: Any) -> Any:
        import httpx

        settings = self._settings
        key = settings.api_key.reveal().strip() if settings.api_key else "none"
        http = httpx.Client(timeout=settings.deadline_seconds)
        return module.MemoryClient(api_key=key, host=settings.base_url, client=http)

    @contextlib.contextmanager
    def _translate_errors(self, what: str, *, writes: bool) -> Iterator[None]:
        import httpx
        from mem0 import exceptions as theirs

        hide = (self._settings.api_key or SecretString("")).mask_in
        where = f"Mem0, {what}"
        try:
            yield
        except theirs.MemoryNotFoundError as error:
            raise Mem0NotFound(f"{where}: not found") from error
        except theirs.MemoryError as error:
            raise build_memory_error(
                where,
                hide(error.message),
                status=int(error.debug_info.get("status_code") or 0),
                retry_after=error.debug_info.get("retry_after"),
                writes=writes,
                unsent=error.error_code == "NET_CONNECT",
            ) from error
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 404:
                raise Mem0NotFound(f"{where}: not found") from error
            raise build_memory_error(
                where, hide(str(error)), status=error.response.status_code, writes=writes
            ) from error
        except httpx.HTTPError as error:
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise build_memory_error(
                where, hide(str(error)) or type(error).__name__, writes=writes, unsent=unsent
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise build_memory_error(where, hide(f"{type(error).__name__}: {error}"), writes=writes) from error


class Mem0LocalBackend:
    """Mem0's library, in this process. It uses one thread, because the vector files do not support a second one."""

    def __init__(self, settings: Mem0Settings, directory: PurePath) -> None:
        self._settings = settings
        self._directory = directory
        self._memory: Any = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mem0")

    async def add(self, text: str, *, user: str, metadata: Mapping[str, Any], infer: bool) -> None:
        answer = await self._call(
            lambda memory: memory.add(
                [{"role": "user", "content": text}], user_id=user, metadata=dict(metadata), infer=infer
            )
        )
        if not infer and not any(one.get("id") for one in _get_results(answer)):
            # Mem0 also reports this while its embedding service is down.
            raise InDoubt("Mem0 reported a memory as added but shows none")

    async def search(self, text: str, *, user: str, marks: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
        return _get_results(
            await self._call(
                lambda memory: memory.search(text, filters={"user_id": user, **marks}, top_k=limit, threshold=0.0)
            )
        )

    async def list_memories(self, user: str, where: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for narrower in [{name: value} for name, values in where.items() for value in values] or [{}]:
            filters = {"user_id": user, **narrower}
            answer = await self._call(
                lambda memory, filters=filters: memory.get_all(filters=filters, top_k=MAX_LOCAL_RESULTS)
            )
            found |= {one["id"]: one for one in _get_results(answer)}
        return list(found.values())

    async def get(self, memory: str) -> dict[str, Any] | None:
        found = await self._call(lambda library: library.get(memory))
        return found if isinstance(found, dict) else None

    async def purge_history(self, memories: Sequence[str], texts: Sequence[str]) -> int:
        """Delete the rows of the library's own file, which has no method for it, and rewrite the file."""

        def purge(library: Any) -> int:
            sql = library.db.connection
            sql.execute("pragma secure_delete=on")
            gone = 0
            for memory in memories:
                gone += int(sql.execute("delete from history where memory_id = ?", (memory,)).rowcount)
            for text in texts:
                gone += int(sql.execute("delete from messages where content = ?", (text,)).rowcount)
            sql.commit()
            sql.execute("vacuum")
            return gone

        return await self._call(purge)

    async def count_history(self, memories: Sequence[str]) -> int:
        def count(library: Any) -> int:
            sql = library.db.connection
            asked = "select count(*) from history where memory_id = ?"
            return sum(int(sql.execute(asked, (memory,)).fetchone()[0]) for memory in memories)

        return await self._call(count)

    async def delete(self, memory: str) -> bool:
        def gone(library: Any) -> bool:
            try:
                library.delete(memory)
            except ValueError:  # not found any more
                return False
            return True

        return await self._call(gone)

    async def close(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, _close_memory, memory)
        self._executor.shutdown(wait=False)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mem0")

    async def _call(self, question: Callable[..., T]) -> T:
        # The library may raise any error. The caller treats it as in doubt and probes.
        module = await load_mem0_package(self._directory)

        def work() -> T:
            if self._memory is None:
                self._memory = module.Memory.from_config(self._build_config())
            return question(self._memory)

        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _build_config(self) -> dict[str, Any]:
        config: dict[str, Any] = _reveal_secrets(self._settings.config)
        directory = self._directory
        vectors: dict[str, Any] = {"path": str(directory / "vectors"), "on_disk": True}
        if size := config.get("embedder", {}).get("config", {}).get("embedding_dims"):
            vectors["embedding_model_dims"] = size
        config.setdefault("vector_store", {"provider": "qdrant", "config": vectors})
        config.setdefault("history_db_path", str(directory / "history.db"))
        return config


class Mem0NotFound(Transient):
    """The requested object does not exist at Mem0."""


def _reveal_secrets(value: Any) -> Any:
    if isinstance(value, SecretString):
        return value.reveal()
    if isinstance(value, Mapping):
        return {key: _reveal_secrets(item) for key, item in value.items()}
    return [_reveal_secrets(item) for item in value] if isinstance(value, list | tuple) else value


def _close_memory(memory: Any) -> None:
    memory.close()
    vectors = getattr(memory.vector_store, "client", None)
    if vectors is not None and hasattr(vectors, "close"):
        vectors.close()  # otherwise they stay locked for the next process


def _get_json(client: Any, path: str) -> Any:
    """Send a request for which the package has no method, through the package's connection."""
    answer = client.client.get(path)
    answer.raise_for_status()
    return answer.json()


def _get_event_id(answer: Any) -> str:
    """Return the event that a memory was queued under. The platform has used two formats for this answer."""
    if not isinstance(answer, dict):
        return ""
    inner = answer.get("results")
    first = inner[0] if isinstance(inner, list) and inner and isinstance(inner[0], dict) else {}
    return str(answer.get("event_id") or first.get("event_id") or "")


def _get_results(answer: Any) -> list[dict[str, Any]]:
    results = answer.get("results") if isinstance(answer, dict) else answer
    if not isinstance(results, list) or not all(isinstance(one, dict) for one in results):
        raise Transient("Mem0 returned an answer that cannot be read")
    return results
