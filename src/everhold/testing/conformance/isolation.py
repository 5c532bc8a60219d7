"""Checks of isolation and durability: nothing crosses between people or agents, nothing stays in a buffer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

from everhold.ports.memory import MemoryCapability
from everhold.testing.conformance.scenario import (
    ADA_AUDIENCE,
    BOB_AUDIENCE,
    GROUP_AUDIENCE,
    CheckFailed,
    CheckSkipped,
    ProviderScenario,
)

MAX_SIGNATURE_SECONDS: Final = 0.05


async def check_people_isolation(scenario: ProviderScenario) -> None:
    """What one person said in private is not found for another person or in a group."""
    it = scenario.build_client()
    hers, theirs = scenario.make_token(), scenario.make_token()
    await scenario.store_items(it, scenario.make_exchange(f"my secret is {hers}"))
    # said in a group: the group's members heard it, and the speaker may find it in private
    await scenario.store_items(
        it, scenario.make_exchange(f"we all know {theirs}", audience=(*GROUP_AUDIENCE, *ADA_AUDIENCE), session="s2")
    )
    await scenario.assert_found(it, hers)
    await scenario.assert_found(it, theirs)
    await scenario.assert_found(it, theirs, who="bob", audience=GROUP_AUDIENCE)
    await scenario.assert_not_found(it, hers, who="bob", audience=BOB_AUDIENCE)
    await scenario.assert_not_found(it, hers, audience=GROUP_AUDIENCE)
    await scenario.assert_not_found(it, hers, audience=(*GROUP_AUDIENCE, *ADA_AUDIENCE))
    await scenario.assert_not_found(it, theirs, who="bob", audience=BOB_AUDIENCE)
    await scenario.assert_not_found(it, theirs, who="bob", audience=("chat:agent:main:test:group:other",))


async def check_agent_isolation(scenario: ProviderScenario) -> None:
    """What was said to one agent is not found for another."""
    main, other = scenario.build_client("main"), scenario.build_client("other")
    mine, yours = scenario.make_token(), scenario.make_token()
    await scenario.store_items(main, scenario.make_exchange(f"between us: {mine}"))
    await scenario.store_items(other, scenario.make_exchange(f"and between us: {yours}", agent="other", session="s2"))
    await scenario.assert_found(main, mine)
    await scenario.assert_found(other, yours, agent="other")
    await scenario.assert_not_found(other, mine, agent="other")
    await scenario.assert_not_found(main, yours)


async def check_session_names(scenario: ProviderScenario) -> None:
    """A hit names its own session or none, never another one."""
    it = scenario.build_client()
    tokens = {f"s{number}": scenario.make_token() for number in range(1, 4)}
    batches = [
        scenario.make_batch(scenario.make_exchange(f"here: {token}", session=name)) for name, token in tokens.items()
    ]
    async with asyncio.timeout(it.deadline * 3):
        await asyncio.gather(*(it.store(batch) for batch in batches))
    for name, token in tokens.items():
        await scenario.assert_found(it, token)
        (found,) = await scenario.find_copies(it, token)
        if found.session not in ("", scenario.make_session_id(name)):
            raise CheckFailed(f"a text of session {name} is found with session {found.session}")


async def check_signature(scenario: ProviderScenario) -> None:
    """`cache_busting_signature` is stable while nothing changes, flat, quick, and uses no file or connection."""
    it = scenario.build_client()
    if not it.has_capability(MemoryCapability.SIGNATURE):
        raise CheckSkipped("it declares none")
    # the first use may change the signature once, because some values are known only after it
    await scenario.store_items(it, scenario.make_exchange("something is said for the first time"))
    it = scenario.build_client()
    first = it.signature()
    loop = asyncio.get_running_loop()
    again, took = first, float("inf")
    with _record_io() as touched:
        for _ in range(5):  # the machine may be busy for a moment, but not every time
            before = loop.time()
            again = it.signature()
            took = min(took, loop.time() - before)
    if touched:
        raise CheckFailed(f"it uses {touched[0]}, and it is called before every message")
    if took > MAX_SIGNATURE_SECONDS:
        raise CheckFailed(f"it takes {took:.3f} s, and it is called before every message")
    await scenario.store_items(it, scenario.make_exchange("something was said"))
    for other in (again, it.signature(), scenario.build_client().signature()):
        if other != first:
            raise CheckFailed(f"it changed from {first} to {other} without a change of the memory")


async def check_close(scenario: ProviderScenario) -> None:
    """Closing during a store loses nothing, a second close is harmless, and the next object has everything."""
    it = scenario.build_client()
    tokens = [scenario.make_token() for _ in range(5)]
    for token in tokens[:4]:
        await scenario.store_items(it, scenario.make_note(f"before the end: {token}"))
    storing = asyncio.ensure_future(scenario.store_items(it, scenario.make_note(f"at the end: {tokens[4]}")))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await it.close()
        await storing
        await it.close()
    await scenario.assert_found(scenario.build_client(), *tokens)


async def check_restart(scenario: ProviderScenario) -> None:
    """What `store` confirmed is found by a new object, even if the old one was never closed."""
    it = scenario.build_client()
    tokens = [scenario.make_token() for _ in range(3)]
    for token in tokens:
        await scenario.store_items(it, scenario.make_note(f"kept at once: {token}"))
    del it
    await scenario.assert_found(scenario.build_client(), *tokens)


_active_recordings: list[list[str]] = []
_hook_installed = False


@contextlib.contextmanager
def _record_io() -> Iterator[list[str]]:
    """Records opened files and connections. An audit hook cannot be removed, so all checks share one."""
    global _hook_installed
    if not _hook_installed:
        _hook_installed = True
        sys.addaudithook(_record_audit_event)
    seen: list[str] = []
    _active_recordings.append(seen)
    try:
        yield seen
    finally:
        _active_recordings.remove(seen)


def _record_audit_event(event: str, args: tuple[Any, ...]) -> None:
    if _active_recordings and event in (
        "open",
        "socket.connect",
        "socket.getaddrinfo",
        "subprocess.Popen",
        "sqlite3.connect",
    ):
        for seen in _active_recordings:
            seen.append(f"{event} {args[0] if args else ''}")
