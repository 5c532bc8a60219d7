"""`everhold plugin new platform NAME`: the generated package passes its tests, and a gateway runs with it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.cli.main import run_command
from tests.e2e.running_gateway import RunningGateway
from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
PACKAGE = "everhold_carrier_pigeon"
FILES = {
    "README.md",
    f"{PACKAGE}/__init__.py",
    f"{PACKAGE}/py.typed",
    "pyproject.toml",
    "tests/remote_carrier_pigeon.py",
    "tests/test_contract.py",
}


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Path]:
    """The generated package. The modules that a test imports from it are unloaded afterwards."""
    monkeypatch.chdir(tmp_path)
    assert run_command(["plugin", "new", "platform", "carrier-pigeon", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert set(written["files"]) == FILES
    before = set(sys.modules)
    yield tmp_path / written["directory"]
    for name in set(sys.modules) - before:
        if name in (PACKAGE, "remote_carrier_pigeon"):
            del sys.modules[name]


def install_package(package: Path, site: Path) -> None:
    """Build the wheel with its own build backend and unpack it into `site`, entry point included."""
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(site.parent)],
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    with zipfile.ZipFile(site.parent / done.stdout.strip().splitlines()[-1]) as wheel:
        wheel.extractall(site)


def test_the_generated_package_passes_its_own_tests(generated: Path, tmp_path: Path) -> None:
    install_package(generated, tmp_path / "site")
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT / "src")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs"]
    done = subprocess.run(
        command,
        cwd=generated,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert "27 passed, 13 skipped" in last, "it has no drafts, typing, files and history; all other promises are tested"
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all(
        line.endswith(("has no drafts", "has no typing", "has no files", "has no history")) for line in skipped
    ), skipped


async def test_a_gateway_answers_through_the_generated_adapter(
    generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(generated, tmp_path / "site")
    monkeypatch.syspath_prepend(str(generated / "tests"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    remote_module: Any = importlib.import_module("remote_carrier_pigeon")
    async with remote_module.open_remote_carrier_pigeon() as remote:
        account = {"base_url": remote.service.url, "token_env": "PIGEON_TOKEN", "access": {"direct": ["ada"]}}
        config = {
            "platforms": {"carrier-pigeon": {"main": account}},
            "people": [{"name": "ada", "identities": [f"carrier-pigeon:{remote.sender}"]}],
        }
        secrets = f"PIGEON_TOKEN={remote_module.TOKEN}\n"
        async with RunningGateway(tmp_path, json.dumps(config), env=secrets) as gateway:
            await remote.write("My goat is called Berta.", to=remote.chat)
            await gateway.wait_until(lambda: bool(remote.list_shown(remote.chat)))
            assert "Berta" in remote.list_shown(remote.chat)[0].text
            assert not gateway.app.describe()["problems"]
            (account_now,) = gateway.app.accounts.accounts.values()
            assert (account_now.key, account_now.problem) == (("carrier-pigeon", "main"), "")
            assert remote_module.TOKEN not in gateway.log.getvalue()


def test_an_unknown_kind_of_plug_in_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plugin", "new", "notebook", "x", "--in", str(tmp_path / "x")]) == 2
    assert "use one of: memory, platform" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
