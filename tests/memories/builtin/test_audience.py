"""The index shows nothing to another audience or agent."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from tests.memories.builtin.index_scenario import ADA, IndexScenario

PEOPLE = ("person:ada", "person:bob", "person:eve", "chat:x", "chat:y")
audiences = st.sets(st.sampled_from(PEOPLE), max_size=3).map(lambda some: tuple(sorted(some)))
facts = st.tuples(audiences, st.sampled_from(("main", "other")))


@settings(max_examples=25, deadline=None)
@given(said=st.lists(facts, min_size=1, max_size=8), present=audiences, agent=st.sampled_from(("main", "other")))
def test_a_fact_is_found_by_exactly_its_audience(
    said: list[tuple[tuple[str, ...], str]], present: tuple[str, ...], agent: str
) -> None:
    asyncio.run(_check(said, present, agent))


async def _check(said: list[tuple[tuple[str, ...], str]], present: tuple[str, ...], agent: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        scenario = IndexScenario(Path(home))
        for number, (audience, owner) in enumerate(said):
            # alternate own and shared sessions, so that neighbours have other audiences
            await scenario.say(f"canary number {number} sings", session=f"{owner}/{number % 2}", audience=audience)
        may = {
            f"canary number {number} sings"
            for number, (audience, owner) in enumerate(said)
            if present and set(present) <= set(audience) and owner == agent
        }
        assert set(await scenario.find("canary sings", audience=present, agent=agent, limit=50)) == may
        assert set(await scenario.find("bird", audience=present, agent=agent, limit=50)) <= may
        await scenario.close()


async def test_in_a_group_only_entries_visible_to_all_are_found(tmp_path: Path) -> None:
    scenario = IndexScenario(tmp_path)
    ada, bob, eve = PEOPLE[:3]
    companies = ((ada,), (bob,), (ada, bob), (bob, eve), (eve, bob, ada))
    for number, company in enumerate(companies):
        await scenario.say(f"canary {number} sings", session=f"s{number}", audience=company)
    await scenario.say("canary of another agent sings", session="other/s", audience=(ada, bob))

    async def heard(*present: str) -> set[str]:
        return {text.split()[1] for text in await scenario.find("canary sings", audience=present, limit=50)}

    assert await heard(ada) == {"0", "2", "4"}
    assert await heard(bob, ada) == await heard(ada, bob, ada) == {"2", "4"}
    assert await heard(ada, eve) == await heard(ada, bob, eve) == {"4"}
    assert await heard("person:nobody", ada) == await heard() == set()
    await scenario.close()


async def test_a_fact_is_superseded_only_in_audiences_that_could_see_it(tmp_path: Path) -> None:
    scenario = IndexScenario(tmp_path, embeddings="table")
    both = ("chat:g", "person:ada")
    await scenario.note("tea at four", fact="f", audience=both)
    await scenario.note("tea at four in the group", fact="f", audience=("chat:g",))
    await scenario.note("tea at five", fact="f", action="replace", audience=ADA)
    assert await scenario.find("tea", audience=ADA) == ["tea at five"]
    assert await scenario.find("tea", audience=both) == []
    assert await scenario.find("tea", audience=("chat:g",)) == ["tea at four in the group"]
    await scenario.close()
