"""`everhold chat` in a real terminal (a pty), with a real gateway and real kills."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from everhold.cli.chat.terminal import ChatTerminal
from everhold.cli.message import make_message
from everhold.cli.render import CommandScreen, TextPainter
from tests.cli.command_home import CommandHome, build_command, wait_until
from tests.waiting import LIMIT_SECONDS


class TerminalUser:
    """A person at a terminal in which `everhold chat` runs."""

    def __init__(self, command_home: CommandHome, *args: str, **env: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            build_command("chat", *args),
            env=command_home.env(**{"TERM": "xterm", "NO_COLOR": "1", **env}),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        command_home.started.append(self.process)  # type: ignore[arg-type]  # bytes or text, it is only ended
        self.seen = ""
        self._read_to = 0

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def say(self, text: str) -> None:
        self.expect("you> ")
        self.type(text + "\r")

    def expect(self, text: str, *, seconds: float = LIMIT_SECONDS) -> str:
        """Wait until `text` is on the screen after the last expected text, and return the output up to it."""
        deadline = time.monotonic() + seconds
        while (found := self.seen.find(text, self._read_to)) < 0:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} never came:\n{self.seen}"
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                piece = b""
            assert piece, f"it left before {text!r} came:\n{self.seen}"
            self.seen += piece.decode(errors="replace")
        before, self._read_to = self._read_to, found + len(text)
        return self.seen[before : self._read_to]

    def close(self) -> int:
        self.expect("you> ")
        self.type("\x04")
        self.expect("it is stored")
        return self.process.wait(timeout=LIMIT_SECONDS)


def _take_terminal() -> None:
    """Make the pty this session's terminal, so that Ctrl-C reaches the chat as a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_chat_works_without_a_gateway(command_home: CommandHome) -> None:
    chat = TerminalUser(command_home)
    chat.expect("new session with main")
    chat.say("hello")
    id = chat.expect("main> ").split("session ")[1][:26]
    chat.expect("You said: hello")
    chat.say("/whoami")
    chat.expect(f"in session {id}")
    assert chat.close() == 0
    again = TerminalUser(command_home)
    again.expect(f"session {id}")
    again.expect("/whoami")  # the last exchange is printed again
    assert again.close() == 0
    assert command_home.run_in_process("audit").code == 0


def test_a_chat_shows_the_title_of_its_session(busy: CommandHome) -> None:
    busy.run_in_process("send", "/title Holiday plans", "--session", "titled").ok()
    chat = TerminalUser(busy, "--session", "titled")
    chat.expect("— “Holiday plans” · session ")
    chat.expect("you> ")
    chat.type("\x04")
    chat.expect("— left “Holiday plans”; it is stored")
    assert chat.process.wait(timeout=15) == 0


def test_a_chat_without_a_message_creates_no_session(busy: CommandHome) -> None:
    chat = TerminalUser(busy, "--session", "silent")
    chat.expect("you> ")
    chat.type("\x04")
    chat.expect("— left\r\n")
    assert chat.process.wait(timeout=LIMIT_SECONDS) == 0
    assert "it is stored" not in chat.seen
    assert busy.run_in_process("sessions", "show", "agent:main:terminal:dm:silent").code == 1


def test_a_reply_is_shown_while_it_grows_and_only_once(busy: CommandHome) -> None:
    chat = TerminalUser(busy, "--session", "growing")
    chat.say("slow 12")
    shown = chat.expect("word11")
    assert re.sub(r"\s+", " ", shown).count(" ".join(f"word{n}" for n in range(12))) == 1
    chat.expect("you> ")
    chat.type("\x04")
    chat.expect("it is stored")
    assert chat.seen.count("word7") == 1
    assert "\x1b[1" not in chat.seen  # no colours: NO_COLOR is set


def test_a_terminal_shows_colours(busy: CommandHome) -> None:
    chat = TerminalUser(busy, "--session", "coloured", NO_COLOR="")
    chat.expect("\x1b[1;36myou> ")
    chat.type("hello\r")
    chat.expect("\x1b[1;32mmain>\x1b[0m You said: hello")


