"""Honcho through its own SDK: one request at a time, never repeated, its errors in our words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.errors import InDoubt, Transient
from everhold.infra.extras import describe_install
from everhold.memories.faults import failed
from everhold.memories.sdk import load
from everhold.secret import Secret

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings

PAGE: Final = 100
"""The most there is on a page, and in a batch."""
REMEDY: Final = f"{describe_install('honcho')}; if the package `honcho` (a process runner) is installed, uninstall it"


class Client:
    """One connection pool. Holds nothing that could get lost."""

    def __init__(self, settings: HonchoSettings) -> None:
        self._settings = settings
        self._sdk: Any = None
        self._opened: set[tuple[str, str]] = set()
        """(session, peer) known to exist: asking again would only cost time."""

    async def sdk(self) -> Any:
        if self._sdk is None:
            module = await load("honcho", offers="Honcho", remedy=REMEDY)
            settings = self._settings
            key = settings.api_key.reveal().strip() if settings.api_key else "none"
            self._sdk = module.Honcho(
                api_key=key,
                base_url=settings.base_url,
                workspace_id=settings.workspace,
                timeout=settings.deadline_seconds,
                max_retries=0,  # a repeat stores twice: repeating is the lane's business
            )
        return self._sdk

    async def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            with self._told("closing", writes=False):
                await sdk._async_http_client.close()  # the SDK has no public way
                await asyncio.to_thread(sdk._http.close)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def open(self, name: str, peers: Sequence[str]) -> None:
        """Make sure that a session and its peers exist. Safe to repeat: it is get-or-create over there."""
        wanted = [peer for peer in dict.fromkeys(peers) if (name, peer) not in self._opened]
        if not wanted:
            return
        sdk = await self.sdk()
        with self._told(f"opening session {name}", writes=False):
            await sdk.aio.session(name, peers=list(wanted))
        self._opened |= {(name, peer) for peer in wanted}

    def forgot(self, name: str) -> None:
        """It turned out that a session is not there: somebody deleted it."""
        self._opened = {(session, peer) for session, peer in self._opened if session != name}

    async def say(self, name: str, messages: Sequence[dict[str, Any]]) -> list[Any]:
        """Add messages to a session, all or none. They come back as they were kept."""
        assert 1 <= len(messages) <= PAGE
        sdk = await self.sdk()
        from honcho.api_types import MessageCreateParams

        params = [MessageCreateParams(**message) for message in messages]
        with self._told(f"adding {len(messages)} messages to {name}", writes=True):
            kept: list[Any] = await self.session(sdk, name).aio.add_messages(params)
        if len(kept) != len(messages) or any(
            not there.id or there.metadata.get("everhold") != sent["metadata"]["everhold"]
            for there, sent in zip(kept, messages, strict=False)
        ):
            raise InDoubt(f"Honcho said that {len(messages)} messages were added to {name}, and showed others")
        return kept

    async def mark(self, name: str, message: str, metadata: dict[str, Any]) -> None:
        """Write something on a message. Safe to repeat."""
        sdk = await self.sdk()
        with self._told(f"marking message {message}", writes=False):
            await self.session(sdk, name).aio.update_message(message, metadata)

    async def conclude(self, contents: Sequence[str], *, observer: str, about: str, name: str) -> list[Any]:
        assert 1 <= len(contents) <= PAGE
        sdk = await self.sdk()
        with self._told(f"adding {len(contents)} conclusions about {about}", writes=True, where=name):
            kept: list[Any] = (
                await self.peer(sdk, observer)
                .conclusions_of(about)
                .aio.create([{"content": content, "session_id": name} for content in contents])
            )
        if sorted(one.content for one in kept) != sorted(contents) or not all(one.id for one in kept):
            raise InDoubt(f"Honcho said that {len(contents)} conclusions were added about {about}, and showed others")
        return kept

    async def unconclude(self, conclusion: str, *, observer: str, about: str) -> bool:
        """Delete a conclusion; whether it was there. Safe to repeat."""
        sdk = await self.sdk()
        try:
            with self._told(f"deleting conclusion {conclusion}", writes=False):
                await self.peer(sdk, observer).conclusions_of(about).aio.delete(conclusion)
        except Gone:
            return False
        return True

    async def delete(self, name: str) -> None:
        """Delete a session with all that was said in it. Safe to repeat."""
        await self.read(f"deleting session {name}", lambda sdk: self.session(sdk, name).aio.delete())
        self.forgot(name)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def messages(self, name: str, filters: dict[str, object] | None = None) -> list[Any]:
        """Messages of a session, oldest first; none if there is no such session."""
        sdk = await self.sdk()
        return await self._all(
            f"reading {name}", lambda page: self.session(sdk, name).aio.messages(filters=filters, page=page, size=PAGE)
        )

    async def conclusions(self, filters: dict[str, Any]) -> list[Any]:
        """Conclusions of the workspace, newest first."""
        sdk = await self.sdk()
        return await self._all(
            "reading conclusions",
            lambda page: sdk.conclusions.aio.list(page=page, size=PAGE, filters=filters),
        )

    async def _all(self, what: str, ask: Callable[[int], Awaitable[Any]]) -> list[Any]:
        found: list[Any] = []
        number = 1
        while True:
            try:
                with self._told(what, writes=False):
                    page = await ask(number)
                    items = list(page.items)
            except Gone:
                return found
            found += items
            if len(items) < PAGE:
                return found
            number += 1

    async def read(self, what: str, ask: Callable[[Any], Awaitable[Any]], *, missing: Any = None) -> Any:
        """Any other question; `missing` if what it is about is not there."""
        sdk = await self.sdk()
        try:
            with self._told(what, writes=False):
                return await ask(sdk)
        except Gone:
            return missing

    # -- small things ------------------------------------------------------------------------------------------------

    @staticmethod
    def session(sdk: Any, name: str) -> Any:
        """A handle: making one asks nobody."""
        from honcho.session import Session

        return Session(name, sdk)

    @staticmethod
    def peer(sdk: Any, peer: str) -> Any:
        from honcho.peer import Peer

        return Peer(peer, sdk)

    @contextlib.contextmanager
    def _told(self, what: str, *, writes: bool, where: str = "") -> Iterator[None]:
        """Whatever the SDK raises, in our words."""
        import httpx
        from honcho.http import exceptions as theirs
        from pydantic import ValidationError

        hide = (self._settings.api_key or Secret("")).hide
        try:
            yield
        except theirs.NotFoundError as error:
            if writes:
                # its session or peers are gone: nothing was written; opened again, it will be
                self.forgot(where)
                raise Transient(f"Honcho, {what}: {hide(error.message)}") from error
            raise Gone(f"Honcho, {what}: {hide(error.message)}") from error
        except theirs.HonchoError as error:
            unsent = isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
            after = error.retry_after if isinstance(error, theirs.RateLimitError) else None
            raise failed(
                f"Honcho, {what}",
                hide(error.message),
                status=error.status,
                retry_after=after,
                writes=writes,
                unsent=unsent,
            ) from error
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise failed(
                f"Honcho, {what}", f"its answer cannot be read ({type(error).__name__})", writes=writes
            ) from error


class Gone(Transient):
    """What is asked about is not there."""
