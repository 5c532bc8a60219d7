"""How many turns are lost when a memory service is slow or down, or when its client is killed.

The bench runs the same faults with the same services on loopback (`everhold.testing.services`) for three subjects: a
plug-in of hermes-agent 0.19.0 under hermes-agent, the same unmodified plug-in under `everhold up`, and everhold's own
adapter. It counts what the service has in the end. `python -m bench.losses --write` puts the table of one run, with its
date and conditions, into the page about plug-ins.
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
from bench.gateway import CREDENTIAL, HERE, Gateway, hermes_python, model
from bench.in_process import temporary_directory
from everhold.cli.client import ApiClient
from everhold.cli.transport import SocketTransport
from everhold.testing.services.base import LoopbackService
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service

KEY = "a-key"
SLOW_SECONDS = 2.0
REPLAYS = 2
"""A plug-in that collects turns itself stores resent turns only when they fill a batch."""
PATIENCE_SECONDS = 400.0
"""How long to wait for a state that can be queried."""
DEADLINE = "deadline_seconds: 10"
"""A process that takes over from a killed one waits this long for requests that may still arrive."""
SETTLE_SECONDS = 12.0
"""Seconds without a write before a turn counts as lost: longer than any plug-in's own retries."""
SLUGGISH_SECONDS = 6.0
"""Seconds for one write: longer than the plug-ins wait for the previous one."""
SDKS = ("honcho-ai==2.7.0", "hindsight-client==1.1.0", "mem0ai==2.2.1")
WHO = ("alone", "hosted", "native")
SERVICES: dict[str, type[LoopbackService]] = {
    "hindsight": HindsightService,
    "honcho": HonchoService,
    "mem0": Mem0Service,
}
BEGINS = {"honcho": r"/sessions$", "hindsight": r"/version$|/banks/[^/]+$"}
"""Requests that a conversation needs before its first turn; mem0 needs none."""
WRITES = {"honcho": r"/messages$", "hindsight": r"/memories$", "mem0": r"^/memories$|/v3/memories/add"}
PAGE = ROOT / "docs" / "how-to" / "bring-your-hermes-plugin.md"
BEGIN, END = "<!-- bench.losses: written by `python -m bench.losses --write` -->", "<!-- /bench.losses -->"


class Subject(Protocol):
    """A program that stores turns in a memory service."""

    def start(self) -> None: ...

    def turn(self, text: str) -> None:
        """Run a turn until its answer."""

    def leave(self) -> None:
        """Stop, in the subject's own way."""

    def kill(self) -> None: ...

    def settle(self) -> None:
        """Wait until the subject has nothing more to store."""

    def replay(self) -> bool:
        """Resend everything; return False if the subject has no such operation."""


# -- the services ------------------------------------------------------------------------------------------------------


class World:
    """One service, and the texts of the turns so far."""

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
        """Delay the requests that a conversation needs before its first turn."""
        self.service.plan_fault("slow", BEGINS[self.name], times=None, seconds=SLOW_SECONDS)

    def sluggish(self) -> None:
        """Delay every write, which then succeeds."""
        self.service.plan_fault("slow", WRITES[self.name], method="POST", times=None, seconds=SLUGGISH_SECONDS)

    def has(self, text: str) -> bool:
        return text in self._whole()

    def copies(self) -> dict[str, int]:
        """Return how often the service has each turn, after a time without writes."""
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


# -- hermes-agent ------------------------------------------------------------------------------------------------------


class Alone:
    """The plug-in under hermes-agent."""

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
        """Sleep, because the plug-in cannot be asked; `copies` waits at the service."""
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
    """Make a hermes-agent home with the plug-in's configuration."""
    home.mkdir(parents=True, exist_ok=True)
    url = world.service.url
    if name == "honcho":
        known = {"apiKey": KEY, "baseUrl": url, "enabled": True, "workspace": "w", "peerName": "ada"}
        (home / "honcho.json").write_text(json.dumps({**known, "writeFrequency": batch if batch > 1 else "async"}))
    elif name == "mem0":  # has no batches
        known = {"mode": "platform", "host": url, "api_key": KEY, "agent_id": "main"}
        (home / "mem0.json").write_text(json.dumps(known))
    else:
        (home / "hindsight").mkdir(exist_ok=True)
        known = {"mode": "cloud", "api_url": url, "api_key": KEY, "bank_id": "b"}
        (home / "hindsight" / "config.json").write_text(json.dumps({**known, "retain_every_n_turns": batch}))
    return home


