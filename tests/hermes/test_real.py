"""The same on homes that hermes-agent 0.19.0's own classes filled. It is installed from a package index for this."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from ruamel.yaml import YAML

from bench.gateway import hermes_python
from everhold.app import SystemRandomSource
from everhold.config import load_settings
from everhold.core.address import derive_address
from everhold.core.context import render_messages
from everhold.core.entries import Noted
from everhold.core.memory_naming import build_hermes_session_name
from everhold.engine.context_cache import load_context_at
from everhold.hermes.doctor import checks, repair
from everhold.hermes.importer.peers import ServiceUse, resolve_peers
from everhold.hermes.importer.people import ImportedSender
from everhold.hermes.importer.places import HermesChat
from everhold.hermes.importer.run import ImportJob, run_import
from everhold.hermes.reader.database import HermesSession
from everhold.hermes.reader.lineage import SessionChain
from everhold.infra.home import Home
from everhold.stores.sqlite import SqliteStore
from everhold.testing.model_server import ModelServer
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.services.honcho import HonchoService
from tests.e2e.running_gateway import KEY
from tests.e2e.test_moving_in import ask, move_in, start
from tests.hermes.test_import import ImportTarget, build_full_home
from tests.platforms.remote_telegram import TOKEN

pytestmark = pytest.mark.prove
ROOT = Path(__file__).parent.parent.parent
NOW = 4_000_000_000.0

LOADS = """
import json, sys
from pathlib import Path
from hermes_state import SessionDB
db = SessionDB(Path(sys.argv[1]))
ids = [row[0] for row in db._conn.execute("select id from sessions order by id")]
conversations = {id: [[m["role"], m["content"]] for m in db.get_messages_as_conversation(id)] for id in ids}
print(json.dumps({"conversations": conversations, "tips": {id: db.get_compression_tip(id) for id in ids}}))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return hermes_python()


def build_home(python: Path, home: Path, scenario: str) -> Path:
    run = [str(python), str(ROOT / "bench" / "peer_homes.py"), str(home), scenario]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.endswith("done\n"), done.stderr[-2000:]
    return home / "state.db"


