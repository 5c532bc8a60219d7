"""Two people talk to one agent with the built-in memory. Nothing that one of them said is shown to the other."""

from __future__ import annotations

import json
from pathlib import Path

from everhold.core.entries import EntryKind, Stamp, Thought
from everhold.ports.tool import ToolContext
from tests.e2e.running_gateway import RunningGateway

PIN = "zq4711zq"
CONFIG = json.dumps({"agents": {"main": {"memories": ["builtin"], "tools": ["memory", "session_search"]}}})


async def show(t: RunningGateway, session: str, who: str) -> str:
    """Return recall, search, reading tools, prompt and export for a person."""
    found = [json.dumps(await t.app.memory_admin.search_memories("pin of the alarm", agent="main", person=who))]
    found += [json.dumps(row, default=str) async for row in t.app.memory_admin.export_person(who)]
    for entry in await t.app.store.list_entries(session, kinds=(EntryKind.THOUGHT,)):
        if isinstance(entry.body, Thought) and entry.body.recall:
            found.append((await t.app.store.get_blob(entry.body.recall) or b"").decode())
    runtime = t.app.agents.get_runtime("main", {})
    stamp = Stamp(person=who, audience=(f"person:{who}",))
    context = ToolContext(session=session, agent="main", op=1, key="k", stamp=stamp)
    found.append((await runtime.tools["session_search"].run({"query": "pin alarm"}, context)).text)
    return "\n".join((*found, *t.app.agents.memories.list_prompts("main")))


async def test_the_built_in_memory_keeps_two_people_apart(tmp_path: Path) -> None:
    async with RunningGateway(tmp_path, CONFIG) as t:
        hers = (await t.send_message(f"the pin of the alarm is {PIN}", chat="one", who="ada")).session
        await t.wait_for_replies(hers)
        await t.wait_until_idle()
        his = (await t.send_message("what is the pin of the alarm?", chat="two", who="bob")).session
        await t.wait_for_replies(his)
        await t.wait_until_idle()
        assert PIN in await show(t, hers, "local:ada")
        assert PIN not in await show(t, his, "local:bob")
