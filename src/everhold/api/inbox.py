"""Handler of the inbox: everything that waits for a person's decision, each with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import Response

from everhold.api.errors import build_json_response
from everhold.api.request import ApiCall
from everhold.core.wording import describe_count


async def list_inbox(call: ApiCall) -> Response:
    """Return what waits for a person, the most urgent kinds first."""
    context = call.context
    described, state = context.gateway.describe(), await context.control.collect_status()
    spent = {
        agent["name"]: await context.store.get_spend(f"agent:{agent['name']}", str(described["day"]))
        for agent in described["agents"]
    }
    items = [
        *_list_problems(described),
        *_list_pairing(await context.gateway.pairing.list_requests()),
        *_list_tools(await context.gateway.list_tools()),
        *_list_dead_letters(await _count_dead_letters(call)),
        *_list_work(state),
        *_list_budgets(described, {name: (it.usd, it.tokens) for name, it in spent.items()}),
    ]
    return build_json_response({"items": items})


def _build_item(
    kind: str, id: str, title: str, remedy: str, about: str, *, at: float | None = None, **data: Any
) -> dict[str, Any]:
    return {
        "id": f"{kind}:{id}", "kind": kind, "title": title, "remedy": remedy, "at": at, "about": about, "data": data,
    }  # fmt: skip


def _list_problems(described: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for problem in described["refused"]:
        yield _build_item("config", problem["key"] or problem["file"], _say(problem), problem["remedy"], "setup/config")
    for problem in described["problems"]:
        yield _build_item("problem", problem["key"] or problem["message"], _say(problem), problem["remedy"], "setup")


def _say(problem: Mapping[str, Any]) -> str:
    return f"{problem['key']}: {problem['message']}" if problem["key"] else str(problem["message"])


def _list_pairing(requests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for it in requests:
        yield _build_item(
            "pairing",
            it["identity"],
            f"{it['name'] or it['identity']} asks for access on {it['platform']}",
            "Compare the code with the one that the person received, then approve it.",
            "people",
            at=it["since"],
            request=it,
        )


def _list_tools(servers: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for server in servers:
        if waiting := server["waiting"]:
            yield _build_item(
                "tools",
                server["server"],
                f"{describe_count(len(waiting), 'tool')} of {server['server']} are new or changed",
                "Look at their descriptions, then confirm them.",
                "setup",
                server=server,
            )


async def _count_dead_letters(call: ApiCall) -> tuple[Counter[str], Counter[str], dict[str, float]]:
    dead, doubtful, since = Counter[str](), Counter[str](), dict[str, float]()
    for letter in await call.context.store.list_dead_letters():
        dead[letter.consumer] += 1
        doubtful[letter.consumer] += letter.in_doubt
        since.setdefault(letter.consumer, letter.at)
    return dead, doubtful, since


def _list_dead_letters(counts: tuple[Counter[str], Counter[str], dict[str, float]]) -> Iterator[dict[str, Any]]:
    dead, doubtful, since = counts
    for consumer, count in sorted(dead.items()):
        unsure = doubtful[consumer]
        title = f"{describe_count(count, 'item')} for {consumer} could not be delivered"
        if unsure:
            title += f"; {unsure} may have arrived"
        yield _build_item(
            "in_doubt" if unsure else "dead_letters",
            consumer,
            title,
            "Read the reasons, repair the cause, then replay or drop them.",
            f"memory/dead-letters?consumer={consumer}",
            at=since[consumer],
            consumer=consumer,
            count=count,
        )


def _list_work(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for turn in state["given_up"]:
        yield _build_item(
            "given_up",
            turn["session"],
            f"A turn was started {turn['starts']} times and did not end",
            "Open the session and stop the turn, or look at the log lines of its last start.",
            f"session/{turn['session']}",
        )
    for row in state["waiting"]:
        if row["error"]:
            yield _build_item(
                "failing",
                row["consumer"],
                f"{row['consumer']} waits after {describe_count(row['attempts'], 'failure')}: {row['error']}",
                "It is tried again by itself. Nothing is lost. Repair the cause if it stays.",
                "health",
                at=row["since"],
                sessions=row["sessions"],
            )
    for erasure in state["erasures"]:
        problems = [place for place in erasure["places"] if place["problem"]]
        if problems:
            yield _build_item(
                "erasure",
                erasure["id"],
                f"A forgetting is not finished: {problems[0]['problem']}",
                "Delete by hand what the place cannot delete, then accept the rest.",
                "people",
                at=erasure["at"],
            )


def _list_budgets(described: Mapping[str, Any], spent: Mapping[str, tuple[float, int]]) -> Iterator[dict[str, Any]]:
    for agent in described["agents"]:
        usd, tokens = spent[agent["name"]]
        most = agent["budget"]
        if (most["usd"] and usd >= most["usd"]) or (most["tokens"] and tokens >= most["tokens"]):
            yield _build_item(
                "budget",
                agent["name"],
                f"{agent['name']} has spent its budget of today",
                "It answers again tomorrow, or when budget of the agent is raised in the configuration.",
                "usage",
            )