def load_conversations(python: Path, path: Path) -> dict[str, object]:
    """Return every session as hermes-agent reads it."""
    done = subprocess.run(
        [str(python), "-c", LOADS, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("scenario", ["plain", "compressed", "gateway", "plain,compressed,gateway"])
def test_a_store_of_hermes_agent_is_imported_in_order(tmp_path: Path, python: Path, scenario: str) -> None:
    path = build_home(python, tmp_path / "home", scenario)
    report = checks.examine_store(path, now=NOW)
    assert report.findings == []
    assert report.messages
    assert report.version == 22


@pytest.mark.parametrize(
    "scenario, found", [("unread", {"archived-unread"}), ("rotated", {"id-changed", "written-twice"})]
)
def test_damage_by_hermes_agent_is_repaired_and_it_still_reads_the_store(
    tmp_path: Path, python: Path, scenario: str, found: set[str]
) -> None:
    path = build_home(python, tmp_path / "home", scenario)
    before = load_conversations(python, path)
    assert {finding.check for finding in checks.examine_store(path, now=NOW).findings} == found
    done = repair.repair_store(path, now=NOW)
    assert done.remaining_findings == []
    after = load_conversations(python, path)
    tip = next(iter(before["tips"].values()))  # type: ignore[attr-defined]
    live, was = after["conversations"][tip], before["conversations"][tip]  # type: ignore[index]
    assert live[: len(was)] == was, "the context of the next turn begins as before"
    assert len(live) == len(was) + (1 if scenario == "unread" else 0)
    assert checks.examine_store(path, now=NOW).findings == [], "opening it with hermes-agent changed nothing"


@pytest.mark.parametrize("scenario, found", [("retried", {"deleted"}), ("raced", {"id-changed", "written-twice"})])
def test_retries_and_races_are_reported_and_all_remaining_messages_are_imported(
    tmp_path: Path, python: Path, scenario: str, found: set[str]
) -> None:
    """Interleaving writers also leave calls without results. The result of a race is not the same every time."""
    path = build_home(python, tmp_path / "home", scenario)
    assert found <= {finding.check for finding in checks.examine_store(path, now=NOW).findings}
    place = ImportTarget(tmp_path / "here")
    assert place.run_import(path).is_complete
    place.read_all_entries()  # audited
    assert not any(finding.is_fixable for finding in repair.repair_store(path, now=NOW).remaining_findings)
    load_conversations(python, path)


def test_the_log_of_hermes_agent_shows_which_ids_changed(tmp_path: Path, python: Path) -> None:
    path = build_home(python, tmp_path / "home", "logged")
    report = checks.examine_log(path.parent / "logs" / "agent.log")
    assert [finding.check for finding in report.findings] == ["log-renamed", "log-renamed"]


def test_contexts_equal_those_of_hermes_agent(tmp_path: Path, python: Path) -> None:
    """Compare what hermes-agent reads for every session that can be continued with what a model would be shown here.

    Documented differences: the summary's frame, the beginning that goes with the summary, markers, white space at ends.
    """
    path = build_home(python, tmp_path / "home", "plain,compressed,rotated,gateway")
    conversations = load_conversations(python, path)["conversations"]
    assert isinstance(conversations, dict)
    home = Home(tmp_path / "here").create()

    async def play() -> dict[str, list[list[str]]]:
        store = SqliteStore.open(home.store, chance=SystemRandomSource(), synchronous="OFF")
        job = ImportJob(
            path, home, load_settings(home, environ={}), {}, "me", store=store, now=NOW, owner="telegram:1001"
        )
        assert (await run_import(job)).is_complete
        found = {}
        for session in await store.list_sessions(limit=100):
            shown = render_messages(await load_context_at(store, session, at=session.last_seq + 1))
            keys = [entry.dedup or "" for entry in await store.list_entries(session.id)]
            rows = [key.split(":")[2] for key in keys if key.startswith("hermes:")]
            if rows:
                found[rows[-1]] = [[m.role, m.text] for m in shown]
        await store.close()
        return found

    compared = 0
    for id, shown in asyncio.run(play()).items():
        theirs = [m for m in conversations[id] if m[0] != "session_meta" and m[1] is not None]
        summaries = [n for n, m in enumerate(theirs) if str(m[1]).startswith("[CONTEXT COMPACTION")]
        if summaries:
            for _, text in theirs[: summaries[-1] + 1]:
                assert _normalize(text) in shown[0][1]
            theirs, shown = theirs[summaries[-1] + 1 :], shown[1:]
        assert [(role, _normalize(text)) for role, text in theirs] == [(role, text.strip()) for role, text in shown], id
        compared += len(shown)
    assert compared > 40


def _normalize(text: object) -> str:
    if isinstance(text, list):
        return "\n".join(str(part.get("text", part)) for part in text)
    return str(text).strip()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[object, ...]]]:
    """A home with everything in it, and the result of an undisturbed import."""
    there, here = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("whole")
    built = build_full_home(there)
    for n in range(30):
        built.add_exchanges(built.add_session(f"many-{n}"), *(f"word {k} " + "x" * 300 for k in range(40)))
    built.close()
    subprocess.run(_make_import_command(here, there), stdout=subprocess.DEVNULL, check=True)
    return there, _read_log(here)


def _make_import_command(here: Path, there: Path) -> list[str]:
    return [sys.executable, "-m", "everhold", "--home", str(here), "import", str(there)]


def _read_log(here: Path) -> list[tuple[object, ...]]:
    """Everything but the times of notes, which are the present time."""
    return [
        (e[0], e[1], e[2], e[3], e[4], None if isinstance(e[6], Noted) else e[5], e[7])
        for e in ImportTarget(here).read_all_entries()
    ]


