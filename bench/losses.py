"""What becomes of turns when a memory service is slow, away, or whoever speaks to it is killed.

The same faults, against the same services on loopback (`everhold.testing.services`), for three subjects: a plug-in of
hermes-agent 0.19.0 in hermes-agent's own hands, the same plug-in unmodified under `everhold up`, and everhold's own
adapter. Counted is what the service has in the end, not what anybody says. `python -m bench.losses --write` puts the
table of one run, with its date and conditions, into the page about plug-ins.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from bench.conditions import ROOT, conditions
from bench.gateway import HERE, Gateway, hermes_python, model
from bench.house import room
from everhold.cli.client import ApiClient
from everhold.cli.transport import SocketTransport
from everhold.testing.services.base import LoopbackService
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service

KEY = "a-key"
SLOW_SECONDS = 2.0
REPLAYS = 2
"""A plug-in that collects turns itself has what it was given again only once that fills a batch."""
PATIENCE_SECONDS = 400.0
"""For something to arrive that can be waited for."""
DEADLINE = "deadline_seconds: 10"
"""Whoever takes over from somebody who was killed waits so long for what may still be on its way."""
SETTLE_SECONDS = 12.0
"""Of silence, before something is called lost: longer than any of the plug-ins' own retries takes here."""
SLUGGISH_SECONDS = 6.0
"""For one write: longer than a plug-in was seen waiting for the one before."""
SDKS = ("honcho-ai==2.7.0", "hindsight-client==1.1.0", "mem0ai==2.2.1")
WHO = ("alone", "hosted", "native")
SERVICES: dict[str, type[LoopbackService]] = {
    "hindsight": HindsightService,
    "honcho": HonchoService,
    "mem0": Mem0Service,
}
BEGINS = {"honcho": r"/sessions$", "hindsight": r"/version$|/banks/[^/]+$"}
"""What a conversation needs before its first turn; mem0 needs nothing."""
WRITES = {"honcho": r"/messages$", "hindsight": r"/memories$", "mem0": r"^/memories$|/v3/memories/add"}
PAGE = ROOT / "docs" / "how-to" / "bring-your-hermes-plugin.md"
BEGIN, END = "<!-- bench.losses: written by `python -m bench.losses --write` -->", "<!-- /bench.losses -->"


class Subject(Protocol):
    """Somebody who hands turns to a memory service."""

    def start(self) -> None: ...

    def turn(self, text: str) -> None:
        """Until whoever said it has an answer."""

    def leave(self) -> None:
        """Stop, in the subject's own way."""

    def kill(self) -> None: ...

    def settle(self) -> None:
        """Until nothing more is to be expected."""

    def replay(self) -> bool:
        """Have everything handed over once more; whether there is such a thing."""


# -- the services ------------------------------------------------------------------------------------------------------


class World:
    """One service, and what it was told so far."""

    def __init__(self, name: str, service: LoopbackService) -> None:
        self.name = name
        self.service = service
        self.said: list[str] = []
        self.starts = 0

    def down(self) -> None:
        self._run(self.service.stop())

    def up(self) -> None:
        self._run(self.service.start())

    def slow_to_begin(self) -> None:
        """What a conversation needs before its first turn takes a while."""
        self.service.plan_fault("slow", BEGINS[self.name], times=None, seconds=SLOW_SECONDS)

    def sluggish(self) -> None:
        """Every write takes long, and is done."""
        self.service.plan_fault("slow", WRITES[self.name], method="POST", times=None, seconds=SLUGGISH_SECONDS)

    def has(self, text: str) -> bool:
        return text in self._whole()

    def copies(self) -> dict[str, int]:
        """How often each turn is there, once nothing has come for a while."""
        since, before = time.monotonic(), self._whole()
        while time.monotonic() - since < SETTLE_SECONDS and not all(text in before for text in self.said):
            time.sleep(0.2)
            if (now := self._whole()) != before:
                since, before = time.monotonic(), now
        return {text: before.count(text) for text in self.said}

    def _whole(self) -> str:
        state = self.service.state
        match self.name:
            case "honcho":
                texts = [row["content"] for row in list(state.messages)]
            case "hindsight":
                texts = [row["text"] for row in list(state.documents.values())]
            case _:
                texts = [row["memory"] for row in list(state.memories.values())]
        return "\n".join(texts)

    def _run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self.service._loop).result()  # type: ignore[arg-type]


