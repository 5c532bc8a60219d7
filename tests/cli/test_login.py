"""The operator token that `up` makes, the login link, `everhold open` and `everhold logins`."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from everhold.cli.commands import open as open_command
from tests.cli.command_home import CommandHome, GatewayProcess, build_command
from tests.waiting import LIMIT_SECONDS, block_until

LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/#code=([0-9a-f]{32})\b")


def read_token(home: CommandHome) -> str:
    found = re.fullmatch(r"EVERHOLD_OPERATOR_TOKEN=([0-9a-f]{64})\n", (home.path / ".env").read_text())
    assert found
    return found[1]


def log_in(link: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Use a login link, and return the status, the headers for further requests, and the answer."""
    found = LINK.fullmatch(link)
    assert found, link
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=LIMIT_SECONDS)
    body = json.dumps({"code": found[2]})
    connection.request("POST", "/api/login", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    told = json.loads(answer.read())
    cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
    return answer.status, {"cookie": cookie, "x-everhold-key": told.get("key", "")}, told


def get(gateway: GatewayProcess, path: str, headers: dict[str, str]) -> int:
    port = int(gateway.ready.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    connection.request("GET", path, headers=headers)
    return connection.getresponse().status


# -- up ----------------------------------------------------------------------------------------------------------------


def test_the_first_up_makes_an_operator_token_and_later_ones_keep_it(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    token = read_token(command_home)
    assert stat.S_IMODE((command_home.path / ".env").stat().st_mode) == 0o600
    assert get(gateway, "/api/status", {"authorization": f"Bearer {token}"}) == 200
    assert get(gateway, "/api/status", {}) == 401
    gateway.kill()
    gateway = command_home.start_gateway()
    assert read_token(command_home) == token
    assert get(gateway, "/api/status", {"authorization": f"Bearer {token}"}) == 200


def test_the_token_may_come_from_the_environment(command_home: CommandHome) -> None:
    token = "from-the-environment-0123456789abcdef"
    gateway = command_home.start_gateway(EVERHOLD_OPERATOR_TOKEN=token)
    assert not (command_home.path / ".env").exists()
    assert get(gateway, "/api/status", {"authorization": f"Bearer {token}"}) == 200


def test_other_lines_of_the_env_file_stay(command_home: CommandHome) -> None:
    env = command_home.path / ".env"
    env.write_text("# mine\nOPENAI_API_KEY=k")
    env.chmod(0o600)
    command_home.start_gateway()
    lines = env.read_text().splitlines()
    assert lines[:2] == ["# mine", "OPENAI_API_KEY=k"]
    assert re.fullmatch("EVERHOLD_OPERATOR_TOKEN=[0-9a-f]{64}", lines[2])


def test_a_link_is_printed_to_a_terminal_and_nowhere_else(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    assert gateway.lines.get(timeout=LIMIT_SECONDS) == "log in with `everhold open`"
    gateway.kill()
    written = "\n".join([gateway.ready, *gateway.lines.queue, *gateway.log])
    assert "code=" not in written
    for file in command_home.path.rglob("*"):
        assert not file.is_file() or b"code=" not in file.read_bytes(), file


def test_the_link_on_a_terminal_logs_in_once(command_home: CommandHome) -> None:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        build_command("up", "--port", "0"), env=command_home.env(), stdout=terminal, stderr=subprocess.DEVNULL
    )
    os.close(terminal)
    try:
        shown = ""

        def is_complete() -> bool:
            nonlocal shown
            shown += os.read(master, 4_096).decode()
            return "makes another" in shown

        block_until(is_complete)
        found = LINK.search(shown)
        assert found
        status, headers, told = log_in(found[0])
        assert (status, told["role"]) == (200, "operator")
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=LIMIT_SECONDS)
        connection.request("GET", "/api/status", headers=headers)
        assert connection.getresponse().status == 200
        assert log_in(found[0])[0] == 401
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_weak_token_prevents_the_start_and_is_named(command_home: CommandHome) -> None:
    env = command_home.path / ".env"
    env.write_text("WEAK=a\n")
    env.chmod(0o600)
    with (command_home.path / "config.yaml").open("a") as config:
        config.write("http: {tokens: [{name: me, token_env: WEAK, role: operator}]}\n")
    for command in (("config", "check"), ("up", "--port", "0")):
        done = command_home.run(*command)
        assert done.code == 78, command
        assert "http.tokens[0].token_env: WEAK has 1 characters, and a token needs at least 32" in done.err + done.out
        assert "openssl rand -hex 32" in done.err + done.out


# -- open --------------------------------------------------------------------------------------------------------------


def test_open_makes_a_link_that_logs_in(command_home: CommandHome, gateway: GatewayProcess) -> None:
    done = command_home.run("open").ok()
    assert "open this link in a browser" in done.err
    status, headers, _ = log_in(done.out.strip())
    assert status == 200
    assert get(gateway, "/api/status", headers) == 200
    told = command_home.run("--json", "open").ok().json
    assert set(told) == {"link", "until"}
    assert log_in(told["link"])[0] == 200


def test_open_without_a_gateway_says_so(command_home: CommandHome) -> None:
    done = command_home.run("open")
    assert done.code == 1
    assert "no gateway runs" in done.err
    assert "everhold up" in done.err


def test_open_gives_the_link_to_a_browser_and_to_no_other_user(
    command_home: CommandHome, gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Other users can read the arguments of a process, so the browser gets a private file."""
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.new && mv {seen}.new {seen}\n')
    browser.chmod(0o755)
    done = command_home.run("open", DISPLAY=":0", BROWSER=f"{browser} %s").ok()
    block_until(seen.exists)
    page = command_home.path / "login.html"
    assert seen.read_text().strip() == page.as_uri()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert f'url={done.out.strip()}"' in page.read_text()
    assert "opened in your browser" in done.err


@pytest.mark.parametrize(
    "environ, platform, found",
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "linux", False),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}, "linux", False),
        ({}, "darwin", True),
        ({}, "win32", True),
    ],
)
def test_a_browser_is_used_where_there_is_a_screen(environ: dict[str, str], platform: str, found: bool) -> None:
    assert open_command.has_browser(environ, platform) is found


# -- logins ------------------------------------------------------------------------------------------------------------


def test_logins_are_listed_and_ended(command_home: CommandHome, gateway: GatewayProcess) -> None:
    assert "No browser is logged in" in command_home.run("logins").ok().err
    pages = [log_in(command_home.run("open").ok().out.strip())[1] for _ in range(3)]
    listed = command_home.run("--json", "logins").ok().json["logins"]
    assert {it["token"] for it in listed} == {"operator"}
    assert len(listed) == 3
    first = pages[0]["x-everhold-key"].partition(".")[0]
    assert first in command_home.run("logins", "list").ok().out
    assert command_home.run("logins", "end", first).ok().out == "1 login ended.\n"
    assert [get(gateway, "/api/me", page) for page in pages] == [401, 200, 200]
    assert command_home.run("logins", "end", first).code == 1
    assert command_home.run("logins", "end").code == 2
    assert command_home.run("logins", "end", "--all").ok().out == "2 logins ended.\n"
    assert [get(gateway, "/api/me", page) for page in pages] == [401, 401, 401]


def test_logins_end_without_a_gateway_and_by_a_restore(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    pages = [log_in(command_home.run("open").ok().out.strip())[1] for _ in range(2)]
    command_home.run("backup").ok()
    gateway.kill()
    command_home.run("logins", "end", pages[0]["x-everhold-key"].partition(".")[0]).ok()
    assert len(command_home.run("--json", "logins").ok().json["logins"]) == 1
    command_home.run("restore", "--yes").ok()
    gateway = command_home.start_gateway()
    assert [get(gateway, "/api/me", page) for page in pages] == [401, 401], "a backup brings no login back"
