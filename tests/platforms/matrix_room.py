"""A room on a real homeserver with agents that pass results to each other, and gateways that are killed.

Everything is observed from outside: the room's timeline, the model's requests, and the stores.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2

from everhold.core.compression import SUMMARY_PROMPT
from everhold.core.entries import Began, Compressed, Entry, Heard, Said
from everhold.infra.home import Home
from everhold.platforms.matrix.parsing import EVERHOLD_CONTENT_KEY
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import SeededRandom
from everhold.testing.model_server import ModelServer, ModelServerReply, ReceivedModelRequest
from everhold.testing.platforms.synapse import CLIENT_API_PATH, MatrixTestMember, MatrixTimelineMessage, SynapseServer

KEY: Final = "sk-test-matrix-room"
TOKEN: Final = re.compile(r"<[a-z]+-[a-z0-9-]+>")
FILLER: Final = "so that there is something to compress, " * 12
PATIENCE_SECONDS: Final = 90.0
"""Time limit for anything on a busy machine."""
SUMMARY: Final = "[Summary of the conversation so far"
OPERATOR_TOKEN: Final = "an-operator-token-of-the-room-tests-0123456789"


class RoomGateway:
    """`everhold up` on one home, over several runs."""

    def __init__(self, path: Path, configuration: dict[str, Any], secrets: dict[str, str], *, fault: str = "") -> None:
        self.fault = fault
        self.home = Home(path).create()
        self.home.config.write_text(json.dumps(configuration))
        secrets = {**secrets, "EVERHOLD_OPERATOR_TOKEN": OPERATOR_TOKEN}
        self.home.env.write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
        for file in (self.home.config, self.home.env):
            file.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.process: asyncio.subprocess.Process | None = None
        self.lives = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open_client(self, *, seconds: float) -> httpx2.AsyncClient:
        """Return a client with the operator token."""
        headers = {"authorization": f"Bearer {OPERATOR_TOKEN}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=seconds, trust_env=False)

    async def start(self) -> None:
        self.lives += 1
        program = ["tests.platforms.broken_gateway", self.fault] if self.fault else ["everhold"]
        with (self.home.path / "said").open("ab") as said:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *program,
                "--home",
                str(self.home.path),
                "up",
                "--port",
                str(self.port),
                stdout=said,
                stderr=said,
                cwd=Path(__file__).parents[2],
                env={k: v for k, v in os.environ.items() if k == "EVERHOLD_LOCKS" or not k.startswith("EVERHOLD")},
            )

    async def ready(self) -> None:
        async with httpx2.AsyncClient(trust_env=False) as http:

            async def answers() -> bool:
                assert self.process is not None
                assert self.process.returncode is None, f"it ended by itself:\n{self.said()[-3000:]}"
                try:
                    return (await http.get(f"{self.url}/ready")).status_code == 200
                except httpx2.TransportError:
                    return False

            await wait_until(answers, what="a gateway that is ready")

    async def kill(self, how: int = signal.SIGKILL) -> None:
        process, self.process = self.process, None
        if process is not None:
            if process.returncode is None:
                process.send_signal(how)
            await process.wait()

    async def compress(self) -> None:
        """Compress every session now. Wait for the end of it, or of the gateway."""
        async with self.open_client(seconds=60.0) as http:
            sessions = (await http.get("/api/sessions")).json()["sessions"]
            paths = [f"/api/sessions/{session['id']}/compress" for session in sessions]
            asked = [http.post(path, json={"keep": 0}) for path in paths]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if not isinstance(answer, httpx2.TransportError):
                    assert isinstance(answer, httpx2.Response)
                    assert answer.status_code == 200, answer.text

    async def heard(self) -> dict[str, set[str]]:
        """Return, per account, the ids of the messages in its log."""
        found: dict[str, set[str]] = defaultdict(set)
        async with self.open_client(seconds=30.0) as http:
            for session in (await http.get("/api/sessions")).json()["sessions"]:
                after = 0
                while page := (await http.get(f"/api/sessions/{session['id']}/entries?after={after}")).json()[
                    "entries"
                ]:
                    after = page[-1]["seq"]
                    for origin in (it["body"]["origin"] for it in page if it["kind"] == "heard"):
                        found[origin["account"]].add(origin["message"])
        return found

    async def audit(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "everhold", "--home", str(self.home.path), "audit", stdout=-1, stderr=-1
        )
        told, trouble = await process.communicate()
        assert process.returncode == 0, (told + trouble).decode()[-3000:]

    async def log(self) -> dict[str, list[Entry]]:
        """Return the entries of its store, by session."""
        store = SqliteStore.open(self.home.path / "everhold.db", chance=SeededRandom())
        try:
            return {it.id: await store.list_entries(it.id) for it in await store.list_sessions(limit=1_000)}
        finally:
            await store.close()

    def said(self) -> str:
        return (self.home.path / "said").read_text()


async def wait_until(true: Callable[[], Awaitable[bool]], *, what: str, seconds: float = PATIENCE_SECONDS) -> None:
    try:
        async with asyncio.timeout(seconds):
            while True:
                if await true():
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None


class AgentRoom:
    """Ada, her agents, and their work: a task gets a result, a result gets an acknowledgement, and that gets no
    answer."""

    def __init__(
        self,
        path: Path,
        synapse: SynapseServer,
        model: ModelServer,
        *,
        agents: int,
        apart: bool = False,
        fault: str = "",
    ) -> None:
        self.path = path
        self.synapse = synapse
        self.model = model
        self.count = agents
        self.apart = apart
        self.fault = fault
        self.ada: MatrixTestMember
        self.agents: list[MatrixTestMember] = []
        self.gateways: list[RoomGateway] = []
        self.id = ""
        self.tasks: list[str] = []
        """The results and acknowledgements that are expected in the end."""
        self.compressed: list[float] = []
        """When all agents were made to compress."""
        self.summarising = asyncio.Event()
        """An agent's summary is being written."""
        self.patience = PATIENCE_SECONDS
        model.key = KEY
        model.default = self._answer

    async def open(self) -> None:
        self.ada = await self.synapse.register_member("ada")
        self.agents = [await self.synapse.register_member(f"agent{number}") for number in range(self.count)]
        self.id = await self.ada.create_room(*(agent.id for agent in self.agents), name="the workshop")
        groups = [[number] for number in range(self.count)] if self.apart else [list(range(self.count))]
        for number, group in enumerate(groups):
            secrets = {f"TOKEN_{it}": self.agents[it].token for it in group}
            configuration = self._configuration(group)
            path, secrets = self.path / f"home{number}", {"MODEL_KEY": KEY, **secrets}
            self.gateways.append(RoomGateway(path, configuration, secrets, fault=self.fault))
        await self.start()

    async def close(self) -> None:
        for gateway in self.gateways:
            await gateway.kill()
        for member in (self.ada, *self.agents):
            await member.http.aclose()

    def _configuration(self, agents: Sequence[int]) -> dict[str, Any]:
        endpoint = {"provider": "openai", "base_url": self.model.openai, "name": "fake", "api_key_env": "MODEL_KEY"}
        return {
            "models": {"m": {**endpoint, "context_tokens": 8_000}},
            "defaults": {
                "model": "m",
                "memories": [],
                "tools": [],
                "sessions": {"group": "shared"},
                "compression": {"soft": 0.4, "hard": 0.9, "keep_exchanges": 1},
            },
            "agents": {f"agent{number}": {"persona": f"You are agent {number}."} for number in agents},
            "platforms": {
                "matrix": {
                    f"agent{number}": {
                        "homeserver": self.synapse.url,
                        "user": self.agents[number].id,
                        "token_env": f"TOKEN_{number}",
                        "access": {"groups": {self.id: ["*", f"matrix:{self.ada.id}"]}},
                        "groups": {"observe": True},
                    }
                    for number in agents
                }
            },
            "backup": {"every_hours": 0},
        }

    # -- gateways ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        for gateway in self.gateways:
            await gateway.start()
        await asyncio.gather(*(gateway.ready() for gateway in self.gateways))

    async def kill(self, how: int = signal.SIGKILL) -> None:
        await asyncio.gather(*(gateway.kill(how) for gateway in self.gateways))

    async def compress(self) -> None:
        """Compress all agents at the same time. Wait for the end of it, or of the gateways."""
        self.compressed.append(time.time())
        self.summarising.clear()
        await asyncio.gather(*(gateway.compress() for gateway in self.gateways))
        self.summarising.set()

    async def wait_until_joined(self) -> None:
        """Wait until every agent has accepted its invitation."""

        async def all_here() -> bool:
            path = f"{CLIENT_API_PATH}/rooms/{self.id}/joined_members"
            return len((await self.ada.call("GET", path))["joined"]) == self.count + 1

        await wait_until(all_here, what="every agent entering the room")

    # -- people ------------------------------------------------------------------------------------------------------

    async def say(self, text: str, *mentioned: int) -> str:
        mentions = {"user_ids": [self.agents[number].id for number in mentioned]}
        return await self.ada.send_text(self.id, text, **{"m.mentions": mentions})

    async def task(self, agent: int, name: str, *, counts: bool = True) -> None:
        if counts:
            self.tasks.append(f"{name}-{agent}")
        await self.say(f"<task-{name}-{agent}> please, {FILLER}", agent)

    async def round(self, name: str, *, counts: bool = True) -> None:
        """Write a task for all agents. `counts`: it must be done in the end."""
        for number in range(self.count):
            await self.task(number, name, counts=counts)

    def _answer(self, received: ReceivedModelRequest) -> ModelServerReply:
        """The model of the agents. It decides by what is new: everything after their last answer."""
        system, *shown = received.json["messages"]
        if str(system["content"]).startswith(SUMMARY_PROMPT):
            self.summarising.set()
            tokens = dict.fromkeys(TOKEN.findall(json.dumps(shown, ensure_ascii=False)))
            return ModelServerReply(
                text="They spoke of " + " ".join(tokens), pause_seconds=0.02
            )  # long enough for a kill
        if "You are agent " not in str(system["content"]):
            return ModelServerReply(text="[]")  # nothing else to note
        me = int(str(system["content"]).partition("You are agent ")[2].partition(".")[0])
        new: list[str] = []
        for message in shown:
            new = [] if message["role"] == "assistant" else [*new, str(message["content"])]
        # A reply quotes what it answers; the agents act on a message's own words only.
        lines = [line for it in new if SUMMARY not in it for line in it.splitlines()]
        text = "\n".join(line for line in lines if not line.startswith("| "))
        before = (me - 1) % self.count
        results = re.findall(rf"<task-([a-z0-9]+)-{me}>", text)
        thanks = re.findall(rf"<result-([a-z0-9]+)-{before}>", text)
        words = [f"<result-{name}-{me}>" for name in dict.fromkeys(results)]
        words += [f"<noted-{name}-{before}>" for name in dict.fromkeys(thanks)]
        words += [f"<here-{name}-{me}>" for name in dict.fromkeys(re.findall(r"<call-([a-z0-9]+)>", text))]
        if not words:
            return ModelServerReply(text="ok")
        after = f" for {self.agents[(me + 1) % self.count].id}" if results else ""
        return ModelServerReply(text=f"{' '.join(words)}{after}, {FILLER}")

    # -- what must hold ----------------------------------------------------------------------------------------------

    async def timeline(self) -> list[MatrixTimelineMessage]:
        """Return the room's messages, without drafts whose turn was stopped by a person."""
        return [seen for seen in await self.ada.read_timeline(self.id) if not _given_up(seen)]

    async def wait_until_done(self) -> None:
        """Return whether every task has its result, and every result its acknowledgement."""
        wanted = {f"<{word}-{task}>" for task in self.tasks for word in ("result", "noted")}

        async def all_there() -> bool:
            text = "\n".join(seen.text for seen in await self.timeline())
            return all(token in text for token in wanted)

        try:
            await wait_until(all_there, what="every result and acknowledgement", seconds=self.patience)
        except AssertionError as error:
            text = "\n".join(seen.text for seen in await self.timeline())
            lost = sorted(token for token in wanted if token not in text)
            raise AssertionError(f"{len(lost)} of {len(wanted)} are missing: {lost[:10]}\n{self.said()}") from error

    async def call_everybody(self, name: str) -> None:
        """Call all agents, and wait for their answers."""
        await self.say(f"<call-{name}>", *range(self.count))
        for number in range(self.count):
            await self.ada.wait_for_message(self.id, f"<here-{name}-{number}>", seconds=PATIENCE_SECONDS)

    async def wait_until_obeyed(self, text: str, count: int) -> None:
        """Return whether all agents have answered an order this often. Their earlier messages come before that
        answer."""

        async def all_of_them() -> bool:
            timeline = await self.timeline()
            told = Counter(seen.sender for seen in timeline if seen.text.startswith(text) and not _message(seen))
            return all(told[agent.id] >= count for agent in self.agents)

        await wait_until(all_of_them, what=f"everybody saying {text!r}")

    async def agent_texts(self) -> list[str]:
        """Return the agents' messages, without the notices of their gateways."""
        return [seen.id for seen in await self.timeline() if seen.sender != self.ada.id and _message(seen)]

    async def wait_until_settled(self) -> None:
        """Return whether all agents have heard everything in the room."""

        missing: list[str] = []

        async def all_have() -> bool:
            missing.clear()
            timeline = await self.timeline()
            heard = [await gateway.heard() for gateway in self.gateways]
            for number, agent in enumerate(self.agents):
                known = set().union(*(it.get(f"agent{number}", set()) for it in heard))
                others = [seen for seen in timeline if seen.sender != agent.id and seen.id not in known]
                missing.extend(f"agent{number}: {seen.sender} {seen.content} now {seen.text[:80]!r}" for seen in others)
            return not missing

        try:
            await wait_until(all_have, what="everybody hearing everything")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), f"{len(missing)} are missing", *missing[:10]])) from error

    async def logs(self) -> dict[int, dict[str, list[Entry]]]:
        """Return, per agent, the entries of its sessions. The gateways have ended."""
        found: dict[int, dict[str, list[Entry]]] = defaultdict(dict)
        for gateway in self.gateways:
            for session, entries in (await gateway.log()).items():
                if any(isinstance(entry.body, Heard) for entry in entries):
                    author = next(entry.author for entry in entries if entry.author.startswith("agent:"))
                    found[int(author.removeprefix("agent:agent"))][session] = entries
        return found

    async def check(self, *, call: str) -> None:
        """Check everything that is promised. `call` is the last call that all agents answered."""
        logs, timeline = await self.logs(), await self.timeline()
        assert sorted(logs) == list(range(self.count))
        for number, sessions in logs.items():
            assert len(sessions) == 1, f"agent {number} changed its session: {sorted(sessions)}"
            (entries,) = sessions.values()
            said = [entry.body.text for entry in entries if isinstance(entry.body, Said)]
            seen = [it.text for it in timeline if it.sender == self.agents[number].id and _message(it)]
            assert seen == said, f"agent {number}: {Counter(seen) - Counter(said)} / {Counter(said) - Counter(seen)}"
            self._heard_everything(number, entries, timeline)
            self._was_shown_everything(number, entries, call)
        for at in self.compressed:
            begun = [_nearest(at, entries) for sessions in logs.values() for entries in sessions.values()]
            assert max(begun) - min(begun) <= 60, f"they did not compress together: {[it - at for it in begun]}"
        text = [seen.text for seen in timeline]
        for task in self.tasks:
            for word in ("result", "noted"):
                assert sum(f"<{word}-{task}>" in it for it in text) == 1, f"{word} {task} is there more than once"
        assert "loop.stopped" not in self.said()
        for gateway in self.gateways:
            await gateway.audit()

    def _heard_everything(self, number: int, entries: list[Entry], timeline: list[MatrixTimelineMessage]) -> None:
        """Every message of others is in its log, once."""
        places = [entry.body.origin for entry in entries if isinstance(entry.body, Heard)]
        # a halt also reaches agents at work through the agent that heard it first
        own = [place.message for place in places if place.account == f"agent{number}" and place.message.startswith("$")]
        others = [it.id for it in timeline if it.sender != self.agents[number].id]
        texts = {it.id: it.text[:60] for it in timeline}
        missed = [texts[id] for id in (Counter(others) - Counter(own)).elements()]
        twice = [texts.get(id, id) for id in (Counter(own) - Counter(others)).elements()]
        assert not missed, f"agent {number} missed {missed}"
        assert not twice, f"agent {number} heard twice {twice}"

    def _was_shown_everything(self, number: int, entries: list[Entry], call: str) -> None:
        """The turn that answered the last call saw every earlier message, in the summary or in full."""
        last = next(
            received.body.decode()
            for received in reversed(self.model.requests)
            if f"You are agent {number}." in received.body.decode() and f"<call-{call}>" in received.body.decode()
        )
        texts = [entry.body.text for entry in entries if isinstance(entry.body, Heard)]
        upto = next(place for place, text in enumerate(texts) if f"<call-{call}>" in text)
        wanted = {token for text in texts[: upto + 1] for token in TOKEN.findall(text)}
        missing = sorted(token for token in wanted if token not in last)
        assert not missing, f"agent {number} never saw {missing[:5]}"

    def said(self) -> str:
        return "\n".join(gateway.said()[-4000:] for gateway in self.gateways)


def _nearest(at: float, entries: list[Entry]) -> float:
    """Return when the compression nearest to a time began."""
    begun = [entry.at for entry in entries if isinstance(entry.body, Began) and entry.body.type == "compression"]
    assert begun, "it compressed nothing"
    assert any(isinstance(entry.body, Compressed) for entry in entries), "it never finished one"
    return min(begun, key=lambda it: abs(it - at))


def _given_up(seen: MatrixTimelineMessage) -> bool:
    """Return whether this is a draft from when all agents were halted. Any other draft has to be finished."""
    return bool((seen.last.get(EVERHOLD_CONTENT_KEY) or {}).get("draft")) and "-halted-" in seen.text


def _message(seen: MatrixTimelineMessage) -> bool:
    """Return whether this is not a gateway's own notice."""
    return seen.content.get("msgtype") == "m.text"
