"""Each person and each group has a workspace of its own, and a configured folder belongs to owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.assembly.agent_workspaces import AgentWorkspaces
from everhold.config import ConfigError, parse_settings
from everhold.core.entries import Stamp
from everhold.core.roles import ChatPlace, PersonRole
from everhold.errors import InvalidRequest
from everhold.ports.tool import ToolContext
from tests.ingress.harness import CONFIG, IngressHarness

ROOM = "chat:agent:main:fake:main:group:room"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngressHarness]:
    harness = IngressHarness(tmp_path)
    yield harness
    await harness.store.close()


def context(person: str, *, role: PersonRole = PersonRole.MEMBER, room: str = "") -> ToolContext:
    audience = (room, f"person:{person}") if room else (f"person:{person}",)
    return ToolContext(
        session="s",
        agent="main",
        op=1,
        key="k",
        stamp=Stamp(person=person, audience=audience),
        role=role,
        place=ChatPlace.SHARED if room else ChatPlace.DIRECT,
    )


async def test_persons_and_groups_have_folders_of_their_own(harness: IngressHarness, tmp_path: Path) -> None:
    for sender in ("1001", "7"):
        await harness.send_message("hello", sender=sender)
    agent = harness.settings.agents["main"]
    workspaces = AgentWorkspaces(tmp_path / "home" / "workspaces", home=tmp_path / "home", store=harness.store)
    ada = await workspaces.find_workspace(agent, context("fake:1001"))
    bob = await workspaces.find_workspace(agent, context("fake:7"))
    room = await workspaces.find_workspace(agent, context("fake:1001", room=ROOM))
    other = await workspaces.find_workspace(agent, context("fake:1001", room=f"{ROOM}2"))
    assert len({ada, bob, room, other}) == 4
    assert room == await workspaces.find_workspace(agent, context("fake:7", room=ROOM)), "a group shares one"
    coder = await workspaces.find_workspace(harness.settings.agents["coder"], context("fake:1001"))
    assert coder not in (ada, bob)
    assert await workspaces.find_workspace(agent, context("fake:unknown")) == tmp_path / "home/workspaces/main/nobody"
    for folder in (ada, bob, coder):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    people = await harness.store.get_people()
    assert await workspaces.remove_folders_of([people.identities["fake:1001"].person]) == 2
    assert (ada.exists(), coder.exists(), bob.exists()) == (False, False, True)


async def test_a_configured_folder_is_for_owners_and_never_shows_the_home(
    harness: IngressHarness, tmp_path: Path
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    workspaces = AgentWorkspaces(home / "workspaces", home=home, store=harness.store)

    async def find(path: Path, role: PersonRole) -> Path:
        settings = parse_settings(CONFIG.replace("main: {}, coder", f"main: {{workspace: {{path: {path}}}}}, coder"))
        return await workspaces.find_workspace(settings.agents["main"], context("fake:1001", role=role))

    assert await find(project, PersonRole.OWNER) == project
    assert (await find(project, PersonRole.MEMBER)).is_relative_to(home)
    (tmp_path / "link").symlink_to(home)
    (home / "workspaces").mkdir(parents=True)
    for path in (home, tmp_path, Path("/"), home / "workspaces", tmp_path / "link"):
        with pytest.raises(InvalidRequest, match=r"\.env and all conversations"):
            await find(path, PersonRole.OWNER)


async def test_a_workspace_of_another_host_is_not_used_here(harness: IngressHarness, tmp_path: Path) -> None:
    settings = parse_settings("agents: {main: {workspace: {host: alpha}}}")
    for name, is_here in (("alpha", True), ("beta", False), ("", True)):
        workspaces = AgentWorkspaces(tmp_path / "w", home=tmp_path / "home", store=harness.store, host=name)
        if is_here:
            await workspaces.find_workspace(settings.agents["main"], context("fake:1001"))
        else:
            with pytest.raises(InvalidRequest, match="is on the host alpha, and this turn runs on beta"):
                await workspaces.find_workspace(settings.agents["main"], context("fake:1001"))


STORE = "store: {url: postgresql://e@db.example/e, shared_paths: [/mnt/shared]}\n"


@pytest.mark.parametrize(
    "store, agent, is_valid",
    [
        (STORE, "{tools: [files]}", False),
        (STORE, "{tools: [shell], workspace: {path: /srv/x}}", False),
        (STORE, "{tools: [shell], workspace: {path: /mnt/shared-not/x}}", False),
        (STORE, "{tools: [shell], workspace: {path: /mnt/shared/x}}", True),
        (STORE, "{tools: [files], workspace: {host: alpha}}", True),
        (STORE, "{tools: [memory]}", True),
        ("", "{tools: [files, shell]}", True),
    ],
)
def test_hosts_of_one_store_need_a_host_or_a_shared_path(store: str, agent: str, is_valid: bool) -> None:
    text = f"{store}agents: {{main: {agent}}}\n"
    if is_valid:
        parse_settings(text)
        return
    with pytest.raises(ConfigError, match="does not say which host"):
        parse_settings(text)
