"""The open connections of a server. If there are too many, an idle one is closed, so a new caller is always heard.

A connection is idle while no request on it is being answered: its head is incomplete, or it waits for the next request.
Idle connections without a valid token are closed first, those of the peer with the most of them, the oldest first. So
one peer that opens many connections closes its own. If everybody is one peer, behind a proxy, a caller who sends a head
at once is not the oldest.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class PooledConnection(Protocol):
    """One connection."""

    peer: str

    @property
    def is_proven(self) -> bool:
        """Whether a request on it had a valid token."""

    def is_idle(self) -> bool: ...

    def close_idle(self) -> None: ...


class ConnectionPool:
    """The connections of one server, in the order of their last use."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.closed = 0
        """How many idle connections were closed to make room."""
        self._connections: dict[PooledConnection, None] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: PooledConnection) -> bool:
        """Add a connection. Closes an idle one if there are too many; returns False if none is idle."""
        if len(self._connections) >= self.most and not self._make_room():
            return False
        self._connections[connection] = None
        return True

    def touch(self, connection: PooledConnection) -> None:
        """Record that a connection was used."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def remove(self, connection: PooledConnection) -> None:
        self._connections.pop(connection, None)

    def _make_room(self) -> bool:
        idle = [it for it in self._connections if it.is_idle()]
        victims = [it for it in idle if not it.is_proven] or idle
        if not victims:
            return False
        crowded = Counter(it.peer for it in victims).most_common(1)[0][0]
        victim = next(it for it in victims if it.peer == crowded)
        self.remove(victim)
        self.closed += 1
        victim.close_idle()
        return True
