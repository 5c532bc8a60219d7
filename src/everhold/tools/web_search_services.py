"""Search services: SearXNG, Brave and Tavily. One request, one answer, no retries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import httpx2
import msgspec

from everhold.errors import OperatorNeeded, Refused, Transient
from everhold.infra.secret import SecretString
from everhold.ports.web_search import WebHit, WebSearch

SEARCH_SECONDS: Final = 20.0
MAX_ANSWER_BYTES: Final = 2_000_000
BRAVE_URL: Final = "https://api.search.brave.com"
TAVILY_URL: Final = "https://api.tavily.com"
KEY_REMEDY: Final = "the operator has to set the key in `search.api_key_env`"


class SearxngSearch:
    """A SearXNG instance. Its operator must allow the format json."""

    name = "searxng"

    def __init__(self, url: str, key: SecretString | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key.reveal()}"} if key else {}

    async def search(self, query: str, *, count: int) -> list[WebHit]:
        params = {"q": query, "format": "json"}
        answer = await _request(self.name, "GET", f"{self._url}/search", params=params, headers=self._headers)
        if answer.status == 403:
            raise OperatorNeeded(
                "SearXNG refuses the format json", remedy="the operator has to add `json` to search.formats of SearXNG"
            )
        data = answer.read_object(self.name)
        hits = _read_hits(data.get("results"), text="content", date="publishedDate")[:count]
        silent = data.get("unresponsive_engines")
        if not hits and isinstance(silent, list) and silent:
            raise Transient("no engine of SearXNG answered", remedy="try again in a minute")
        return hits


class BraveSearch:
    """The Brave Search API."""

    name = "brave"

    def __init__(self, url: str, key: SecretString | None) -> None:
        self._url = (url or BRAVE_URL).rstrip("/")
        self._key = _require_key(key)

    async def search(self, query: str, *, count: int) -> list[WebHit]:
        words = " ".join(query.split()[:50])  # the API refuses more
        headers = {"x-subscription-token": self._key.reveal(), "accept": "application/json"}
        answer = await _request(
            self.name,
            "GET",
            f"{self._url}/res/v1/web/search",
            params={"q": words, "count": str(count)},
            headers=headers,
        )
        if answer.status in (401, 403) or (answer.status == 422 and b"SUBSCRIPTION_TOKEN" in answer.body):
            raise OperatorNeeded("Brave refuses the key", remedy=KEY_REMEDY)
        web = answer.read_object(self.name).get("web")
        return _read_hits(web.get("results") if isinstance(web, dict) else None, text="description", date="age")[:count]


class TavilySearch:
    """The Tavily API."""

    name = "tavily"

    def __init__(self, url: str, key: SecretString | None) -> None:
        self._url = (url or TAVILY_URL).rstrip("/")
        self._key = _require_key(key)

    async def search(self, query: str, *, count: int) -> list[WebHit]:
        headers = {"authorization": f"Bearer {self._key.reveal()}"}
        body = {"query": query, "max_results": count, "search_depth": "basic"}
        answer = await _request(self.name, "POST", f"{self._url}/search", headers=headers, json=body)
        if answer.status in (401, 403):
            raise OperatorNeeded("Tavily refuses the key", remedy=KEY_REMEDY)
        if answer.status in (432, 433):
            raise OperatorNeeded("the credit at Tavily is used up", remedy="the operator has to raise its limit")
        return _read_hits(answer.read_object(self.name).get("results"), text="content", date="published_date")[:count]


class MakeSearch(Protocol):
    """Makes a service from `search.url` and the key."""

    def __call__(self, url: str, key: SecretString | None) -> WebSearch: ...


SEARCH_SERVICES: Final[Mapping[str, MakeSearch]] = MappingProxyType(
    {"searxng": SearxngSearch, "brave": BraveSearch, "tavily": TavilySearch}
)


class _SearchAnswer:
    """What a service answered."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    def read_object(self, service: str) -> dict[str, Any]:
        """Return the JSON of a successful answer. Raises what fits the status."""
        if not 200 <= self.status < 300:
            raise Refused(f"{service} refused the search with status {self.status}", remedy="use another query")
        try:
            data = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise Transient(f"{service} did not answer with JSON", remedy="try again later")
        return data


async def _request(
    service: str,
    method: str,
    url: str,
    *,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str],
    json: object = None,
) -> _SearchAnswer:
    request = httpx2.Request(
        method,
        url,
        params=dict(params) if params else None,
        headers={**headers, "accept-encoding": "identity"},
        json=json,
        extensions={"timeout": httpx2.Timeout(SEARCH_SECONDS).as_dict()},
    )
    try:
        async with asyncio.timeout(SEARCH_SECONDS), httpx2.AsyncHTTPTransport(trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            async with contextlib.aclosing(response):
                body = await _read_body(service, response)
    except TimeoutError:
        raise Transient(f"{service} did not answer within {SEARCH_SECONDS:g} s", remedy="try again later") from None
    except httpx2.HTTPError as error:
        raise Transient(f"{service} cannot be reached ({type(error).__name__})", remedy="try again later") from error
    if response.status_code == 429:
        wait = response.headers.get("retry-after", "")
        seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 6 else None
        raise Transient(
            f"{service} allows no more searches now",
            retry_after=seconds,
            remedy=f"try again in {wait} s" if seconds is not None else "try again in a minute",
        )
    if response.status_code >= 500:
        raise Transient(f"{service} answered {response.status_code}", remedy="try again later")
    return _SearchAnswer(response.status_code, body)


async def _read_body(service: str, response: httpx2.Response) -> bytes:
    data = bytearray()
    async for piece in response.aiter_raw():
        data += piece
        if len(data) > MAX_ANSWER_BYTES:
            raise Transient(f"{service} answered with more than {MAX_ANSWER_BYTES:,} bytes", remedy="try again later")
    return bytes(data)


def _read_hits(results: Any, *, text: str, date: str) -> list[WebHit]:
    """Return what is a page; a service may return other kinds of results."""
    found: list[WebHit] = []
    for it in results if isinstance(results, list) else ():
        if isinstance(it, dict) and isinstance(url := it.get("url"), str) and url.startswith(("http://", "https://")):
            found.append(
                WebHit(title=_get_text(it, "title"), url=url, text=_get_text(it, text), date=_get_text(it, date))
            )
    return found


def _get_text(result: Mapping[str, Any], key: str) -> str:
    value = result.get(key)
    return value if isinstance(value, str) else ""


def _require_key(key: SecretString | None) -> SecretString:
    if not key:
        raise OperatorNeeded("the search has no key", remedy=KEY_REMEDY)
    return key
