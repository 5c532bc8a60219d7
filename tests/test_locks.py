"""The lock files name every package of an install with its hashes, and no place to fetch it from."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("default.txt", "image.txt", "build.txt")


def read_lock(name: str) -> list[tuple[Requirement, list[str]]]:
    """Return the requirements of a lock file, each with its hashes."""
    text = (ROOT / "locks" / name).read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [
        (Requirement(line.partition(" --hash")[0]), re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))
        for line in lines
    ]


def list_wanted(name: str) -> list[Requirement]:
    """Return what pyproject.toml asks for."""
    if name == "build.txt":
        return [Requirement(text) for text in PROJECT["build-system"]["requires"]]
    extras: list[str] = []
    if name == "image.txt":
        found = re.search(r"^ARG EXTRAS=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        assert found is not None
        extras = found[1].split(",")
    known = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *(text for extra in extras for text in known[extra])]
    return [Requirement(text) for text in texts]


def find_missing(name: str, lock: list[tuple[Requirement, list[str]]]) -> list[str]:
    """Return the requirements of pyproject.toml that no line of the lock satisfies."""
    locked: dict[str, list[Requirement]] = {}
    for requirement, _ in lock:
        locked.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    missing = []
    for wanted in list_wanted(name):
        pinned = [next(iter(it.specifier)) for it in locked.get(canonicalize_name(wanted.name), ())]
        if not pinned or not all(it.operator == "==" and it.version in wanted.specifier for it in pinned):
            missing.append(str(wanted))
    return missing


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_one_version_and_its_hashes(name: str) -> None:
    lock = read_lock(name)
    assert len(lock) >= len(list_wanted(name))
    assert [str(it) for it, hashes in lock if not hashes] == []
    assert [str(it) for it, _ in lock if [part.operator for part in it.specifier] != ["=="]] == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_agrees_with_pyproject(name: str) -> None:
    lock = read_lock(name)
    assert find_missing(name, lock) == [], "run `make lock`"
    wanted = list_wanted(name)[0]
    assert find_missing(name, [it for it in lock if it[0].name != wanted.name]) == [str(wanted)], "the check can fail"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_index_and_no_machine(name: str) -> None:
    text = (ROOT / "locks" / name).read_text()
    assert not re.findall(r"https?://|file:|--(?:extra-)?index-url|--find-links|--trusted-host| @ ", text)


def test_the_image_is_installed_from_the_locks() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert text.count("--require-hashes") == 2
    assert "pip install --no-deps /dist" in text
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"], "a digest can be given"


@pytest.mark.prove
@pytest.mark.parametrize("name", LOCKS)
def test_pip_accepts_the_hashes_of_the_index(name: str, tmp_path: Path) -> None:
    """Needs a package index."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    words = [str(tmp_path / "venv" / "bin" / "pip"), "install", "--dry-run", "--require-hashes", "-r"]
    done = subprocess.run(
        [*words, str(ROOT / "locks" / name)],
        capture_output=True,
        text=True,
        check=False,
        env={"PIP_CONFIG_FILE": "/dev/null"},
    )
    if "NewConnectionError" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip("there is no package index here")
    assert done.returncode == 0, done.stderr
