"""`everhold setup model`: asks, tests the model, writes the configuration, and never shows a key."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.testing.model_server import HangingConnection, ModelServer, ModelServerReply, VendorFailure
from tests.cli.command_home import CommandHome, CommandResult, build_command, wait_until
from tests.waiting import LIMIT_SECONDS

KEY = "canary-0123456789abcdef"
FLAGS = ("setup", "model", "--no-input")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    server = ModelServer(key=KEY, models=["clever"], default=ModelServerReply(text="ready, willing and able"))
    with server.threaded():
        yield server


@pytest.fixture
def fresh(tmp_path: Path, plugin: Path) -> CommandHome:
    """A home without configuration."""
    command_home = CommandHome(tmp_path / "home", plugin)
    (command_home.path / "config.yaml").unlink()
    return command_home


def config(command_home: CommandHome) -> str:
    return (command_home.path / "config.yaml").read_text()


def env(command_home: CommandHome) -> str:
    return (command_home.path / ".env").read_text()


def unseen(done: CommandResult) -> CommandResult:
    assert KEY not in done.out + done.err
    return done


# -- with flags --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_model_can_be_set_up_with_flags_only(fresh: CommandHome, server: ModelServer, provider: str) -> None:
    url = server.openai if provider == "openai" else server.anthropic
    done = fresh.run(*FLAGS, "--provider", provider, "--url", url, "--name", "clever", "--key-stdin", input=f"{KEY}\n")
    assert unseen(done).ok().out.startswith("ok · clever answered in ")
    assert "streaming" in done.out
    assert done.out.endswith("next: everhold chat\n")
    (trial,) = server.requests
    assert trial.json["stream"] is True
    assert len(trial.body) < 400
    assert f"LOCAL_API_KEY={KEY}" in env(fresh)
    assert (fresh.path / ".env").stat().st_mode & 0o777 == 0o600
    assert KEY not in config(fresh)
    assert unseen(fresh.run("send", "hello")).ok().out == "ready, willing and able\n"
    assert fresh.run("config", "get", "agents.main.model").out == f"{provider}\n"


def test_the_offline_provider_needs_no_key(fresh: CommandHome) -> None:
    assert fresh.run(*FLAGS, "--provider", "offline").ok().out.startswith("ok · offline answered")
    assert fresh.run("config", "get", "agents.main.model").out == "offline\n"
    assert not (fresh.path / ".env").exists()


def test_comments_and_other_keys_stay(fresh: CommandHome, server: ModelServer) -> None:
    (fresh.path / "config.yaml").write_text(
        "# my command_home\n"
        "models:\n"
        "  big:  # the clever one\n"
        "    provider: openai\n"
        "    name: old\n"
        "    price: {input: 1, output: 2}  # see the bill\n"
        "defaults:\n"
        "  budget: {usd_per_day: 5}  # not more\n"
    )
    flags = ("--provider", "openai", "--url", server.openai, "--name", "clever", "--key-stdin", "--as", "big")
    fresh.run(*FLAGS, *flags, input=KEY).ok()
    text = config(fresh)
    for kept in ("# my command_home", "# the clever one", "price: {input: 1, output: 2}  # see the bill", "# not more"):
        assert kept in text
    assert "name: clever" in text
    assert "old" not in text


def test_setup_ends_with_the_findings_of_the_doctor(fresh: CommandHome) -> None:
    done = fresh.run("setup", "model", "--provider", "offline", "--no-input").ok()
    assert "no problem" in done.out
    fresh.run("send", "hello").ok()
    (fresh.path / "everhold.db").chmod(0o644)
    (fresh.path / "config.yaml").write_text("memories: {honcho: {api_key_env: NOT_THERE}}\n")
    done = fresh.run("setup", "model", "--provider", "offline", "--no-input").ok()
    assert "others may read" in done.out
    assert "chmod 600" in done.out
    assert "NOT_THERE" not in done.out, "findings about other parts are not printed"
    told = fresh.run("setup", "model", "--provider", "offline", "--no-input", "--json").ok().json
    assert [finding["check"] for finding in told["doctor"]] == ["permissions"]


def test_setup_prints_json(fresh: CommandHome, server: ModelServer) -> None:
    flags = ("--provider", "openai", "--url", server.openai, "--name", "clever", "--key-stdin", "--json")
    told = unseen(fresh.run(*FLAGS, *flags, input=KEY)).ok().json
    assert (told["model"], told["api_key_env"], told["agents"]) == ("openai", "LOCAL_API_KEY", ["main"])
    assert told["tried"]["streamed"] is True


def test_two_local_servers_have_separate_keys(fresh: CommandHome, server: ModelServer) -> None:
    first = ("--provider", "openai", "--url", server.openai, "--name", "clever", "--key-stdin")
    unseen(fresh.run(*FLAGS, *first, "--as", "first", input=KEY)).ok()
    with ModelServer(key="another-key-0123456789").threaded() as other:
        second = ("--provider", "openai", "--url", other.openai, "--name", "fake", "--as", "second")
        refused = fresh.run(*FLAGS, *second)
        assert refused.code == 1, "it was not asked with the other's key"
        assert "authorization" not in other.last_request.headers
        fresh.run(*FLAGS, *second, "--key-stdin", input="another-key-0123456789").ok()
    assert f"LOCAL_API_KEY={KEY}" in env(fresh)
    assert f"LOCAL_127_0_0_1_{other.port}_API_KEY=another-key-0123456789" in env(fresh)
    fresh.run(*FLAGS, *first[:-1], "--as", "first").ok()


def test_an_existing_key_is_used(fresh: CommandHome, server: ModelServer) -> None:
    flags = ("--provider", "openai", "--url", server.openai, "--name", "clever", "--key-env", "MY_KEY")
    refused = fresh.run(*FLAGS, *flags)
    assert (refused.code, "MY_KEY is not set" in refused.err) == (2, True)
    fresh.run(*FLAGS, *flags, MY_KEY=KEY).ok()
    assert "api_key_env: MY_KEY" in config(fresh)
    assert not (fresh.path / ".env").exists()


def test_an_agent_with_a_model_of_its_own_is_mentioned(fresh: CommandHome) -> None:
    (fresh.path / "config.yaml").write_text(
        "models: {m: {provider: obedient}}\nagents: {main: {}, coder: {model: m}}\n"
    )
    done = fresh.run(*FLAGS, "--provider", "offline").ok()
    assert "coder: configured with another model" in done.out
    assert "everhold config set agents.coder.model offline" in done.out


def test_a_running_gateway_uses_the_new_model(fresh: CommandHome, server: ModelServer) -> None:
    fresh.start_gateway()
    try:
        assert "You said" not in fresh.run("send", "hello").ok().out
        flags = ("--provider", "openai", "--url", server.openai, "--name", "clever", "--key-stdin")
        done = fresh.run(*FLAGS, *flags, input=KEY).ok()
        assert "from the next message on" in done.out
        assert fresh.run("send", "hello again").ok().out == "ready, willing and able\n"
    finally:
        fresh.close()


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, code, words",
    [
        ((), 2, "--provider"),
        (("--provider", "openai"), 2, "--name"),
        (("--provider", "openai", "--name", "x", "--url", "ftp://x"), 2, "not an http(s) URL"),
        (("--provider", "openai", "--name", "x", "--url", "https://me:pass@host/v1"), 2, "contains a password"),
        (("--provider", "openai", "--name", "x", "--key-env", "sk-not a name"), 2, "not the key"),
        (("--provider", "openai", "--name", "x", "--url", "http://127.0.0.1:9/v1"), 75, "cannot be reached"),
        (("--provider", "openai", "--name", "x", "--key-stdin"), 2, "no key on standard input"),
        (("--provider", "openai", "--name", "x", "--as", "a b"), 2, "is not valid in `models`"),
    ],
)
def test_a_missing_or_wrong_value_is_named_and_nothing_is_written(
    fresh: CommandHome, flags: tuple[str, ...], code: int, words: str
) -> None:
    done = fresh.run(*FLAGS, *flags)
    assert done.code == code
    assert words in done.err
    assert "pass" not in done.err.replace("password", "")
    assert "  → " in done.err
    assert not (fresh.path / "config.yaml").exists()
    assert not (fresh.path / ".env").exists()


@pytest.mark.parametrize(
    "name, key, code, words",
    [("clever", "canary-wrong-wrong-wrong", 1, "key"), ("stupid", KEY, 1, "stupid")],
)
def test_a_refused_key_or_model_name_is_not_written(
    fresh: CommandHome, server: ModelServer, name: str, key: str, code: int, words: str
) -> None:
    flags = ("--provider", "openai", "--url", server.openai, "--name", name, "--key-stdin")
    done = fresh.run(*FLAGS, *flags, input=key)
    assert key not in done.out + done.err
    assert (done.code, words in done.err) == (code, True), done.err
    assert not (fresh.path / "config.yaml").exists()
    assert not (fresh.path / ".env").exists()


def test_the_no_test_option_writes_an_untested_configuration(fresh: CommandHome, server: ModelServer) -> None:
    server.default = VendorFailure(kind="server_error")
    flags = ("--provider", "openai", "--url", server.openai, "--name", "clever", "--key-stdin")
    assert fresh.run(*FLAGS, *flags, input=KEY).code == 75
    assert "ok" not in fresh.run(*FLAGS, *flags, "--no-test", input=KEY).ok().out.split()
    assert "clever" in config(fresh)


def test_a_broken_configuration_is_not_touched(fresh: CommandHome) -> None:
    (fresh.path / "config.yaml").write_text("modles: {}\n")
    done = fresh.run(*FLAGS, "--provider", "offline")
    assert done.code == 78
    assert config(fresh) == "modles: {}\n"


# -- asked -------------------------------------------------------------------------------------------------------------


def test_questions_are_answered_on_plain_standard_input(fresh: CommandHome, server: ModelServer) -> None:
    answers = ["9", "1", server.openai, "clever", KEY]
    done = fresh.run("setup", input="\n".join(answers) + "\n")
    assert unseen(done).ok().out.startswith("ok · clever")
    assert "a number from 1 to 3" in done.err


def test_after_a_failed_test_an_answer_can_be_changed(fresh: CommandHome, server: ModelServer) -> None:
    answers = ["1", server.openai, "stupid", KEY, "yes", "", "", "clever", ""]
    done = fresh.run("setup", "model", input="\n".join(answers) + "\n")
    assert unseen(done).ok().out.startswith("ok · clever")
    assert "stupid" in done.err


def test_giving_up_changes_nothing(fresh: CommandHome, server: ModelServer) -> None:
    done = fresh.run("setup", "model", input=f"1\n{server.openai}\nstupid\n{KEY}\nno\n")
    assert unseen(done).code == 1
    assert "nothing was written" in done.err
    assert not (fresh.path / "config.yaml").exists()
    assert "not answered" in fresh.run("setup", "model", input="1\n").err


def test_a_key_typed_in_a_terminal_is_not_echoed(fresh: CommandHome, server: ModelServer) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        build_command("setup", "model"),
        env=fresh.env(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    fresh.started.append(process)  # type: ignore[arg-type]
    seen = ""

    def expect(pattern: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + LIMIT_SECONDS
        while not re.search(pattern, seen):
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    seen += os.read(ours, 4096).decode()
                except OSError:
                    break
        assert re.search(pattern, seen), seen

    for pattern, answer in (
        ("kind of model", "openai"),
        ("Base URL", server.openai),
        ("name there", "clever"),
        (r"key \(not shown", KEY),
    ):
        expect(pattern)
        if answer == KEY:  # getpass discards input that was typed before it disabled the echo
            wait_until(lambda: not termios.tcgetattr(ours)[3] & termios.ECHO)
        os.write(ours, f"{answer}\n".encode())
    expect("next: everhold chat")
    assert process.wait(timeout=LIMIT_SECONDS) == 0
    os.close(ours)
    assert "clever" in seen
    assert KEY not in seen
    assert f"LOCAL_API_KEY={KEY}" in env(fresh)


def test_ctrl_c_during_the_test_writes_nothing(fresh: CommandHome, server: ModelServer) -> None:
    server.default = HangingConnection()
    flags = ("--provider", "openai", "--url", server.openai, "--name", "clever", "--key-env", "LOCAL_API_KEY")
    process = subprocess.Popen(build_command(*FLAGS, *flags), env=fresh.env(LOCAL_API_KEY=KEY), stderr=subprocess.PIPE)
    wait_until(lambda: server.requests)
    process.send_signal(2)
    _, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, err
    assert not (fresh.path / "config.yaml").exists()
