"""Install, find and remove the service of a home.

A description that was changed by hand, or that is a link to another file, is not replaced without `--force`.
"""

from __future__ import annotations

import getpass
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
"""The file contains no secret, and some managers read it as another user."""


@dataclass(frozen=True)
class InstalledService:
    """An installed description."""

    name: str
    path: Path
    description: ServiceDescription
    linked: bool = False

    @property
    def is_unmodified(self) -> bool:
        """Whether it is as everhold wrote it, so that it may be replaced or removed."""
        return not self.description.edited and not self.linked

    def starts_home(self, home: Home) -> bool:
        return self.description.home is not None and _is_same_path(self.description.home, home.path)


def build_program_command() -> tuple[str, ...]:
    """Return the command of this installation of everhold, also if a shell would find another one."""
    beside = Path(sys.executable).with_name("everhold.exe" if sys.platform == "win32" else "everhold")
    if os.access(beside, os.X_OK):
        return (str(beside),)
    return (sys.executable, "-P", "-m", "everhold")


def build_service_spec(home: Home, environ: Mapping[str, str], *, name: str = SERVICE_NAME) -> ServiceSpec:
    from everhold import __version__

    folders = (environ.get("PATH") or os.defpath).split(os.pathsep)
    search = os.pathsep.join(dict.fromkeys(it for it in folders if os.path.isabs(it)))
    return ServiceSpec(
        home=home.path,
        program=build_program_command(),
        search_path=search,
        version=__version__,
        name=name,
        user=_find_account(),
    )


def _find_account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id
        return str(os.getuid())


def read_service(manager: ServiceBackend, name: str) -> InstalledService | None:
    """Return the description with this name, None if there is none."""
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
    """Return every description that starts everhold, by its name or its text."""
    if not manager.description_directory.is_dir():
        return []
    names = sorted(
        path.name.removesuffix(manager.suffix) for path in manager.description_directory.glob(f"*{manager.suffix}")
    )
    found = [it for name in names if (it := read_service(manager, name)) is not None]
    return [it for it in found if it.description.version or it.name == SERVICE_NAME]


def find_service_of_home(manager: ServiceBackend, home: Home) -> InstalledService | None:
    """Return the service that starts this home."""
    return next((it for it in list_services(manager) if it.starts_home(home)), None)


def select_service(manager: ServiceBackend, home: Home, name: str) -> InstalledService:
    """Return the service with this name, or without a name the service of this home. Raises NotFound."""
    found = read_service(manager, name) if name else find_service_of_home(manager, home)
    if found is None:
        what = f"there is no service called {name}" if name else f"no service starts {home.path}"
        others = ", ".join(it.name for it in list_services(manager))
        raise NotFound(what, remedy=f"everhold service install{f'; there is {others}' if others else ''}")
    return found


def install_service(
    manager: ServiceBackend, home: Home, environ: Mapping[str, str], *, name: str, force: bool
) -> tuple[InstalledService, str]:
    """Write the description of this home's service.

    An existing description that everhold did not write is renamed with `force`, else Refused is raised. Returns the new
    service, and the path of the renamed file (empty if there is none).
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
                remedy=f"everhold service install --name {SERVICE_NAME}-{_make_safe_name(home.path.name)}",
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
    """Remove the description. Returns the path of its copy if everhold did not write it."""
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
            remedy=f"compare with `everhold service print`; `everhold service {verb} --force` renames the file",
        )


def list_complaints(found: InstalledService) -> list[tuple[str, str, str]]:
    """Return the problems and notes about a description: level, text, remedy."""
    from everhold import __version__

    found_problems: list[tuple[str, str, str]] = []
    named, mine = found.description.program, build_program_command()[0]
    if not named or not os.access(named, os.X_OK):
        found_problems.append(
            ("wrong", f"{found.path} starts {named or 'nothing'}, which does not exist", _format_install_command(found))
        )
    elif not _is_same_path(
        Path(named).parent, Path(mine).parent
    ):  # compare directories, because the programs may be links to one interpreter
        found_problems.append(("note", f"{found.path} starts {named}; this is {mine}", _format_install_command(found)))
    if found.linked:
        found_problems.append(("note", f"{found.path} is a link to a file of yours; everhold does not replace it", ""))
    elif not found.description.version:
        found_problems.append(
            (
                "note",
                f"{found.path} was not written by everhold, so everhold does not replace it",
                _format_diff_command(found),
            )
        )
    elif found.description.edited:
        found_problems.append(
            (
                "note",
                f"{found.path} was changed since everhold wrote it; everhold does not replace it",
                _format_diff_command(found),
            )
        )
    if found.description.version not in ("", __version__):
        written = found.description.version
        found_problems.append(
            (
                "note",
                f"{found.path} was written by everhold {written}; this is {__version__}",
                _format_install_command(found),
            )
        )
    return found_problems


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
    """Rename a file that everhold did not write. No service manager reads the new name."""
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
