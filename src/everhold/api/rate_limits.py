"""Limits the rate of requests, and what is in use at the same time. No caller can use up the share of another."""

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

    def take(self, *key: str, rate: RateLimit | None = None) -> float:
        """Take one. Returns 0 if one was available, else the seconds until one is. `rate` replaces the usual rate."""
        rate = rate or self.rate
        fill = self._compute_fill(key, rate)
        granted = fill >= 1
        self._fills[key] = (fill - 1 if granted else fill, self._monotonic())
        self._fills.move_to_end(key)
        if len(self._fills) > MAX_KEYS:
            self._fills.popitem(last=False)
        return 0.0 if granted else (1 - fill) / rate.per_second

    def has_room(self, *key: str) -> bool:
        """Return whether `take` would grant one now."""
        return key not in self._fills or self._compute_fill(key, self.rate) >= 1

    def _compute_fill(self, key: tuple[str, ...], rate: RateLimit) -> float:
        fill, since = self._fills.get(key, (rate.burst, 0.0))
        return min(rate.burst, fill + (self._monotonic() - since) * rate.per_second)


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


class SlotCounter:
    """Counts what is in use at the same time, per key and in total. No key can use up what is left for the others,
    unless there are many of them.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._by_key: dict[str, int] = {}

    def take(self, key: str, *, most: int, count: int = 1) -> bool:
        """Take slots if the key then uses at most `most` and not more are in use than there are."""
        own = self._by_key.get(key, 0)
        if own + count > most or self.used + count > self.total:
            return False
        self._by_key[key] = own + count
        self.used += count
        return True

    def release(self, key: str, *, count: int = 1) -> None:
        own = self._by_key[key] - count
        self.used -= count
        if own:
            self._by_key[key] = own
        else:
            del self._by_key[key]

    def is_full(self) -> bool:
        return self.used >= self.total
