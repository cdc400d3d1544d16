"""The client for servers behind a proxy of the environment: httpx knows their variables and protocols."""

from __future__ import annotations

import time
from collections.abc import Mapping

import httpx

from llmtop.contract.settings import Target
from llmtop.net.client import (
    FIRST_BYTE_S,
    KEPT_S,
    Answer,
    BrokenOff,
    CannotConnect,
    TooLarge,
    connect_words,
    tls,
)


class ProxiedClient:
    """A `Client` that heeds HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

    def __init__(self, target: Target, headers: Mapping[str, str]) -> None:
        self._url = target.url
        self._client = httpx.AsyncClient(
            headers=dict(headers),
            auth=target.login,
            timeout=FIRST_BYTE_S,
            follow_redirects=False,
            verify=tls(target) or False,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=KEPT_S),
        )

    async def get(self, path: str, limit: int) -> Answer:
        """See `Client`."""
        try:
            return await self._get(path, limit)
        except httpx.TimeoutException:
            raise TimeoutError from None
        except (httpx.ConnectError, httpx.ProxyError) as error:
            raise CannotConnect(connect_words(error)) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise BrokenOff(str(error) or type(error).__name__) from None

    async def _get(self, path: str, limit: int) -> Answer:
        async with self._client.stream("GET", self._url + path) as response:
            t, size = 0.0, 0
            chunks: list[bytes] = []
            async for chunk in response.aiter_bytes():
                t = t or time.monotonic()
                size += len(chunk)
                if size > limit:
                    raise TooLarge
                chunks.append(chunk)
            return Answer(response.status_code, dict(response.headers), b"".join(chunks), t or time.monotonic())

    async def close(self) -> None:
        """See `Client`."""
        await self._client.aclose()
