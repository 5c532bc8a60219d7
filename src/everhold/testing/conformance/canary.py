"""The canary check: one person tells a secret, and another person looks for it in every way that a provider offers."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from everhold.engine.memory_client import MemoryClient
from everhold.errors import EverholdError, Refused, Transient
from everhold.ports.memory import MemoryCapability, MemoryItem, MemoryQuery
from everhold.ports.tool import Tool, ToolContext, ToolEffect
from everhold.testing.conformance.scenario import (
    ADA_AUDIENCE,
    BOB_AUDIENCE,
    SETTLE_SECONDS,
    CheckFailed,
    ProviderScenario,
)

QUESTION: Final = "what is the secret word?"
"""It does not contain the word, because many answers repeat the question."""
READING_WORDS: Final = frozenset({"search", "recall", "find", "query", "context", "profile", "list", "get", "reflect"})
READING_ACTIONS: Final = frozenset({"search", "list", "recall", "find", "get", "probe"})
TEXT_PARAMETERS: Final = frozenset({"query", "text", "q", "question", "topic", "entity"})


async def check_canary(scenario: ProviderScenario) -> None:
    """A person's secret is not in another person's recall, tools, prompt block, search or export."""
    it = scenario.build_client()
    said, noted = scenario.make_token(), scenario.make_token()
    await _store(scenario, it, scenario.make_exchange(f"the secret word is {said}"))
    await _store(scenario, it, scenario.make_note(f"the secret word is {noted}"))
    await _wait_until_shown(scenario, it, said, noted)
    try:
        hello = scenario.make_exchange("good morning to you", who="bob", audience=BOB_AUDIENCE, session="s2")
        await _store(scenario, it, hello)
    except Refused as error:
        raise CheckFailed(f"it does not serve a second person: {error}") from error
    for _ in range(2):
        for place, text in (await _collect_shown(scenario, scenario.build_client(), "bob")).items():
            if said in text or noted in text:
                raise CheckFailed(f"one person's secret shows in another person's {place}")
        await asyncio.sleep(it.visible_after or SETTLE_SECONDS)


async def _store(scenario: ProviderScenario, it: MemoryClient, item: MemoryItem) -> None:
    """Store an item. A provider that tests itself before it serves a second person is waited for."""
    loop = asyncio.get_running_loop()
    until = loop.time() + scenario.patience + it.deadline
    while True:
        try:
            await scenario.store_items(it, item)
        except Transient:
            if loop.time() >= until:
                raise
            await asyncio.sleep(SETTLE_SECONDS)
        else:
            return


async def _wait_until_shown(scenario: ProviderScenario, it: MemoryClient, *words: str) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + scenario.patience + it.visible_after
    # poll, because the service sends no event when it has stored an item
    while True:
        shown = "\n".join((await _collect_shown(scenario, scenario.build_client(), "ada")).values())
        if any(word in shown for word in words):
            return
        if loop.time() >= until:
            raise CheckFailed("a person's secret was stored, and does not even show for this person")
        await asyncio.sleep(SETTLE_SECONDS)


async def _collect_shown(scenario: ProviderScenario, it: MemoryClient, who: str) -> dict[str, str]:
    """Return what a provider shows to a person, by place."""
    audience = ADA_AUDIENCE if who == "ada" else BOB_AUDIENCE
    session = "s1" if who == "ada" else "s2"
    stamp = scenario.make_exchange("", who=who, audience=audience, session=session).stamp
    shown = {"prompt block": it.prompt()}
    async with asyncio.timeout(it.deadline * 8):
        for place, name in (("recall", scenario.make_session_id(session)), ("search", "")):
            query = MemoryQuery(
                text=QUESTION,
                agent="main",
                session=name,
                name=f"memory-of-{name}" if name else "",
                audience=stamp.audience,
                person=stamp.person,
                stamp=stamp,
            )
            shown[place] = "\n".join(hit.text for hit in await it.find(query))
        context = ToolContext(session=scenario.make_session_id(session), agent="main", op=1, key="canary", stamp=stamp)
        for name, tool in it.tools.items():
            for arguments in _build_reading_calls(tool):
                shown[f"tool {name}"] = shown.get(f"tool {name}", "") + await _run_tool(tool, arguments, context)
        if it.has_capability(MemoryCapability.EXPORT):
            shown["export"] = "\n".join([hit.text async for hit in it.export(stamp.person)])
    return shown


async def _run_tool(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> str:
    try:
        result = await tool.run(arguments, context)
    except EverholdError as error:
        return str(error)
    return "\n".join((result.text, *(hit.text for hit in result.hits)))


def _build_reading_calls(tool: Tool) -> list[dict[str, Any]]:
    """Return arguments with which a tool only reads; none if it may write, or wants something unknown."""
    properties = tool.spec.parameters.get("properties", {})
    wanted = set(tool.spec.parameters.get("required", ()))
    texts = {name: QUESTION for name in properties if name in TEXT_PARAMETERS}
    actions = properties.get("action", {}).get("enum", ()) if isinstance(properties.get("action"), dict) else ()
    calls: list[dict[str, Any]] = []
    if actions:
        calls = [{"action": it, **texts} for it in actions if it in READING_ACTIONS]
    elif tool.effect is ToolEffect.PURE or READING_WORDS & set(tool.spec.name.lower().split("_")):
        calls = [texts]
    return [arguments for arguments in calls if wanted <= arguments.keys()]
