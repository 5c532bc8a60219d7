"""Commands without a gateway: they work in process, clean up, and do not disturb each other."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from everhold.app import DRAIN_SECONDS
from everhold.cli.connect import connect_gateway
from everhold.cli.main import parse_arguments
from everhold.cli.render import CommandScreen
from everhold.errors import HomeBusy
from everhold.infra.home import Home
from everhold.infra.home_lock import HomeLock
from tests.cli.command_home import CommandHome, wait_until
from tests.waiting import LIMIT_SECONDS


def test_send_needs_no_home_and_no_configuration(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").unlink()
    done = command_home.run("send", "hello", "--timeout", "0.2")
    assert done.code in (0, 75)  # the message is stored without a model
    assert stat.S_IMODE(command_home.path.stat().st_mode) == 0o700
    assert [
        entry["kind"] for entry in command_home.run_in_process("sessions", "show", "last", "--json").json["entries"]
    ][:1] == ["heard"]


def test_reading_a_missing_home_creates_nothing(tmp_path: Path, command_home: CommandHome) -> None:
    elsewhere = tmp_path / "elsewhere"
    for argv in (["sessions"], ["status"], ["audit"], ["undo", "last"], ["logs"], ["dead-letters", "list"]):
        done = command_home.run_in_process(*argv, "--home", str(elsewhere))
        assert done.code == 1, argv
        assert "  → " in done.err
    command_home.run_in_process("config", "check", "--home", str(elsewhere)).ok()
    command_home.run_in_process("agents", "--home", str(elsewhere)).ok()
    assert not elsewhere.exists()


def test_send_answers_without_a_gateway_and_cleans_up(command_home: CommandHome) -> None:
    assert command_home.run("send", "hello", "--session", "work").ok().out == "You said: hello\n"
    again = command_home.run("send", "again", "--session", "work", "--json").ok().json
    assert again["seq"] == 6
    assert not (command_home.path / "api.sock").exists()
    command_home.run_in_process("audit").ok()
    status = command_home.run_in_process("status", "--json").json
    assert (status["running"], status["pending"]) == (False, 0)
    assert "message.accepted" in (command_home.path / "logs" / "everhold.log").read_text()


def test_a_message_without_an_answer_in_time_is_kept_and_answered_later(
    command_home: CommandHome, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    done = command_home.run("send", f"hold {late}", "--timeout", "0.5", "--json")
    assert (done.code, done.json["outcome"], done.json["reply"]) == (75, "waiting", None)
    assert "stored as entry 1 of session" in done.err
    late.touch()
    gateway = command_home.start_gateway()
    assert " · resuming 1 message" in gateway.ready
    wait_until(lambda: "Holding is over" in command_home.run_in_process("sessions", "show", "last").out)
    command_home.run_in_process("audit").ok()


def test_status_fails_if_messages_wait_without_a_gateway(command_home: CommandHome, tmp_path: Path) -> None:
    assert command_home.run("send", f"down {tmp_path / 'back'}", "--timeout", "0.2").code == 75
    done = command_home.run_in_process("status")
    assert done.code == 1
    assert "1 message waiting, but no gateway is running" in done.out


def test_a_message_during_a_model_outage_is_answered_after_it(command_home: CommandHome, tmp_path: Path) -> None:
    back = tmp_path / "back"
    command_home.start_gateway()
    asking = command_home.start_command("send", f"down {back}", "--json")
    wait_until(lambda: "cannot be reached" in command_home.run_in_process("sessions", "show", "last").out)
    back.touch()
    out, err = asking.communicate(timeout=LIMIT_SECONDS)
    assert asking.returncode == 0, err
    assert json.loads(out)["reply"].startswith("You said: down")


# -- concurrency -------------------------------------------------------------------------------------------------------


def test_a_second_gateway_exits_at_once_and_names_the_first(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    second = command_home.run("up", "--port", "0")
    assert second.code == 1
    assert f"another everhold (process {gateway.process.pid}) is using {command_home.path}" in second.err
    assert second.out == ""


def test_many_commands_at_once_without_a_gateway_all_succeed(command_home: CommandHome) -> None:
    command_home.run("send", "hello").ok()
    running = [command_home.start_command("send", f"message {n}", "--session", "crowd") for n in range(3)]
    running += [command_home.start_command("sessions", "show", "last", "--json") for _ in range(2)]
    for process in running:
        _, err = process.communicate(timeout=LIMIT_SECONDS)
        # 75: the process that held the home ended at this moment; the command reports it, and nothing is lost
        assert process.returncode in (0, 75), err
    told = sum(process.returncode == 0 for process in running[:3])
    assert told
    shown = (
        command_home.run_in_process("sessions", "show", "agent:main:terminal:dm:crowd", "--json").ok().json["entries"]
    )
    # messages that wait together are answered by one turn
    assert told <= sum(entry["kind"] == "heard" for entry in shown) <= 3
    assert 1 <= sum(entry["kind"] == "said" for entry in shown) <= 3
    command_home.run_in_process("audit").ok()


def test_a_busy_home_is_waited_for_and_then_reported(command_home: CommandHome) -> None:
    args = parse_arguments(["--home", str(command_home.path), "sessions"])
    screen = CommandScreen.from_streams(sys.stdout, sys.stderr, environ={}, json=False)
    with HomeLock(command_home.path / "lock"), pytest.raises(HomeBusy, match=f"process {os.getpid()}"):
        asyncio.run(connect_gateway(args, screen, role="", starts=False, patience=0.3))


def test_a_stale_socket_is_replaced(command_home: CommandHome) -> None:
    command_home.start_gateway().kill()
    assert (command_home.path / "api.sock").exists()
    command_home.run("send", "hello").ok()
    command_home.start_gateway()
    assert command_home.run_in_process("status", "--json").json["running"]


def test_a_port_in_use_exits_1_and_names_the_option(command_home: CommandHome, tmp_path: Path, plugin: Path) -> None:
    url = re.search(r"http://127.0.0.1:(\d+)", command_home.start_gateway().ready)
    assert url is not None
    other = CommandHome(tmp_path / "other", plugin)
    done = other.run("up", "--port", url[1])
    assert done.code == 1
    assert f"port {url[1]} is in use" in done.err
    assert "--port" in done.err


# -- broken configuration and store ------------------------------------------------------------------------------------

BROKEN = "defaults: {model: m, memories: [], tools: []}\nmodels: {m: {provider: obedient}}\nagnets: {}\n"


@pytest.mark.parametrize("argv", [["up", "--port", "0"], ["send", "hello"], ["chat"], ["config", "show"]])
def test_a_refused_configuration_exits_78_with_file_line_key_and_remedy(
    command_home: CommandHome, argv: list[str]
) -> None:
    (command_home.path / "config.yaml").write_text(BROKEN)
    done = command_home.run(*argv)
    assert done.code == 78
    assert f"everhold: {command_home.path}/config.yaml:3: agnets: " in done.err
    assert "  → did you mean `agents`?" in done.err
    assert "Traceback" not in done.err


def test_read_commands_use_the_last_valid_configuration(command_home: CommandHome) -> None:
    command_home.run("send", "hello").ok()
    (command_home.path / "config.yaml").write_text(BROKEN)
    done = command_home.run("sessions", "--json").ok()
    assert len(done.json["sessions"]) == 1
    assert "using the last valid one" in done.err


def test_up_logs_only_lines_about_sessions(command_home: CommandHome) -> None:
    command_home.start_gateway()
    wait_until(lambda: command_home.run_in_process("send", "hello").code == 0)
    log = (command_home.path / "logs" / "everhold.log").read_text().splitlines()
    assert [line for line in log if " session=" not in line] == [], "every log line belongs to a session"


def test_up_starts_with_the_last_valid_configuration_if_asked(command_home: CommandHome) -> None:
    command_home.run("send", "hello").ok()
    (command_home.path / "config.yaml").write_text(BROKEN)
    gateway = command_home.start_gateway("--last-good")
    assert gateway.ready.startswith("ready · 1 agent · resuming 0 messages")
    wait_until(lambda: command_home.run_in_process("status", "--json").json["refused"])
    assert any(
        "config.yaml:3" in wrong["what"] for wrong in command_home.run_in_process("status", "--json").json["wrong"]
    )
    command_home.run_in_process("send", "still here").ok()


@pytest.mark.parametrize("argv", [["up", "--port", "0"], ["sessions"], ["send", "hello"]])
def test_a_damaged_store_exits_1_with_the_reason(command_home: CommandHome, argv: list[str]) -> None:
    (command_home.path / "everhold.db").write_bytes(b"this is no database" * 400)
    done = command_home.run(*argv)
    assert done.code == 1
    assert "everhold.db" in done.err
    assert "  → " in done.err


def test_audit_names_the_promise_that_a_tampered_entry_breaks(command_home: CommandHome) -> None:
    command_home.run("send", "hello").ok()
    with closing(apsw.Connection(str(command_home.path / "everhold.db"))) as db:
        db.execute("update entries set body = replace(body, 'hello', 'hullo') where seq = 1")
    done = command_home.run_in_process("audit")
    assert done.code == 1
    assert "P8  BROKEN" in done.out
    report = command_home.run_in_process("audit", "--json").json
    assert [line["promise"] for line in report["promises"] if not line["holds"]] == ["P8"]


def test_audit_prints_a_few_short_lines_and_json_is_complete(command_home: CommandHome) -> None:
    session = command_home.run("send", "hello", "--json").ok().json["session"]
    reason = "word " * 2_000
    with closing(apsw.Connection(str(command_home.path / "everhold.db"))) as db:
        db.executemany(
            "insert into dead_letters(consumer, session, seq, reason, in_doubt, at) values (?, ?, 4, ?, 1, 0)",
            [("memory:far", session, f"{number} {reason}") for number in range(50)],
        )
    lines = command_home.run_in_process("audit").ok().out.splitlines()
    assert max(map(len, lines)) < 400
    assert sum("memory:far" in line for line in lines) == 20
    assert sum("… 30 more findings; `everhold audit --json` lists all" in line for line in lines) == 1
    found = command_home.run_in_process("audit", "--json").ok().json["findings"]
    assert sum(reason in finding["text"] for finding in found) == 50


def test_dead_letters_are_listed_everywhere_and_can_be_replayed(command_home: CommandHome) -> None:
    session = command_home.run("send", "hello", "--json").ok().json["session"]
    with closing(apsw.Connection(str(command_home.path / "everhold.db"))) as db:
        db.execute(
            "insert into dead_letters(consumer, session, seq, reason, in_doubt, at) values (?, ?, 4, 'no room', 1, 0)",
            ("memory:far", session),
        )
    dead_letters = command_home.run_in_process("dead-letters", "list", "--json").ok().json["dead_letters"]
    assert [(item["consumer"], item["seq"], item["in_doubt"]) for item in dead_letters] == [("memory:far", 4, True)]
    assert "may have arrived" in command_home.run_in_process("dead-letters").ok().out
    status = command_home.run_in_process("status", "--json")
    assert (status.code, status.json["in_doubt"]) == (1, 1)
    report = command_home.run_in_process("audit").ok().out  # a doubt is listed and breaks no promise
    assert "doubt  " in report
    assert "memory:far: entry 4 may have arrived: no room" in report
    assert (
        command_home.run_in_process("dead-letters", "replay", str(dead_letters[0]["id"])).ok().out
        == "1 item will be sent again\n"
    )
    assert command_home.run_in_process("dead-letters", "--json").ok().json == {"dead_letters": []}


def test_a_home_that_others_can_write_to_is_refused(command_home: CommandHome) -> None:
    command_home.path.chmod(0o777)
    done = command_home.run("send", "hello")
    assert done.code == 78
    assert f"chmod 700 {command_home.path}" in done.err


BUG = """
import everhold.cli.commands.completion as command, everhold.cli.main as main
command.run = lambda args, screen: 1 / 0
main.run_command(["completion", "bash"])
"""


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_bug_is_printed_in_two_lines_without_debug(command_home: CommandHome, debug: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUG],
        env=command_home.env(EVERHOLD_DEBUG=debug),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "everhold: a bug in everhold: ZeroDivisionError" in done.stderr
    assert ("Traceback" in done.stderr) == bool(debug)


# -- how a gateway ends ------------------------------------------------------------------------------------------------


def test_sigterm_lets_a_running_turn_finish(command_home: CommandHome, tmp_path: Path) -> None:
    gateway = command_home.start_gateway()
    late = tmp_path / "late"
    asking = command_home.start_command("send", f"hold {late}", "--timeout", "300")
    wait_until(lambda: any("turn.started" in line for line in gateway.log))
    gateway.signal(signal.SIGTERM)
    wait_until(lambda: any("gateway.stopping" in line for line in gateway.log))
    late.touch()
    assert gateway.wait_until_ended() == 0
    out, _ = asking.communicate(timeout=LIMIT_SECONDS)
    assert (asking.returncode, "Holding is over" in out) == (0, True)


def test_a_second_signal_stops_at_once_and_the_turn_resumes(command_home: CommandHome, tmp_path: Path) -> None:
    gateway = command_home.start_gateway()
    late = tmp_path / "late"
    assert command_home.run("send", f"hold {late}", "--timeout", "0.3").code == 75
    gateway.signal(signal.SIGINT)
    wait_until(lambda: any("gateway.stopping" in line for line in gateway.log))
    gateway.signal(signal.SIGINT)
    assert gateway.wait_until_ended(timeout=DRAIN_SECONDS - 10) == 0
    assert not (command_home.path / "api.sock").exists()
    late.touch()
    assert " · resuming 1 message" in command_home.start_gateway().ready
    wait_until(lambda: "Holding is over" in command_home.run_in_process("sessions", "show", "last").out)


def test_up_prints_json_lines_if_asked(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway("--log", "json")
    command_home.run_in_process("send", "hello").ok()
    wait_until(lambda: any("turn.completed" in line for line in gateway.log))
    assert all(json.loads(line)["event"] for line in gateway.log)
    assert "message.accepted" in command_home.run_in_process("logs").ok().out
    assert any(
        json.loads(line)["event"] == "turn.completed"
        for line in command_home.run_in_process("logs", "--json").out.splitlines()
    )


def test_the_last_log_lines_are_followed_through_a_rotation(command_home: CommandHome) -> None:
    log = Home(command_home.path).logs / "everhold.log"
    log.parent.mkdir()
    log.write_text("".join(f"2026-01-01T00:00:00.000Z info    tick n={n}\n" for n in range(10)))
    following = command_home.start_command("logs", "-f", "-n", "2", "--json")
    assert following.stdout is not None
    assert [json.loads(following.stdout.readline())["n"] for _ in range(2)] == [8, 9]
    log.rename(log.with_name("everhold.log.1"))
    log.write_text('{"at":"2026-01-01T00:00:01.000Z","level":"warning","event":"tock"}\n')
    assert json.loads(following.stdout.readline())["event"] == "tock"
    following.send_signal(signal.SIGINT)
    assert following.wait(timeout=LIMIT_SECONDS) == 0
