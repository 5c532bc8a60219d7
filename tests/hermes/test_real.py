"""The same on homes that hermes-agent 0.19.0's own classes filled; it is installed from a package index for this."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from bench.gateway import hermes_python
from everhold.app import SystemRandomSource
from everhold.config import load_settings
from everhold.core.context import render_messages
from everhold.core.entries import Noted
from everhold.engine.context_cache import load_context_at
from everhold.hermes.doctor import checks, repair
from everhold.hermes.importer.run import ImportJob, run_import
from everhold.infra.home import Home
from everhold.stores.sqlite import SqliteStore
from tests.hermes.test_import import ImportTarget, everything

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


def made(python: Path, home: Path, scenario: str) -> Path:
    run = [str(python), str(ROOT / "bench" / "peer_homes.py"), str(home), scenario]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.endswith("done\n"), done.stderr[-2000:]
    return home / "state.db"


def loaded(python: Path, path: Path) -> dict[str, object]:
    """Every session as its own reader gives it."""
    done = subprocess.run(
        [str(python), "-c", LOADS, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("scenario", ["plain", "compressed", "gateway", "plain,compressed,gateway"])
def test_what_it_writes_in_order_is_in_order(tmp_path: Path, python: Path, scenario: str) -> None:
    path = made(python, tmp_path / "home", scenario)
    report = checks.examine_store(path, now=NOW)
    assert report.findings == []
    assert report.messages
    assert report.version == 22


@pytest.mark.parametrize(
    "scenario, found", [("unread", {"archived-unread"}), ("rotated", {"id-changed", "written-twice"})]
)
def test_what_it_does_to_a_store_is_found_and_mended_and_it_still_reads_it(
    tmp_path: Path, python: Path, scenario: str, found: set[str]
) -> None:
    path = made(python, tmp_path / "home", scenario)
    before = loaded(python, path)
    assert {finding.check for finding in checks.examine_store(path, now=NOW).findings} == found
    done = repair.repair_store(path, now=NOW)
    assert done.remaining_findings == []
    after = loaded(python, path)
    tip = next(iter(before["tips"].values()))  # type: ignore[attr-defined]
    live, was = after["conversations"][tip], before["conversations"][tip]  # type: ignore[index]
    assert live[: len(was)] == was, "what the next turn is shown begins as it did"
    assert len(live) == len(was) + (1 if scenario == "unread" else 0)
    assert checks.examine_store(path, now=NOW).findings == [], "its own opening it changed nothing"


@pytest.mark.parametrize("scenario, found", [("retried", {"deleted"}), ("raced", {"id-changed", "written-twice"})])
def test_retries_and_races_are_reported_and_all_remaining_messages_are_imported(
    tmp_path: Path, python: Path, scenario: str, found: set[str]
) -> None:
    """Writers that interleave leave calls without results as well; what a race leaves is not the same every time."""
    path = made(python, tmp_path / "home", scenario)
    assert found <= {finding.check for finding in checks.examine_store(path, now=NOW).findings}
    place = ImportTarget(tmp_path / "here")
    assert place.run_import(path).is_complete
    place.read_all_entries()  # audited
    assert not any(finding.is_fixable for finding in repair.repair_store(path, now=NOW).remaining_findings)
    loaded(python, path)


def test_its_log_tells_which_ids_changed(tmp_path: Path, python: Path) -> None:
    path = made(python, tmp_path / "home", "logged")
    report = checks.examine_log(path.parent / "logs" / "agent.log")
    assert [finding.check for finding in report.findings] == ["log-renamed", "log-renamed"]


def test_its_contexts_are_the_same_here(tmp_path: Path, python: Path) -> None:
    """What its reader gives for every session that can be gone on with, beside what a model would be shown here.

    Documented differences: the summary's frame, the beginning that goes with the summary, marks, white space at ends.
    """
    path = made(python, tmp_path / "home", "plain,compressed,rotated,gateway")
    conversations = loaded(python, path)["conversations"]
    assert isinstance(conversations, dict)
    home = Home(tmp_path / "here").create()

    async def play() -> dict[str, list[list[str]]]:
        store = SqliteStore.open(home.store, chance=SystemRandomSource(), synchronous="OFF")
        job = ImportJob(path, home, load_settings(home, environ={}), {}, "me", store=store, now=NOW)
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
                assert _plain(text) in shown[0][1]
            theirs, shown = theirs[summaries[-1] + 1 :], shown[1:]
        assert [(role, _plain(text)) for role, text in theirs] == [(role, text.strip()) for role, text in shown], id
        compared += len(shown)
    assert compared > 40


def _plain(text: object) -> str:
    if isinstance(text, list):
        return "\n".join(str(part.get("text", part)) for part in text)
    return str(text).strip()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[object, ...]]]:
    """A home with everything in it, and what an import makes of it that nobody disturbs."""
    there, here = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("whole")
    built = everything(there)
    for n in range(30):
        built.add_exchanges(built.add_session(f"many-{n}"), *(f"word {k} " + "x" * 300 for k in range(40)))
    built.close()
    subprocess.run(_importing(here, there), stdout=subprocess.DEVNULL, check=True)
    return there, _log(here)


def _importing(here: Path, there: Path) -> list[str]:
    return [sys.executable, "-m", "everhold", "--home", str(here), "import", str(there)]


def _log(here: Path) -> list[tuple[object, ...]]:
    """Everything but the times of notes: those are of this moment."""
    return [
        (e[0], e[1], e[2], e[3], e[4], None if isinstance(e[6], Noted) else e[5], e[7])
        for e in ImportTarget(here).read_all_entries()
    ]


@pytest.mark.parametrize("seed", range(max(1, int(os.environ.get("EVERHOLD_KILLS", "10")) // 10)))
def test_killed_again_and_again_an_import_ends_up_the_same(
    tmp_path: Path, whole: tuple[Path, list[tuple[object, ...]]], seed: int
) -> None:
    there, expected = whole
    chance = random.Random(seed)
    for count in (0, *sorted(chance.sample(range(1, len(expected)), 5))):
        process = subprocess.Popen(_importing(tmp_path, there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and _entries(tmp_path / "everhold.db") < count:
            time.sleep(chance.uniform(0, 0.02))
        process.kill()
        process.wait()
    done = subprocess.run(_importing(tmp_path, there), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _log(tmp_path) == expected


def _entries(path: Path) -> int:
    """How far an import has come: what is committed."""
    if not path.exists():
        return -1
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return int(db.execute("select max(pos) from entries").get or 0)
        finally:
            db.close()
    except apsw.Error:  # it is just being made
        return -1
