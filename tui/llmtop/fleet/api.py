"""The HTTP API that Prometheus, VictoriaMetrics, Thanos and Mimir share, asked one question at a time."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

from llmtop.contract.settings import FleetAddress
from llmtop.contract.units import clean
from llmtop.net.client import Client
from llmtop.net.connection import Answer, BrokenOff, CannotConnect, TooLarge

Labels = tuple[tuple[str, str], ...]
Trouble = Literal["refused", "timeout", "auth", "empty", "bad"]

LIMIT = 64 * 2**20
DEADLINE_S = 10.0
_WORDS = 120
_ASKED = re.compile(r'^(Get|error when scraping) "[^"]*": ')  # what was asked is known
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


class PrometheusError(Exception):
    """Why there is no answer, in the terms of `engines.tracker.Failure`."""

    def __init__(self, kind: Trouble, text: str) -> None:
        super().__init__(text)
        self.kind: Trouble = kind


@dataclass(frozen=True, slots=True)
class ScrapedSeries:
    """One series: its name, its other labels in order, and its samples as (Unix time, value), the oldest first."""

    name: str
    labels: Labels
    points: tuple[tuple[float, float], ...]

    @property
    def job(self) -> str | None:
        """The job that it is scraped by."""
        return next((value for name, value in self.labels if name == "job"), None)


class PrometheusApi:
    """Asks one Prometheus; raises PrometheusError for anything that is no answer. `requests` counts the questions."""

    def __init__(self, address: FleetAddress) -> None:
        tenant = {"X-Scope-OrgID": address.tenant} if address.tenant else {}
        self._client = Client(address.target, {"Accept": "application/json", **tenant})
        self.requests = 0

    async def names(self, matcher: str, since: float) -> list[str]:
        """The names of all metrics that a matcher selects (all, where it is empty), seen since a Unix time."""
        match = f"&match[]={quote('{' + matcher + '}', safe='')}" if matcher else ""
        data = await self._ask(f"/api/v1/label/__name__/values?start={since:.0f}{match}")
        return [name for name in data if isinstance(name, str)] if isinstance(data, list) else []

    async def time(self) -> float:
        """The Unix time of its clock."""
        result = _result(await self._ask("/api/v1/query", {"query": "time()"}))
        if isinstance(result, list) and result and isinstance(result[0], dict):  # VictoriaMetrics: a vector of one
            result = result[0].get("value")
        moment = _point(result)[0]
        return moment if moment % 1 else moment + 0.5  # cut to whole seconds

    async def query(self, query: str) -> list[ScrapedSeries]:
        """The series of an instant query; those of a range selector have every sample as it was scraped."""
        result = _result(await self._ask("/api/v1/query", {"query": query}))
        if not isinstance(result, list):
            raise PrometheusError("bad", "the answer is not Prometheus'")
        return [_series(item) for item in result]

    async def scrape_errors(self) -> dict[Labels, str]:
        """Why the last scrape of a target failed, by its labels; empty where targets are not told (Thanos, Mimir)."""
        try:
            data = await self._ask("/api/v1/targets?state=active")
        except PrometheusError:
            return {}
        targets = data.get("activeTargets") if isinstance(data, dict) else None
        return dict(found for one in targets if (found := _scrape_error(one))) if isinstance(targets, list) else {}

    async def _ask(self, path: str, form: Mapping[str, str] | None = None) -> Any:
        self.requests += 1
        try:
            async with asyncio.timeout(DEADLINE_S):
                if form is None:
                    answer = await self._client.get(path, LIMIT)
                else:
                    answer = await self._client.post(path, urlencode(form).encode(), LIMIT)
        except TimeoutError:
            raise PrometheusError("timeout", f"Prometheus: no answer within {DEADLINE_S:.0f} s") from None
        except CannotConnect as error:
            raise PrometheusError("refused", f"Prometheus: {error}") from None
        except TooLarge:
            raise PrometheusError(
                "bad", f"Prometheus: the answer is larger than {LIMIT >> 20} MiB; --select fewer"
            ) from None
        except (BrokenOff, OSError) as error:
            raise PrometheusError("bad", f"Prometheus: the answer broke off: {clean(str(error), _WORDS)}") from None
        return _data(answer)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def one_of(values: Collection[str]) -> str:
    """The quoted pattern of a matcher `=~` that fits just these values."""
    return json.dumps("|".join(_SPECIAL.sub(r"\\\1", value) for value in sorted(values)), ensure_ascii=False)


def _data(answer: Answer) -> Any:
    """What an answer holds."""
    if answer.status in (401, 403):
        raise PrometheusError("auth", f"Prometheus: HTTP {answer.status}: a key is needed (--api-key-env NAME)")
    try:
        whole = json.loads(answer.body)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and whole.get("status") == "success":
        return whole.get("data")
    if isinstance(whole, dict) and isinstance(whole.get("error"), str):
        raise PrometheusError("empty", f"Prometheus: {clean(whole['error'], _WORDS)}")
    raise PrometheusError("empty", f"HTTP {answer.status} and no Prometheus API there: is the address right?")


def _result(data: Any) -> Any:
    return data.get("result") if isinstance(data, dict) else None


def _series(item: Any) -> ScrapedSeries:
    try:
        labels = {str(name): str(value) for name, value in item["metric"].items()}
        values = item["values"] if "values" in item else [item["value"]]
        return ScrapedSeries(labels.pop("__name__", ""), tuple(sorted(labels.items())), tuple(map(_point, values)))
    except (TypeError, KeyError, AttributeError):
        raise PrometheusError("bad", "the answer is not Prometheus'") from None


def _scrape_error(target: Any) -> tuple[Labels, str] | None:
    labels, error = (target.get("labels"), target.get("lastError")) if isinstance(target, dict) else (None, None)
    if not isinstance(labels, dict) or not isinstance(error, str) or not error:
        return None
    words = clean(_ASKED.sub("", error), _WORDS)
    return tuple(sorted((str(name), str(value)) for name, value in labels.items())), words


def _point(pair: Any) -> tuple[float, float]:
    try:
        moment, value = pair
        return float(moment), float(value)
    except (TypeError, ValueError):
        raise PrometheusError("bad", "the answer is not Prometheus'") from None
