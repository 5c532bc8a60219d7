"""`everhold hooks` lists webhooks, and shows and delivers a test."""

from __future__ import annotations

import json

from tests.cli.command_home import CommandHome

CONFIG = """
hooks:
  deploys: {secret_env: HOOK_SECRET, text: "{state} of {app}", when: {headers.x-event: [deploy]}}
  unset: {secret_env: NO_SUCH_SECRET}
"""


def test_hooks_are_listed_and_tested_without_a_gateway(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(CONFIG)
    env = command_home.path / ".env"
    env.write_text("HOOK_SECRET=0123456789abcdef0123\n")
    env.chmod(0o600)
    command_home.run_in_process("send", "hello").ok()  # the home has a store then
    listed = command_home.run_in_process("hooks").ok().out
    assert "/hooks/deploys" in listed
    assert "NO_SUCH_SECRET is not set" in listed
    event = command_home.path / "event.json"
    event.write_text(json.dumps({"state": "failed", "app": "x\x1b[31m"}))
    test = ("hooks", "test", "deploys", "--data", str(event))
    shown = command_home.run_in_process(*test, "--header", "X-Event: deploy").ok()
    assert "failed of x" in shown.out
    assert "\x1b" not in shown.out
    assert "Nothing was delivered" in shown.out + shown.err
    assert "leaves this delivery out" in (left := command_home.run_in_process(*test).ok()).out + left.err
    sent = command_home.run_in_process(*test, "--header", "X-Event: deploy", "--send", "--json").ok().json
    assert sent["outcome"] == "accepted"
    assert command_home.run_in_process("hooks", "test", "deploys", "--data", "/nowhere").code == 2
    assert command_home.run_in_process(*test, "--header", "nonsense").code == 2


def test_mistakes_in_a_hook_are_named(command_home: CommandHome) -> None:
    env = command_home.path / ".env"
    env.write_text("SHORT=abc\n")
    env.chmod(0o600)
    config = """
hooks:
  a: {secret_env: SHORT}
  b: {secret_env: X_SECRET, to: "agent:main:telegram:dm:1"}
  c: {secret_env: X_SECRET, to: x}
"""
    (command_home.path / "config.yaml").write_text(config)
    said = command_home.run_in_process("config", "check")
    assert said.code == 78
    for words in ("SHORT has fewer than 16 characters", "there is no account telegram/main", "hooks.c.to: is not an"):
        assert words in said.out + said.err
