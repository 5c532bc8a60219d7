"""The service of a home: which description it is, whose text that is, and how it is changed without harm.

A description that somebody has changed, or that is a link into somebody's own files, is left as it is.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everhold.errors import NotFound, Refused
from everhold.home import Home, write_file
from everhold.service.manager import Manager
from everhold.service.unit import Wanted, Written

NAME: Final = "everhold"
FILE_MODE: Final = 0o644
"""There is nothing secret in it, and some managers want to read it as somebody else."""


@dataclass(frozen=True)
class Found:
    """A description that is there."""

    name: str
    path: Path
    written: Written
    linked: bool = False

    @property
    def ours(self) -> bool:
        """Whether it stands as everhold wrote it, so that it may be replaced or removed."""
        return not self.written.edited and not self.linked

    def starts(self, home: Home) -> bool:
        return self.written.home is not None and _same(self.written.home, home.path)


def program() -> tuple[str, ...]:
    """The words that start this very everhold, wherever a shell would find another."""
    beside = Path(sys.executable).with_name("everhold.exe" if sys.platform == "win32" else "everhold")
    if os.access(beside, os.X_OK):
        return (str(beside),)
    return (sys.executable, "-P", "-m", "everhold")


def wanted(home: Home, environ: Mapping[str, str], *, name: str = NAME) -> Wanted:
    from everhold import __version__

    folders = (environ.get("PATH") or os.defpath).split(os.pathsep)
    search = os.pathsep.join(dict.fromkeys(it for it in folders if os.path.isabs(it)))
    return Wanted(home=home.path, program=program(), search=search, version=__version__, name=name)


def look(manager: Manager, name: str) -> Found | None:
    """The description of this name."""
    path = manager.path(name)
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        text = ""
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}", remedy=f"ls -l {path}") from error
    return Found(name, path, manager.read(text), linked=path.is_symlink())


def every(manager: Manager) -> list[Found]:
    """Every description that starts an everhold, as far as its name or its text tells."""
    if not manager.folder.is_dir():
        return []
    names = sorted(path.name.removesuffix(manager.suffix) for path in manager.folder.glob(f"*{manager.suffix}"))
    found = [it for name in names if (it := look(manager, name)) is not None]
    return [it for it in found if it.written.version or it.name == NAME]


def of_home(manager: Manager, home: Home) -> Found | None:
    """The one that starts this home."""
    return next((it for it in every(manager) if it.starts(home)), None)


def chosen(manager: Manager, home: Home, name: str) -> Found:
    """The one that is meant: by its name, else by the home it starts. Raises NotFound."""
    found = look(manager, name) if name else of_home(manager, home)
    if found is None:
        what = f"there is no service called {name}" if name else f"no service starts {home.path}"
        others = ", ".join(it.name for it in every(manager))
        raise NotFound(what, remedy=f"everhold service install{f'; there is {others}' if others else ''}")
    return found


def install(manager: Manager, home: Home, environ: Mapping[str, str], *, name: str, force: bool) -> tuple[Found, str]:
    """Write the description of this home's service. What was there and is not ours is kept if `force`, else refused.

    Returns it, and where the other one is kept now (empty if there was none, or it was ours).
    """
    if not name:
        there = of_home(manager, home)
        name = there.name if there is not None else NAME
    text = manager.text(wanted(home, environ, name=name))
    before = look(manager, name)
    kept = ""
    if before is not None:
        if before.written.home is not None and not before.starts(home) and not force:
            raise Refused(
                f"{before.path} starts another home: {before.written.home}",
                remedy=f"everhold service install --name {NAME}-{_plain(home.path.name)} makes one beside it",
            )
        if not before.ours:
            kept = _keep(before, force=force, verb="install")
    try:
        manager.folder.mkdir(parents=True, exist_ok=True)
        write_file(manager.path(name), text.encode(), mode=FILE_MODE)
    except OSError as error:
        raise Refused(
            f"{error.filename or manager.folder}: {error.strerror}", remedy=f"ls -ld {manager.folder}"
        ) from error
    return Found(name, manager.path(name), manager.read(text)), kept


def remove(found: Found, *, force: bool) -> str:
    """Take the description away; where it is kept, if it was not ours."""
    if not found.ours:
        return _keep(found, force=force, verb="uninstall")
    found.path.unlink(missing_ok=True)
    return ""


def refuse_if_not_ours(found: Found, *, force: bool, verb: str) -> None:
    if not found.ours and not force:
        what = "is a link to a file of yours" if found.linked else "was changed since everhold wrote it"
        if not found.written.version and not found.linked:
            what = "was not written by everhold"
        raise Refused(
            f"{found.path} {what}, and stays as it is",
            remedy=f"`everhold service {verb} --force` keeps a copy of it beside; `everhold service print` to compare",
        )


def complaints(found: Found) -> list[tuple[str, str, str]]:
    """What is worth knowing about a description: level, text, remedy."""
    from everhold import __version__

    told: list[tuple[str, str, str]] = []
    named, mine = found.written.program, program()[0]
    if not named or not os.access(named, os.X_OK):
        told.append(("wrong", f"{found.path} starts {named or 'nothing'}, which is not there", _again(found)))
    elif not _same(Path(named).parent, Path(mine).parent):  # the programs themselves may be links to one interpreter
        told.append(("note", f"{found.path} starts {named}, and this is {mine}", _again(found)))
    if found.linked:
        told.append(("note", f"{found.path} is a link to a file of yours; everhold leaves it alone", ""))
    elif not found.written.version:
        told.append(("note", f"{found.path} was not written by everhold, which leaves it alone", _compare(found)))
    elif found.written.edited:
        told.append(("note", f"{found.path} was changed by somebody; everhold leaves it alone", _compare(found)))
    if found.written.version not in ("", __version__):
        written = found.written.version
        told.append(("note", f"{found.path} is of everhold {written}, and this is {__version__}", _again(found)))
    return told


def found_json(found: Found) -> dict[str, Any]:
    return {
        "name": found.name,
        "path": str(found.path),
        "home": str(found.written.home or ""),
        "program": found.written.program,
        "version": found.written.version,
        "edited": not found.ours,
    }


def _again(found: Found) -> str:
    name = "" if found.name == NAME else f" --name {found.name}"
    return f"everhold service install{name}" + ("" if found.ours else " --force")


def _compare(found: Found) -> str:
    return f"everhold service print | diff {found.path} -"


def _keep(found: Found, *, force: bool, verb: str) -> str:
    """Put a file that is not ours aside. Its new name ends in something that no manager reads."""
    refuse_if_not_ours(found, force=force, verb=verb)
    number = 1
    while (aside := found.path.with_name(f"{found.path.name}.kept-{number}")).exists() or aside.is_symlink():
        number += 1
    shutil.move(found.path, aside)  # a link stays a link
    return str(aside)


def _plain(text: str) -> str:
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in text).strip("-")
    return kept[:40] or "other"


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
