"""The commands with a running gateway: output, JSON and exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from everhold import __version__
from everhold.cli.main import parse_arguments
from everhold.cli.parser import build_parser, list_commands
from everhold.core.context import CLOCK_LINE
from everhold.engine.commands.handlers import ALONE_REPLIES
from tests.cli.command_home import CommandHome


def test_the_version_option_loads_no_heavy_modules(busy: CommandHome) -> None:
    assert busy.run("--version").ok().out == f"everhold {__version__}\n"
    script = "import sys, everhold.cli; everhold.cli.main(['--version']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {"asyncio", "msgspec", "pydantic", "apsw", "ruamel.yaml"}.isdisjoint(loaded)


def test_a_client_command_loads_neither_the_store_nor_the_configuration(busy: CommandHome) -> None:
    script = "import sys, everhold.cli; everhold.cli.main(['status', '--json']); print(*sys.modules)"
    asked = subprocess.run(
        [sys.executable, "-c", script], env=busy.env(), capture_output=True, text=True, check=True
    ).stdout
    assert {"apsw", "pydantic", "msgspec", "ruamel.yaml", "starlette", "uvicorn"}.isdisjoint(
        asked.splitlines()[-1].split()
    )


@pytest.mark.parametrize("words", [words for words, _ in list_commands(build_parser())], ids=" ".join)
def test_every_command_has_a_help_text(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        build_parser().parse_args([*words, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: everhold {' '.join(words)}")
    assert "--home DIR" in shown


@pytest.mark.parametrize(
    "argv",
    [
        ["--home", "x", "--json", "--log", "json", "sessions", "show", "last"],
        ["sessions", "--home", "x", "--json", "--log", "json", "show", "last"],
        ["sessions", "show", "last", "--home", "x", "--json", "--log", "json"],
        ["--home", "y", "sessions", "--json", "show", "--home", "x", "last", "--log", "json"],
    ],
)
def test_general_options_work_before_and_after_the_command(argv: list[str]) -> None:
    args = parse_arguments(argv)
    assert (args.home, args.json, args.log, args.id) == ("x", True, "json", "last")


@pytest.mark.parametrize(
    "argv, told",
    [
        (["chta"], "did you mean `chat`?"),
        (["sessions", "shwo"], "did you mean `show`?"),
        (["sessions", "show"], "`everhold sessions show --help`"),
        (["undo", "last", "everything"], "use one of: turn, compress"),
        (["send", "x", "--timeout", "soon"], "not a number of seconds"),
        (["up", "--port", "99999"], "not a port"),
        (["undo", "last", "-n", "0"], "not a number of 1 or more"),
        (["send", "x", "--session", "\udcff"], "invalid characters"),
        (["send", "x", "--session", ""], "argument --session is empty"),
        (["send", "x", "--session", " "], "the chat's name is empty"),
        (["sessions", "show", "\udcff"], "invalid characters"),
        (["memory", "export", "\udcff"], "invalid characters"),
        ([], "everhold chat"),
    ],
)
def test_wrong_usage_exits_2_with_a_remedy(busy: CommandHome, argv: list[str], told: str) -> None:
    done = busy.run_in_process(*argv) if argv else busy.run()
    assert done.code == 2
    assert told in done.err
    assert not done.out


# -- talking -----------------------------------------------------------------------------------------------------------


def test_send_prints_only_the_reply(busy: CommandHome) -> None:
    done = busy.run("send", "good morning", "--session", "early").ok()
    assert (done.out, done.err) == ("You said: good morning\n", "")


def test_send_with_json_prints_where_the_message_is_stored(busy: CommandHome) -> None:
    sent = busy.run_in_process("--json", "send", "noon", "--session", "lunch").ok().json
    assert sent == {"session": sent["session"], "seq": 1, "outcome": "done", "reply": "You said: noon", "notices": []}


def test_a_repeated_id_is_sent_once_and_another_text_under_it_is_refused(busy: CommandHome) -> None:
    first = busy.run_in_process("send", "--id", "a1", "--session", "once", "--json", "only once").ok().json
    again = busy.run_in_process("send", "--id", "a1", "--session", "once", "--json", "only once").ok().json
    other = busy.run_in_process("send", "--id", "a1", "--session", "once", "something else")
    assert (again["seq"], again["reply"]) == (first["seq"], "You said: only once")
    assert other.code == 2
    assert "--id" in other.err


def test_send_reads_standard_input_and_keeps_invalid_characters(busy: CommandHome) -> None:
    assert busy.run("send", "-", "--session", "stdin", input="two\nlines\n").ok().out == "You said: two\nlines\n\n"
    assert busy.run_in_process("send", " ").code == 2


def test_a_message_larger_than_the_window_fails_and_the_next_one_is_answered(busy: CommandHome) -> None:
    giant = busy.run("send", "-", "--session", "giant", input="word " * 600_000)
    assert giant.code == 1
    assert "the message does not fit the model" in giant.err
    assert "/undo removes it" in giant.err
    assert giant.out == "", "printed on standard error only"
    assert "/retry` tries again" not in giant.err
    done = busy.run("send", "and now?", "--session", "giant").ok()
    assert done.out == "You said: and now?\n"


def test_a_command_in_a_message_is_answered_by_the_gateway(busy: CommandHome) -> None:
    assert "/undo" in busy.run_in_process("send", "/help", "--session", "help").ok().out
    said = busy.run_in_process("send", "/halt", "--session", "help").ok().out
    assert said == "Nothing is running. " + ALONE_REPLIES["halt"] + "\n"
    assert busy.run_in_process("send", "hello", "--session", "help").ok().out == "You said: hello\n", (
        "the chat is not halted"
    )


def test_the_retry_command_prints_the_new_answer(busy: CommandHome) -> None:
    busy.run_in_process("send", "once", "--session", "again").ok()
    assert busy.run_in_process("send", "/retry", "--session", "again").ok().out == "You said: once\n"
    piped = busy.run("chat", "--session", "again", input="/retry\n").ok().out
    assert piped.splitlines()[-1] == "You said: once"


def test_an_unknown_agent_is_named_in_the_error(busy: CommandHome) -> None:
    done = busy.run_in_process("send", "hello", "--agent", "nobody")
    assert done.code == 1
    assert "there is no agent 'nobody'" in done.err
    done = busy.run("chat", "--agent", "nobody")
    assert done.code == 1, "also without a message text"
    assert "there is no agent 'nobody'" in done.err


def test_a_session_can_be_named_by_id_id_prefix_title_or_last(busy: CommandHome) -> None:
    first = busy.run_in_process("send", "/title Holiday plans", "--session", "named", "--json").ok().json
    id = first["session"]
    for name in (id, id[:20], "holiday PLANS", "last", "agent:main:terminal:dm:named"):
        assert busy.run_in_process("send", "and then", "--session", name, "--json").ok().json["session"] == id


def test_a_short_id_prefix_starts_a_new_chat(busy: CommandHome) -> None:
    id = busy.run_in_process("send", "hello", "--session", "short", "--json").ok().json["session"]
    assert busy.run_in_process("send", "hello", "--session", id[:2], "--json").ok().json["session"] != id


def test_a_reply_cannot_send_control_sequences_to_the_terminal(busy: CommandHome) -> None:
    assert busy.run_in_process("send", "escape", "--session", "danger").ok().out == "red \\x1b[31malert\\x07\n"


def test_a_cut_off_reply_is_marked(busy: CommandHome) -> None:
    done = busy.run_in_process("send", "cut", "--session", "cut").ok()
    assert done.out == "Once upon a\n"
    assert "cut off at the model's length limit" in done.err
    assert "cut off" in busy.run_in_process("sessions", "show", "last").ok().out


def test_a_failed_turn_exits_1_with_its_notice(busy: CommandHome) -> None:
    done = busy.run_in_process("send", "refuse", "--session", "refusals")
    assert done.code == 1
    assert done.out == ""
    assert len(done.err.splitlines()) == 1, "a failure is printed once"


# -- looking -----------------------------------------------------------------------------------------------------------


def test_sessions_are_listed(busy: CommandHome) -> None:
    listed = busy.run_in_process("sessions", "--json").ok().json["sessions"]
    mine = next(session for session in listed if session["address"] == "agent:main:terminal:dm:me")
    assert mine.keys() == {
        "id",
        "address",
        "agent",
        "title",
        "last_seq",
        "pending",
        "state",
        "compressed_upto",
        "archived",
        "at",
    }
    assert (mine["agent"], mine["pending"], mine["state"]) == ("main", 0, "idle")
    assert mine["id"] in busy.run_in_process("sessions", "list", "--limit", "1000").ok().out
    assert len(busy.run_in_process("sessions", "list", "--limit", "1", "--json").ok().json["sessions"]) == 1


def test_a_session_is_shown_entry_by_entry(busy: CommandHome) -> None:
    shown = busy.run_in_process("sessions", "show", "agent:main:terminal:dm:me", "--json").ok().json
    entries = shown["entries"]
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry["kind"] for entry in entries[:5]] == ["heard", "began", "thought", "said", "ended"]
    assert entries[0].keys() == {"pos", "seq", "kind", "op", "author", "at", "body"}
    assert entries[0]["body"]["stamp"]["directory"]
    text = busy.run_in_process("sessions", "show", shown["session"]["id"], "--after", "5").ok().out
    assert "the dentist" in text
    assert "hello" not in text


def test_the_context_command_prints_exactly_what_was_sent_to_the_model(busy: CommandHome) -> None:
    name = "agent:main:terminal:dm:me"
    at = busy.run_in_process("sessions", "context", name, "--at", "1", "--json").ok().json
    assert (at["exact"], at["at"]) == (True, 3)
    began = busy.run_in_process("sessions", "show", name, "--json").ok().json["entries"][1]["body"]
    assert began["clock"]
    clock_line = CLOCK_LINE.format(clock=began["clock"])
    assert [message["text"] for message in at["request"]["messages"]] == [clock_line, "hello"]
    upcoming = busy.run_in_process("sessions", "context", name, "--json").ok().json
    assert upcoming["exact"] is None
    assert "exactly what was sent" in busy.run_in_process("sessions", "context", name, "--at", "3").ok().out
    missing = busy.run_in_process("sessions", "context", name, "--at", "99999")
    assert missing.code == 1


def test_search_finds_words_and_exits_1_without_a_hit(busy: CommandHome) -> None:
    hits = busy.run_in_process("sessions", "search", "TUESDAY dentist", "--json").ok().json["hits"]
    assert {hit["kind"] for hit in hits} == {"heard", "said"}
    assert busy.run_in_process("sessions", "search", "tuesday").ok().out.count("dentist") == len(hits)
    assert busy.run_in_process("sessions", "search", "rhinoceros").code == 1


def test_a_session_without_summaries_is_reported(busy: CommandHome) -> None:
    assert busy.run_in_process("sessions", "compressions", "last", "--json").ok().json["compressions"] == []
    assert busy.run_in_process("sessions", "compressions", "last").ok().out == ""


def test_export_prints_every_entry_or_a_conversation(busy: CommandHome) -> None:
    name = "agent:main:terminal:dm:me"
    shown = busy.run_in_process("sessions", "show", name, "--json").ok().json
    lines = [json.loads(line) for line in busy.run_in_process("sessions", "export", name).ok().out.splitlines()]
    assert lines == [{"session": shown["session"]["id"], **entry} for entry in shown["entries"]]
    page = busy.run_in_process("sessions", "export", name, "--format", "markdown").ok().out
    assert re.search(r"\*\*main\*\* · .* · 4\n\nYou said: hello\n", page)


def test_a_missing_session_exits_1_with_a_remedy(busy: CommandHome) -> None:
    done = busy.run_in_process("sessions", "show", "nowhere")
    assert done.code == 1
    assert done.err == "everhold: there is no session 'nowhere'\n  → `everhold sessions list` lists the sessions\n"
    told = busy.run_in_process("sessions", "show", "nowhere", "--json")
    assert told.json["error"]["type"] == "not_found"
    assert told.json["error"].keys() == {"type", "message", "remedy"}


def test_status_lists_problems_and_exits_accordingly(busy: CommandHome) -> None:
    done = busy.run_in_process("status", "--json")
    status = done.json
    assert done.code == (1 if status["wrong"] else 0)
    # a missing built-in memory is the only allowed problem
    assert [wrong for wrong in status["wrong"] if "builtin" not in wrong["what"]] == []
    assert (status["running"], status["role"], status["version"]) == (True, "gateway", __version__)
    assert [agent["name"] for agent in status["agents"]] == ["main"]
    assert status["agents"][0]["spent"]["tokens"] > 0
    (person,) = status["people"]
    assert person["spent"] == status["agents"][0]["spent"]
    assert (
        f"person    {person['name']} · today {person['spent']['tokens']:,} tokens" in busy.run_in_process("status").out
    )
    assert "has been running for" in busy.run_in_process("status").out


def test_audit_prints_nine_promises_with_their_evidence(busy: CommandHome) -> None:
    for chat in ("audited-one", "audited-two"):
        busy.run_in_process("send", "hello", "--session", chat).ok()
    report = busy.run_in_process("audit", "--json").ok().json
    assert [line["promise"] for line in report["promises"]] == [f"P{n}" for n in range(1, 10)]
    assert report["holds"]
    assert report["checked"]["entries"] >= 10
    text = busy.run_in_process("audit").ok().out
    assert text.count("  holds   ") == 9
    assert "P7  holds" in text
    assert "no message is answered twice" in text
    assert "sessions:" in text
    one = busy.run_in_process("audit", "agent:main:terminal:dm:audited-one", "--json").ok().json
    assert one["sessions"] == 1


def test_agents_are_listed_with_models_tools_and_memories(busy: CommandHome) -> None:
    listed = busy.run_in_process("agents", "--json").ok().json
    assert listed["default"] == "main"
    assert listed["agents"][0]["model"] == "m"
    assert "main *" in busy.run_in_process("agents").ok().out


def test_logs_are_printed_as_written_or_as_json(busy: CommandHome) -> None:
    assert "message.accepted" in busy.run_in_process("logs").ok().out
    lines = [json.loads(line) for line in busy.run_in_process("logs", "--json", "-n", "1000").ok().out.splitlines()]
    accepted = [line for line in lines if line.get("event") == "message.accepted"]
    assert accepted[0]["seq"] == 1
    assert accepted[0]["asks"] is True
    assert len(busy.run_in_process("logs", "-n", "2").ok().out.splitlines()) == 2
    assert json.loads(busy.run_in_process("--log", "json", "logs", "-n", "1").ok().out)["event"]


# -- changing ----------------------------------------------------------------------------------------------------------


def test_undo_removes_turns_until_none_are_left(busy: CommandHome) -> None:
    for text in ("one", "two", "three"):
        busy.run_in_process("send", text, "--session", "undone").ok()
    name = "agent:main:terminal:dm:undone"
    assert busy.run_in_process("undo", name, "turn").ok().out == "Took back 1 turn.\n"
    assert busy.run_in_process("undo", name, "-n", "5", "--json").ok().json["message"] == "Took back 2 turns."
    nothing = busy.run_in_process("undo", name)
    assert (nothing.code, nothing.out) == (1, "There is nothing to undo.\n")
    assert busy.run_in_process("undo", name, "compress").code == 1
    assert busy.run_in_process("sessions", "context", name, "--json").ok().json["request"]["messages"] == []


def test_stop_with_nothing_running_exits_1(busy: CommandHome) -> None:
    done = busy.run_in_process("stop", "last")
    assert (done.code, done.out) == (1, "Nothing is running.\n")


def test_a_note_is_stored_without_dead_letters(busy: CommandHome) -> None:
    noted = (
        busy.run_in_process("memory", "note", "Ada likes tea", "--session", "agent:main:terminal:dm:me", "--json")
        .ok()
        .json
    )
    shown = (
        busy.run_in_process("sessions", "show", noted["session"], "--after", str(noted["seq"] - 1), "--json").ok().json
    )
    assert shown["entries"][0]["body"]["text"] == "Ada likes tea"
    assert busy.run_in_process("dead-letters", "--json").ok().json == {"dead_letters": []}
    assert busy.run_in_process("dead-letters", "replay", "--json").ok().json == {"replayed": 0}
    assert busy.run_in_process("dead-letters", "replay", "7").code == 1


# -- how it looks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["sessions"], ["status"], ["audit"], ["agents"], ["logs"], ["sessions", "nowhere"]])
def test_output_without_a_terminal_has_no_colours(busy: CommandHome, argv: list[str]) -> None:
    done = busy.run_in_process(*argv)
    assert "\x1b" not in done.out + done.err


def test_a_closed_pipe_is_not_an_error(busy: CommandHome) -> None:
    line = f"{sys.executable} -m everhold sessions export agent:main:terminal:dm:me | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], env=busy.env(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["seq"] == 1
