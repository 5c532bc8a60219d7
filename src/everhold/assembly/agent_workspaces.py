"""Chooses the workspace of a tool call: the folder for files and the shell, per agent and person, or per group chat."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from everhold.config import AgentSettings
from everhold.core.people import PERSON_MEMBER, PeopleDirectory
from everhold.core.roles import ChatPlace, PersonRole
from everhold.errors import InvalidRequest
from everhold.ports.store import Store
from everhold.ports.tool import ToolContext

CHAT_HASH_CHARS: Final = 20
NOBODY: Final = "nobody"


class AgentWorkspaces:
    """The workspaces of a home. Each is a folder `AGENT/PERSON` or `AGENT/chat-HASH` in `directory`, unless the
    configuration names another folder for owners.
    """

    def __init__(self, directory: Path, *, home: Path, store: Store, host: str = "") -> None:
        self.directory = directory
        self._home = home.resolve()
        self._store = store
        self._host = host

    async def find_workspace(self, agent: AgentSettings, context: ToolContext) -> Path:
        """Return the folder for a call. Raises InvalidRequest if the configured folder would show the home."""
        if agent.workspace.host and self._host and agent.workspace.host != self._host:
            raise InvalidRequest(
                f"the workspace is on the host {agent.workspace.host}, and this turn runs on {self._host}",
                remedy="say so to the person; the files can be reached in a later turn there",
            )
        if agent.workspace.path is not None and context.role is PersonRole.OWNER:
            path = Path(agent.workspace.path)
            if problem := self.find_path_problem(path):
                raise InvalidRequest(f"the workspace {path} {problem}", remedy="name another folder in workspace.path")
            return path
        people = await self._store.get_people()
        return self.directory / agent.name / _name_folder(people, context)

    def find_path_problem(self, path: Path) -> str:
        return find_path_problem(path, self._home)

    def _list_folders_of(self, persons: Collection[str]) -> Iterator[Path]:
        """Yield the workspaces of persons, of all agents."""
        for person in persons:
            yield from self.directory.glob(f"*/{person}")

    async def remove_folders_of(self, persons: Collection[str]) -> int:
        """Delete the workspaces of persons, because they are forgotten. Return how many there were."""
        return await asyncio.to_thread(self._remove_folders, persons)

    def _remove_folders(self, persons: Collection[str]) -> int:
        found = list(self._list_folders_of(persons))
        for folder in found:
            shutil.rmtree(folder)
        return len(found)


def find_path_problem(path: Path, home: Path) -> str:
    """Return why a folder cannot be a workspace of a home; empty if it can."""
    real, home = path.resolve(), home.resolve()
    if real.is_relative_to(home) or home.is_relative_to(real):
        return f"is in the home {home} or contains it, so .env and all conversations could be read"
    return "" if real.is_dir() else "is not a folder"


def _name_folder(people: PeopleDirectory, context: ToolContext) -> str:
    stamp = context.stamp
    if context.place is not ChatPlace.DIRECT:
        chats = [member for member in stamp.audience if member.startswith("chat:")]
        chat = chats[0] if chats else stamp.address
        return f"chat-{hashlib.sha256(chat.encode()).hexdigest()[:CHAT_HASH_CHARS]}"
    record = people.identities.get(stamp.person.removeprefix(PERSON_MEMBER))
    return record.person if record is not None else NOBODY
