"""Tries what is configured on the real thing: each model with one small question, each platform with its own word for
"who am I", each memory with a canary that is deleted again. What cannot be deleted is not written.
"""

from __future__ import annotations

import asyncio
import io
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Final

from msgspec import structs

from everhold.app import GatewayApp, SystemClock
from everhold.config import Settings, build_plugin_settings
from everhold.config.settings import AccountSettings
from everhold.core.entries import Stamp
from everhold.doctor.finding import DoctorFinding
from everhold.doctor.platform_probe import introduce_account
from everhold.engine.memory_client import MemoryClient
from everhold.errors import EverholdError, NotFound
from everhold.infra.home import Home
from everhold.infra.plugins import PLATFORM_PLUGINS
from everhold.ports.memory import MemoryBatch, MemoryCapability, MemoryNote, MemoryQuery
from everhold.ports.model import Model, ModelMessage, ModelRequest
from everhold.telemetry.logs import open_log

TRIAL_SECONDS: Final = 30.0
QUESTION: Final = ModelRequest(
    system="Answer with one word.", messages=(ModelMessage(role="user", text="Say ok."),), tools=()
)


async def try_configuration(
    home: Home, settings: Settings, *, environ: Mapping[str, str]
) -> AsyncIterator[DoctorFinding]:
    """What does not work when it is tried. The caller holds nothing; the home must be free."""
    log = open_log(clock=SystemClock(), stream=io.StringIO())
    app = GatewayApp(home, settings, log=log, environ=environ)
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
        return None  # the configuration has told it already
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
    """Whether a platform knows us. An account that is off, or lacks something, was told of already."""
    if not account.enabled or not account.is_ready:
        return None
    try:
        settings = build_plugin_settings(account, PLATFORM_PLUGINS.load(platform).Settings)
        await introduce_account(platform, name, settings, directory=home.path)
    except NotFound:
        return None  # the configuration has told it already
    except EverholdError as error:
        remedy = error.remedy or f"everhold setup {platform} --account {name}"
        return DoctorFinding("platform", f"{platform}/{name}: {error.message}", remedy=remedy)
    return None


async def _try_memory(app: GatewayApp, instance: str, agent: str) -> DoctorFinding | None:
    attached = app.agents.memories.find_client(instance, agent)
    if attached is None:
        return None  # the configuration, or its own problem, has told it already
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            return await _try_round_trip(attached, instance, agent)
    except EverholdError as error:
        return DoctorFinding(
            "memory", f"{instance} of {agent}: {error.message}", remedy=error.remedy or "everhold logs"
        )
    except TimeoutError:
        return DoctorFinding("memory", f"{instance} of {agent} did not answer in time", remedy="is its address right?")


async def _try_round_trip(attached: MemoryClient, instance: str, agent: str) -> DoctorFinding | None:
    """Write, find, delete; only ask how it is where nothing can be deleted."""
    if attached.has_capability(MemoryCapability.HEALTH):
        health = await attached.health()
        if not health.well:
            remedy = f"is it running? `everhold setup memory {instance}` asks for its address and key again"
            return DoctorFinding("memory", f"{instance} of {agent}: {health.text}", remedy=remedy)
    if not attached.has_capability(MemoryCapability.FORGET) or instance == "builtin":
        return None  # what is written to the log's own index comes from the log, and is checked there
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
    # a person who shares a name over there with others may not be told apart any more: the note is taken back itself
    gone = structs.replace(note, key=f"doctor:{word}:gone", seq=2, action="remove", supersedes=note.key)
    try:
        await attached.store(MemoryBatch(name=f"doctor-{word}", items=(note,)))
        await asyncio.sleep(attached.visible_after)
        query = MemoryQuery(
            text=f"What is the word {word}?",
            agent=agent,
            session=f"doctor-{word}",
            name=f"doctor-{word}",
            audience=stamp.audience,
            person=person,
        )
        found = await attached.find(query)
    finally:
        await attached.store(MemoryBatch(name=f"doctor-{word}", items=(gone,), replaced={note.key: note.text}))
        forgotten = await attached.forget(person)
    if forgotten.kept and any(word in item.text for item in await attached.find(query)):
        return DoctorFinding("memory", f"{instance} of {agent} kept the canary: {forgotten.kept[0]}", level="note")
    if not any(word in item.text for item in found):
        text = f"{instance} of {agent} took a note and did not find it again"
        return DoctorFinding("memory", text, remedy="some services take a while; try again", level="note")
    return None
