"""Limits the rate of requests, with one bucket per peer and account. No caller can change the bucket of another."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from msgspec import Struct

MAX_KEYS: Final = 10_000


class RateLimit(Struct, frozen=True):
    """At most `burst` at once, and `per_second` in the long run."""

    burst: float
    per_second: float


class RateLimitBuckets:
    """One bucket per key. The least recently used are dropped when there are too many."""

    def __init__(self, rate: RateLimit, *, monotonic: Callable[[], float]) -> None:
        self.rate = rate
        self._monotonic = monotonic
        self._fills: OrderedDict[tuple[str, ...], tuple[float, float]] = OrderedDict()

    def take(self, *key: str) -> float:
        """Take one. Returns 0 if one was available, else the seconds until one is."""
        fill = self._compute_fill(key)
        granted = fill >= 1
        self._fills[key] = (fill - 1 if granted else fill, self._monotonic())
        self._fills.move_to_end(key)
        if len(self._fills) > MAX_KEYS:
            self._fills.popitem(last=False)
        return 0.0 if granted else (1 - fill) / self.rate.per_second

    def get_wait_seconds(self, *key: str) -> float:
        """Return the seconds until one is available, 0 if one is now. Takes none."""
        return max(0.0, (1 - self._compute_fill(key)) / self.rate.per_second)

    def _compute_fill(self, key: tuple[str, ...]) -> float:
        fill, since = self._fills.get(key, (self.rate.burst, 0.0))
        return min(self.rate.burst, fill + (self._monotonic() - since) * self.rate.per_second)


@lru_cache(maxsize=256)
def get_peer_network(peer: str) -> str:
    """Return what counts as one peer: an IPv4 address, or the /64 network of an IPv6 subscriber."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
