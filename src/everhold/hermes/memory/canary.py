"""The canary: a test whether a plug-in shows one person's words to another.

A made-up person tells the plug-in a random word, and another made-up person looks everywhere for it. Both have homes
that are removed afterwards. A plug-in that keeps its data elsewhere, and does not separate its users there, shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from typing import Any, Final

from msgspec import Struct

from everhold.core.entries import Stamp
from everhold.errors import Refused
from everhold.hermes.memory.homes import PluginHomes
from everhold.hermes.memory.host import HermesHostProcess
from everhold.hermes.memory.host_pool import HostPool
from everhold.hermes.memory.identity import build_identity

PATIENCE_SECONDS: Final = 30.0
"""How long a plug-in may take until it shows a text to the person who said it. Some services extract facts first."""
POLL_SECONDS: Final = 0.5
QUESTION: Final = "What is the test word that was told to you?"
ROUNDS: Final = 2
"""How often the second person looks."""


class CanaryFinding(Struct, frozen=True, kw_only=True):
    """What the test found."""

    code: str
    """The digest of the plug-in's code."""
    shown_in: tuple[str, ...] = ()
    """Where the second person saw the first one's word: `recall`, `prompt block`, `tool NAME`."""
    is_proven: bool = False
    """Whether the first person saw it. If not, the second one could not be expected to see it."""
    data_files: tuple[str, ...] = ()
    """Files of settings that the plug-in writes itself."""


class CanaryPerson:
    """A made-up person with a conversation of their own."""

    def __init__(self, agent: str) -> None:
        person = f"canary:{secrets.token_hex(6)}"
        address = f"agent:{agent}:http:dm:{person.replace(':', '-')}"
        stamp = Stamp(person=person, audience=(f"person:{person}",), address=address)
        self.session = address.replace(":", "-")
        self.identity = build_identity(stamp, agent=agent)

    async def call(self, host: HermesHostProcess, method: str, *, deadline: float, **params: Any) -> Any:
        return await host.call(method, deadline=deadline, session=self.session, identity=self.identity, **params)

    async def say(self, host: HermesHostProcess, text: str, reply: str, *, deadline: float) -> None:
        await self.call(host, "turn", deadline=deadline, user=text, assistant=reply)

    async def note(self, host: HermesHostProcess, action: str, text: str, *, deadline: float) -> None:
        metadata = {"session_id": self.session, "write_origin": "everhold", "old_text": text}
        params = {"action": action, "target": "user", "content": text, "metadata": metadata}
        await self.call(host, "write", deadline=deadline, **params)

    async def find_places(self, host: HermesHostProcess, word: str, *, deadline: float) -> list[str]:
        """Return where this person sees a word."""
        return [str(place) for place in await self.call(host, "examine", deadline=deadline, query=QUESTION, word=word)]


async def run_canary(pool: HostPool, homes: PluginHomes, *, agent: str, deadline: float) -> CanaryFinding:
    """Run the test. Raises the plug-in's error if it cannot be run."""
    word = f"zq{secrets.token_hex(8)}"
    first, second = CanaryPerson(agent), CanaryPerson(agent)
    parent = homes.make_throwaway()
    hers, his = parent / "first", parent / "second"
    note = f"The test word is {word}"
    try:
        async with pool.borrow(hers) as host:
            homes.prepare(hers)
            await host.start()
            code = str(host.description.get("code", ""))
            await first.say(
                host, f"Please remember: the test word is {word}.", "I will remember it.", deadline=deadline
            )
            await first.note(host, "add", note, deadline=deadline)
            proven = await _wait_until_shown(first, host, word, deadline=deadline)
        await pool.close_home(hers)  # some plug-ins store at the end of a session
        data_files = tuple(homes.find_changed_seeds(hers))
        shown_in: list[str] = []
        async with pool.borrow(his) as host:
            homes.prepare(his)
            await second.say(host, QUESTION, "I do not know it.", deadline=deadline)
            for turn in range(ROUNDS):
                await asyncio.sleep(POLL_SECONDS if turn else 0)
                shown_in += await second.find_places(host, word, deadline=deadline)
        await pool.close_home(his)
        async with pool.borrow(hers) as host:
            proven = proven or bool(await first.find_places(host, word, deadline=deadline))
            with contextlib.suppress(Refused):  # it cannot take a note back; the home is removed anyway
                await first.note(host, "remove", note, deadline=deadline)
        return CanaryFinding(
            code=code, shown_in=tuple(dict.fromkeys(shown_in)), is_proven=proven, data_files=data_files
        )
    finally:
        for home in (hers, his):
            await pool.close_home(home)
        shutil.rmtree(parent, ignore_errors=True)


async def _wait_until_shown(person: CanaryPerson, host: HermesHostProcess, word: str, *, deadline: float) -> bool:
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_SECONDS
    # poll, because a plug-in does not report when it has stored something
    while not await person.find_places(host, word, deadline=deadline):
        if loop.time() >= until:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
