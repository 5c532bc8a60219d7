"""Honcho through its own SDK: one request at a time, no automatic retries, its errors mapped to everhold's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.errors import InDoubt, Transient
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.memories.errors import build_memory_error
from everhold.memories.sdk import load_module

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings

PAGE_SIZE: Final = 100
"""The maximum of a page and of a batch."""
REMEDY: Final = f"{describe_install('honcho')}; if the package `honcho` (a process runner) is installed, uninstall it"


class HonchoClient:
    """One connection pool. It holds no state that could be lost."""

    def __init__(self, settings: HonchoSettings) -> None:
        self._settings = settings
        self._sdk: Any = None
        self._ensured_sessions: set[tuple[str, str]] = set()
        """(session, peer) pairs that are known to exist, so that they are not requested again."""

    async def load_sdk(self) -> Any:
        if self._sdk is None:
            module = await load_module("honcho", offers="Honcho", remedy=REMEDY)
            settings = self._settings
            key = settings.api_key.reveal().strip() if settings.api_key else "none"
            self._sdk = module.Honcho(
                api_key=key,
                base_url=settings.base_url,
                workspace_id=settings.workspace,
                timeout=settings.deadline_seconds,
                max_retries=0,  # a retry would store twice, so the delivery worker retries after a probe
            )
        return self._sdk

    async def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            with self._translate_errors("closing", writes=False):
                await sdk._async_http_client.close()  # the SDK has no public method for this
                await asyncio.to_thread(sdk._http.close)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def ensure_session(self, name: str, peers: Sequence[str], *, observer: str) -> None:
        """Make sure that a session and its peers exist, and that the peer `observer` observes the others: Honcho
        derives conclusions only for peers that do. Safe to repeat, because it is get-or-create at Honcho.
        """
        wanted = [peer for peer in dict.fromkeys((observer, *peers)) if (name, peer) not in self._ensured_sessions]
        if not wanted:
            return
        sdk = await self.load_sdk()
        from honcho.api_types import SessionPeerConfig

        observes = SessionPeerConfig(observe_others=True)
        with self._translate_errors(f"opening session {name}", writes=False):
            await sdk.aio.session(name, peers=[(peer, observes) if peer == observer else peer for peer in wanted])
            if observer in wanted:
                # Honcho keeps the configuration of a peer that is in the session already.
                await self.get_session(sdk, name).aio.set_peer_configuration(observer, observes)
        self._ensured_sessions |= {(name, peer) for peer in wanted}

    def forget_session(self, name: str) -> None:
        """Forget that a session exists, because it was deleted at Honcho."""
        self._ensured_sessions = {(session, peer) for session, peer in self._ensured_sessions if session != name}

    async def add_messages(self, name: str, messages: Sequence[dict[str, Any]]) -> list[Any]:
        """Add messages to a session, all or none; return them as stored."""
        assert 1 <= len(messages) <= PAGE_SIZE
        sdk = await self.load_sdk()
        from honcho.api_types import MessageCreateParams

        params = [MessageCreateParams(**message) for message in messages]
        with self._translate_errors(f"adding {len(messages)} messages to {name}", writes=True):
            kept: list[Any] = await self.get_session(sdk, name).aio.add_messages(params)
        if len(kept) != len(messages) or any(
            not there.id or there.metadata.get("everhold") != sent["metadata"]["everhold"]
            for there, sent in zip(kept, messages, strict=False)
        ):
            raise InDoubt(f"Honcho reported {len(messages)} messages as added to {name}, but returned others")
        return kept

    async def update_message(self, name: str, message: str, metadata: dict[str, Any]) -> None:
        """Set the metadata of a message. Safe to repeat."""
        sdk = await self.load_sdk()
        with self._translate_errors(f"marking message {message}", writes=False):
            await self.get_session(sdk, name).aio.update_message(message, metadata)

    async def add_conclusions(self, contents: Sequence[str], *, observer: str, about: str, name: str) -> list[Any]:
        assert 1 <= len(contents) <= PAGE_SIZE
        sdk = await self.load_sdk()
        with self._translate_errors(f"adding {len(contents)} conclusions about {about}", writes=True, where=name):
            kept: list[Any] = (
                await self.get_peer(sdk, observer)
                .conclusions_of(about)
                .aio.create([{"content": content, "session_id": name} for content in contents])
            )
        if sorted(one.content for one in kept) != sorted(contents) or not all(one.id for one in kept):
            raise InDoubt(f"Honcho reported {len(contents)} conclusions about {about} as added, but returned others")
        return kept

    async def delete_conclusion(self, conclusion: str, *, observer: str, about: str) -> bool:
        """Delete a conclusion and return whether it existed. Safe to repeat."""
        sdk = await self.load_sdk()
        try:
            with self._translate_errors(f"deleting conclusion {conclusion}", writes=False):
                await self.get_peer(sdk, observer).conclusions_of(about).aio.delete(conclusion)
        except HonchoNotFound:
            return False
        return True

    async def delete_session(self, name: str) -> None:
        """Delete a session with its messages. Safe to repeat."""
        await self.call(f"deleting session {name}", lambda sdk: self.get_session(sdk, name).aio.delete())
        self.forget_session(name)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def list_messages(self, name: str, filters: dict[str, object] | None = None) -> list[Any]:
        """Return the messages of a session, oldest first; none if the session does not exist."""
        sdk = await self.load_sdk()
        return await self._fetch_all_pages(
            f"reading {name}",
            lambda page: self.get_session(sdk, name).aio.messages(filters=filters, page=page, size=PAGE_SIZE),
        )

    async def list_conclusions(self, filters: dict[str, Any]) -> list[Any]:
        """Return conclusions of the workspace, newest first."""
        sdk = await self.load_sdk()
        return await self._fetch_all_pages(
            "reading conclusions",
            lambda page: sdk.conclusions.aio.list(page=page, size=PAGE_SIZE, filters=filters),
        )

    async def _fetch_all_pages(self, what: str, ask: Callable[[int], Awaitable[Any]]) -> list[Any]:
        found: list[Any] = []
        number = 1
        while True:
            try:
                with self._translate_errors(what, writes=False):
                    page = await ask(number)
                    items = list(page.items)
            except HonchoNotFound:
                return found
            found += items
            if len(items) < PAGE_SIZE:
                return found
            number += 1

    async def call(self, what: str, ask: Callable[[Any], Awaitable[Any]], *, missing: Any = None) -> Any:
        """Send any other query; return `missing` if its object does not exist."""
        sdk = await self.load_sdk()
        try:
            with self._translate_errors(what, writes=False):
                return await ask(sdk)
        except HonchoNotFound:
            return missing

    # -- helpers -----------------------------------------------------------------------------------------------------

    @staticmethod
    def get_session(sdk: Any, name: str) -> Any:
        """Return a handle. It sends no request."""
        from honcho.session import Session

        return Session(name, sdk)

    @staticmethod
    def get_peer(sdk: Any, peer: str) -> Any:
        from honcho.peer import Peer

        return Peer(peer, sdk)

    @contextlib.contextmanager
    def _translate_errors(self, what: str, *, writes: bool, where: str = "") -> Iterator[None]:
        """Map any error of the SDK to everhold's."""
        import httpx
        from honcho.http import exceptions as theirs
        from pydantic import ValidationError

        hide = (self._settings.api_key or SecretString("")).mask_in
        try:
            yield
        except theirs.NotFoundError as error:
            if writes:
                # The session or its peers are gone and nothing was written. The next attempt creates them again.
                self.forget_session(where)
                raise Transient(f"Honcho, {what}: {hide(error.message)}") from error
            raise HonchoNotFound(f"Honcho, {what}: {hide(error.message)}") from error
        except theirs.HonchoError as error:
            unsent = isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
            after = error.retry_after if isinstance(error, theirs.RateLimitError) else None
            raise build_memory_error(
                f"Honcho, {what}",
                hide(error.message),
                status=error.status,
                retry_after=after,
                writes=writes,
                unsent=unsent,
            ) from error
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise build_memory_error(
                f"Honcho, {what}", f"its answer cannot be read ({type(error).__name__})", writes=writes
            ) from error


class HonchoNotFound(Transient):
    """The requested object does not exist at Honcho."""