@functools.cache
def plugin_python() -> Path:
    """Return hermes-agent's interpreter, with the packages that its plug-ins for these services install."""
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
    """`everhold up` with one memory."""

    def __init__(self, directory: Path, section: str, url: str) -> None:
        self.home = directory / "home"
        # a model that does not repeat its input, so that every counted copy is a copy of a turn
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
        headers = {"content-type": "application/json", "x-everhold-session": "c", "authorization": CREDENTIAL}
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
        """Wait until everhold reports an empty backlog."""
        until = time.monotonic() + PATIENCE_SECONDS
        client = ApiClient(SocketTransport(self.home / "api.sock"))
        row: dict[str, object] = {}
        while time.monotonic() < until:
            rows = asyncio.run(client.show_memory_status())["memories"]
            row = next(it for it in rows if it["memory"] == "it")
            if not row["waiting"] and not row["replaying"]:
                return
            time.sleep(0.1)
        raise AssertionError(f"the memory's backlog did not become empty: {row}")

    def replay(self) -> bool:
        client = ApiClient(SocketTransport(self.home / "api.sock"))
        asyncio.run(client.resend_to_memory("it", since=self.since, agent="", dry_run=False))
        self.settle()
        return True


# -- faults ------------------------------------------------------------------------------------------------------------


def _ready(subject: Subject, world: World) -> None:
    """Start the subject and wait until a turn is stored. The turns of this phase are not counted."""
    subject.start()
    for number in range(30):
        warming = f"Hello for the {number}th time after start {world.starts}, are you there yet?"
        subject.turn(warming)
        until = time.monotonic() + SLOW_SECONDS
        while time.monotonic() < until:
            if world.has(warming):
                world.starts += 1
                return
            time.sleep(0.1)
    raise AssertionError("the subject stored no turn after its start")


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
    world.copies()  # gives the subject time to get ready
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
class LossScenario:
    what: str
    play: Callable[[Subject, World, Callable[[int], None]], None]
    batch: int = 1
    """Turns that are collected before they are sent."""
    paced: bool = False
    """Under everhold, everhold collects the turns, and the plug-in sends them immediately."""


