"""Check the database server of a shared store, and what must be the same on every host. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from everhold.assembly import stores
from everhold.config import ConfigProblem, Settings
from everhold.config.settings import BUILTIN_MEMORY, PluginConfigSection, StoreSettings
from everhold.doctor.finding import DoctorFinding
from everhold.errors import EverholdError
from everhold.ports.store_files import ServerCheckup

MAX_CLOCK_DIFFERENCE_SECONDS: Final = 1.0
_PATH_KEYS: Final = ("home", "directory", "path", "workspace")
"""Keys of plug-ins whose value is a folder."""


async def check_server(settings: StoreSettings) -> tuple[ServerCheckup | None, list[DoctorFinding]]:
    """Connect to the server and examine it."""
    try:
        found = await stores.examine_server(settings)
    except EverholdError as error:
        return None, [DoctorFinding("store", error.message, remedy=error.remedy)]
    return found, list(list_server_findings(found))


def list_server_findings(found: ServerCheckup) -> Iterator[DoctorFinding]:
    if not found.is_version_supported:
        yield DoctorFinding(
            "store", f"{found.place}: PostgreSQL {found.version} is too old", remedy="use PostgreSQL 15 or newer"
        )
    if found.is_schema_too_new:
        text = f"{found.place} has schema {found.schema_version}, which needs a newer everhold"
        yield DoctorFinding("store", text, remedy="upgrade everhold on this host")
    if not found.is_durable:
        text = (
            f"{found.place} acknowledges commits before they are on its disk (fsync or synchronous_commit is off), so "
            "a crash of the server loses messages that were acknowledged: promises 1 and 2 do not hold"
        )
        yield DoctorFinding("store", text, remedy="set fsync and synchronous_commit to on")
    elif not found.has_synchronous_standby:
        text = (
            f"{found.place} has no synchronous standby. A crash of the server loses nothing, but if its disk is lost, "
            "or a standby takes over, the last messages that were acknowledged may be missing: promises 1 and 2 "
            "hold only as long as this one disk does"
        )
        yield DoctorFinding(
            "store", text, remedy="set synchronous_standby_names; see `What happens in a failover`", level="note"
        )
    if found.is_pooled:
        text = f"there is a pooler before {found.place}, so hints of other hosts do not arrive; hosts poll instead"
        yield DoctorFinding("store", text, remedy="connect to the server directly, or lower poll_seconds", level="note")
    if abs(found.clock_difference_seconds) > MAX_CLOCK_DIFFERENCE_SECONDS:
        text = f"this machine's clock differs from the server's by {found.clock_difference_seconds:.1f} s"
        yield DoctorFinding("clock", text, remedy="synchronise the clocks: timedatectl status")


def list_local_paths(settings: Settings) -> Iterator[ConfigProblem]:
    """Yield the folders of plug-ins that only this host sees, although any host may do their work."""
    if not settings.store.is_server:
        return
    sections: dict[tuple[str, ...], PluginConfigSection] = {}
    for name, memory in settings.memories.items():
        if memory.provider != BUILTIN_MEMORY:
            sections["memories", name] = memory
    for name, tool in settings.tools.items():
        sections["tools", name] = tool
    for path, section in sections.items():
        for key, value in _iterate_paths(section.extra):
            if not _is_shared(value, settings.store.shared_paths):
                yield ConfigProblem(
                    f"{value} is a folder of one host, and any host may need it",
                    "put it on storage that every host sees, and list that in store.shared_paths",
                    path=(*path, key),
                )
    for name, server in settings.mcp.items():
        for folder in server.write_paths:
            if not _is_shared(folder, settings.store.shared_paths):
                yield ConfigProblem(
                    f"{folder} is a folder of one host, and any host may start this program",
                    "put it on storage that every host sees, and list that in store.shared_paths",
                    path=("mcp", name, "write_paths"),
                )


def _iterate_paths(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, str) and key.endswith(_PATH_KEYS) and Path(value).expanduser().is_absolute():
            yield key, value


def _is_shared(folder: str, shared: tuple[str, ...]) -> bool:
    path = Path(folder).expanduser()
    return any(path.is_relative_to(place) for place in shared)
