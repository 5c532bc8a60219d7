"""`everhold import`, and `everhold sessions export` for other programs."""

from __future__ import annotations

import json
from pathlib import Path

from everhold.cli.entries import render_messages
from everhold.testing.services.honcho import HonchoService
from tests.cli.command_home import CommandHome, wait_until
from tests.hermes.built_home import SUMMARY
from tests.hermes.test_doctor import DM, healthy


def test_an_imported_hermes_home_continues_its_sessions(command_home: CommandHome, tmp_path: Path) -> None:
    healthy(tmp_path / "theirs").close()
    source = str(tmp_path / "theirs")
    dry = command_home.run("import", source, "--dry-run").ok().out
    assert "nothing was changed" in dry
    assert not (command_home.path / "everhold.db").exists()
    done = command_home.run("import", source, "--json").ok().json
    assert done["complete"]
    assert done["agents"]["main"]["messages"] > 20
    again = command_home.run("import", source).ok().out
    assert "0 messages in" in again
    assert "rows accounted for" in again
    command_home.run("audit").ok()
    command_home.run("doctor", "--offline").ok()
    reply = command_home.run("send", "--session", "cli-1", "and now?").ok().out
    assert "and now?" in reply
    shown = command_home.run("sessions", "context", "plain", "--json").ok().json["request"]["messages"]
    *before_clock, clock, question, answer = (m.get("text", "") for m in shown)
    assert before_clock[-2:] == ["question c", "answer c"], "imported turns have no time of their own"
    assert clock.startswith("It is now ")
    assert [question, answer] == ["and now?", reply.rstrip("\n")]
    direct = command_home.run("sessions", "context", DM, "--json").ok().json["request"]["messages"]
    assert SUMMARY in direct[0]["text"]
    before = command_home.run("import", source, "--json").ok().json["position_before"]
    assert before > 0


def test_imported_history_reaches_memories_only_by_backfill(command_home: CommandHome, tmp_path: Path) -> None:
    """The service has the history already, so new items go to the same sessions there."""
    key = "hch-0123456789abcdef"
    with HonchoService(key=key).threaded() as honcho:
        healthy(tmp_path / "theirs").close()
        (tmp_path / "theirs" / "config.yaml").write_text("memory: {provider: honcho}\n")
        (tmp_path / "theirs" / "honcho.json").write_text(
            json.dumps({"baseUrl": honcho.url, "apiKey": key, "workspace": "home", "sessionStrategy": "global"})
        )
        command_home.run("import", str(tmp_path / "theirs")).ok()
        gateway = command_home.start_gateway()
        command_home.run_in_process("send", "--session", "cli-1", "something new").ok()
        wait_until(lambda: said(honcho))
        assert said(honcho) == {"plain": ["something new", "You said: something new"]}, "as it was called there"
        plan = command_home.run_in_process("memory", "backfill", "honcho", "--json").ok().json
        assert (plan["items"] > 10, plan["begun"]) == (True, False)
        command_home.run_in_process("memory", "backfill", "honcho", "--yes", "--per-minute", "6000").ok()
        wait_until(lambda: len(said(honcho).get("agent-main-telegram-dm-1001", ())) == 26)
        assert said(honcho)["agent-main-telegram-dm-1001"][:2] == ["question a", "answer a"]
        gateway.process.terminate()
        gateway.wait_until_ended()


def said(honcho: HonchoService) -> dict[str, list[str]]:
    """Return what the service received, by session."""
    names = {str(row["session_id"]) for row in honcho.state.messages}
    return {name: honcho.texts(name) for name in sorted(names)}


def test_import_is_refused_while_a_gateway_runs(command_home: CommandHome, tmp_path: Path) -> None:
    healthy(tmp_path / "theirs").close()
    command_home.start_gateway()
    done = command_home.run_in_process("import", str(tmp_path / "theirs"))
    assert done.code == 1
    assert "stop the gateway" in done.err


