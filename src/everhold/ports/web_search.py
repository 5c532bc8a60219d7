"""The interface of a web search: a query, and the pages that a service found."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class WebHit(Struct, frozen=True, kw_only=True):
    """A page that was found."""

    title: str
    url: str
    text: str = ""
    """The part of the page that fits the query, as the service shows it. It may contain markup."""
    date: str = ""


class WebSearch(Protocol):
    """A search service."""

    name: str

    async def search(self, query: str, *, count: int) -> list[WebHit]:
        """Return at most `count` pages, the best first. Raises Transient if it may work later, OperatorNeeded if a key
        or a setting of the service is wrong, and Refused otherwise. `count` is from 1 to 10."""
