"""Checks of storing and finding without failures: once, whole, in order, with any text."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from msgspec import structs

from everhold.engine.memory_client import MemoryClient
from everhold.errors import Refused, Transient
from everhold.ports.memory import ErasureState, ErasureTarget, MemoryCapability, MemoryNote, MemoryScope, SessionSwitch
from everhold.ports.platform import DeliveryGuarantee
from everhold.testing.conformance.scenario import (
    ADA_AUDIENCE,
    BOB_AUDIENCE,
    CheckFailed,
    CheckSkipped,
    ProviderScenario,
)

IDEMPOTENT_GUARANTEES: Final = (DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT)
LARGE_ITEM_CHARS: Final = 1_000_000
CONCURRENT_NOTES: Final = 50
MAX_TRIES: Final = 3
FORGET_SECONDS: Final = 10.0
"""How long a deletion may take beyond the patience with which items are waited for."""
FORGET_READBACK_SECONDS: Final = 0.5
"""How far apart a provider is asked whether a deletion is done. Some services delete later."""
UNICODE_TEXTS: Final = (
    "Grüße aus Ærøskøbing", "日本語のテキスト", "שלום עולם", "مرحبا", "e\u0301 combining", "👩🏽\u200d🚀 in orbit",
    "a\ttab, a\nnewline, a \"quote\", a 'tick', a \\ and a %s {} $x", "<b>not html</b> & -- ; drop table",
    "\u202eright to left\u202c", "null\x00byte",
)  # fmt: skip


async def check_basics(scenario: ProviderScenario) -> None:
    """Stored items are found with their own text, and nothing else is found."""
    it = scenario.build_client()
    first, second, never = scenario.make_token(), scenario.make_token(), scenario.make_token()
    exchange, note = scenario.make_exchange(f"my boat is called {first}"), scenario.make_note(f"the {second} is blue")
    await scenario.assert_not_found(it, first)
    receipts = await scenario.store_items(it, exchange, note)
    strange = set(receipts) - {exchange.key, note.key}
    if strange:
        raise CheckFailed(f"`store` returns keys that were not stored: {', '.join(sorted(strange))}")
    await scenario.assert_found(it, first, second)
    await scenario.assert_not_found(it, never)
    if len(await it.find(scenario.make_query(first, limit=1))) > 1:
        raise CheckFailed("it returns more hits than the limit")


async def check_duplicates(scenario: ProviderScenario) -> None:
    """A repeated batch changes nothing if the provider declares so, and `probe` knows what arrived."""
    it = scenario.build_client()
    token, other = scenario.make_token(), scenario.make_token()
    item, missing = scenario.make_exchange(f"we saw a {token}"), scenario.make_exchange(f"we never saw a {other}")
    if it.delivery is DeliveryGuarantee.PROBE:
        if await it.probe(scenario.make_batch(item)):
            raise CheckFailed("`probe` returns an item that was never sent")
        await scenario.store_items(it, item)
        await asyncio.sleep(it.visible_after)
        there = list(await it.probe(scenario.make_batch(item, missing)))
        if there != [item.key]:
            raise CheckFailed(
                f"`probe` returns {there}, but only {item.key} was stored; `visible_after` may be too short"
            )
        await scenario.assert_found(it, token)
        return
    if it.delivery not in IDEMPOTENT_GUARANTEES:
        raise CheckSkipped(f"it declares {it.delivery} delivery, so the policy decides about repeats")
    for _ in range(3):
        await scenario.store_items(it, item)
    await asyncio.sleep(it.visible_after)
    await scenario.assert_found(it, token)


async def check_order(scenario: ProviderScenario) -> None:
    """Batches and their items are stored in order."""
    it = scenario.build_client()
    tokens = [scenario.make_token() for _ in range(6)]
    items = [scenario.make_note(f"step {number}: {token}") for number, token in enumerate(tokens)]
    seen = False
    if it.has_capability(MemoryCapability.RETRACT):
        # in one batch: a retraction, then a new note
        await scenario.store_items(it, items[0], scenario.make_retraction(items[0]), items[1])
        await scenario.assert_found(it, tokens[1])
        await scenario.assert_not_found(it, tokens[0])
        await scenario.store_items(it, items[2])
        await scenario.store_items(it, scenario.make_retraction(items[2]))
        await asyncio.sleep(it.visible_after)
        await scenario.assert_not_found(it, tokens[2])
        seen = True
    if scenario.harness is not None:
        await scenario.store_items(it, *items[3:5])
        await scenario.store_items(it, items[5])
        await scenario.assert_found(it, *tokens[3:])
        kept = [
            text for text in await scenario.harness.list_stored_texts() if any(token in text for token in tokens[3:])
        ]
        if [next(token for token in tokens[3:] if token in text) for text in kept] != tokens[3:]:
            raise CheckFailed(f"the service has them in another order: {kept}")
        seen = True
    if not seen:
        raise CheckSkipped("the order cannot be checked: the provider has no retraction, and there is no harness")


async def check_unicode(scenario: ProviderScenario) -> None:
    """Any text is found unchanged, or refused with a reason."""
    it = scenario.build_client()
    for words in UNICODE_TEXTS:
        token = scenario.make_token()
        try:
            await scenario.store_items(it, scenario.make_note(f"{token} {words}"))
        except Refused:
            continue
        await scenario.assert_found(it, token)
        (found,) = await scenario.find_copies(it, token)
        if words not in found.text:
            raise CheckFailed(f"{words!r} came back as {found.text[:80]!r}")


async def check_large_items(scenario: ProviderScenario) -> None:
    """An item of one megabyte is stored, or refused with a reason; the items after it are stored."""
    it = scenario.build_client()
    big, small = scenario.make_token(), scenario.make_token()
    kept = True
    try:
        await scenario.store_items(it, scenario.make_exchange(f"{big} " + "and so on " * (LARGE_ITEM_CHARS // 10)))
    except Refused:
        kept = False
    await scenario.store_items(it, scenario.make_exchange(f"{small} is small"))
    await scenario.assert_found(it, small)
    if kept and not await scenario.wait_until_found(it, big):
        raise CheckFailed("an item of one megabyte was stored and is not found")


async def check_concurrent_notes(scenario: ProviderScenario) -> None:
    """Fifty concurrent notes of many sessions are stored; none is lost or refused."""
    it = scenario.build_client()
    tokens = [scenario.make_token() for _ in range(CONCURRENT_NOTES)]
    notes = [scenario.make_note(f"remember {token}", session=f"s{number}") for number, token in enumerate(tokens)]
    it.deadline *= 15  # they may have to wait for each other

    async def put(note: MemoryNote) -> None:
        for _ in range(MAX_TRIES - 1):
            with contextlib.suppress(Transient):  # nothing was stored; a delivery worker would retry too
                await scenario.store_items(it, note)
                return
        await scenario.store_items(it, note)

    await asyncio.gather(*map(put, notes))
    await scenario.assert_found(it, *tokens)


async def check_capabilities(scenario: ProviderScenario) -> None:
    """Every declared capability returns in time, with the right type."""
    it = scenario.build_client()
    token = scenario.make_token()
    item = scenario.make_exchange(f"{token} is what I told you")
    await scenario.store_items(it, item)
    await scenario.assert_found(it, token)
    names = [tool.spec.name for tool in it.tools.values()]
    if len(names) != len(set(names)):
        raise CheckFailed("two of its tools have the same name")
    it.prompt()
    where = MemoryScope(
        agent="main",
        session=item.session,
        name=scenario.make_batch(item).name,
        person=item.stamp.person,
        audience=item.stamp.audience,
    )
    async with asyncio.timeout(it.deadline * 4):
        if it.has_capability(MemoryCapability.BEFORE_COMPRESS):
            await it.before_compress(where, item.heard)
        if it.has_capability(MemoryCapability.SESSION_SWITCHED):
            await it.session_switched(SessionSwitch(how="new", before=where, after=where))
            await scenario.assert_found(it, token)
        if it.has_capability(MemoryCapability.JOBS):
            jobs = scenario.make_job_batch(item, "count the cats", "there are three")
            for _ in range(2):  # it is called again after a lost answer
                await it.store(jobs)
            await scenario.assert_found(it, token)
        if it.has_capability(MemoryCapability.HEALTH) and not (health := await it.health()).healthy:
            raise CheckFailed(f"it works, and reports that it is unhealthy: {health.text}")
        if it.has_capability(MemoryCapability.EXPORT) and not any(
            [token in found.text async for found in it.export(scenario.make_person_id("ada"))]
        ):
            raise CheckFailed("`export` lacks what the person said")
        if it.has_capability(MemoryCapability.EXPORT) and any(
            [token in found.text async for found in it.export(scenario.make_person_id("bob"))]
        ):
            raise CheckFailed("`export` for one person contains what another person said")
        if it.has_capability(MemoryCapability.REMOVE):
            gone = scenario.make_exchange(f"{(lost := scenario.make_token())} is to be moved")
            await scenario.store_items(it, gone)
            for _ in range(2):  # it is called again after a lost answer
                if left := await it.remove(scenario.make_batch(gone)):
                    raise CheckFailed(f"`remove` leaves {', '.join(left)}")
            await scenario.assert_not_found(it, lost)
            await scenario.assert_found(it, token)
        if it.has_capability(MemoryCapability.FORGET):
            other = scenario.make_token()
            await scenario.store_items(
                it, scenario.make_exchange(f"{other} is Bob's", who="bob", audience=BOB_AUDIENCE, session="s2")
            )
            await scenario.assert_found(it, other, who="bob", audience=BOB_AUDIENCE)
            await _assert_forgotten(scenario, it, token)
            await scenario.assert_found(it, other, who="bob", audience=BOB_AUDIENCE)


async def _assert_forgotten(scenario: ProviderScenario, it: MemoryClient, token: str) -> None:
    """Ask the provider to forget, as the gateway does, until it confirms. What it confirms must not be found."""
    ada = scenario.make_person_id("ada")
    target = ErasureTarget(identities=(ada,), audiences=(ADA_AUDIENCE,))
    deletions = list(await it.forget(target))
    moved = {one.session: f"{one.session}-new" for one in deletions if one.state is ErasureState.PLANNED}
    if moved:
        deletions = list(await it.forget(structs.replace(target, moved_sessions=moved)))
    waiting = [one for one in deletions if one.state in (ErasureState.ASKED, ErasureState.UNCONFIRMED)]
    loop = asyncio.get_running_loop()
    until = loop.time() + scenario.patience + FORGET_SECONDS
    while loop.time() < until:
        await asyncio.sleep(it.visible_after)
        states = await it.confirm_deletions(waiting) if waiting else {}
        if all(state is ErasureState.CONFIRMED for state in states.values()):
            break
        await asyncio.sleep(FORGET_READBACK_SECONDS)
    else:
        raise CheckFailed("`confirm_deletions` does not confirm what `forget` deleted")
    if not any(one.state is ErasureState.CANNOT and not one.hidden for one in deletions):
        await scenario.assert_not_found(it, token)
