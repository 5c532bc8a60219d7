"""/health, /ready, /metrics: for whoever keeps the machine running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from starlette.responses import Response

from everhold import __version__
from everhold.core.consumers import MEMORY_PREFIX
from everhold.ports.store import Backlog, Spend
from everhold.web.answers import Refusal, answer
from everhold.web.call import Call
from everhold.web.guard import Guard

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


async def health(call: Call) -> Response:
    """The process is there."""
    return answer({"status": "ok", "version": __version__, "role": call.office.gateway.role()})


async def ready(call: Call) -> Response:
    """Messages can be accepted."""
    trouble = call.office.trouble()
    if trouble:
        raise Refusal(503, "not_ready", call.office.scrub(trouble), headers={"retry-after": "5"})
    return answer({"status": "ready", "version": __version__, "role": call.office.gateway.role()})


class Metrics:
    """Numbers in the text format Prometheus reads."""

    def __init__(self) -> None:
        self.guard: Guard | None = None

    async def __call__(self, call: Call) -> Response:
        """Numbers for Prometheus."""
        store, tail = call.office.store, call.office.tail
        lanes, parked = await store.list_cursors(waiting=True), await store.list_dead_letters()
        behind, now = await store.list_backlogs(MEMORY_PREFIX), call.office.control.gates.clock.now()
        commits = {step: float(count) for step, count in tail.commits.items()}
        spent = await store.list_spends("agent:", call.office.agents.day())
        answers = {str(status): float(count) for status, count in (self.guard.answers if self.guard else {}).items()}
        lines = [
            *_one("messages_pending", "gauge", "Messages that wait for an answer.", await store.count_waiting()),
            *_by("cursors_due", "consumer", "Cursors with something to do.", Counter(lane.consumer for lane in lanes)),
            *_by(
                "cursors_failing",
                "consumer",
                "Cursors whose last attempt failed.",
                Counter(lane.consumer for lane in lanes if lane.error),
            ),
            *_by(
                "dead_letters", "consumer", "Items given up until replayed.", Counter(item.consumer for item in parked)
            ),
            *_one(
                "dead_letters_in_doubt",
                "gauge",
                "Dead letters that may have arrived.",
                sum(item.in_doubt for item in parked),
            ),
            *_by("memory_backlog_items", "memory", "Items a memory has yet to receive.", _lags(behind)),
            *_by(
                "memory_backlog_age_seconds",
                "memory",
                "How long the oldest of it has waited.",
                {memory: now - oldest for memory, oldest in _oldest(behind).items()},
            ),
            *_by(
                "memory_failing",
                "memory",
                "Whether delivery to a memory fails.",
                {
                    reader.removeprefix(MEMORY_PREFIX): 1.0
                    for reader in {lane.consumer for lane in lanes if lane.error}
                    if reader.startswith(MEMORY_PREFIX)
                },
            ),
            *_by("spend_today_tokens", "agent", "Tokens an agent has used today.", _agents(spent, "tokens")),
            *_by("spend_today_usd", "agent", "US dollars an agent has cost today.", _agents(spent, "usd")),
            *_one("turns_total", "counter", "Turns ended since the start.", commits.get("end", 0.0)),
            *_by("commits_total", "step", "Commits since the start.", commits, kind="counter"),
            *_one("http_streams", "gauge", "Open streams and requests that wait for a reply.", tail.watchers),
            *_by("http_responses_total", "status", "Answered requests since the start.", answers, kind="counter"),
            *_one("agents", "gauge", "Configured agents.", len(call.office.agents.settings.agents)),
            *_one("ready", "gauge", "Whether messages can be accepted.", int(not call.office.trouble())),
        ]
        return Response("\n".join(lines) + "\n", media_type=PROMETHEUS)


def _agents(spent: Iterable[Spend], what: Literal["tokens", "usd"]) -> dict[str, float]:
    return {it.budget.removeprefix("agent:"): float(it.tokens if what == "tokens" else it.usd) for it in spent}


def _lags(behind: Iterable[Backlog]) -> dict[str, float]:
    lags: Counter[str] = Counter()
    for it in behind:
        lags[it.consumer.removeprefix(MEMORY_PREFIX)] += it.items
    return {memory: float(lag) for memory, lag in lags.items()}


def _oldest(behind: Iterable[Backlog]) -> dict[str, float]:
    oldest: dict[str, float] = {}
    for it in behind:
        memory = it.consumer.removeprefix(MEMORY_PREFIX)
        if it.oldest is not None:
            oldest[memory] = min(it.oldest, oldest.get(memory, it.oldest))
    return oldest


def _one(name: str, kind: str, help: str, value: float) -> Iterable[str]:
    return (*_head(name, kind, help), f"everhold_{name} {_number(value)}")


def _by(name: str, label: str, help: str, values: Mapping[str, float], kind: str = "gauge") -> Iterable[str]:
    rows = (f'everhold_{name}{{{label}="{key.translate(_ESCAPES)}"}} {_number(values[key])}' for key in sorted(values))
    return (*_head(name, kind, help), *rows)


def _number(value: float) -> str:
    """Every digit of it: a counter that is rounded stands still, and then jumps."""
    return str(int(value)) if value == int(value) else repr(value)


def _head(name: str, kind: str, help: str) -> tuple[str, str]:
    return f"# HELP everhold_{name} {help}", f"# TYPE everhold_{name} {kind}"
