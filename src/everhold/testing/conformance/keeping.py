"""Whose memory it is, and that it outlives the object: nothing crosses, nothing dies in a buffer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

from everhold.ports.memory import Capability
from everhold.testing.conformance.scene import ADA, BOB, GROUP, Failed, Scene, Skipped

QUICK_SECONDS: Final = 0.05


async def people(scene: Scene) -> None:
    """What one person said in private is found by nobody else, nor with somebody else in the room."""
    it = scene.build()
    hers, theirs = scene.token(), scene.token()
    await scene.put(it, scene.exchange(f"my secret is {hers}"))
    # said in the group, in her own session there: the group heard it, and she may hear of it again in private
    await scene.put(it, scene.exchange(f"we all know {theirs}", audience=(*GROUP, *ADA), session="s2"))
    await scene.finds(it, hers)
    await scene.finds(it, theirs)
    await scene.finds(it, theirs, who="bob", audience=GROUP)
    await scene.lacks(it, hers, who="bob", audience=BOB)
    await scene.lacks(it, hers, audience=GROUP)
    await scene.lacks(it, hers, audience=(*GROUP, *ADA))
    await scene.lacks(it, theirs, who="bob", audience=BOB)
    await scene.lacks(it, theirs, who="bob", audience=("chat:agent:main:test:group:other",))


async def agents(scene: Scene) -> None:
    """What was said to one agent is not another's."""
    main, other = scene.build("main"), scene.build("other")
    mine, yours = scene.token(), scene.token()
    await scene.put(main, scene.exchange(f"between us: {mine}"))
    await scene.put(other, scene.exchange(f"and between us: {yours}", agent="other", session="s2"))
    await scene.finds(main, mine)
    await scene.finds(other, yours, agent="other")
    await scene.lacks(other, mine, agent="other")
    await scene.lacks(main, yours)


async def sessions(scene: Scene) -> None:
    """What is found says of which session it is, or nothing; never of another."""
    it = scene.build()
    tokens = {f"s{number}": scene.token() for number in range(1, 4)}
    batches = [scene.batch(scene.exchange(f"here: {token}", session=name)) for name, token in tokens.items()]
    async with asyncio.timeout(it.deadline * 3):
        await asyncio.gather(*(it.store(batch) for batch in batches))
    for name, token in tokens.items():
        await scene.finds(it, token)
        (found,) = await scene.look(it, token)
        if found.session not in ("", scene.session(name)):
            raise Failed(f"what was said in {name} is found as if it was {found.session}'s")


async def signature(scene: Scene) -> None:
    """`cache_busting_signature` stays the same while nothing changes, is flat, quick, and touches nothing outside."""
    it = scene.build()
    if not it.can(Capability.SIGNATURE):
        raise Skipped("it declares none")
    # what can only be learned by using it calls for a new instance, once: that is behind us after this
    await scene.put(it, scene.exchange("something is said for the first time"))
    it = scene.build()
    first = it.signature()
    loop = asyncio.get_running_loop()
    again, took = first, float("inf")
    with _watching() as touched:
        for _ in range(5):  # the machine may be busy for a moment, but hardly every time
            before = loop.time()
            again = it.signature()
            took = min(took, loop.time() - before)
    if touched:
        raise Failed(f"it touches {touched[0]}: it is asked before every message")
    if took > QUICK_SECONDS:
        raise Failed(f"it takes {took:.3f} s, and is asked before every message")
    await scene.put(it, scene.exchange("something was said"))
    for other in (again, it.signature(), scene.build().signature()):
        if other != first:
            raise Failed(f"nothing was changed, and it is {other} after {first}")


async def close(scene: Scene) -> None:
    """Closing while something is being stored loses nothing, twice is once, and the next object has it all."""
    it = scene.build()
    tokens = [scene.token() for _ in range(5)]
    for token in tokens[:4]:
        await scene.put(it, scene.note(f"before the end: {token}"))
    storing = asyncio.ensure_future(scene.put(it, scene.note(f"at the end: {tokens[4]}")))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await it.close()
        await storing
        await it.close()
    await scene.finds(scene.build(), *tokens)


async def restart(scene: Scene) -> None:
    """What `store` has said is stored is there for an object that knows nothing of this one, which nobody closes."""
    it = scene.build()
    tokens = [scene.token() for _ in range(3)]
    for token in tokens:
        await scene.put(it, scene.note(f"kept at once: {token}"))
    del it
    await scene.finds(scene.build(), *tokens)


_watched: list[list[str]] = []
_hooked = False


@contextlib.contextmanager
def _watching() -> Iterator[list[str]]:
    """What is opened or connected to, meanwhile. An audit hook cannot be taken away again, so there is one for all."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_hook)
    seen: list[str] = []
    _watched.append(seen)
    try:
        yield seen
    finally:
        _watched.remove(seen)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _watched and event in ("open", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "sqlite3.connect"):
        for seen in _watched:
            seen.append(f"{event} {args[0] if args else ''}")