SCENARIOS = {
    "calm": LossScenario("nothing, 6 turns", calm),
    "beginning": LossScenario(f"3 of 6 turns while it gets ready ({SLOW_SECONDS:g} s)", beginning),
    "sluggish": LossScenario(f"5 turns while every write takes {SLUGGISH_SECONDS:g} s", sluggish),
    "outage": LossScenario("the service is away for 4 of 8 turns", outage),
    "shutdown": LossScenario("an orderly stop, 5 turns, batches of 3", shutdown, batch=3),
    "shutdown, paced": LossScenario("the same, where everhold collects (`write: 3`)", shutdown, batch=3, paced=True),
    "killed": LossScenario("kill -9 right after the 8th answer", killed),
    "killed in an outage": LossScenario("kill -9 during an outage of 4 of 8 turns", killed_in_an_outage),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    said: int
    kept: int
    doubled: int
    after: int | None = None
    """Kept after a resend, where the subject supports it and it was needed."""
    doubled_after: int = 0


def told(outcomes: Sequence[Outcome]) -> str:
    """Format the lost turns from the best round to the worst; in brackets, after a resend."""
    text = _range([it.said - it.kept for it in outcomes])
    if any(it.after is not None for it in outcomes):
        text += f" ({_range([it.said - (it.kept if it.after is None else it.after) for it in outcomes])})"
    if any(twice := [max(it.doubled, it.doubled_after) for it in outcomes]):
        text += f", {_range(twice)} twice"
    return text


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def run(name: str, scenario: LossScenario, make: Callable[[Path, World], Subject]) -> Outcome:
    with temporary_directory() as directory, SERVICES[name]().threaded() as service:
        world = World(name, service)
        subject = make(directory, world)

        def say(count: int) -> None:
            for _ in range(count):
                world.said.append(f"This is turn number {len(world.said) + 1:03d} of a long talk about kettles")
                subject.turn(world.said[-1])

        try:
            scenario.play(subject, world, say)
            subject.settle()
            kept, doubled = _count(world)
            after: int | None = None
            again = 0
            for _ in range(REPLAYS):
                if (kept if after is None else after) < len(world.said) and subject.replay():
                    after, again = _count(world)
            subject.leave()
            if after is None:
                kept, doubled = _count(world)  # turns that it stored only at its stop count as kept
            return Outcome(said=len(world.said), kept=kept, doubled=doubled, after=after, doubled_after=again)
        finally:
            with contextlib.suppress(AssertionError, OSError):
                subject.kill()


def _count(world: World) -> tuple[int, int]:
    copies = world.copies()
    return sum(it > 0 for it in copies.values()), sum(it > 1 for it in copies.values())


def subjects(name: str, scenario: LossScenario, url: str) -> Iterator[tuple[str, Callable[[Path, World], Subject]]]:
    batch = scenario.batch
    yield "hermes-agent 0.19.0", lambda directory, world: Alone(directory, name, world, batch=batch)

    def hosted(directory: Path, world: World) -> Subject:
        home = plugin_home(directory / "hermes", name, world, batch=1 if scenario.paced else batch)
        python, write = plugin_python(), f", write: {batch}" if scenario.paced else ""
        what = f"provider: hermes-plugin, path: {plugin_path(name)}, python: {python}, hermes_home: {home}"
        # the canary's own writes would count as others
        section = f"{{{what}, serves: everybody, {DEADLINE}{write}}}"
        return Under(directory, section, url)

    yield "the same plug-in under everhold", hosted

    def native(directory: Path, world: World) -> Subject:
        (directory / "home").mkdir(mode=0o700)
        env = directory / "home" / ".env"
        env.write_text(f"IT_API_KEY={KEY}\n")
        env.chmod(0o600)
        write = f", write: {batch}" if batch > 1 else ""
        if name == "mem0":  # the default of half a minute fits mem0's own service; here items are visible immediately
            write += ", visible_seconds: 2, confirm_seconds: 5"
        section = f"{{provider: {name}, base_url: '{world.service.url}', api_key_env: IT_API_KEY, {DEADLINE}{write}}}"
        return Under(directory, section, url)

    yield "everhold's own adapter", native


def fits(name: str, key: str) -> bool:
    """Return whether a scenario applies to a service."""
    if name == "mem0":
        return key not in ("beginning", "shutdown, paced")
    return name != "honcho" or key != "shutdown, paced"


def measured(name: str, key: str, url: str, *, chosen: Sequence[str], rounds: int) -> list[str]:
    row = [name, SCENARIOS[key].what]
    for who, (label, make) in zip(WHO, subjects(name, SCENARIOS[key], url), strict=True):
        if who not in chosen or (who == "alone" and SCENARIOS[key].paced):
            row.append("")
            continue
        outcomes = []
        for number in range(rounds):
            started = time.monotonic()
            outcomes.append(run(name, SCENARIOS[key], make))
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
    parser.add_argument("--who", choices=WHO, action="append", help="some of the subjects")
    parser.add_argument("--only", choices=sorted(SCENARIOS), action="append", help="some of the scenarios")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=1, help="concurrent scenarios; they spend most of their time waiting"
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    before = conditions()
    plugin_python()
    scenarios = [(name, key) for name in given.names for key in given.only or SCENARIOS if fits(name, key)]
    with model() as url, ThreadPoolExecutor(given.jobs) as several:
        measure = functools.partial(measured, url=url, chosen=given.who or WHO, rounds=given.rounds)
        rows = list(several.map(lambda scenario: measure(*scenario), scenarios))
    rounds = f"{given.rounds} rounds, {given.jobs} at a time" if given.rounds > 1 else "one round"
    text = f"{BEGIN}\n\n{table(rows)}\n\n{rounds}; {before}\n\n{END}"
    print(text)
    if given.write:
        page = PAGE.read_text()
        PAGE.write_text(page[: page.index(BEGIN)] + text + page[page.index(END) + len(END) :])


if __name__ == "__main__":
    main()
