"""`everhold send --file` sends pictures and documents with a message."""

from __future__ import annotations

from tests.cli.command_home import CommandHome


def test_a_file_is_sent_with_the_message_and_a_missing_one_is_named(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text("agents: {main: {}}\n")
    file = command_home.path / "notes.txt"
    file.write_text("the file")
    sent = command_home.run_in_process("send", "read it", "--file", str(file), "--file", str(file), "--json").ok().json
    log = command_home.run_in_process("sessions", "show", sent["session"], "--json").ok().json
    entries = log["entries"] if isinstance(log, dict) else log
    attached = next(it["body"]["attachments"] for it in entries if it["kind"] == "heard")
    assert [(it["name"], it["media"], it["size"]) for it in attached] == [("notes.txt", "text/plain", 8)] * 2
    missing = command_home.run_in_process("send", "read it", "--file", "/nowhere/x")
    assert (missing.code, "cannot read /nowhere/x" in missing.err) == (2, True)
