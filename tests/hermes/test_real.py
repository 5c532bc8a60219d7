"""The same on homes that hermes-agent 0.19.0's own classes filled; it is installed from a package index for this."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench.gateway import hermes_python
from everhold.doctor import foreign, mend

pytestmark = pytest.mark.prove
ROOT = Path(__file__).parent.parent.parent
NOW = 4_000_000_000.0

LOADS = """
import json, sys
from pathlib import Path
from hermes_state import SessionDB
db = SessionDB(Path(sys.argv[1]))
ids = [row[0] for row in db._conn.execute("select id from sessions order by id")]
told = {id: [[m["role"], m["content"]] for m in db.get_messages_as_conversation(id)] for id in ids}
print(json.dumps({"told": told, "tips": {id: db.get_compression_tip(id) for id in ids}}))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return hermes_python()


def made(python: Path, home: Path, scene: str) -> Path:
    run = [str(python), str(ROOT / "bench" / "peer_homes.py"), str(home), scene]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.endswith("done\n"), done.stderr[-2000:]
    return home / "state.db"


def loaded(python: Path, path: Path) -> dict[str, object]:
    """Every session as its own reader gives it."""
    done = subprocess.run(
        [str(python), "-c", LOADS, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("scene", ["plain", "folded", "gateway", "plain,folded,gateway"])
def test_what_it_writes_in_order_is_in_order(tmp_path: Path, python: Path, scene: str) -> None:
    path = made(python, tmp_path / "home", scene)
    report = foreign.store(path, now=NOW)
    assert report.findings == []
    assert report.messages
    assert report.version == 22


@pytest.mark.parametrize(
    "scene, found", [("unread", {"archived-unread"}), ("rotated", {"id-changed", "written-twice"})]
)
def test_what_it_does_to_a_store_is_found_and_mended_and_it_still_reads_it(
    tmp_path: Path, python: Path, scene: str, found: set[str]
) -> None:
    path = made(python, tmp_path / "home", scene)
    before = loaded(python, path)
    assert {finding.check for finding in foreign.store(path, now=NOW).findings} == found
    done = mend.fix(path, now=NOW)
    assert done.left == []
    after = loaded(python, path)
    tip = next(iter(before["tips"].values()))  # type: ignore[attr-defined]
    live, was = after["told"][tip], before["told"][tip]  # type: ignore[index]
    assert live[: len(was)] == was, "what the next turn is shown begins as it did"
    assert len(live) == len(was) + (1 if scene == "unread" else 0)
    assert foreign.store(path, now=NOW).findings == [], "its own opening it changed nothing"


def test_its_log_tells_which_ids_changed(tmp_path: Path, python: Path) -> None:
    path = made(python, tmp_path / "home", "logged")
    report = foreign.log(path.parent / "logs" / "agent.log")
    assert [finding.check for finding in report.findings] == ["log-renamed", "log-renamed"]
