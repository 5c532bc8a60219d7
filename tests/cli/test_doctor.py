"""`everhold doctor` on its own home: a finding for each problem, fixed if that is safe."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import apsw
import pytest

from everhold.doctor import home as doctor_home
from everhold.stores.sqlite import checkup
from everhold.testing.services.base import LoopbackService
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service
from everhold.testing.services.supermemory import SupermemoryService
from tests.cli.command_home import CONFIG, CommandHome
from tests.hermes.built_home import BuiltHermesHome
from tests.hermes.test_agent_log import line
from tests.hermes.test_doctor import forked, healthy

SECRET = "sk-doctor-0123456789abcdefghij"


def run_doctor(command_home: CommandHome, *args: str, code: int = 1) -> dict[str, list[str]]:
    """Return the texts of `doctor --json` by check."""
    done = command_home.run("doctor", "--json", *args)
    assert done.code == code, done.out + done.err
    found: dict[str, list[str]] = {}
    for finding in done.json["findings"]:
        assert finding["text"]
        assert finding["remedy"] or finding["level"] == "note"
        found.setdefault(finding["check"], []).append(finding["text"])
    return found


@pytest.fixture
def lived(command_home: CommandHome) -> CommandHome:
    command_home.run("send", "hello").ok()
    return command_home


def test_a_healthy_home_gives_no_findings(lived: CommandHome) -> None:
    assert run_doctor(lived, code=0) == {}
    assert "no problems found" in lived.run("doctor").ok().out


def test_doctor_also_checks_a_running_gateway(command_home: CommandHome) -> None:
    command_home.start_gateway()
    command_home.run_in_process("send", "hello").ok()
    assert run_doctor(command_home, code=0) == {}


def test_files_that_others_can_read_are_reported_and_fixed(lived: CommandHome) -> None:
    (lived.path / ".env").write_text(f"OPENAI_API_KEY={SECRET}\n")
    (lived.path / ".env").chmod(0o644)
    (lived.path / "everhold.db").chmod(0o640)
    found = run_doctor(lived)
    assert len(found["permissions"]) == 2
    run_doctor(lived, "--fix", code=0)
    assert (lived.path / ".env").stat().st_mode & 0o777 == 0o600


def test_an_invalid_configuration_is_reported_with_its_line(lived: CommandHome) -> None:
    (lived.path / "config.yaml").write_text("agents: {main: {busy: sometimes}}\n")
    assert any("config.yaml:1" in text for text in run_doctor(lived)["config"])


def test_a_missing_secret_is_reported_by_name(lived: CommandHome) -> None:
    config = "models: {m: {provider: openai, name: x, api_key_env: NO_SUCH_KEY}}\ndefaults: {model: m}\n"
    (lived.path / "config.yaml").write_text(config)
    found = run_doctor(lived)
    assert any("NO_SUCH_KEY" in text for texts in found.values() for text in texts)


def test_a_model_that_does_not_answer_is_reported_unless_offline(lived: CommandHome) -> None:
    config = (
        "models: {m: {provider: openai, name: x, base_url: 'http://127.0.0.1:9/v1'}}\n"
        "defaults: {model: m, memories: [], tools: []}\n"
    )
    (lived.path / "config.yaml").write_text(config)
    assert "model" in run_doctor(lived)
    assert run_doctor(lived, "--offline", code=0) == {}


def test_a_store_with_a_wrong_digest_is_reported(lived: CommandHome) -> None:
    db = apsw.Connection(str(lived.path / "everhold.db"))
    db.execute("update entries set body = replace(body, 'hello', 'hullo') where kind = 'heard'")
    db.close()
    assert any("digest" in text for text in run_doctor(lived)["integrity"])


def test_a_damaged_store_is_reported_with_the_restore_command(lived: CommandHome) -> None:
    store = lived.path / "everhold.db"
    data = bytearray(store.read_bytes())
    data[4096 * 2 :] = bytes(byte ^ 0x5A for byte in data[4096 * 2 :])
    store.write_bytes(data)
    done = lived.run("doctor")
    assert done.code == 1
    assert "everhold restore" in done.out


def test_backlogs_and_dead_letters_are_reported(lived: CommandHome) -> None:
    db = apsw.Connection(str(lived.path / "everhold.db"))
    session = db.execute("select id from sessions").get
    db.execute(
        "insert into cursors(consumer, session, processed_seq, since, due, attempts, error) "
        "values ('memory:far', ?, 0, 5, 5, 3, 'it is down')",
        (session,),
    )
    db.execute(
        "insert into dead_letters(consumer, session, seq, reason, at) values ('memory:far', ?, 1, 'too odd', 1)",
        (session,),
    )
    db.close()
    found = run_doctor(lived)
    assert "it is down" in found["cursors"][0]
    assert "too odd" in found["dead_letters"][0]


def test_a_clock_behind_the_log_is_reported(lived: CommandHome) -> None:
    db = apsw.Connection(str(lived.path / "everhold.db"))
    db.execute("update entries set at = at + 99999")
    db.close()
    assert "clock" in run_doctor(lived)


def test_a_damaged_index_is_removed_and_rebuilt(lived: CommandHome) -> None:
    (lived.path / "index.db").write_bytes(b"not an index" * 400)
    assert "index" in run_doctor(lived, "--offline")
    run_doctor(lived, "--offline", "--fix", code=0)
    lived.run("send", "again").ok()
    run_doctor(lived, code=0)


def test_an_old_backup_is_reported_until_a_new_one_exists(lived: CommandHome) -> None:
    made = lived.run("backup", "--json").ok().json
    old = Path(made["path"])
    old.rename(old.with_name("everhold-20200101T000000Z-1.db"))
    assert "backup" in run_doctor(lived)
    lived.run("backup").ok()
    assert run_doctor(lived, code=0) == {}


def test_a_bundle_contains_no_text_no_key_and_no_id(lived: CommandHome, tmp_path: Path) -> None:
    (lived.path / ".env").write_text(f"OPENAI_API_KEY={SECRET}\n")
    (lived.path / ".env").chmod(0o600)
    lived.run("send", "my number is 4915112345678 and the word is marzipan").ok()
    logs = lived.path / "logs" / "everhold.log"
    ids = ("123456789", "-100123456", "@ada:example.org", "U012AB3CDEF", "ada@example.org", "bob-at-home")
    said = [f"2026 error turn.failed text='the word is marzipan' key={SECRET} person=4915112345678"]
    said += [f"2026 error denied some:{id} is not allowed here, nor is some:{id}: no" for id in ids[:-1]]
    said += [f"2026 error session agent:main:some:dm:{id} lost, agent:main:some:group:room:{id}." for id in ids]
    said += ["2026 error " + "x" * (480 - number) + " " + SECRET for number in range(0, 40, 5)]
    logs.write_text("\n".join(said) + "\n")
    target = tmp_path / "bundle.tar.gz"
    lived.run("doctor", "--bundle", str(target))
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as tar:
        inside = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        told = {name: file.read().decode() for name, file in inside.items() if file}
    whole = "\n".join(told.values())
    assert "turn.failed" in whole
    assert "sqlite" in whole
    for hidden in ("marzipan", SECRET, SECRET[:8], "4915112345678", *ids, "example.org"):
        assert hidden not in whole
    assert "agent:main:some:dm:id-" in whole, "the address stays in anonymised form"


@pytest.mark.parametrize("service", [HonchoService, HindsightService, SupermemoryService, Mem0Service])
def test_a_memory_is_tested_with_a_canary_that_is_deleted(lived: CommandHome, service: type[LoopbackService]) -> None:
    name = service.__name__.removesuffix("Service").lower()
    with service(key=SECRET).threaded() as running:
        (lived.path / ".env").write_text(f"MEMORY_KEY={SECRET}\n")
        (lived.path / ".env").chmod(0o600)
        section = f"{{base_url: '{running.url}', api_key_env: MEMORY_KEY, visible_seconds: 0}}"
        text = f"{CONFIG.replace('memories: []', f'memories: [{name}]')}memories: {{{name}: {section}}}\n"
        (lived.path / "config.yaml").write_text(text)
        assert all(finding["level"] == "note" for finding in find_memory_findings(lived, "doctor")), (
            "at most that it takes a while"
        )
        written = [call for call in running.requests if "canary" in str(call.json)]
        assert written, "it was tried"
        assert not re.search("canary[0-9a-f]{8}", str(list_stored(running))), "and nothing stays"
        assert find_memory_findings(lived, "doctor", "--offline") == []
    (finding,) = find_memory_findings(lived, "doctor")
    assert (finding["check"], finding["level"]) == ("memory", "wrong"), "the service no longer answers"
    assert name in finding["remedy"]


def test_testing_a_memory_with_one_peer_for_all_deletes_no_data(lived: CommandHome) -> None:
    with HonchoService(key=SECRET).threaded() as running:
        (lived.path / ".env").write_text(f"MEMORY_KEY={SECRET}\n")
        (lived.path / ".env").chmod(0o600)
        section = f"base_url: '{running.url}', api_key_env: MEMORY_KEY, peer_name: we, pin_peer_name: true"
        text = f"{CONFIG.replace('memories: []', 'memories: [honcho]')}memories: {{honcho: {{{section}}}}}\n"
        (lived.path / "config.yaml").write_text(text)
        theirs = {"id": "con_1", "content": "ours", "observer_id": "main", "observed_id": "we", "session_id": "home"}
        running.state.conclusions.append({**theirs, "workspace_id": "everhold", "created_at": "2026-01-01T00:00:00Z"})
        assert all(finding["level"] == "note" for finding in find_memory_findings(lived, "doctor")), (
            "at most that it takes a while"
        )
        assert list_stored(running) == ["ours"]


def find_memory_findings(command_home: CommandHome, *args: str) -> list[dict[str, str]]:
    """Return the findings about memories. The model of this home exists only in separate processes."""
    return [
        finding
        for finding in command_home.run_in_process(*args, "--json").json["findings"]
        if finding["check"] == "memory"
    ]


def list_stored(service: LoopbackService) -> list[object]:
    """Return what a service has stored."""
    state = service.state
    match service:
        case HonchoService():
            return [row["content"] for row in (*state.messages, *state.conclusions)]
        case Mem0Service():
            return list(state.memories.values())
        case _:
            return list(state.documents.values())


def test_a_low_disk_and_an_old_sqlite_are_reported(lived: CommandHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_home, "MIN_FREE_BYTES", 1 << 60)
    monkeypatch.setattr(checkup, "OLDEST_SQLITE", (99, 0, 0))
    db = apsw.Connection(str(lived.path / "everhold.db"))
    db.pragma("journal_mode", "delete")
    db.close()
    done = lived.run_in_process("doctor", "--offline", "--json")
    assert done.code == 1
    found: dict[str, list[str]] = {}
    for finding in done.json["findings"]:
        assert finding["remedy"]
        found.setdefault(finding["check"], []).append(finding["text"])
    assert "are free" in found["disk"][0]
    assert ["can lose pages" in text for text in found["sqlite"]] == [True, False]
    assert "delete mode" in found["sqlite"][1]


# -- homes of hermes-agent ---------------------------------------------------------------------------------------------


def test_a_hermes_home_is_checked_fixed_and_restored(command_home: CommandHome, tmp_path: Path) -> None:
    home = tmp_path / "theirs"
    built = healthy(home)
    forked(built)
    built.close()
    (home / "logs").mkdir()
    (home / "logs" / "agent.log").write_text(line(1, "started", "f-1") + line(2, "done", "f-2", messages="50->9"))
    other = BuiltHermesHome(home / "profiles" / "coder")
    other.add_exchanges(other.add_session("c-1"), "a")
    other.close()
    shown = command_home.run("doctor", str(home))
    assert shown.code == 1
    assert "fork" in shown.out
    assert "no problems found" in shown.out, "the profile is in order"
    dry = command_home.run("doctor", str(home), "--fix", "--dry-run")
    assert dry.code == 1
    assert "_branched_from" in dry.out
    assert "nothing was changed" in dry.out
    done = command_home.run("doctor", str(home), "--fix", "--json")
    assert done.code == 0, done.out
    journal = done.json["repairs"][0]["journal"]
    assert json.loads(Path(journal).read_text())["changes"]
    assert "log-renamed" in command_home.run("doctor", str(home)).ok().out, "it happened, and it was mended"
    assert command_home.run("doctor", str(home / "logs" / "agent.log")).code == 1
    command_home.run("doctor", str(home), "--undo", journal).ok()
    assert command_home.run("doctor", str(home)).code == 1


@pytest.mark.parametrize("what", ["nowhere", "home"])
def test_a_directory_that_is_no_home_is_refused(command_home: CommandHome, tmp_path: Path, what: str) -> None:
    (tmp_path / "home").mkdir(exist_ok=True)
    done = command_home.run("doctor", str(tmp_path / "empty" if what == "nowhere" else tmp_path / "home"))
    assert done.code == 2
    assert "→" in done.err
