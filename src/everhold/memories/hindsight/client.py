"""Hindsight through its own SDK: one request at a time, no automatic retries, its errors mapped to everhold's."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.errors import InDoubt, Transient
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.memories.errors import build_memory_error, parse_retry_after
from everhold.memories.sdk import load_module

if TYPE_CHECKING:
    from everhold.memories.hindsight.settings import HindsightSettings

REMEDY: Final = describe_install("hindsight")
PAGE_SIZE: Final = 100
FINISHED_STATUSES: Final = ("completed", "failed", "cancelled")
UNFINISHED_STATUSES: Final = ("pending", "processing")


class HindsightNotFound(Transient):
    """The requested object does not exist at Hindsight."""


class HindsightClient:
    """One connection pool. It holds no state that could be lost."""

    def __init__(self, settings: HindsightSettings) -> None:
        self._settings = settings
        self._sdk: Any = None
        self._persona = ""
        self._banks: set[str] = set()
        """Banks whose mission was already set."""

    async def load_sdk(self) -> Any:
        if self._sdk is None:
            module = await load_module("hindsight_client", offers="Hindsight", remedy=REMEDY)
            settings = self._settings
            self._sdk = module.Hindsight(
                base_url=settings.base_url,
                api_key=settings.api_key.reveal().strip() if settings.api_key else None,
                timeout=settings.deadline_seconds,
                user_agent="everhold",
                max_attempts=1,  # the delivery worker retries
            )
            _ignore_password_file(self._sdk, settings.base_url)
        return self._sdk

    async def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.aclose()

    def set_persona(self, persona: str) -> None:
        """Offer the agent's persona as the background of its banks, from the next write on."""
        if persona != self._persona:
            self._persona = persona
            self._banks.clear()

    async def ensure_bank(self, bank: str) -> None:
        """Make sure that a bank exists and has its mission. Safe to repeat, because it sets the same values again."""
        if bank in self._banks:
            return
        settings = self._settings
        mission = settings.mission or None
        # A configured mission says what the bank is for. Without one, the persona says who uses it.
        background = self._persona if self._persona and not mission else None
        await self.call(
            f"opening bank {bank}", lambda sdk: sdk.acreate_bank(bank, mission=mission, background=background)
        )
        if settings.template:
            from hindsight_client_api.api.bank_templates_api import BankTemplatesApi
            from hindsight_client_api.models.bank_template_manifest import BankTemplateManifest

            manifest: Any = BankTemplateManifest.from_dict(dict(settings.template))
            await self.call(
                f"importing the template of bank {bank}",
                lambda sdk: BankTemplatesApi(sdk._api_client).import_bank_template(bank, manifest),
            )
        self._banks.add(bank)

    async def retain_documents(self, bank: str, items: Sequence[dict[str, Any]], operation: str) -> None:
        """Retain documents under an operation id. A repeated id does nothing at Hindsight."""
        answer = await self.call(
            f"retaining {len(items)} documents in bank {bank}",
            lambda sdk: sdk.aretain_batch(bank, list(items), retain_async=True, operation_id=operation),
            writes=True,
        )
        if not answer.success or answer.operation_id != operation:
            raise InDoubt(f"Hindsight accepted {len(items)} documents for bank {bank} under a different operation id")

    async def wait_for_operation(self, bank: str, operation: str, *, seconds: float) -> Any:
        """Wait for an operation and return it when it has ended, or after `seconds`. Raises HindsightNotFound if there
        is none.
        """
        wait = 0.05
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            answer = await self.call(
                "asking about an operation", lambda sdk: sdk.operations.get_operation_status(bank, operation)
            )
            if answer.status in ("completed", "failed", "cancelled") or loop.time() + wait > until:
                return answer
            await asyncio.sleep(wait)
            wait = min(2.0, wait * 2)

    async def retry_operation(self, bank: str, operation: str) -> None:
        with contextlib.suppress(Transient):  # it was retried already, or it is running
            await self.call("retrying an operation", lambda sdk: sdk.operations.retry_operation(bank, operation))

    async def get_document(self, bank: str, document: str) -> Any:
        """Return a document, or None if it does not exist."""
        with contextlib.suppress(HindsightNotFound):
            return await self.call("reading a document", lambda sdk: sdk.documents.get_document(bank, document))
        return None

    async def delete_document(self, bank: str, document: str) -> bool:
        """Delete a document and return whether it existed. Safe to repeat."""
        try:
            await self.call("deleting a document", lambda sdk: sdk.documents.delete_document(bank, document))
        except HindsightNotFound:
            return False
        return True

    async def list_banks(self) -> list[str]:
        """List all banks. Raises HindsightNotFound if the server cannot list them."""
        found: list[str] = []
        while True:
            offset = len(found)
            page = await self.call(
                "listing banks", lambda sdk, offset=offset: sdk.banks.list_banks(limit=PAGE_SIZE, offset=offset)
            )
            found += [bank.bank_id for bank in page.banks]
            if len(page.banks) < PAGE_SIZE:
                return found

    async def list_documents(self, bank: str, *tags: str) -> list[Any]:
        """List the documents of a bank that have all these tags."""
        found: list[Any] = []
        while True:
            offset = len(found)
            try:
                page = await self.call(
                    f"listing bank {bank}",
                    lambda sdk, offset=offset: sdk.documents.list_documents(
                        bank, tags=list(tags), tags_match="all_strict", limit=PAGE_SIZE, offset=offset
                    ),
                )
            except HindsightNotFound:
                return found
            found += page.items
            if len(page.items) < PAGE_SIZE:
                return found

    async def list_operations(self, bank: str, *, statuses: Sequence[str]) -> list[Any]:
        """List the operations that store documents and have one of these statuses, with what was submitted."""
        found: list[Any] = []
        for status in statuses:
            offset = 0
            while True:
                page = await self.call(
                    "listing operations",
                    lambda sdk, status=status, offset=offset: sdk.operations.list_operations(
                        bank, status=status, type="retain", limit=PAGE_SIZE, offset=offset
                    ),
                )
                for listed in page.operations:
                    with contextlib.suppress(HindsightNotFound):
                        found.append(await self._get_operation(bank, listed.id))
                offset += len(page.operations)
                if len(page.operations) < PAGE_SIZE:
                    break
        return found

    async def _get_operation(self, bank: str, operation: str) -> Any:
        return await self.call(
            "reading an operation",
            lambda sdk: sdk.operations.get_operation_status(bank, operation, include_payload=True),
        )

    async def has_operation(self, bank: str, operation: str) -> bool:
        try:
            found = await self.call(
                "reading an operation", lambda sdk: sdk.operations.get_operation_status(bank, operation)
            )
        except HindsightNotFound:
            return False
        return bool(found.status != "not_found")

    async def delete_operation(self, bank: str, operation: str) -> None:
        """Delete a finished operation. Safe to repeat."""
        with contextlib.suppress(HindsightNotFound):
            await self.call("deleting an operation", lambda sdk: sdk.operations.delete_operation(bank, operation))

    async def call(self, what: str, question: Callable[..., Awaitable[Any]], *, writes: bool = False) -> Any:
        """Send one request and map its errors to everhold's."""
        sdk = await self.load_sdk()
        with self._translate_errors(what, writes=writes):
            return await question(sdk)

    @contextlib.contextmanager
    def _translate_errors(self, what: str, *, writes: bool) -> Iterator[None]:
        import aiohttp
        from hindsight_client_api.exceptions import ApiException, NotFoundException
        from pydantic import ValidationError

        hide = (self._settings.api_key or SecretString("")).mask_in
        where = f"Hindsight, {what}"
        try:
            yield
        except NotFoundException as error:
            raise HindsightNotFound(f"{where}: not found") from error
        except ApiException as error:
            after = parse_retry_after((error.headers or {}).get("retry-after"))
            reason = hide(str(error.body or error.reason or ""))[:300]
            raise build_memory_error(
                where, reason, status=error.status or 0, retry_after=after, writes=writes
            ) from error
        except aiohttp.ClientResponseError as error:
            raise build_memory_error(where, hide(error.message), status=error.status, writes=writes) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The error text may be empty, so the error's class is shown.
            unsent = isinstance(error, aiohttp.ClientConnectorError)
            raise build_memory_error(
                where, f"{type(error).__name__} {hide(str(error))}".strip(), writes=writes, unsent=unsent
            ) from error
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise build_memory_error(
                where, f"its answer cannot be read ({type(error).__name__})", writes=writes
            ) from error


def _ignore_password_file(sdk: Any, base_url: str) -> None:
    """Let the SDK's connection pool use the proxy of the environment, and not `~/.netrc`.

    The pool would open that file before every request. If it named the host, the request would carry that password, or
    fail because it has a key, too.
    """
    rest = sdk.operations.api_client.rest_client
    rest.proxy = rest.proxy or find_environment_proxy(base_url)
    rest.pool_manager._trust_env = False


def find_environment_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL."""
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass_environment(parts.netloc.rpartition("@")[2]):  # type: ignore[attr-defined]
        return None
    return urllib.request.getproxies_environment().get(parts.scheme)
