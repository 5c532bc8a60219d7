"""Connects to a model server through the environment's proxy. It uses a full HTTP client, which takes more CPU time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

from everhold.infra.http_transport import BodyUndecodable, TransportBroken, TransportTimeout, TransportUnreachable

if TYPE_CHECKING:
    import ssl

    import httpx2


class ProxyTransport:
    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        connect_seconds: float,
        send_seconds: float,
        trust: ssl.SSLContext | None,
    ) -> None:
        import httpx2

        self._url = url
        self._client = httpx2.AsyncClient(
            verify=trust or False,
            trust_env=True,
            timeout=httpx2.Timeout(connect=connect_seconds, read=None, write=send_seconds, pool=connect_seconds),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30.0),
            headers=dict(headers),
        )

    @contextlib.asynccontextmanager
    async def post(self, body: bytes) -> AsyncIterator[_ProxyResponse]:
        with _translate_errors():
            async with self._client.stream("POST", self._url, content=body) as response:
                yield _ProxyResponse(response)

    async def close(self) -> None:
        await self._client.aclose()


class _ProxyResponse:
    is_consumed = False

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def iterate_body(self) -> AsyncIterator[bytes]:
        with _translate_errors():
            async for piece in self._response.aiter_bytes():
                yield piece


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """The client's errors -> the errors of `transport.py`."""
    import httpx2

    try:
        yield
    except (httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise TransportTimeout("connection") from error
    except httpx2.TimeoutException as error:
        raise TransportTimeout("end of our sending") from error
    except (httpx2.ConnectError, httpx2.ProxyError) as error:
        raise TransportUnreachable(str(error) or type(error).__name__) from error
    except httpx2.DecodingError as error:
        raise BodyUndecodable(str(error)) from error
    except httpx2.TransportError as error:
        raise TransportBroken(str(error) or "the connection broke") from error