@pytest.mark.parametrize("seed", range(max(1, int(os.environ.get("EVERHOLD_KILLS", "10")) // 10)))
def test_an_import_that_is_killed_repeatedly_has_the_same_result(
    tmp_path: Path, whole: tuple[Path, list[tuple[object, ...]]], seed: int
) -> None:
    there, expected = whole
    chance = random.Random(seed)
    for count in (0, *sorted(chance.sample(range(1, len(expected)), 5))):
        process = subprocess.Popen(
            _make_import_command(tmp_path, there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and _count_entries(tmp_path / "everhold.db") < count:
            time.sleep(chance.uniform(0, 0.02))
        process.kill()
        process.wait()
    done = subprocess.run(_make_import_command(tmp_path, there), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _read_log(tmp_path) == expected


def _count_entries(path: Path) -> int:
    """The progress of an import: what is committed."""
    if not path.exists():
        return -1
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return int(db.execute("select max(pos) from entries").get or 0)
        finally:
            db.close()
    except apsw.Error:  # it is just being created
        return -1


def test_somebody_who_moves_is_known_at_the_first_message(tmp_path: Path, python: Path) -> None:
    """A home that its own gateway filled is imported without preparation. Then its owner writes to a live gateway."""
    home = tmp_path / "home-there"
    build_home(python, home, "moving")
    (home / ".env").write_text(f"TELEGRAM_BOT_TOKEN={TOKEN}\nTELEGRAM_ALLOWED_USERS=1001\nOPENAI_API_KEY={KEY}\n")

    async def play() -> None:
        async with ModelServer(key=KEY) as model, TelegramServer() as telegram:
            telegram.add_bot(TOKEN)
            provider = {"default": "fake", "provider": "custom", "base_url": model.openai, "context_length": 100_000}
            (home / "config.yaml").write_text(json.dumps({"model": provider}))
            report = await move_in(tmp_path, home)
            assert report.is_complete, report.troubles
            assert report.owner == "telegram:1001"
            async with start(tmp_path, telegram) as gateway:
                sent = await ask(gateway, telegram, model, 1001, "what is my parrot called?")
                assert "the meeting is on Thursday" in sent
                assert "Ada takes warfarin." in sent
                assert "Quillon" in sent
                assert "You are calm." in sent

    asyncio.run(play())


HOUSEHOLD_LEFT = (
    "config.yaml: auxiliary", "config.yaml: compression", "config.yaml: onboarding", "cron/jobs.json (j1)",
    "skills/ (greeting)", ".env: OPENROUTER_API_KEY", "MEMORY.md", "USER.md", "SOUL.md",
)  # fmt: skip


def configure_household(home: Path, *, model: str, honcho: str) -> None:
    """Give a home of hermes-agent tokens, addresses and keys."""
    settings = YAML(typ="safe").load((home / "config.yaml").read_text())
    settings["model"] |= {"default": "fake", "base_url": model, "api_key": KEY, "context_length": 100_000}
    (home / "config.yaml").write_text(json.dumps(settings))
    env = f"TELEGRAM_BOT_TOKEN={TOKEN}\nOPENROUTER_API_KEY=sk-or-0123456789\n"
    (home / ".env").write_text((home / ".env").read_text() + env)
    known = {"baseUrl": honcho, "apiKey": "hch-0123456789abcdef", "userPeerAliases": {"1001": "ada"}}
    (home / "honcho.json").write_text(json.dumps(known))


def add_conclusion(honcho: HonchoService, peer: str, text: str) -> None:
    for name in ("hermes", peer):
        honcho.state.peers["hermes", name] = {"id": name, "workspace_id": "hermes", "metadata": {}}
    known = {"content": text, "observer_id": "hermes", "observed_id": peer, "session_id": None}
    honcho.state.conclusions.append(
        {**known, "id": f"con-{peer}", "workspace_id": "hermes", "created_at": "2026-01-01T00:00:00Z"}
    )


def test_a_household_moves_and_everybody_is_known_at_their_first_message(tmp_path: Path, python: Path) -> None:
    """Its own gateway filled the home: direct chats and a group, two platforms, two people with the same id."""
    home = tmp_path / "home-there"
    build_home(python, home, "household")
    environ = {"OPENAI_API_KEY": "sk-of-this-machine-0123", "HONCHO_API_KEY": "hch-of-this-machine-0123"}

    async def play() -> None:
        with HonchoService(key="hch-0123456789abcdef").threaded() as honcho:
            async with ModelServer(key=KEY) as model, TelegramServer() as telegram:
                telegram.add_bot(TOKEN)
                configure_household(home, model=model.openai, honcho=honcho.url)
                add_conclusion(honcho, "ada", "Somebody plays the bassoon")
                add_conclusion(honcho, "555", "Somebody plays the kazoo")
                first = await move_in(tmp_path, home, environ=environ)
                assert not first.is_complete
                assert first.candidates == ["discord:555", "telegram:1001", "telegram:2002", "telegram:555"]
                lines = [*first.settings.unknown, *first.left_behind, *first.troubles]
                assert [name for name in HOUSEHOLD_LEFT if not any(f"main: {name}" in it for it in lines)] == []
                assert first.settings.refused == []
                assert [it.partition(" (")[0] for it in first.peers] == [
                    "honcho: discord:555 → 555", "honcho: telegram:1001 → ada", "honcho: telegram:2002 → 2002",
                    "honcho: telegram:555 → 555",
                ]  # fmt: skip
                persona = (home / "SOUL.md").read_text()
                (home / "SOUL.md").unlink()
                (home / "SOUL.md").write_text(persona)
                second = await move_in(tmp_path, home, owner="telegram:1001", environ=environ)
                assert second.is_complete, second.troubles
                assert (second.owner, second.agents["main"].messages) == ("telegram:1001", 0)
                async with start(tmp_path, telegram, environ) as gateway:
                    hers = await ask(gateway, telegram, model, 1001, "how are my parrot and the bassoon?")
                    his = await ask(gateway, telegram, model, 2002, "what is my alarm code, and who plays?")
                    third = await ask(gateway, telegram, model, 555, "where do I live, and what do I play?")
        words = {
            "Thursday": "a", "Quillon": "a", "warfarin": "a", "plays the bassoon": "a", "server is called tin": "a",
            "4711": "b", "Trieste": "c", "Bergen": "", "kazoo": "", "of-this-machine": "",
        }  # fmt: skip
        found = {word: "".join(who for who, sent in zip("abc", (hers, his, third), strict=True) if word in sent)
                 for word in words}  # fmt: skip
        assert found == words
        assert all("You are calm." in sent for sent in (hers, his, third))
        sent_headers = [*(it.headers for it in model.requests), *(it.headers for it in honcho.requests)]
        assert "of-this-machine" not in str(sent_headers)

    asyncio.run(play())


PEERS = """
import json, sys, types
from plugins.memory.honcho.session import HonchoSessionManager
given = json.loads(sys.argv[1])
config = types.SimpleNamespace(**given["config"])
found = []
for user, alt, key in given["asked"]:
    manager = HonchoSessionManager.__new__(HonchoSessionManager)
    manager._config, manager._runtime_user_peer_name, manager._runtime_user_peer_name_alt = config, user, alt
    found.append(manager._resolve_user_peer_id(key))
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"peerName": "bo.ss"},
        {"peerName": "boss", "pinUserPeer": True},
        {"userPeerAliases": {"1001": "a da", "uuid-1": "sig"}},
        {"runtimePeerPrefix": "tg_", "peerName": "tg_1001"},
        {"runtimePeerPrefix": "x:"},
    ],
)
def test_peers_are_those_that_its_own_plug_in_resolves(python: Path, given: dict[str, Any]) -> None:
    config = {
        "peer_name": given.get("peerName"),
        "pin_peer_name": given.get("pinUserPeer", False),
        "user_peer_aliases": given.get("userPeerAliases", {}),
        "runtime_peer_prefix": given.get("runtimePeerPrefix", ""),
    }
    use = ServiceUse("honcho", "honcho", "main", given, pinned=given.get("pinUserPeer", False), profile="default")
    senders = [
        make_sender(user, alt, key)
        for user, alt, key in (
            ("1001", "", "agent:main:telegram:dm:1001"),
            ("@ada:x.org", "", "agent:main:matrix:dm:!r:x.org"),
            ("+491", "uuid-1", "agent:main:signal:dm:+491"),
            ("", "", "agent:main:webhook:dm:hook 7"),
        )
    ]
    asked = [[it.user, it.alt, build_hermes_session_name(it.chain.root.session_key)] for it in senders]
    done = subprocess.run(
        [str(python), "-c", PEERS, json.dumps({"config": config, "asked": asked})],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ours = {it.identity: it.peer for it in resolve_peers(use, senders, is_same=lambda _a, _b: False)}
    assert [ours[it.identity] for it in senders] == json.loads(done.stdout.splitlines()[-1])


def make_sender(user: str, alt: str, key: str) -> ImportedSender:
    empty: dict[str, Any] = dict.fromkeys(HermesSession._fields, "")
    session = HermesSession(**{**empty, "id": key, "session_key": key, "started_at": 0.0})
    address = derive_address(agent="main", platform="x", account="", kind="dm", chat=key)
    return ImportedSender(f"x:{key}", user, alt, HermesChat(address, user, alt), SessionChain([session]))
