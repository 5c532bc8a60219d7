"""A home is private, found by one rule, and refused if others could change it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from everhold.config import ConfigError
from everhold.errors import StoreError, StoreFull
from everhold.infra.home import Home, append_line, read_file, write_file


def test_the_home_is_found_by_argument_variable_or_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Home.find("here", environ={"EVERHOLD_HOME": "/there"}).path == tmp_path / "here"
    assert Home.find(environ={"EVERHOLD_HOME": "/there"}).path == Path("/there")
    assert Home.find(environ={"EVERHOLD_HOME": "~/x"}).path == tmp_path / "x"
    assert Home.find(environ={"EVERHOLD_HOME": " "}).path == tmp_path / ".everhold"
    assert Home.find(environ={}).path == tmp_path / ".everhold"
    assert not (tmp_path / ".everhold").exists()


def test_the_files_of_a_home_have_the_documented_names(tmp_path: Path) -> None:
    home = Home(tmp_path)
    found = [
        home.config,
        home.env,
        home.store,
        home.index,
        home.erasures,
        home.lock,
        home.id,
        home.api_socket,
        home.disk_reserve,
    ]
    assert [path.name for path in [*found, home.logs, home.backups]] == [
        "config.yaml",
        ".env",
        "everhold.db",
        "index.db",
        "erasures.log",
        "lock",
        "home.id",
        "api.sock",
        "disk-reserve",
        "logs",
        "backups",
    ]


def test_a_new_home_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        home = Home(tmp_path / "a" / "home").create()
    finally:
        os.umask(before)
    for path in (home.path, home.logs, home.backups):
        assert path.stat().st_mode & 0o777 == 0o700
    home.create()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o720])
def test_a_home_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    home = Home(tmp_path / "home").create()
    home.path.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 700 {home.path}"):
        home.create()
    assert home.path.stat().st_mode & 0o777 == mode


def test_a_file_in_place_of_the_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match="--home"):
        Home(tmp_path / "home").create()


@pytest.mark.parametrize("name", [".env", "lock", "api.sock", "everhold.db", "erasures.log"])
def test_links_in_place_of_private_files_are_refused(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path / "home").create()
    (home.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="symbolic link"):
        home.check_private()


def test_a_symlinked_home_and_a_symlinked_config_are_accepted(tmp_path: Path) -> None:
    real = Home(tmp_path / "real").create()
    (tmp_path / "home").symlink_to(real.path)
    (tmp_path / "mine.yaml").write_text("timezone: UTC")
    real.config.symlink_to(tmp_path / "mine.yaml")
    home = Home(tmp_path / "home").create()
    assert read_file(home.config) == b"timezone: UTC"


def test_writing_replaces_a_file_atomically_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o644)
    write_file(path, b"new", mode=None)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o644)
    write_file(path, b"newer")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"newer", 0o600)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_file(path, b"x")
    assert os.listdir(tmp_path) == ["file"]


def test_a_large_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * 2000)
    with pytest.raises(ConfigError, match="larger than 1 KiB"):
        read_file(big, limit=1024)
    with pytest.raises(ConfigError, match="is not a file"):
        read_file(tmp_path)
    assert read_file(tmp_path / "none") is None
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="without a target"):
        read_file(tmp_path / "link")


def test_a_line_is_appended_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "lines", os.write

    def almost_full(handle: int, data: bytes) -> int:
        if len(data) > 3:
            return real(handle, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    append_line(path, b"first")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", almost_full)
        with pytest.raises(StoreFull, match="No space left"):
            append_line(path, b"second")
    assert path.read_bytes() == b"first\n"
    append_line(path, b"third")
    assert path.read_bytes() == b"first\nthird\n"
    path.write_bytes(b"first\nsec")
    append_line(path, b"fourth")
    assert path.read_bytes() == b"first\nsec\nfourth\n"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreError, match="directory"):
        append_line(tmp_path, b"x")
