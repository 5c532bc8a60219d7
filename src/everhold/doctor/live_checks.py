"""Test the configured services: each model with a small question, each platform by asking for our identity, each memory
with a test note that is deleted again. Nothing is written to a memory that cannot delete.
"""

from __future__ import annotations

import asyncio
import io
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Final

from msgspec import structs

from everhold.app import GatewayApp, SystemClock, SystemRandomSource
from everhold.assembly.account_setup import introduce_account
from everhold.config import Settings, build_plugin_settings
from everhold.config.settings import AccountSettings
from everhold.core.entries import Stamp
from everhold.doctor.finding import DoctorFinding
from everhold.engine.memory_client import MemoryClient
from everhold.errors import EverholdError, NotFound
from everhold.infra.home import Home
from everhold.infra.plugins import PLATFORM_PLUGINS
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    MemoryBatch,
    MemoryCapability,
    MemoryNote,
    MemoryQuery,
)
from everhold.ports.model import Model, ModelMessage, ModelRequest
from everhold.telemetry.logs import open_log

TRIAL_SECONDS: Final = 30.0
QUESTION: Final = ModelRequest(
    system="Answer with one word.", messages=(ModelMessage(role="user", text="Say ok."),), tools=()
)


async def try_configuration(
    home: Home, settings: Settings, *, environ: Mapping[str, str]
) -> AsyncIterator[DoctorFinding]:
    """Yield a finding for each service that fails. No other process may hold the home."""
    log = open_log(clock=SystemClock(), stream=io.StringIO())
    app = await GatewayApp.open(home, settings, log=log, environ=environ)
    try:
        asked: set[str] = set()
        for agent in settings.agents.values():
            for model in app.agents.get_runtime(agent.name, {}).models:
                if model.name not in asked and (finding := await _try_model(model, settings)) is not None:
                    yield finding
                asked.add(model.name)
        for platform, accounts in settings.platforms.items():
            for name, account in accounts.items():
                if (finding := await _try_account(home, platform, name, account)) is not None:
                    yield finding
        for name, alias, identities in await app.peers.list_alias_problems():
            text = f"the alias {alias} of {name} could mean {' or '.join(identities)}, so it has no effect"
            yield DoctorFinding("memory", text, remedy=f"write the identity, for example {identities[0]}")
        for row in await app.store.list_peers():
            if row.shared:
                text = f"{row.memory} has the peer {row.peer} for {row.identity} and others, so nobody recalls it"
                remedy = f"everhold people peer {row.memory} {row.peer} --to {row.identity}"
                yield DoctorFinding("memory", text, remedy=remedy, level="note")
        for agent in settings.agents.values():
            for memory in agent.memories:
                finding = await _try_memory(app, memory.name, agent.name)
                if finding is not None:
                    yield finding
    finally:
        await app.stop(seconds=0)


async def _try_model(model: Model, settings: Settings) -> DoctorFinding | None:
    name = model.name
    if name in settings.models and not settings.models[name].is_ready:
        return None  # already reported with the configuration
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            await model.answer(QUESTION)
    except EverholdError as error:
        return DoctorFinding("model", f"{name}: {error.message}", remedy=error.remedy or "everhold setup model")
    except TimeoutError:
        return DoctorFinding(
            "model", f"{name} did not answer within {TRIAL_SECONDS:g} s", remedy="is its address right?"
        )
    return None


async def _try_account(home: Home, platform: str, name: str, account: AccountSettings) -> DoctorFinding | None:
    """Check that a platform accepts the account. Incomplete accounts were reported with the configuration."""
    if not account.enabled or not account.is_ready:
        return None
    try:
        settings = build_plugin_settings(account, PLATFORM_PLUGINS.load(platform).Settings)
        await introduce_account(
            platform, name, settings, directory=home.path, clock=SystemClock(), chance=SystemRandomSource()
        )
    except NotFound:
        return None  # already reported with the configuration
    except EverholdError as error:
        remedy = error.remedy or f"everhold setup {platform} --account {name}"
        return DoctorFinding("platform", f"{platform}/{name}: {error.message}", remedy=remedy)
    return None


async def _try_memory(app: GatewayApp, instance: str, agent: str) -> DoctorFinding | None:
    client = app.agents.memories.find_client(instance, agent)
    if client is None:
        return None  # already reported
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            return await _try_round_trip(client, instance, agent)
    except EverholdError as error:
        return DoctorFinding(
            "memory", f"{instance} of {agent}: {error.message}", remedy=error.remedy or "everhold logs"
        )
    except TimeoutError:
        return DoctorFinding("memory", f"{instance} of {agent} did not answer in time", remedy="is its address right?")


async def _try_round_trip(client: MemoryClient, instance: str, agent: str) -> DoctorFinding | None:
    """Write, find and delete a test note. If the memory cannot delete, check only its health."""
    if client.has_capability(MemoryCapability.HEALTH):
        health = await client.health()
        if not health.healthy:
            remedy = f"is it running? `everhold setup memory {instance}` asks for its address and key again"
            return DoctorFinding("memory", f"{instance} of {agent}: {health.text}", remedy=remedy)
    if not client.has_capability(MemoryCapability.FORGET) or instance == "builtin":
        return None  # the built-in memory is computed from the log, which other checks cover
    word = f"canary{secrets.token_hex(4)}"
    person = f"everhold-doctor-{word}"
    stamp = Stamp(person=person, audience=(f"person:{person}",))
    note = MemoryNote(
        key=f"doctor:{word}",
        session=f"doctor-{word}",
        agent=agent,
        seq=1,
        text=f"The word is {word}.",
        author="system",
        at=SystemClock().now(),
        stamp=stamp,
    )
    # remove the note itself, too, because a provider that shares names between people may not find the person
    removal = structs.replace(note, key=f"doctor:{word}:gone", seq=2, action="remove", supersedes=note.key)
    try:
        await client.store(MemoryBatch(name=f"doctor-{word}", items=(note,)))
        await asyncio.sleep(client.visible_after)
        query = MemoryQuery(
            text=f"What is the word {word}?",
            agent=agent,
            session=f"doctor-{word}",
            name=f"doctor-{word}",
            audience=stamp.audience,
            person=person,
        )
        found = await client.find(query)
    finally:
        await client.store(MemoryBatch(name=f"doctor-{word}", items=(removal,), replaced={note.key: note.text}))
        forgotten = await client.forget(
            ErasureTarget(identities=(person,), keys=(note.key,), audiences=(stamp.audience,))
        )
        kept = [it for it in forgotten if it.state is ErasureState.CANNOT]
    if kept and any(word in item.text for item in await client.find(query)):
        return DoctorFinding(
            "memory",
            f"{instance} of {agent} did not delete the test note: {kept[0].what}: {kept[0].reason}",
            level="note",
        )
    if not any(word in item.text for item in found):
        text = f"{instance} of {agent} stored a test note and did not find it"
        return DoctorFinding("memory", text, remedy="some services need time; try again", level="note")
    return None
