"""Storing and finding when nothing goes wrong: once, whole, in order, whatever the words are."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from everhold.errors import Refused, Transient
from everhold.ports.memory import Capability, Note, Scope, Switch
from everhold.ports.platform import Delivery
from everhold.testing.conformance.scene import BOB, Failed, Scene, Skipped

KNOWN_BY_KEY: Final = (Delivery.KEYED, Delivery.UPSERT)
LARGE: Final = 1_000_000
NOTES: Final = 50
TRIES: Final = 3
WORDS: Final = (
    "Grüße aus Ærøskøbing", "日本語のテキスト", "שלום עולם", "مرحبا", "e\u0301 combining", "👩🏽\u200d🚀 in orbit",
    "a\ttab, a\nnewline, a \"quote\", a 'tick', a \\ and a %s {} $x", "<b>not html</b> & -- ; drop table",
    "\u202eright to left\u202c", "null\x00byte",
)  # fmt: skip


async def basics(scene: Scene) -> None:
    """What is stored is found again, in its own words, and nothing else is."""
    it = scene.build()
    first, second, never = scene.token(), scene.token(), scene.token()
    exchange, note = scene.exchange(f"my boat is called {first}"), scene.note(f"the {second} is blue")
    await scene.lacks(it, first)
    receipts = await scene.put(it, exchange, note)
    strange = set(receipts) - {exchange.key, note.key}
    if strange:
        raise Failed(f"`store` gives back keys nobody stored: {', '.join(sorted(strange))}")
    await scene.finds(it, first, second)
    await scene.lacks(it, never)
    if len(await it.find(scene.query(first, limit=1))) > 1:
        raise Failed("it finds more than it was asked for")


async def duplicates(scene: Scene) -> None:
    """The same batch once more changes nothing, where that is declared; where it can be asked, it knows what it has."""
    it = scene.build()
    token, other = scene.token(), scene.token()
    item, missing = scene.exchange(f"we saw a {token}"), scene.exchange(f"we never saw a {other}")
    if it.delivery is Delivery.PROBE:
        if await it.probe(scene.batch(item)):
            raise Failed("`probe` says something has arrived that was never sent")
        await scene.put(it, item)
        await asyncio.sleep(it.visible_after)
        there = list(await it.probe(scene.batch(item, missing)))
        if there != [item.key]:
            raise Failed(f"`probe` says {there}, and only {item.key} was stored; `visible_after` may be too short")
        await scene.finds(it, token)
        return
    if it.delivery not in KNOWN_BY_KEY:
        raise Skipped(f"it declares {it.delivery} delivery: a repeat is the policy's business")
    for _ in range(3):
        await scene.put(it, item)
    await asyncio.sleep(it.visible_after)
    await scene.finds(it, token)


async def order(scene: Scene) -> None:
    """What comes later is later: a batch is taken in from the front, and one after the other."""
    it = scene.build()
    tokens = [scene.token() for _ in range(6)]
    items = [scene.note(f"step {number}: {token}") for number, token in enumerate(tokens)]
    seen = False
    if it.can(Capability.RETRACT):
        # in one batch: taken back, and said anew after that
        await scene.put(it, items[0], scene.retraction(items[0]), items[1])
        await scene.finds(it, tokens[1])
        await scene.lacks(it, tokens[0])
        await scene.put(it, items[2])
        await scene.put(it, scene.retraction(items[2]))
        await asyncio.sleep(it.visible_after)
        await scene.lacks(it, tokens[2])
        seen = True
    if scene.harness is not None:
        await scene.put(it, *items[3:5])
        await scene.put(it, items[5])
        await scene.finds(it, *tokens[3:])
        kept = [text for text in await scene.harness.kept() if any(token in text for token in tokens[3:])]
        if [next(token for token in tokens[3:] if token in text) for text in kept] != tokens[3:]:
            raise Failed(f"the far side has them in another order: {kept}")
        seen = True
    if not seen:
        raise Skipped("nothing of it shows: it takes nothing back, and there is no harness to look through")


async def unicode(scene: Scene) -> None:
    """Any text people can type comes back as it was, or is refused with a reason."""
    it = scene.build()
    for words in WORDS:
        token = scene.token()
        try:
            await scene.put(it, scene.note(f"{token} {words}"))
        except Refused:
            continue
        await scene.finds(it, token)
        (found,) = await scene.look(it, token)
        if words not in found.text:
            raise Failed(f"{words!r} came back as {found.text[:80]!r}")


async def large(scene: Scene) -> None:
    """A megabyte in one item is kept, or refused with a reason; what stands behind it does not suffer."""
    it = scene.build()
    big, small = scene.token(), scene.token()
    kept = True
    try:
        await scene.put(it, scene.exchange(f"{big} " + "and so on " * (LARGE // 10)))
    except Refused:
        kept = False
    await scene.put(it, scene.exchange(f"{small} is small"))
    await scene.finds(it, small)
    if kept and not await scene.look(it, big):
        raise Failed("a megabyte was taken, and is not found")


async def concurrent_notes(scene: Scene) -> None:
    """Fifty notes at once, from many sessions: none is lost, none refused by timing."""
    it = scene.build()
    tokens = [scene.token() for _ in range(NOTES)]
    notes = [scene.note(f"remember {token}", session=f"s{number}") for number, token in enumerate(tokens)]
    it.deadline *= 15  # they may have to wait for each other

    async def put(note: Note) -> None:
        for _ in range(TRIES - 1):
            with contextlib.suppress(Transient):  # nothing was done: a lane would try again, too
                await scene.put(it, note)
                return
        await scene.put(it, note)

    await asyncio.gather(*map(put, notes))
    await scene.finds(it, *tokens)


async def capabilities(scene: Scene) -> None:
    """Everything it declares answers, in time and in kind."""
    it = scene.build()
    token = scene.token()
    item = scene.exchange(f"{token} is what I told you")
    await scene.put(it, item)
    await scene.finds(it, token)
    names = [tool.spec.name for tool in it.tools.values()]
    if len(names) != len(set(names)):
        raise Failed("two of its tools have one name")
    it.prompt()
    where = Scope(
        agent="main",
        session=item.session,
        name=scene.batch(item).name,
        person=item.stamp.person,
        audience=item.stamp.audience,
    )
    async with asyncio.timeout(it.deadline * 4):
        if it.can(Capability.BEFORE_COMPRESS):
            await it.before_compress(where, item.heard)
        if it.can(Capability.SESSION_SWITCHED):
            await it.session_switched(Switch(how="new", before=where, after=where))
            await scene.finds(it, token)
        if it.can(Capability.JOBS):
            jobs = scene.jobs(item, "count the cats", "there are three")
            for _ in range(2):  # after a lost answer it comes again
                await it.store(jobs)
            await scene.finds(it, token)
        if it.can(Capability.HEALTH) and not (health := await it.health()).well:
            raise Failed(f"it works, and says that it is not well: {health.text}")
        if it.can(Capability.EXPORT) and not any(
            [token in found.text async for found in it.export(scene.person("ada"))]
        ):
            raise Failed("`export` leaves out what the person said")
        if it.can(Capability.EXPORT) and any([token in found.text async for found in it.export(scene.person("bob"))]):
            raise Failed("`export` gives one person what another said")
        if it.can(Capability.FORGET):
            other = scene.token()
            await scene.put(it, scene.exchange(f"{other} is Bob's", who="bob", audience=BOB, session="s2"))
            await scene.finds(it, other, who="bob", audience=BOB)
            forgotten = await it.forget(scene.person("ada"))
            await asyncio.sleep(it.visible_after)
            if not forgotten.kept:
                await scene.lacks(it, token)
            await scene.finds(it, other, who="bob", audience=BOB)
