"""Hints within one process, for a store that one process has open."""

from __future__ import annotations

from collections.abc import Callable

from everhold.ports.hosts import CommitHint, ReplyPiece, ReplyTextExchange


class LocalNotifier:
    """Passes each hint to the subscribers of this process. Implements `ports.hosts.CommitNotifier`."""

    reaches_other_hosts = False

    def __init__(self) -> None:
        self._subscribers: dict[object, Callable[[CommitHint], None]] = {}

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscribers)

    def publish(self, hint: CommitHint) -> None:
        for receive in list(self._subscribers.values()):
            receive(hint)

    def subscribe(self, receive: Callable[[CommitHint], None]) -> Callable[[], None]:
        key = object()
        self._subscribers[key] = receive

        def end() -> None:
            self._subscribers.pop(key, None)

        return end

    def connect_texts(self, exchange: ReplyTextExchange) -> None:
        """There is no other host."""

    def publish_text(self, piece: ReplyPiece) -> None:
        """There is no other host."""

    def announce_watch(self) -> None:
        """There is no other host."""