# -- hermes-agent's own hands ------------------------------------------------------------------------------------------


class Alone:
    """The plug-in where it is at home."""

    def __init__(self, directory: Path, name: str, world: World, *, batch: int) -> None:
        self.home = plugin_home(directory / "hermes", name, world, batch=batch)
        self.name = name
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [plugin_python(), HERE / "peer_memory.py", self.home, self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._heard("ready")

    def turn(self, text: str) -> None:
        self._tell(text)
        self._heard("turn")

    def leave(self) -> None:
        assert self.process is not None
        self._tell("")
        self._heard("left")
        self.process.wait(timeout=PATIENCE_SECONDS)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def settle(self) -> None:
        """Nobody here can be asked: it is waited for at the service."""
        time.sleep(SLOW_SECONDS)

    def replay(self) -> bool:
        return False

    def _tell(self, line: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _heard(self, word: str) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line == word, f"{self.name} said {line!r}, not {word!r}"


def plugin_home(home: Path, name: str, world: World, *, batch: int) -> Path:
    """A home of hermes-agent with one plug-in's own configuration."""
    home.mkdir(parents=True, exist_ok=True)
    url = world.service.url
    if name == "honcho":
        known = {"apiKey": KEY, "baseUrl": url, "enabled": True, "workspace": "w", "peerName": "ada"}
        (home / "honcho.json").write_text(json.dumps({**known, "writeFrequency": batch if batch > 1 else "async"}))
    elif name == "mem0":  # which knows no batches
        known = {"mode": "platform", "host": url, "api_key": KEY, "agent_id": "main"}
        (home / "mem0.json").write_text(json.dumps(known))
    else:
        (home / "hindsight").mkdir(exist_ok=True)
        known = {"mode": "cloud", "api_url": url, "api_key": KEY, "bank_id": "b"}
        (home / "hindsight" / "config.json").write_text(json.dumps({**known, "retain_every_n_turns": batch}))
    return home


@functools.cache
def plugin_python() -> Path:
    """hermes-agent's interpreter, with what its plug-ins for these services would install by themselves."""
    python = hermes_python()
    known = subprocess.run([python, "-c", "import honcho, hindsight_client, mem0"], capture_output=True, check=False)
    if known.returncode:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *SDKS]
        subprocess.run(pip, check=True)
    return python


def plugin_path(name: str) -> str:
    code = "import importlib.util as u; print(u.find_spec('plugins.memory').submodule_search_locations[0])"
    found = subprocess.run([plugin_python(), "-c", code], check=True, capture_output=True, text=True)
    return f"{found.stdout.strip()}/{name}"


# -- everhold ----------------------------------------------------------------------------------------------------------


class Under:
    """`everhold up`, with a memory of one name."""

    def __init__(self, directory: Path, section: str, url: str) -> None:
        self.home = directory / "home"
        # a model that repeats nothing of what it is asked: every copy that is counted is a copy of a turn
        models = f"models: {{m: {{provider: openai, base_url: '{url}', name: instant, context_tokens: 100000}}}}\n"
        self.config = f"{models}memories: {{it: {section}}}\ndefaults: {{model: m, memories: [it], tools: []}}\n"
        self.gateway: Gateway | None = None
        self.since = time.time()

    def start(self) -> None:
        self.gateway = Gateway(self.home, config=self.config)

    def turn(self, text: str) -> None:
        assert self.gateway is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=PATIENCE_SECONDS)
        body = json.dumps({"model": "main", "messages": [{"role": "user", "content": text}]})
        headers = {"content-type": "application/json", "x-everhold-session": "c"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 200, said
        connection.close()

    def leave(self) -> None:
        assert self.gateway is not None
        self.gateway.close()

    def kill(self) -> None:
        assert self.gateway is not None
        self.gateway.process.kill()
        self.gateway.process.wait()

    def settle(self) -> None:
        """Until everything was handed over, by its own account."""
        until = time.monotonic() + PATIENCE_SECONDS
        client = ApiClient(SocketTransport(self.home / "api.sock"))
        row: dict[str, object] = {}
        while time.monotonic() < until:
            rows = asyncio.run(client.show_memory_status())["memories"]
            row = next(it for it in rows if it["memory"] == "it")
            if not row["waiting"] and not row["replaying"]:
                return
            time.sleep(0.1)
        raise AssertionError(f"it never came to rest: {row}")

    def replay(self) -> bool:
        client = ApiClient(SocketTransport(self.home / "api.sock"))
        asyncio.run(client.resend_to_memory("it", since=self.since, agent="", dry_run=False))
        self.settle()
        return True


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def _ready(subject: Subject, world: World) -> None:
    """Started, and past its beginning, however long this machine takes for that: what is said here is not counted."""
    subject.start()
    for number in range(30):
        warming = f"Hello for the {number}th time after start {world.starts}, anybody there yet?"
        subject.turn(warming)
        until = time.monotonic() + SLOW_SECONDS
        while time.monotonic() < until:
            if world.has(warming):
                world.starts += 1
                return
            time.sleep(0.1)
    raise AssertionError("it never got ready")


def calm(subject: Subject, world: World, say: Callable[[int], None]) -> None:
    subject.start()
    for _ in range(6):
        time.sleep(SLOW_SECONDS)
        say(1)
    subject.settle()


def beginning(subject: Subject, world: World, say: Callable[[int], None]) -> None:
    world.slow_to_begin()
    subject.start()
    say(3)
    time.sleep(SLOW_SECONDS * 2)
    say(3)
    subject.settle()
    world.service.clear_faults()


def outage(subject: Subject, world: World, say: Callable[[int], None]) -> None:
    _ready(subject, world)
    say(2)
    subject.settle()
    world.down()
    say(4)
    time.sleep(SLOW_SECONDS)
    world.up()
    say(2)
    subject.settle()


def sluggish(subject: Subject, world: World, say: Callable[[int], None]) -> None:
    _ready(subject, world)
    world.sluggish()
    say(5)
    subject.settle()


def shutdown(subject: Subject, world: World, say: Callable[[int], None]) -> None:
    subject.start()
    say(1)
    world.copies()  # it has had time to get ready; whether the first turn is there says something, too
    say(4)
    subject.leave()
    subject.start()


def killed(subject: Subject, world: World, say: Callable[[int], None]) -> None:
    _ready(subject, world)
    say(8)
    subject.kill()
    subject.start()
    subject.settle()


def killed_in_an_outage(subject: Subject, world: World, say: Callable[[int], None]) -> None:
    _ready(subject, world)
    say(2)
    subject.settle()
    world.down()
    say(4)
    subject.kill()
    world.up()
    _ready(subject, world)
    say(2)
    subject.settle()


@dataclasses.dataclass(frozen=True)
class Scene:
    what: str
    play: Callable[[Subject, World, Callable[[int], None]], None]
    batch: int = 1
    """Turns that are collected before they are sent."""
    paced: bool = False
    """Under everhold, everhold collects them, and the plug-in sends at once."""


SCENES = {
    "calm": Scene("nothing, 6 turns", calm),
    "beginning": Scene(f"3 of 6 turns while it gets ready ({SLOW_SECONDS:g} s)", beginning),
    "sluggish": Scene(f"5 turns while every write takes {SLUGGISH_SECONDS:g} s", sluggish),
    "outage": Scene("the service is away for 4 of 8 turns", outage),
    "shutdown": Scene("an orderly stop, 5 turns, batches of 3", shutdown, batch=3),
    "shutdown, paced": Scene("the same, where everhold collects (`write: 3`)", shutdown, batch=3, paced=True),
    "killed": Scene("kill -9 right after the 8th answer", killed),
    "killed in an outage": Scene("kill -9 during an outage of 4 of 8 turns", killed_in_an_outage),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    said: int
    kept: int
    doubled: int
    after: int | None = None
    """Kept after a replay, where there is one and it was needed."""
    doubled_after: int = 0


def told(outcomes: Sequence[Outcome]) -> str:
    """What was lost, from the best round to the worst; in brackets, after a replay."""
    text = _range([it.said - it.kept for it in outcomes])
    if any(it.after is not None for it in outcomes):
        text += f" ({_range([it.said - (it.kept if it.after is None else it.after) for it in outcomes])})"
    if any(twice := [max(it.doubled, it.doubled_after) for it in outcomes]):
        text += f", {_range(twice)} twice"
    return text


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def run(name: str, scene: Scene, make: Callable[[Path, World], Subject]) -> Outcome:
    with room() as directory, SERVICES[name]().threaded() as service:
        world = World(name, service)
        subject = make(directory, world)

        def say(count: int) -> None:
            for _ in range(count):
                world.said.append(f"This is turn number {len(world.said) + 1:03d} of a long talk about kettles")
                subject.turn(world.said[-1])

        try:
            scene.play(subject, world, say)
            subject.settle()
            kept, doubled = _count(world)
            after: int | None = None
            again = 0
            for _ in range(REPLAYS):
                if (kept if after is None else after) < len(world.said) and subject.replay():
                    after, again = _count(world)
            subject.leave()
            if after is None:
                kept, doubled = _count(world)  # what it held back until it left counts as kept
            return Outcome(said=len(world.said), kept=kept, doubled=doubled, after=after, doubled_after=again)
        finally:
            with contextlib.suppress(AssertionError, OSError):
                subject.kill()


def _count(world: World) -> tuple[int, int]:
    copies = world.copies()
    return sum(it > 0 for it in copies.values()), sum(it > 1 for it in copies.values())


def subjects(name: str, scene: Scene, url: str) -> Iterator[tuple[str, Callable[[Path, World], Subject]]]:
    batch = scene.batch
    yield "hermes-agent 0.19.0", lambda directory, world: Alone(directory, name, world, batch=batch)

    def hosted(directory: Path, world: World) -> Subject:
        home = plugin_home(directory / "hermes", name, world, batch=1 if scene.paced else batch)
        python, write = plugin_python(), f", write: {batch}" if scene.paced else ""
        what = f"provider: hermes-plugin, path: {plugin_path(name)}, python: {python}, hermes_home: {home}"
        section = f"{{{what}, {DEADLINE}{write}}}"
        return Under(directory, section, url)

    yield "the same plug-in under everhold", hosted

    def native(directory: Path, world: World) -> Subject:
        (directory / "home").mkdir(mode=0o700)
        env = directory / "home" / ".env"
        env.write_text(f"IT_API_KEY={KEY}\n")
        env.chmod(0o600)
        write = f", write: {batch}" if batch > 1 else ""
        if name == "mem0":  # it is seen at once here, and half a minute is what mem0's own service may take
            write += ", visible_seconds: 2, confirm_seconds: 5"
        section = f"{{provider: {name}, base_url: '{world.service.url}', api_key_env: IT_API_KEY, {DEADLINE}{write}}}"
        return Under(directory, section, url)

    yield "everhold's own adapter", native


def fits(name: str, key: str) -> bool:
    """Whether a scene means anything for a service."""
    if name == "mem0":
        return key not in ("beginning", "shutdown, paced")
    return name != "honcho" or key != "shutdown, paced"


def measured(name: str, key: str, url: str, *, chosen: Sequence[str], rounds: int) -> list[str]:
    row = [name, SCENES[key].what]
    for who, (label, make) in zip(WHO, subjects(name, SCENES[key], url), strict=True):
        if who not in chosen or (who == "alone" and SCENES[key].paced):
            row.append("")
            continue
        outcomes = []
        for number in range(rounds):
            started = time.monotonic()
            outcomes.append(run(name, SCENES[key], make))
            took = f"{time.monotonic() - started:.0f} s"
            print(f"{name}, {key}, {label}, round {number + 1}: {outcomes[-1]} ({took})", file=sys.stderr, flush=True)
        row.append(told(outcomes))
    return row


def table(rows: Sequence[Sequence[str]]) -> str:
    head = ["service", "what happens", "hermes-agent 0.19.0", "the plug-in under everhold", "everhold's adapter"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.losses", description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(SERVICES), help=f"some of {', '.join(SERVICES)}")
    parser.add_argument("--who", choices=WHO, action="append", help="some of those who hand over")
    parser.add_argument("--only", choices=sorted(SCENES), action="append", help="some of the scenes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="scenes at a time; most of their time is waiting")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    before = conditions()
    plugin_python()
    scenes = [(name, key) for name in given.names for key in given.only or SCENES if fits(name, key)]
    with model() as url, ThreadPoolExecutor(given.jobs) as several:
        measure = functools.partial(measured, url=url, chosen=given.who or WHO, rounds=given.rounds)
        rows = list(several.map(lambda scene: measure(*scene), scenes))
    rounds = f"{given.rounds} rounds, {given.jobs} at a time" if given.rounds > 1 else "one round"
    text = f"{BEGIN}\n\n{table(rows)}\n\n{rounds}; {before}\n\n{END}"
    print(text)
    if given.write:
        page = PAGE.read_text()
        PAGE.write_text(page[: page.index(BEGIN)] + text + page[page.index(END) + len(END) :])


if __name__ == "__main__":
    main()
