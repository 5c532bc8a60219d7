"""A running gateway with several memories, two platforms, two groups and two agents, and a reference that knows which
word may be shown to whom.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from everhold.core.access import compute_audience
from everhold.core.address import parse_address
from everhold.core.entries import ChatLocation, Stamp
from everhold.errors import EverholdError
from everhold.hermes.importer.run import ImportJob, run_import
from everhold.ports.memory import MemoryQuery
from everhold.ports.platform import IncomingMessage
from everhold.ports.tool import ToolContext
from everhold.testing.fakes import FakePlatform
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.seeded_random import SeededRandom
from tests.e2e.running_gateway import RunningGateway, make_model_section
from tests.hermes.built_home import BuiltHermesHome

PEOPLE = ("1", "2", "3")
PLATFORMS = ("telegram", "discord")
IDENTITIES = tuple(f"{platform}:{person}" for person in PEOPLE for platform in PLATFORMS)
DIRECT = "dm"
ROOMS = ("room-a", "room-b")
PLACES = (DIRECT, *ROOMS)
AGENTS = ("main", "other")
QUESTION = "what about zanzibar"
READING_TOOLS: dict[str, dict[str, Any]] = {
    "session_search": {"query": QUESTION},
    "honcho_search": {"query": QUESTION},
    "honcho_context": {},
    "honcho_profile": {},
    "honcho_reasoning": {"query": QUESTION},
    "honcho_conclude": {"list": True},
    "hindsight_recall": {"query": QUESTION},
    "hindsight_reflect": {"query": QUESTION},
    "mem0_search": {"query": QUESTION},
    "supermemory_search": {"query": QUESTION},
    "supermemory_profile": {},
    "notebook_search": {"query": QUESTION},
}
_WORD = re.compile(r"canary\d+x")

CanaryEvent = tuple[str, str, str, str]
"""(what happens, identity, place or other identity, agent)."""


class CanaryReference:
    """Who is who now, and what was said to whom. Every canary is a word of its own."""

    def __init__(self) -> None:
        self.groups = {one: {one} for one in IDENTITIES}
        self.said: list[tuple[str, str, str, str]] = []
        """(word, agent, identity, place)."""
        self.delivered: set[str] = set()
        """The words that the memories received as messages."""

    def link(self, one: str, other: str) -> None:
        both = self.groups[one] | self.groups[other]
        for member in both:
            self.groups[member] = both

    def unlink(self, one: str) -> None:
        rest = self.groups[one] - {one}
        for member in rest:
            self.groups[member] = rest
        self.groups[one] = {one}

    def erase(self, one: str) -> None:
        gone = self.groups[one]
        self.said = [it for it in self.said if it[2] not in gone]
        for member in gone:
            self.groups[member] = {member}

    def list_own(self, identity: str) -> set[str]:
        return {word for word, _, who, _ in self.said if who in self.groups[identity]}

    def list_allowed(self, identity: str, place: str, agent: str) -> tuple[set[str], set[str]]:
        """Return the words that may be shown, and those that must be found."""
        may, must = set(), set()
        for word, said_to, who, where in self.said:
            if said_to != agent or who not in self.groups[identity]:
                continue
            if where == place or (place == DIRECT and where != DIRECT):
                may.add(word)
            if where == place == DIRECT:
                must.add(word)
        return may, must


class CanaryWorld:
    """Plays events, and checks after each of them what can be read."""

    def __init__(self, path: Path, model: ModelServer, memories: dict[str, dict[str, Any]]) -> None:
        self.path = path
        self.memories = memories
        self.model = model
        self.model.default = ModelServerReply(text="fine")
        self.aliases: dict[str, str] = {}
        self.people: list[dict[str, Any]] = []
        """The people of the configuration."""
        self.reference = CanaryReference()
        self.number = 0
        self.finds_own = tuple(memories)
        """The memories that must find what an identity said in a direct chat."""
        self.gateway = RunningGateway(path, self.render_config())

    def render_config(self) -> str:
        names = ["builtin", *self.memories]
        memories = json.loads(json.dumps(self.memories))
        if "honcho" in memories:
            memories["honcho"]["user_peer_aliases"] = self.aliases
        access = {"direct": ["*"], "groups": {room: ["*"] for room in ROOMS}}
        accounts = {
            agent: {"enabled": False, "agent": agent, "token_env": "MODEL_KEY", "access": access} for agent in AGENTS
        }
        return json.dumps(
            {
                "models": {"fake": make_model_section(self.model.openai)},
                "defaults": {"model": "fake"},
                "agents": {
                    agent: {"memories": names, "recall": {"deadline_seconds": 60, "max_tokens": 20_000}}
                    for agent in AGENTS
                },
                "memories": memories,
                "people": self.people,
                "platforms": dict.fromkeys(PLATFORMS, accounts),
            }
        )

    async def __aenter__(self) -> CanaryWorld:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.gateway.__aexit__(*exc)

    async def start(self) -> None:
        await self.gateway.__aenter__()
        for platform in PLATFORMS:
            for agent in AGENTS:
                self.gateway.app.platforms[platform, agent] = FakePlatform(name=platform, account=agent)

    # -- events ------------------------------------------------------------------------------------------------------

    async def play(self, story: Sequence[CanaryEvent]) -> None:
        for event in story:
            await self.play_event(*event)
            await self.check(event)
        await self.check_every_place()
        if any(event[0] in ("say", "note", "ask") for event in story):
            await self.gateway.assert_sound()

    async def play_event(self, what: str, identity: str, place: str, agent: str) -> None:
        people = self.gateway.app.admission.people
        match what:
            case "say" | "note":
                self.number += 1
                word = f"canary{self.number}x"
                self.reference.said.append((word, agent, identity, place))
                command = "/memory note " if what == "note" else ""
                self.reference.delivered |= {word} if what == "say" else set()
                await self.send(f"{command}zanzibar {word}", identity, place, agent)
            case "ask":
                pass  # the check after it asks
            case "compress":
                await self.send("/compress here 0", identity, place, agent)
            case "link":
                await people.require_person(identity)
                await people.require_person(place)
                await people.join_identities(identity, place, by="operator")
                self.reference.link(identity, place)
            case "unlink":
                await people.require_person(identity)
                await people.unlink_identity(identity, by="operator")
                self.reference.unlink(identity)
            case "erase":
                await people.require_person(identity)
                await self.gateway.app.memory_admin.forget_person(identity)
                self.reference.erase(identity)
            case "alias":
                self.aliases = {**self.aliases, identity: f"alias-{len(self.aliases)}-{identity.replace(':', '-')}"}
                self.gateway.configure(self.render_config())
            case "import":
                await self.run_import(identity, agent)
            case _:
                raise AssertionError(what)
        await self.gateway.wait_until_idle()

    async def run_import(self, identity: str, agent: str) -> None:
        """Import an old conversation of an identity. The gateway must not run meanwhile."""
        self.number += 1
        word = f"canary{self.number}x"
        platform, _, sender = identity.partition(":")
        source = self.path / f"hermes-{self.number}"
        built = BuiltHermesHome(source)
        place = source if agent == "main" else source / "profiles" / agent
        if agent != "main":
            built.close()
            built = BuiltHermesHome(place)
        columns = {"source": platform, "chat_type": "dm", "chat_id": f"old-{sender}", "user_id": sender}
        key = f"agent:{agent}:{platform}:dm:old-{sender}"
        chat = built.add_session(f"old-{self.number}", session_key=key, origin_json="{}", **columns)
        built.add_message(chat, "user", f"zanzibar {word}")
        built.add_message(chat, "assistant", "fine")
        built.close()
        app, settings = self.gateway.app, self.gateway.app.agents.settings
        job = ImportJob(
            source, self.gateway.home, settings, {}, "me", store=app.store, now=app.clock.now(), chance=SeededRandom()
        )
        report = await run_import(job)
        assert report.is_complete, report.troubles
        self.gateway.configure(self.render_config())
        self.reference.said.append((word, agent, identity, DIRECT))

    async def send(self, text: str, identity: str, place: str, agent: str) -> str:
        """Send a message, wait for everything that follows, and return what it says."""
        self.number += 1
        platform, _, sender = identity.partition(":")
        chat = f"dm-{sender}" if place == DIRECT else place
        origin = ChatLocation(platform=platform, account=agent, chat=chat, message=f"m{self.number}")
        kind = "dm" if place == DIRECT else "group"
        shown = self.gateway.app.platforms[platform, agent]
        assert isinstance(shown, FakePlatform)
        before, asked = len(shown.shown_messages), len(self.model.requests)
        verdict = await self.gateway.app.accept(IncomingMessage(origin=origin, text=text, sender=sender, kind=kind))
        assert verdict.outcome == "accepted", verdict
        await self.gateway.wait_until_idle()
        seen = [request.body.decode() for request in self.model.requests[asked:]]
        return "\n".join([*seen, *(out.text for out in shown.shown_messages[before:])])

    # -- checks ------------------------------------------------------------------------------------------------------

    async def check(self, event: CanaryEvent) -> None:
        """Check what the people concerned and one other person can read, and one conversation."""
        what, identity, place, agent = event
        others = [it for it in IDENTITIES if it not in self.reference.groups[identity]]
        concerned = {identity, *self.reference.groups[identity], *({place} & {*IDENTITIES})}
        for one in sorted(concerned | {*others[self.number % len(others) :][:1]} if others else concerned):
            await self.check_reading(one, agent or AGENTS[0])
        if what in ("ask", "link", "unlink", "erase"):
            await self.check_conversation(identity, place if place in PLACES else DIRECT, agent or AGENTS[0])

    async def check_every_place(self) -> None:
        """Check every way to read, for everybody."""
        for identity in IDENTITIES:
            own = self.find_words([str(it) async for it in self.gateway.app.memory_admin.export_person(identity)])
            expected = self.reference.list_own(identity)
            self.compare("export", identity, own, may=expected, must=expected)
            for agent in AGENTS:
                await self.check_reading(identity, agent)
                await self.check_tools(identity, agent)
            await self.check_conversation(identity, DIRECT, AGENTS[0])

    async def check_conversation(self, identity: str, place: str, agent: str) -> None:
        may, _ = self.reference.list_allowed(identity, place, agent)
        if place == DIRECT:
            found = self.find_words([await self.send(QUESTION, identity, place, agent)])
            self.compare(f"a turn in {place}", identity, found, may=may)
        for command in ("/memory", "/memory search zanzibar"):
            found = self.find_words([await self.send(command, identity, place, agent)])
            self.compare(f"{command} in {place}", identity, found, may=may)

    async def check_reading(self, identity: str, agent: str) -> None:
        """Check the facts, the search over all memories, and what each memory returns by itself."""
        admin = self.gateway.app.memory_admin
        may, must = self.reference.list_allowed(identity, DIRECT, agent)
        facts = self.find_words([str(await admin.list_facts(agent, identity))])
        self.compare(f"facts of {agent}", identity, facts, may=may)
        some = sorted({*sorted(must)[:1], *sorted(must)[-2:]})  # of several identities, if the person has several
        for word in (*some, ""):  # questions for a word find it first, whatever else was said
            text = f"zanzibar {word}" if word else QUESTION
            found = self.find_words([str(await admin.search_memories(text, agent=agent, person=identity, limit=100))])
            self.compare(f"a search with {agent}", identity, found, may=may, must={word} - {""})
            for name, hits in (await self.ask_memories(text, identity, agent)).items():
                sent = {word} & self.reference.delivered if name in self.finds_own else set()
                own = sent & {it for it, _, who, _ in self.reference.said if who == identity}
                self.compare(f"{name} of {agent}", identity, hits, may=may, must=own)

    async def ask_memories(self, text: str, identity: str, agent: str) -> dict[str, set[str]]:
        """Return what each memory returns for a person, before the gateway compares it with the log."""
        app = self.gateway.app
        present = (await app.store.get_people()).expand_audience((f"person:{identity}",))
        found = {}
        for name in self.memories:
            client = app.agents.find_memory(name, agent)
            assert client is not None
            peers = await app.peers.list_present_peers(name, agent, present)
            query = MemoryQuery(
                text=text,
                agent=agent,
                session="",
                name="",
                audience=present.members,
                person=identity,
                limit=100,
                present=present,
                peers=peers,
            )
            found[name] = self.find_words(hit.text for hit in await client.find(query))
        return found

    async def check_tools(self, identity: str, agent: str) -> None:
        may, _ = self.reference.list_allowed(identity, DIRECT, agent)
        platform, _, sender = identity.partition(":")
        address = f"agent:{agent}:{platform}/{agent}:dm:dm-{sender}"
        audience = compute_audience(parse_address(address), identity)
        session = await self.gateway.app.store.resolve_address(address) or ""
        stamp = Stamp(person=identity, audience=audience, address=address)
        context = ToolContext(session=session, agent=agent, op=1, key="k", stamp=stamp, speakers=(identity,))
        tools = self.gateway.app.agents.get_runtime(agent, {}).tools
        for name in READING_TOOLS.keys() & tools.keys():
            try:
                result = await tools[name].run(READING_TOOLS[name], context)
            except EverholdError:
                continue
            self.compare(f"{name} of {agent}", identity, self.find_words([str(result)]), may=may)

    def find_words(self, texts: Iterable[str]) -> set[str]:
        return set(_WORD.findall("\n".join(texts)))

    def compare(self, how: str, identity: str, found: set[str], *, may: set[str], must: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        assert found <= may, f"{identity} saw {found - may} by {how}"
        assert must <= found, f"{identity} missed {must - found} by {how}"