def test_markdown_is_imported_to_an_agent_or_a_session(command_home: CommandHome, tmp_path: Path) -> None:
    """`everhold import --session` and `everhold memory import` do the same."""
    command_home.run("send", "hello").ok()
    (tmp_path / "MEMORY.md").write_text("The server is tin.\n")
    agent = command_home.run("import", str(tmp_path / "MEMORY.md"), "--json").ok().json
    assert agent["facts"] == {"main: MEMORY.md": 1}
    gateway = command_home.start_gateway()
    done = command_home.run_in_process("import", str(tmp_path / "MEMORY.md"))
    assert done.code == 1
    assert "--session" in done.err
    first = json.loads(
        command_home.run_in_process("import", str(tmp_path / "MEMORY.md"), "--session", "last", "--json").ok().out
    )
    assert (first["facts"], first["noted"]) == (1, 1)
    again = json.loads(command_home.run_in_process("memory", "import", str(tmp_path / "MEMORY.md"), "--json").ok().out)
    assert again["noted"] == 0
    healthy(tmp_path / "theirs").close()
    assert command_home.run_in_process("import", str(tmp_path / "theirs"), "--session", "last").code == 2
    assert gateway.process.poll() is None


def test_an_unreadable_profile_is_reported_and_the_rest_is_imported(command_home: CommandHome, tmp_path: Path) -> None:
    healthy(tmp_path / "theirs").close()
    broken = tmp_path / "theirs" / "profiles" / "coder"
    broken.mkdir(parents=True)
    (broken / "state.db").write_bytes(b"nothing at all")
    done = command_home.run("import", str(tmp_path / "theirs"), "--json")
    assert done.code == 1
    assert "coder" in done.json["troubles"][0]
    assert done.json["agents"]["main"]["messages"] > 20


def test_a_source_without_importable_files_is_refused(command_home: CommandHome, tmp_path: Path) -> None:
    assert command_home.run("import", str(tmp_path / "nowhere")).code == 2
    (tmp_path / "empty").mkdir()
    done = command_home.run("import", str(tmp_path / "empty"))
    assert done.code == 2
    assert "holds no Markdown" in done.err


def test_an_export_has_the_format_of_other_programs(command_home: CommandHome, tmp_path: Path) -> None:
    healthy(tmp_path / "theirs").close()
    command_home.run("import", str(tmp_path / "theirs")).ok()
    lines = command_home.run("sessions", "export", "plain", "--format", "openai").ok().out.splitlines()
    told = [json.loads(line) for line in lines]
    assert [(m["role"], m["content"]) for m in told] == [
        ("user", "question a"),
        ("assistant", "answer a"),
        ("user", "question b"),
        ("assistant", ""),
        ("tool", "saw b"),
        ("assistant", "answer b"),
        ("user", "question c"),
        ("assistant", "answer c"),
    ]
    (call,) = told[3]["tool_calls"]
    assert call == {"id": "c-b", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    assert told[4]["tool_call_id"] == "c-b"
    whole = command_home.run("sessions", "export", DM, "--format", "openai").ok().out
    assert "question a" in whole, "summarised messages are there verbatim"
    assert "**" in command_home.run("sessions", "export", DM, "--format", "markdown").ok().out


def test_a_message_during_a_tool_call_is_exported_after_the_results() -> None:
    def entry(seq: int, kind: str, op: int | None, **body: object) -> dict[str, object]:
        return {"seq": seq, "kind": kind, "op": op, "author": "person:ada", "at": 0.0, "body": body}

    log = [
        entry(1, "heard", None, text="one"),
        entry(2, "began", 2, type="turn", takes=[1]),
        entry(3, "thought", 2, calls=[{"id": "c", "tool": "look"}]),
        entry(4, "heard", None, text="two"),
        entry(5, "returned", 2, call="c", text="seen"),
        entry(6, "took", 2, takes=[4]),
        entry(7, "thought", 2, text="done"),
        entry(8, "heard", None, text="three"),
        entry(9, "began", 9, type="turn", takes=[8]),
        entry(10, "thought", 9, text="gone"),
        entry(11, "changed", None, change={"type": "operations_undone", "ops": [9]}),
    ]
    assert [m["content"] for m in render_messages(log)] == ["one", "", "seen", "two", "done"]