def test_a_killed_gateway_leaves_no_gap_in_a_chat(command_home: CommandHome, tmp_path: Path) -> None:
    gateway = command_home.start_gateway()
    late = tmp_path / "late"
    chat = TerminalUser(command_home, "--session", "survivor")
    chat.say("before")
    chat.expect("You said: before")
    chat.say(f"hold {late}")
    chat.expect("Holding")
    gateway.kill()
    chat.expect("the gateway does not answer; waiting for its restart")
    late.touch()
    command_home.start_gateway()
    chat.expect("connected again")
    chat.expect("Holding is over")
    chat.say("after")
    chat.expect("You said: after")
    assert chat.close() == 0
    entries = command_home.run_in_process("sessions", "show", "agent:main:terminal:dm:survivor", "--json").json[
        "entries"
    ]
    heard = [entry["body"]["text"].split()[0] for entry in entries if entry["kind"] == "heard"]
    assert heard == ["before", "hold", "after"]
    assert sum(entry["kind"] == "said" for entry in entries) == 3
    assert command_home.run_in_process("audit").code == 0


def test_a_message_typed_while_the_gateway_is_down_is_sent_once_after_the_restart(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    chat = TerminalUser(command_home, "--session", "patient")
    chat.say("before")
    chat.expect("You said: before")
    chat.expect("you> ")
    gateway.kill()
    chat.type("meanwhile\r")
    chat.expect("waiting for its restart")
    command_home.start_gateway()
    chat.expect("You said: meanwhile")
    assert chat.close() == 0
    entries = command_home.run_in_process("sessions", "show", "agent:main:terminal:dm:patient", "--json").json[
        "entries"
    ]
    assert [entry["seq"] for entry in entries] == list(range(1, 11))


def test_an_unconfirmed_message_is_not_reported_as_stored(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    chat = TerminalUser(command_home)
    chat.expect("you> ")
    gateway.kill()
    chat.type("lost?\r")
    chat.expect("waiting for its restart")
    chat.type("\x03")
    chat.expect("the gateway has not confirmed the message")
    chat.expect("you> ")
    chat.type("\x04")
    chat.expect("— left\r\n")
    assert chat.process.wait(timeout=LIMIT_SECONDS) == 0


def test_ctrl_c_stops_a_reply_and_does_not_leave_the_chat(busy: CommandHome, tmp_path: Path) -> None:
    chat = TerminalUser(busy, "--session", "stopped")
    chat.say(f"hold {tmp_path / 'never'}")
    chat.expect("Holding")
    chat.type("\x03")
    chat.expect("stopping")
    chat.expect("you> ")
    chat.type("half a though\x03")
    chat.expect("Ctrl-D exits")
    chat.say("still here")
    chat.expect("You said: still here")
    assert chat.close() == 0
    entries = busy.run_in_process("sessions", "show", "agent:main:terminal:dm:stopped", "--json").json["entries"]
    outcomes = [entry["body"].get("outcome", "done") for entry in entries if entry["kind"] == "ended"]
    assert "stopped" in outcomes
    assert not any("half a though" in str(entry["body"]) for entry in entries)


def test_messages_from_other_clients_appear_above_the_prompt(busy: CommandHome) -> None:
    chat = TerminalUser(busy, "--session", "shared")
    chat.say("hello")
    chat.expect("You said: hello")
    chat.expect("you> ")
    chat.type("half")
    chat.expect("half")
    busy.run_in_process("send", "from elsewhere", "--session", "shared").ok()
    chat.expect("You said: from elsewhere")
    chat.expect("half")
    chat.type(" done\r")
    chat.expect("You said: half done")


def test_pasted_text_is_one_message_however_many_lines_it_has(busy: CommandHome) -> None:
    chat = TerminalUser(busy, "--session", "pasted")
    chat.expect("you> ")
    chat.type("\x1b[200~first\rsecond\r\rlast\r\x1b[201~")
    chat.expect("last")
    chat.type("\r")
    chat.expect("You said: first")
    assert chat.close() == 0
    entries = busy.run_in_process("sessions", "show", "agent:main:terminal:dm:pasted", "--json").json["entries"]
    assert [entry["body"]["text"] for entry in entries if entry["kind"] == "heard"] == ["first\nsecond\n\nlast"]


def test_tab_completes_commands_only(busy: CommandHome) -> None:
    chat = TerminalUser(busy, "--session", "completed")
    chat.expect("you> ")
    chat.type("/who\t\r")
    chat.expect("You are ")
    chat.expect("you> ")
    chat.type("see /who\t\r")
    chat.expect("You said: see /who\r\n")
    assert chat.close() == 0


def test_a_dumb_terminal_gets_no_escape_sequences(busy: CommandHome) -> None:
    chat = TerminalUser(busy, "--session", "dumb", TERM="dumb")
    chat.say("hello")
    chat.expect("You said: hello")
    assert chat.close() == 0
    assert "\x1b" not in chat.seen


def test_a_chat_continues_in_a_new_branch(busy: CommandHome) -> None:
    chat = TerminalUser(busy, "--session", "tree")
    chat.say("trunk")
    chat.expect("You said: trunk")
    chat.say("/branch")
    chat.expect("Branched into session ")
    chat.say("twig")
    chat.expect("You said: twig")
    listed = busy.run_in_process("sessions", "--json").json["sessions"]
    assert sum(session["address"] == "agent:main:terminal:dm:tree" for session in listed) == 2
    assert chat.close() == 0


def test_a_chat_takes_over_as_gateway_when_the_first_chat_leaves(command_home: CommandHome) -> None:
    first = TerminalUser(command_home, "--session", "first")
    first.say("hello")
    first.expect("You said: hello")
    second = TerminalUser(command_home, "--session", "second")
    second.say("hello")
    second.expect("You said: hello")
    assert first.close() == 0
    second.say("alone now")
    second.expect("You said: alone now")
    assert second.close() == 0
    assert command_home.run_in_process("audit").code == 0


def test_a_model_outage_returns_the_prompt_and_the_reply_comes_later(busy: CommandHome, tmp_path: Path) -> None:
    back = tmp_path / "back"
    chat = TerminalUser(busy, "--session", "lunch")
    chat.say(f"down {back}")
    chat.expect("cannot be reached")
    chat.expect("you> ")
    back.touch()
    chat.expect("You said: down")


def test_piped_output_contains_replies_only(busy: CommandHome) -> None:
    done = busy.run("chat", "--session", "pipe", input="one\n\ntwo\n").ok()
    assert (done.out, done.err) == ("You said: one\nYou said: two\n", "")
    assert busy.run("chat", "--session", "pipe", input="refuse\n").code == 1


def test_sigterm_ends_a_chat_cleanly(command_home: CommandHome) -> None:
    chat = TerminalUser(command_home)
    chat.say("hello")
    chat.expect("You said: hello")
    chat.expect("you> ")
    chat.process.send_signal(signal.SIGTERM)
    assert chat.process.wait(timeout=LIMIT_SECONDS) == 128 + signal.SIGTERM
    wait_until(lambda: not (command_home.path / "api.sock").exists())


# -- terminal output ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["home/a/api", "srv/b/api"])
def test_a_message_records_the_repository_it_was_sent_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / place / ".git").mkdir(parents=True)
    (tmp_path / place / "deep").mkdir()
    monkeypatch.chdir(tmp_path / place / "deep")
    said = make_message({"origin": {}, "kind": "dm", "agent": "main"}, "hello")
    assert said["repo"] == (tmp_path / place).as_posix()


@pytest.fixture
def screen(tmp_path: Path) -> CommandScreen:
    file = (tmp_path / "screen").open("w+", encoding="utf-8")
    return CommandScreen(out=file, err=file, json=False, paint=TextPainter(False), paint_err=TextPainter(False))


def get_shown_text(screen: CommandScreen) -> str:
    screen.out.flush()
    return Path(screen.out.name).read_text(encoding="utf-8")


def live(screen: CommandScreen) -> ChatTerminal:
    terminal = ChatTerminal(screen)
    terminal.live = True
    return terminal


def test_a_committed_reply_that_differs_from_its_draft_is_shown_whole(screen: CommandScreen) -> None:
    terminal = live(screen)
    terminal.update_reply("main", 7, "Perhaps")
    terminal.print_reply("main", 7, "Certainly not")
    assert get_shown_text(screen) == "main> Perhaps\nmain> Certainly not\n"


def test_text_of_another_operation_starts_a_new_line(screen: CommandScreen) -> None:
    terminal = live(screen)
    terminal.update_reply("main", 7, "One ")
    terminal.update_reply("main", 9, "Two ")
    terminal.update_reply("main", 9, "Two and")
    terminal.print_reply("main", 9, "Two and more")
    assert get_shown_text(screen) == "main> One \nmain> Two and more\n"


def test_a_hidden_reply_is_not_updated(screen: CommandScreen) -> None:
    terminal = live(screen)
    terminal.update_reply("main", 7, "On and")
    terminal.hide_growing_reply()
    terminal.update_reply("main", 7, "On and on")
    terminal.print_remark("stopping")
    assert get_shown_text(screen) == "main> On and\n— stopping\n"


def test_no_text_can_send_control_sequences_to_the_terminal(screen: CommandScreen) -> None:
    terminal = live(screen)
    terminal.update_reply("main", 7, "\x1b[2J")
    terminal.print_reply("main", 7, "\x1b[2J\u202eboo")
    assert get_shown_text(screen) == "main> \\x1b[2J\\u202eboo\n"
