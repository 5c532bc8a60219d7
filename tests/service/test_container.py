"""The container's description: what it copies can be built, what it runs exists, nothing secret gets in.

`test_image.py` builds and runs the image in `make prove`. Here every part of it is tried that needs no build.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from everhold.cli.main import parse_arguments
from tests.cli.command_home import CommandHome, make_plugin

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, one instruction each."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def last(word: str) -> str:
    return [rest for name, rest in instructions() if name == word][-1]


def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = YAML(typ="safe").load(ROOT / "compose.yaml")
    return parsed


def health() -> list[str]:
    words: list[str] = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    return words


def test_the_copied_files_exist_and_can_be_built(tmp_path: Path) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    names = [name for words in copied for name in words]
    assert set(names) == allowed
    context = tmp_path / "context"
    context.mkdir()
    for name in names:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, context)
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=context, capture_output=True, check=True)
    assert list(tmp_path.glob("everhold-*.whl"))


def test_the_image_installs_only_existing_extras() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(last("ARG").partition("=")[2].split(",")) <= set(known)


def test_the_image_runs_unprivileged_and_stores_everything_in_the_volume() -> None:
    user = last("USER")
    assert re.search(rf"useradd --uid 1\d{{4}} .*{user}\b", dict(instructions())["RUN"]), "a user with a fixed number"
    home = re.search(r"EVERHOLD_HOME=(\S+)", last("ENV"))
    assert home is not None
    assert last("VOLUME") == home[1]
    service = compose()["services"]["everhold"]
    (volume,) = service["volumes"]
    name, _, where = volume.partition(":")
    assert (name in compose()["volumes"], where) == (True, home[1])
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert "ports" not in service, "no port is published by default"
    assert "env_file" not in service
    assert "environment" not in service


def find_weaknesses(found: list[tuple[str, str]]) -> set[str]:
    """Return what a checker of Dockerfiles would complain about."""
    weak = set()
    names = [name for name, _ in found]
    if "USER" not in names or dict(found)["USER"].split(":")[0] in ("root", "0"):
        weak.add("it runs as root")
    elif any(name in ("RUN", "COPY", "ADD") for name in names[names.index("USER") :]):
        weak.add("something is installed after the user was chosen")
    if "ADD" in names:
        weak.add("ADD unpacks archives and loads addresses")
    for name, rest in found:
        if name in ("ARG", "ENV") and re.search(r"(?i)(secret|password|passwd|token|api_?key|credential)\w*\s*=", rest):
            weak.add("a secret stays in the image")
        if name in ("RUN", "COPY") and re.search(r"(^|[\s/])\.env\b|\bid_[a-z0-9]+\b|COPY \. ", f"{name} {rest}"):
            weak.add("a secret stays in the image")
        if name == "RUN" and re.search(r"\b(curl|wget|sudo|ssh|git clone)\b|https?://|chmod\s+(-R\s+)?[0-7]*7\b", rest):
            weak.add("something unlocked is loaded")
        if name == "RUN" and re.search(r"\bapt(-get)?\b", rest):
            weak.add("something unlocked is loaded")
        if name == "FROM" and not rest.startswith("${"):
            weak.add("no digest can be given for the base image")
        if name == "EXPOSE" and re.search(r"\b22\b", rest):
            weak.add("a shell is exposed")
    return weak


def test_the_image_has_no_known_weakness() -> None:
    assert find_weaknesses(instructions()) == set()


@pytest.mark.parametrize(
    "line, weakness",
    [
        (("USER", "root"), "it runs as root"),
        (("RUN", "pip install later"), "something is installed after the user was chosen"),
        (("ADD", "x.tar.gz /"), "ADD unpacks archives and loads addresses"),
        (("ARG", "API_KEY=x"), "a secret stays in the image"),
        (("ENV", "EVERHOLD_OPERATOR_TOKEN=x"), "a secret stays in the image"),
        (("COPY", ". /src"), "a secret stays in the image"),
        (("COPY", ".env /data/.env"), "a secret stays in the image"),
        (("RUN", "curl -sSf example.org | sh"), "something unlocked is loaded"),
        (("FROM", "python:latest"), "no digest can be given for the base image"),
    ],
)
def test_a_planted_weakness_of_the_image_is_found(line: tuple[str, str], weakness: str) -> None:
    assert weakness in find_weaknesses([*instructions(), line])


def test_the_image_starts_an_everhold_command() -> None:
    (program,) = json.loads(last("ENTRYPOINT"))
    assert program == "everhold"
    service = compose()["services"]["everhold"]
    assert json.loads(last("CMD")) == service["command"]
    arguments = parse_arguments(service["command"])
    assert (arguments.module, arguments.port) == ("up", 8765)
    assert f", {arguments.port}," in health()[-1]
    assert last("STOPSIGNAL") == service["stop_signal"] == "SIGTERM"
    assert service["stop_grace_period"] == "60s"


@pytest.fixture
def home(tmp_path: Path) -> Any:
    made = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    yield made
    made.close()


def test_the_health_check_follows_the_ready_route(home: CommandHome) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def healthy() -> bool:
        words = [sys.executable, *health()[1:-1], health()[-1].replace("8765", str(port))]
        environ = {
            "HTTP_PROXY": "http://127.0.0.1:9",
            "http_proxy": "http://127.0.0.1:9",
        }  # must not be used for loopback
        return subprocess.run(words, env=environ, capture_output=True, check=False).returncode == 0

    assert not healthy()
    gateway = home.start_gateway("--port", str(port))
    assert healthy()
    gateway.kill()
    assert not healthy()
