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
from everhold.infra.home import Home, write_file
from everhold.service.manager import ServiceBackend
from everhold.service.unit import ServiceDescription, ServiceSpec

SERVICE_NAME: Final = "everhold"
FILE_MODE: Final = 0o644
"""There is nothing secret in it, and some managers want to read it as somebody else."""


@dataclass(frozen=True)
class InstalledService:
    """A description that is there."""

    name: str
    path: Path
    description: ServiceDescription
    linked: bool = False

    @property
    def is_unmodified(self) -> bool:
        """Whether it stands as everhold wrote it, so that it may be replaced or removed."""
        return not self.description.edited and not self.linked

    def starts_home(self, home: Home) -> bool:
        return self.description.home is not None and _is_same_path(self.description.home, home.path)


def build_program_command() -> tuple[str, ...]:
    """The words that start this very everhold, wherever a shell would find another."""
    beside = Path(sys.executable).with_name("everhold.exe" if sys.platform == "win32" else "everhold")
    if os.access(beside, os.X_OK):
        return (str(beside),)
    return (sys.executable, "-P", "-m", "everhold")


def build_service_spec(home: Home, environ: Mapping[str, str], *, name: str = SERVICE_NAME) -> ServiceSpec:
    from everhold import __version__

    folders = (environ.get("PATH") or os.defpath).split(os.pathsep)
    search = os.pathsep.join(dict.fromkeys(it for it in folders if os.path.isabs(it)))
    return ServiceSpec(
        home=home.path, program=build_program_command(), search_path=search, version=__version__, name=name
    )


def read_service(manager: ServiceBackend, name: str) -> InstalledService | None:
    """The description of this name."""
    path = manager.get_path(name)
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        text = ""
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}", remedy=f"ls -l {path}") from error
    return InstalledService(name, path, manager.parse_description(text), linked=path.is_symlink())


def list_services(manager: ServiceBackend) -> list[InstalledService]:
    """Every description that starts an everhold, as far as its name or its text tells."""
    if not manager.description_directory.is_dir():
        return []
    names = sorted(
        path.name.removesuffix(manager.suffix) for path in manager.description_directory.glob(f"*{manager.suffix}")
    )
    found = [it for name in names if (it := read_service(manager, name)) is not None]
    return [it for it in found if it.description.version or it.name == SERVICE_NAME]


def find_service_of_home(manager: ServiceBackend, home: Home) -> InstalledService | None:
    """The one that starts this home."""
    return next((it for it in list_services(manager) if it.starts_home(home)), None)


def select_service(manager: ServiceBackend, home: Home, name: str) -> InstalledService:
    """The one that is meant: by its name, else by the home it starts. Raises NotFound."""
    found = read_service(manager, name) if name else find_service_of_home(manager, home)
    if found is None:
        what = f"there is no service called {name}" if name else f"no service starts {home.path}"
        others = ", ".join(it.name for it in list_services(manager))
        raise NotFound(what, remedy=f"everhold service install{f'; there is {others}' if others else ''}")
    return found


def install_service(
    manager: ServiceBackend, home: Home, environ: Mapping[str, str], *, name: str, force: bool
) -> tuple[InstalledService, str]:
    """Write the description of this home's service. What was there and is not ours is kept if `force`, else refused.

    Returns it, and where the other one is kept now (empty if there was none, or it was ours).
    """
    if not name:
        there = find_service_of_home(manager, home)
        name = there.name if there is not None else SERVICE_NAME
    text = manager.render(build_service_spec(home, environ, name=name))
    before = read_service(manager, name)
    kept = ""
    if before is not None:
        if before.description.home is not None and not before.starts_home(home) and not force:
            raise Refused(
                f"{before.path} starts another home: {before.description.home}",
                remedy=f"everhold service install --name {SERVICE_NAME}-{_make_safe_name(home.path.name)} makes one beside it",
            )
        if not before.is_unmodified:
            kept = _set_aside_file(before, force=force, verb="install")
    try:
        manager.description_directory.mkdir(parents=True, exist_ok=True)
        write_file(manager.get_path(name), text.encode(), mode=FILE_MODE)
    except OSError as error:
        raise Refused(
            f"{error.filename or manager.description_directory}: {error.strerror}",
            remedy=f"ls -ld {manager.description_directory}",
        ) from error
    return InstalledService(name, manager.get_path(name), manager.parse_description(text)), kept


def remove_service(found: InstalledService, *, force: bool) -> str:
    """Take the description away; where it is kept, if it was not ours."""
    if not found.is_unmodified:
        return _set_aside_file(found, force=force, verb="uninstall")
    found.path.unlink(missing_ok=True)
    return ""


def require_unmodified(found: InstalledService, *, force: bool, verb: str) -> None:
    if not found.is_unmodified and not force:
        what = "is a link to a file of yours" if found.linked else "was changed since everhold wrote it"
        if not found.description.version and not found.linked:
            what = "was not written by everhold"
        raise Refused(
            f"{found.path} {what}, and stays as it is",
            remedy=f"`everhold service {verb} --force` keeps a copy of it beside; `everhold service print` to compare",
        )


def list_complaints(found: InstalledService) -> list[tuple[str, str, str]]:
    """What is worth knowing about a description: level, text, remedy."""
    from everhold import __version__

    told: list[tuple[str, str, str]] = []
    named, mine = found.description.program, build_program_command()[0]
    if not named or not os.access(named, os.X_OK):
        told.append(
            ("wrong", f"{found.path} starts {named or 'nothing'}, which is not there", _format_install_command(found))
        )
    elif not _is_same_path(
        Path(named).parent, Path(mine).parent
    ):  # the programs themselves may be links to one interpreter
        told.append(("note", f"{found.path} starts {named}, and this is {mine}", _format_install_command(found)))
    if found.linked:
        told.append(("note", f"{found.path} is a link to a file of yours; everhold leaves it alone", ""))
    elif not found.description.version:
        told.append(
            ("note", f"{found.path} was not written by everhold, which leaves it alone", _format_diff_command(found))
        )
    elif found.description.edited:
        told.append(
            ("note", f"{found.path} was changed by somebody; everhold leaves it alone", _format_diff_command(found))
        )
    if found.description.version not in ("", __version__):
        written = found.description.version
        told.append(
            (
                "note",
                f"{found.path} is of everhold {written}, and this is {__version__}",
                _format_install_command(found),
            )
        )
    return told


def service_to_json(found: InstalledService) -> dict[str, Any]:
    return {
        "name": found.name,
        "path": str(found.path),
        "home": str(found.description.home or ""),
        "program": found.description.program,
        "version": found.description.version,
        "edited": not found.is_unmodified,
    }


def _format_install_command(found: InstalledService) -> str:
    name = "" if found.name == SERVICE_NAME else f" --name {found.name}"
    return f"everhold service install{name}" + ("" if found.is_unmodified else " --force")


def _format_diff_command(found: InstalledService) -> str:
    return f"everhold service print | diff {found.path} -"


def _set_aside_file(found: InstalledService, *, force: bool, verb: str) -> str:
    """Put a file that is not ours aside. Its new name ends in something that no manager reads."""
    require_unmodified(found, force=force, verb=verb)
    number = 1
    while (aside := found.path.with_name(f"{found.path.name}.kept-{number}")).exists() or aside.is_symlink():
        number += 1
    shutil.move(found.path, aside)  # a link stays a link
    return str(aside)


def _make_safe_name(text: str) -> str:
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in text).strip("-")
    return kept[:40] or "other"


def _is_same_path(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
