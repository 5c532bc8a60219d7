"""Supermemory through its own SDK: one request at a time, no automatic retries, its errors mapped to everhold's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.errors import InDoubt, Transient
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.memories.errors import build_memory_error, parse_retry_after
from everhold.memories.sdk import load_module

if TYPE_CHECKING:
    from everhold.memories.supermemory.settings import SupermemorySettings

REMEDY: Final = describe_install("supermemory")
PAGE_SIZE: Final = 100


class SupermemoryNotFound(Transient):
    """The requested object does not exist at Supermemory."""


class SupermemoryClient:
    """One connection pool. It holds no state that could be lost."""

    def __init__(self, settings: SupermemorySettings) -> None:
        self._settings = settings
        self._sdk: Any = None

    async def load_sdk(self) -> Any:
        if self._sdk is None:
            module = await load_module("supermemory", offers="AsyncSupermemory", remedy=REMEDY)
            settings = self._settings
            self._sdk = module.AsyncSupermemory(
                api_key=settings.api_key.reveal().strip() if settings.api_key else "none",
                base_url=settings.base_url or None,
                timeout=settings.deadline_seconds,
                max_retries=0,  # the delivery worker retries
            )
        return self._sdk

    async def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.close()

    async def add_document(self, ns: str, document: Mapping[str, Any]) -> None:
        """Add a document. Adding the same document again changes nothing."""
        answer = await self.call("adding a document", lambda sdk: sdk.add(ns, **document), writes=True)
        # The SDK accepts any response, so its content is checked here.
        if answer is None or answer.id != document["id"] or not isinstance(answer.status, str):
            raise InDoubt("Supermemory accepted a document but returned no id for it")

    async def get_document(self, ns: str, document: str) -> Any:
        """Return a document, or None if it does not exist."""
        with contextlib.suppress(SupermemoryNotFound):
            found = await self.call("reading a document", lambda sdk: sdk.documents.get(ns, document))
            if found is None or found.id != document or found.system is None:
                raise Transient("Supermemory returned a document that cannot be read")
            return found
        return None

    async def wait_for_document(self, ns: str, document: str, *, seconds: float) -> str:
        """Wait for a document and return `done`, `failed`, `gone`, or its state after `seconds`."""
        loop = asyncio.get_running_loop()
        until, wait = loop.time() + seconds, 0.05
        while True:
            found = await self.get_document(ns, document)
            if found is None:
                return "gone"
            status = str(found.system.status)
            if status in ("done", "failed") or loop.time() + wait > until:
                return status
            await asyncio.sleep(wait)
            wait = min(2.0, wait * 2)

    async def delete_documents(self, ns: str, documents: Sequence[str]) -> dict[str, str]:
        """Delete documents. Return those that are still there, with the service's reason. Safe to repeat.

        Supermemory answers 200 even if it refused some of them. A document that did not exist counts as an error there,
        and not here.
        """
        refused: dict[str, str] = {}
        for at in range(0, len(documents), PAGE_SIZE):
            some = list(documents[at : at + PAGE_SIZE])
            try:
                answer = await self.call("deleting documents", lambda sdk, ids=some: sdk.documents.delete(ns, ids=ids))
            except SupermemoryNotFound:
                continue
            if answer is None or answer.errors is None:
                raise Transient("Supermemory returned an answer to a deletion that cannot be read")
            for error in answer.errors:
                if await self.get_document(ns, error.id) is not None:
                    refused[error.id] = str(error.error)
        return refused

    async def require_deletion(self, ns: str, documents: Sequence[str]) -> None:
        """Delete documents. Raises Transient if some are still there."""
        refused = await self.delete_documents(ns, documents)
        if refused:
            raise Transient(f"Supermemory refused to delete {len(refused)} documents: {next(iter(refused.values()))}")

    async def list_documents(self, ns: str, where: Mapping[str, str]) -> list[Any]:
        """List the documents of a namespace whose metadata has these values."""
        return await self._list_all(ns, "documents", **({"filter": build_filter(where)} if where else {}))

    async def list_memories(self, ns: str) -> list[Any]:
        """List what Supermemory has learned from the documents of a namespace, without what it shows no more."""
        return [it for it in await self._list_all(ns, "memories") if not it.is_forgotten]

    async def _list_all(self, ns: str, kind: str, **options: Any) -> list[Any]:
        found: list[Any] = []
        page = 1
        while True:
            number = page
            try:
                answer = await self.call(
                    f"listing {kind}",
                    lambda sdk, number=number: sdk.list(ns, kind, page=number, limit=PAGE_SIZE, **options),
                )
            except SupermemoryNotFound:
                return found
            some = list(getattr(answer, kind) or ()) if answer is not None else []
            found += some
            if len(some) < PAGE_SIZE:
                return found
            page += 1

    async def call(self, what: str, question: Callable[..., Awaitable[Any]], *, writes: bool = False) -> Any:
        """Send one request and map its errors to everhold's."""
        sdk = await self.load_sdk()
        with self._translate_errors(what, writes=writes):
            return await question(sdk)

    @contextlib.contextmanager
    def _translate_errors(self, what: str, *, writes: bool) -> Iterator[None]:
        import httpx
        import supermemory as theirs
        from supermemory.core.api_error import ApiError

        hide = (self._settings.api_key or SecretString("")).mask_in
        where = f"Supermemory, {what}"
        try:
            yield
        except theirs.NotFoundError as error:
            raise SupermemoryNotFound(f"{where}: not found") from error
        except theirs.APIStatusError as error:
            headers = error.response.headers if error.response is not None else {}
            raise build_memory_error(
                where,
                hide(error.message)[:300],
                status=error.status_code,
                retry_after=parse_retry_after(headers.get("retry-after")),
                writes=writes,
            ) from error
        except theirs.SupermemoryError as error:
            unsent = isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
            raise build_memory_error(where, hide(str(error)), writes=writes, unsent=unsent) from error
        except (httpx.HTTPError, ApiError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise build_memory_error(where, hide(f"{type(error).__name__}: {error}")[:300], writes=writes) from error


def build_filter(where: Mapping[str, str]) -> dict[str, Any]:
    """Build a filter for documents whose metadata has these values."""
    each = [{"field": name, "operator": "eq", "value": value} for name, value in where.items()]
    return each[0] if len(each) == 1 else {"operator": "and", "operands": each}
