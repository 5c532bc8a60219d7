"""`everhold config`, and how a gateway reloads the files."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from tests.cli.command_home import CommandHome, wait_until


def test_check_reports_each_problem_with_its_place(command_home: CommandHome) -> None:
    assert command_home.run("config", "check").ok().out.startswith("ok · 1 agent")
    (command_home.path / "config.yaml").write_text("http: {port: lots}\nagents:\n  main: {modle: m}\n")
    done = command_home.run_in_process("config", "check")
    assert done.code == 78
    assert f"{command_home.path}/config.yaml:1: http.port: " in done.err
    assert f"{command_home.path}/config.yaml:3: agents.main.modle: " in done.err
    told = command_home.run_in_process("config", "check", "--json")
    assert (told.code, told.json["ok"]) == (78, False)
    assert [(problem["line"], problem["key"]) for problem in told.json["problems"]] == [
        (1, "http.port"),
        (3, "agents.main.modle"),
    ]


def test_a_yaml_error_names_its_line(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text("agents:\n  main: {persona: [}\n")
    done = command_home.run_in_process("config", "check")
    assert done.code == 78
    assert "config.yaml:2" in done.err


def test_a_missing_secret_disables_one_part_and_is_named(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(
        "models: {big: {provider: obedient, api_key_env: BIG_KEY}}\ndefaults: {model: big, memories: [], tools: []}\n"
    )
    done = command_home.run("config", "check", "--json")
    checked = done.json
    assert (done.code, checked["ok"]) == (1, False)
    assert [problem["cause"] for problem in checked["problems"]] == ["missing_key"]
    assert any("BIG_KEY" in problem["message"] + problem["remedy"] for problem in checked["problems"])
    assert "needs BIG_KEY in .env" in command_home.run_in_process("agents").ok().out


@pytest.mark.parametrize(
    "text, code, cause, words",
    [
        ("models: {big: {provider: opnai, name: x}}\n", 78, "unknown_provider", "did you mean `openai`?"),
        (
            "mcp: {clock: {command: [no-such-program-here]}}\nagents: {main: {tools: ['mcp:clock']}}\n",
            1,
            "missing_program",
            "there is no program 'no-such-program-here'",
        ),
        (
            "agents: {main: {tools: [web_search]}}\n",
            1,
            "missing_service",
            "web_search is not offered: no search service is configured",
        ),
        ("mcp: {clock: {command: [no-such-program-here]}}\n", 0, "", ""),
        ("models: {big: {provider: ollama, name: qwen3}}\n", 0, "", ""),
    ],
)
def test_check_names_what_is_missing(command_home: CommandHome, text: str, code: int, cause: str, words: str) -> None:
    (command_home.path / "config.yaml").write_text(text)
    done = command_home.run_in_process("config", "check", "--json")
    problems = done.json["problems"]
    assert (done.code, done.json["ok"]) == (code, code == 0)
    assert [problem["cause"] for problem in problems] == ([cause] if cause else [])
    assert words in command_home.run_in_process("config", "check").out


def test_a_missing_package_of_a_memory_is_named(command_home: CommandHome, monkeypatch: pytest.MonkeyPatch) -> None:
    (command_home.path / "config.yaml").write_text("memories: {honcho: {}}\nagents: {main: {memories: [honcho]}}\n")
    assert command_home.run_in_process("config", "check", "--json").json["problems"] == []

    def find_nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("everhold.memories.sdk.version", find_nothing)
    done = command_home.run_in_process("config", "check", "--json")
    assert (done.code, [problem["cause"] for problem in done.json["problems"]]) == (1, ["missing_package"])
    assert "everhold.[honcho]" not in done.out
    assert ".[honcho]" in done.out


@pytest.mark.parametrize(
    "text, code, words",
    [
        ("models: {big: {provider: obedient, api_key_env: BIG_KEY}}\n", 1, "model big needs BIG_KEY in .env"),
        ("models: {big: {provider: opnai, name: x}}\n", 78, "there is no model provider 'opnai'"),
    ],
)
def test_up_ends_with_the_cause_if_no_agent_can_answer(
    command_home: CommandHome, text: str, code: int, words: str
) -> None:
    (command_home.path / "config.yaml").write_text(text)
    done = command_home.run("up", "--quiet")
    assert done.code == code
    assert words in done.err


def test_up_continues_while_an_agent_can_answer(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(
        "models: {big: {provider: opnai, name: x}}\n"
        "mcp: {clock: {command: [no-such-program-here]}}\n"
        "agents: {main: {model: offline, tools: ['mcp:clock']}, other: {model: big}}\n"
    )
    command_home.start_gateway()
    status = command_home.run_in_process("status")
    assert "there is no model provider 'opnai'" in status.out
    assert "there is no program 'no-such-program-here'" in status.out
    assert status.code == 1
    assert "Hello" in command_home.run_in_process("send", "hello").ok().out
    done = command_home.run_in_process("send", "hello", "--agent", "other", "--timeout", "20")
    assert done.code == 75
    assert "my model is not set up correctly" in done.err
    assert "did you mean `openai`?" in done.err, "the operator hears the remedy"
    assert "cannot be reached" not in done.err


def test_show_and_get_print_the_effective_values_without_secrets(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text("models: {big: {provider: obedient, api_key_env: BIG_KEY}}\n")
    (command_home.path / ".env").write_text("BIG_KEY=canary-of-a-secret-key\n")
    (command_home.path / ".env").chmod(0o600)
    for argv in (["show"], ["show", "--json"], ["get", "models"], ["check"]):
        assert "canary" not in command_home.run("config", *argv).ok().out
    assert command_home.run_in_process("config", "show", "--json").json["models"]["big"]["api_key_env"] == "BIG_KEY"
    assert command_home.run_in_process("config", "get", "http.port").ok().out == "8765\n"
    assert command_home.run_in_process("config", "get", "http.port", "--json").json == 8765
    assert command_home.run_in_process("config", "get", "agents.main.memory_notices").ok().out == "true\n"
    missing = command_home.run_in_process("config", "get", "agents.mian")
    assert missing.code == 1
    assert "did you mean `main`?" in missing.err


def test_set_changes_one_value_keeps_comments_and_refuses_an_invalid_value(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text("# mine\nhttp: {port: 8765}  # the usual\n")
    command_home.run_in_process("config", "set", "http.port", "9000").ok()
    assert (command_home.path / "config.yaml").read_text() == "# mine\nhttp: {port: 9000}  # the usual\n"
    refused = command_home.run_in_process("config", "set", "http.port", "many")
    assert refused.code == 78
    assert (command_home.path / "config.yaml").read_text() == "# mine\nhttp: {port: 9000}  # the usual\n"
    command_home.run_in_process("config", "set", "agents.coder", "{persona: You write code.}").ok()
    assert command_home.run_in_process("config", "get", "agents.coder.persona").ok().out == "You write code.\n"


def test_a_running_gateway_uses_a_changed_value_at_the_next_message(command_home: CommandHome) -> None:
    command_home.start_gateway()
    command_home.run_in_process("send", "hello").ok()
    command_home.run_in_process(
        "config", "set", "agents", '{main: {send_to: ["agent:coder"]}, coder: {persona: You write code.}}'
    ).ok()
    assert command_home.run_in_process("send", "hello", "--agent", "coder").ok().out == "You said: hello\n"
    listed = command_home.run_in_process("agents", "--json").json["agents"]
    assert [(agent["name"], "send" in agent["tools"]) for agent in listed] == [("main", True), ("coder", False)]


def test_set_reports_which_values_need_a_restart(command_home: CommandHome) -> None:
    command_home.start_gateway()
    assert (
        command_home.run_in_process("config", "set", "agents.main.busy", "steer")
        .ok()
        .out.endswith("takes effect at the next message\n")
    )
    assert command_home.run_in_process("config", "set", "http.tokens", "[]", "--json").ok().json["restart"] is False
    assert command_home.run_in_process("config", "set", "http", "{port: 8901}", "--json").ok().json["restart"] is True
    assert (
        command_home.run_in_process("config", "set", "http.port", "8900")
        .ok()
        .out.endswith("takes effect after a restart of everhold\n")
    )
    command_home.run_in_process("send", "hello").ok()
    done = command_home.run_in_process("status")
    assert done.code == 1
    assert "the change of http.port has no effect yet" in done.out
    assert "config.restart_needed" in command_home.run_in_process("logs").ok().out
    command_home.run_in_process("config", "set", "http.port", "8765").ok()
    command_home.run_in_process("send", "hello").ok()
    assert command_home.run_in_process("status", "--json").json["restart"] == []


def test_show_prints_the_path_of_the_store(command_home: CommandHome) -> None:
    assert command_home.run_in_process("config", "get", "store").ok().out == "sqlite\n"


def test_a_running_gateway_reports_an_invalid_edit_and_continues(command_home: CommandHome) -> None:
    command_home.start_gateway()
    (command_home.path / "config.yaml").write_text("agnets: {}\n")
    wait_until(lambda: command_home.run_in_process("status", "--json").json["refused"])
    done = command_home.run_in_process("status")
    assert done.code == 1
    assert "config.yaml:1" in done.out
    (command_home.path / "config.yaml").write_text("agents:\n  main: {persona: [}\n")
    wait_until(lambda: "config.yaml:2" in command_home.run_in_process("status").out)
    assert ": :" not in command_home.run_in_process("status").out, "a problem without a key names no key"
    assert command_home.run_in_process("send", "still here").ok().out == "You said: still here\n"


@pytest.mark.parametrize("key", ["", "a b", "[x]"])
def test_an_invalid_key_is_a_usage_error(command_home: CommandHome, key: str) -> None:
    assert command_home.run_in_process("config", "get", key).code == 2
