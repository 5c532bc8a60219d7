"""A memory plug-in of hermes-agent as a provider, running in one process for each person and room.

Such a plug-in never confirms that something was stored; its calls just return. So delivered items stay available for a
resend, and this provider reports only what it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from everhold.core.entries import Stamp
from everhold.core.people import PERSON_MEMBER
from everhold.core.provenance import prefix_lines
from everhold.errors import InDoubt, Refused, Transient
from everhold.hermes.memory.homes import PluginHome, PluginHomes, read_json, write_json
from everhold.hermes.memory.host import HermesHostProcess
from everhold.hermes.memory.host_pool import HostPool
from everhold.hermes.memory.identity import build_identity, is_at_terminal
from everhold.hermes.memory.isolation import PluginIsolation
from everhold.hermes.memory.readback import build_readback_query, is_evidence_shown
from everhold.infra.child_process import ChildLimits, ChildPolicy, ChildProcesses, SandboxKind
from everhold.infra.secret import SecretString
from everhold.ports.memory import (
    SEEN_REMOTE_ID,
    ErasureState,
    ErasureTarget,
    Exchange,
    JobResult,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    MemoryScope,
    MemoryUtterance,
    ProviderDeletion,
    ProviderHealth,
    SessionSwitch,
)
from everhold.ports.model import ToolSpec
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult

if TYPE_CHECKING:
    from everhold.hermes.memory.settings import HermesSettings

MAX_IDENTITIES: Final = 5_000
CHECK_SECONDS: Final = 5.0
"""How long one readback search may take."""
MAX_FAILED_CHECKS: Final = 3
"""Readback searches in a row that may fail before they are paused."""
CHECK_PAUSE_SECONDS: Final = 60.0
"""The length of that pause."""
UNSEARCHABLE_WAIT_SECONDS: Final = 600.0
"""How long delivery waits for a plug-in that cannot be searched before it sends again what the plug-in may already
have.
"""
MAX_RECALL_CHARS: Final = 8_000
"""Characters of what a plug-in recalls."""
LEARNING_SECONDS: Final = 5.0
"""How long a delivery waits at most until the prompt block is known."""
LEFTOVER_SECONDS: Final = 3_600.0
"""After so long a directory of a test was left by a process that was killed."""


class PluginPlace(Struct, frozen=True, kw_only=True):
    """A conversation in a home: its memory session's name, and the keywords for `initialize`."""

    home: PluginHome
    name: str
    identity: dict[str, str]


class HermesMemory:
    delivery = DeliveryGuarantee.UNACKNOWLEDGED
    visible_after = 0.0

    def __init__(self, settings: HermesSettings, context: PluginContext) -> None:
        self._settings = settings
        self._context = context
        self.deadline = settings.deadline_seconds
        directory = Path(context.directory)
        self._description_file = directory / "card.json"
        self._identities_file = directory / "sessions.json"
        self._changed_files: dict[str, str] = {}
        """Home -> a digest of the settings that changed."""
        self._description: dict[str, Any] = read_json(self._description_file)
        self._published_description = self._description
        """The description in the signature. It changes once the prompt block is known, so that one new description
        causes one new instance, or if that takes long, without it.
        """
        self._identities: dict[str, dict[str, str]] = read_json(self._identities_file)
        """Conversation and user -> the keywords for `initialize`, from the stamp of what was said."""
        self._homes = PluginHomes(
            directory,
            configured=find_configured_home(settings),
            plugin_names=self._list_plugin_names,
            is_owner=context.is_owner,
        )
        self._homes.remove_throwaways(before=context.clock.now() - LEFTOVER_SECONDS)
        self._pool = HostPool(self._create_host, max_hosts=settings.most_processes)
        self._isolation = PluginIsolation(settings, context, homes=self._homes, pool=self._pool)
        self._learning: asyncio.Task[None] | None = None
        self._session_names: dict[str, str] = {}
        self._stored_count = self._confirmed_count = 0
        self._failed_checks = 0
        """Readback searches in a row that failed."""
        self._failed_check_at = 0.0
        """When the last of them failed."""
        self._check_lock = asyncio.Lock()
        self._unsearchable_since: float | None = None
        self._capabilities = {
            MemoryCapability.HEALTH,
            MemoryCapability.CLOSE,
            MemoryCapability.SIGNATURE,
            MemoryCapability.FORGET,
        }
        hooks = self._description.get("hooks", ())
        if self._list_tool_specs():
            self._capabilities.add(MemoryCapability.TOOLS)
        if "on_pre_compress" in hooks:
            self._capabilities.add(MemoryCapability.BEFORE_COMPRESS)
        if self._description.get("searches") and settings.read_back:
            self._capabilities.add(MemoryCapability.PROBE)
        if "on_session_switch" in hooks:
            self._capabilities.add(MemoryCapability.SESSION_SWITCHED)
        if _DELEGATION_HOOK in hooks or not self._description:  # a plug-in that was never loaded may have this hook
            self._capabilities.add(MemoryCapability.JOBS)
        if self._description.get("prompt"):
            self._capabilities.add(MemoryCapability.PROMPT)

    @property
    def capabilities(self) -> frozenset[MemoryCapability]:
        return frozenset(self._capabilities)

    @property
    def pid(self) -> int | None:
        """The pid of the process that was used last."""
        return self._pool.latest.pid if self._pool.latest is not None else None

    # -- store and find ------------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        started = self._context.clock.monotonic()
        # Whether each item may be sent is decided before the first one is sent.
        places = {
            item.key: await self._open_place(batch.name, item.session, item.stamp, people=_list_people(item))
            for item in (*batch.items, *batch.jobs)
            if not isinstance(item, MemoryRetraction)
        }
        for item in batch.items:
            if isinstance(item, Exchange):
                await self._send_exchange(places[item.key], item)
            elif isinstance(item, MemoryNote):
                replaced = batch.replaced.get(item.supersedes) or batch.replaced.get(item.fact, "")
                await self._send_note(places[item.key], item, replaced=replaced)
            self._stored_count += 1
        for job in batch.jobs:
            await self._send_job(places[job.key], job)
        # A `prefetch` may have been prepared for the next turn, so a readback must not consume it.
        seen = await self._check_stored(batch) if self._description.get("searches") == "tool" else []
        self._confirmed_count += len(seen)
        if batch.items:
            # The items are sent, so nothing may exceed the deadline of the call.
            left = self.deadline / 4 - (self._context.clock.monotonic() - started)
            await self._learn_prompt(seconds=min(LEARNING_SECONDS, max(0.0, left)))
        return {item.key: SEEN_REMOTE_ID if item.key in seen else "" for item in (*batch.items, *batch.jobs)}

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        """Return the keys of the items that the plug-in shows. An item that it does not show may still be stored.

        A plug-in that cannot be searched is probably unable to store, too, and many do not report that. So delivery
        waits, for as long as the search can be expected to work again.
        """
        seen: list[str] = []
        try:
            await self._search_for_stored(batch, seen)
        except (TimeoutError, Transient, Refused, InDoubt) as error:
            now = self._context.clock.monotonic()
            self._unsearchable_since = now if self._unsearchable_since is None else self._unsearchable_since
            if now - self._unsearchable_since < UNSEARCHABLE_WAIT_SECONDS:
                raise Transient(f"it cannot be searched: {str(error) or 'no answer in time'}") from error
        else:
            self._unsearchable_since = None
        return seen

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        found = []
        for name, session, stamp in self._list_conversations(query):
            try:
                place = await self._open_place(name, session, stamp)
            except Refused:
                continue  # it does not serve these people
            text = await self._call_plugin(place, "prefetch", query=query.text)
            if text and str(text).strip():
                found.append(MemoryHit(text=str(text)[:MAX_RECALL_CHARS], score=1.0))
        return list({hit.text: hit for hit in found}.values())

    def _list_conversations(self, query: MemoryQuery) -> list[tuple[str, str, Stamp]]:
        """Return (memory session, session, stamp) of the conversations to ask: this one, and the latest with each other
        identity of the person who is alone here, because each identity has its own home. An identity that belonged to
        somebody else before is left out, because a plug-in does not say how old its answer is.
        """
        name = query.name or self._find_session_of(query.person)
        stamp = query.stamp if query.stamp.person else Stamp(person=query.person, audience=query.audience)
        found = [(name, query.session, stamp)] if name else []
        others = query.present.groups[0][1:] if len(query.present.groups) == 1 else ()
        for member in (it.member for it in others if not it.since):
            identity = member.removeprefix(PERSON_MEMBER)
            if other := self._find_session_of(identity):
                found.append((other, "", Stamp(person=identity, audience=(member,))))
        return found

    async def _send_exchange(self, place: PluginPlace, item: Exchange) -> None:
        heard = "\n\n".join(
            _format_utterance(it, alone=len({one.author for one in item.heard}) < 2) for it in item.heard
        )
        said = "\n\n".join(it.text for it in item.said)
        if heard.strip() and said.strip():
            await self._call_plugin(place, "turn", user=heard, assistant=said)

    async def _send_note(self, place: PluginPlace, note: MemoryNote, *, replaced: str) -> None:
        metadata = {"session_id": place.name, "write_origin": "everhold", "everhold_key": note.key}
        if replaced:
            metadata["old_text"] = replaced  # the plug-in identifies its own entry only by its text
        target = "user" if note.stamp.person else "memory"
        params = {"action": note.action, "target": target, "content": note.text, "metadata": metadata}
        await self._call_plugin(place, "write", **params)

    async def _send_job(self, place: PluginPlace, job: JobResult) -> None:
        """Send a result, unless the plug-in does not want any. Then no provider is initialised for it."""
        async with self._use_host(place.home) as host:
            if _DELEGATION_HOOK not in host.description.get("hooks", ()):
                return
            params = {"task": job.task, "result": job.result, "child": job.key}
            await self._call_host(host, place, "job", **params)
        self._stored_count += 1

    def _can_search(self) -> bool:
        return bool(self._settings.read_back and self._description.get("searches"))

    async def _check_stored(self, batch: MemoryBatch) -> list[str]:
        """Search for what was just stored. A failure has no consequence."""
        now = self._context.clock.monotonic()
        if not self._can_search() or (
            self._failed_checks >= MAX_FAILED_CHECKS and now - self._failed_check_at < CHECK_PAUSE_SECONDS
        ):
            return []
        seen: list[str] = []
        try:
            await self._search_for_stored(batch, seen)
        except (TimeoutError, Transient, Refused, InDoubt) as error:
            self._failed_checks += 1
            self._failed_check_at = self._context.clock.monotonic()
            self._context.log.debug("memory.unconfirmed", error=str(error) or "it took too long")
        else:
            self._failed_checks = 0
        return seen

    async def _search_for_stored(self, batch: MemoryBatch, seen: list[str]) -> None:
        """Search the plug-in for the items of a batch and add the keys of those it shows to `seen`."""
        until = self._context.clock.monotonic() + min(CHECK_SECONDS * 2, self.deadline / 4)
        for item in (*batch.items, *batch.jobs):
            asked, left = build_readback_query(item), until - self._context.clock.monotonic()
            if asked is None or isinstance(item, MemoryRetraction) or left <= 0:
                continue
            try:
                place = await self._open_place(batch.name, item.session, item.stamp)
            except Refused:
                continue  # it does not serve these people, so it has nothing of them
            async with self._use_host(place.home) as host:
                if not self._can_search():
                    return
                # one search at a time, because several sessions may be delivered or resent at once
                async with asyncio.timeout(min(CHECK_SECONDS, left)), self._check_lock:
                    found = await self._call_host(host, place, "look", query=asked.words)
            if is_evidence_shown(asked, found):
                seen.append(item.key)

    # -- other capabilities --------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return [HermesTool(self, spec) for spec in self._list_tool_specs()]

    def prompt(self) -> str:
        return "" if self._isolation.leaks else str(self._description.get("prompt", ""))

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        place = await self._find_place(scope, scope.name)
        if place is None:
            return ""
        messages = [
            {"role": "assistant" if it.author.startswith("agent:") else "user", "content": it.text} for it in view
        ]
        return str(await self._call_plugin(place, "compress", messages=messages) or "")

    async def session_switched(self, switch: SessionSwitch) -> None:
        place = await self._find_place(switch.after, switch.after.name)
        if place is None and switch.how == "branch":
            # in the same chat; in another chat the identity is not known yet
            place = await self._find_place(switch.after, switch.before.name)
        if place is not None and self._pool.is_running(place.home.path):
            ends = switch.how in ("new", "compression")
            params = {"parent": switch.before.name, "reset": switch.how == "new", "ends": ends}
            await self._call_plugin(place, "switch", **params)

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        """Remove the homes in which only this person spoke. What the plug-in keeps elsewhere cannot be removed.

        Who spoke in a home that remains stays recorded, because the answer may be lost and is then asked for again.
        """
        deletions: dict[str, ProviderDeletion] = {}
        for identity in target.identities:
            alone, shared = self._homes.list_homes_of(identity)
            if identity in target.reused_identities:
                alone, shared = [], [*alone, *shared]
            for home in alone:
                if self._homes.get_made_at(home.key) <= target.before:
                    found = await self._delete_home(home, identity)
                    deletions[found.id] = found
            for home in shared:
                found = ProviderDeletion(
                    id=f"shared:{home.key}",
                    what=f"the plug-in's home homes/{home.key}",
                    state=ErasureState.CANNOT,
                    reason=f"homes/{home.key} contains words of the person; others spoke there, too",
                )
                deletions[found.id] = found
            self._drop_identities(identity)
        if deletions:
            deletions["elsewhere"] = ProviderDeletion(
                id="elsewhere",
                what="what the plug-in sent elsewhere",
                state=ErasureState.CANNOT,
                reason="what the plug-in sent elsewhere cannot be deleted from here; use the service's own tools",
            )
        return list(deletions.values())

    async def _delete_home(self, home: PluginHome, identity: str) -> ProviderDeletion:
        if home.path == self._homes.configured:
            return ProviderDeletion(
                id=f"configured:{home.key}",
                what=f"hermes-agent's own home {home.path}",
                state=ErasureState.CANNOT,
                reason=f"{home.path} is hermes-agent's own home: delete there what the plug-in keeps in it",
            )
        await self._pool.close_home(home.path)
        made_at = self._homes.get_made_at(home.key)
        if not await asyncio.to_thread(self._homes.remove, home, identity):
            raise Transient(f"{home.path} could not be removed")
        what = f"the plug-in's home homes/{home.key}"
        return ProviderDeletion(id=f"home:{home.key}", what=what, count=1, upto=made_at)

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        """Read back: a removed home is gone, unless the person spoke again since."""
        states = {}
        for one in deletions:
            kind, _, key = one.id.partition(":")
            is_left = kind == "home" and self._homes.has_home(key) and self._homes.get_made_at(key) <= one.upto
            states[one.id] = one.state if kind != "home" else ErasureState.ASKED if is_left else ErasureState.CONFIRMED
        return states

    async def health(self) -> ProviderHealth:
        unknown = self._stored_count - self._confirmed_count
        handed = f"{self._stored_count} sent by this process, {self._confirmed_count} confirmed, {unknown} unknown"
        problems = [host.problem for host in self._pool.list_hosts() if host.problem]
        restriction, remedy = self._isolation.describe_restriction() or ("", "")
        if restriction:
            problems.append(restriction)
        if problems:
            return ProviderHealth(healthy=False, text="; ".join((*dict.fromkeys(problems), handed)), remedy=remedy)
        return ProviderHealth(healthy=True, text=f"unacknowledged: {handed}")

    async def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        await self._isolation.close()
        await self._pool.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        """Return a signature that changes with the plug-in's own files and with its description of itself."""
        files = _compute_digest(self._changed_files) if self._changed_files else ""
        return {
            "hermes-plugin.card": _compute_digest(self._published_description),
            "hermes-plugin.files": files,
            "hermes-plugin.leaks": str(self._isolation.leaks),
        }

    async def run_tool(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        session = self._session_names.get(context.session, context.session)
        try:
            place = await self._open_place(session, context.session, context.stamp, people=(context.stamp.person,))
            text = await self._call_plugin(place, "tool", name=name, arguments=arguments)
        except Refused as error:
            return ToolResult(text=error.message, error=True)
        return ToolResult(text=str(text)[:MAX_RECALL_CHARS], error=_is_error(text))

    # -- homes and hosts -----------------------------------------------------------------------------------------------

    async def _open_place(self, name: str, session: str, stamp: Stamp, *, people: Iterable[str] = ()) -> PluginPlace:
        """Return the place of a conversation. Raises Refused if the plug-in does not serve the people there.

        `people` are those whose words will be sent there.
        """
        if session:
            self._session_names[session] = name
        home = self._homes.choose_home(stamp)
        await self._isolation.check_served(home, seconds=self.deadline / 2)
        if people:
            self._homes.record_people(home, (it for it in people if it), at=self._context.clock.now())
        return PluginPlace(home=home, name=name, identity=self._record_identity(home, name, stamp))

    async def _find_place(self, scope: MemoryScope, name: str) -> PluginPlace | None:
        """Return the place of a conversation that is already known, if the plug-in serves the people there."""
        stamp = Stamp(person=scope.person, audience=scope.audience)
        user = build_identity(stamp, agent=scope.agent).get("user_id", "")
        identity = self._identities.get(f"{name} {user}")
        if identity is None:
            return None
        home = self._homes.choose_home(stamp)
        try:
            await self._isolation.check_served(home, seconds=self.deadline / 2)
        except Refused:
            return None
        return PluginPlace(home=home, name=scope.name, identity=identity)

    @contextlib.asynccontextmanager
    async def _use_host(self, home: PluginHome) -> AsyncIterator[HermesHostProcess]:
        """Use the started host of a home that may be served."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self.deadline / 2):
                    host = await stack.enter_async_context(self._pool.borrow(home.path))
            except TimeoutError:
                raise Transient(f"all {self._settings.most_processes} of its processes are busy") from None
            is_new = not host.is_running
            if is_new and home.is_seeded:
                self._homes.prepare(home.path)
            await host.start()
            self._isolation.record_code(str(host.description.get("code", "")))
            if is_new:  # a plug-in that was changed meanwhile must be tested again
                await self._isolation.check_served(home, seconds=self.deadline / 2)
            self._update_description(host)
            yield host

    async def _call_plugin(self, place: PluginPlace, method: str, /, **params: Any) -> Any:
        async with self._use_host(place.home) as host:
            return await self._call_host(host, place, method, **params)

    async def _call_host(self, host: HermesHostProcess, place: PluginPlace, method: str, /, **params: Any) -> Any:
        return await host.call(method, deadline=self.deadline, session=place.name, identity=place.identity, **params)

    def _create_host(self, home: Path) -> HermesHostProcess:
        return create_host(
            self._settings,
            self._context,
            home=home,
            watched=() if home == self._homes.configured else tuple(self._homes.list_seed_files()),
            changed=lambda files: self._on_config_changed(home, files),
        )

    def _on_config_changed(self, home: Path, files: str) -> None:
        self._changed_files[str(home)] = files

    # -- the plug-in's description of itself ---------------------------------------------------------------------------

    def _list_plugin_names(self) -> set[str]:
        """Return the names that its files of settings may have."""
        return {name for name in (Path(self._settings.path).stem, str(self._description.get("name", ""))) if name}

    def _update_description(self, host: HermesHostProcess) -> None:
        """Save what the plug-in reports about itself for the next time an agent is built with it."""
        card = dict(host.description)
        known = {name: value for name, value in self._description.items() if name != "prompt"}
        if card and known != card:
            self._description = card  # without a prompt block, which is learned again
            write_json(self._description_file, card)

    async def _learn_prompt(self, *, seconds: float) -> None:
        """Find out the prompt block, if it is not known. Wait for it only for a short time."""
        if "prompt" in self._description:
            return
        if self._learning is None or self._learning.done():
            self._learning = asyncio.get_running_loop().create_task(self._ask_prompt())
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._learning)
        except TimeoutError:
            # The test whether it keeps people apart takes longer. The hooks and tools are needed meanwhile.
            self._published_description = self._description

    async def _ask_prompt(self) -> None:
        """Ask for the prompt block in an empty home, because it is shown to everybody who talks to the agent. A plug-in
        that shows one person's words to others has none.
        """
        prompt: str | None = ""
        try:
            if "system_prompt_block" in self._description.get("hooks", ()):
                if self._settings.serves != "everybody":
                    await self._isolation.find_result(seconds=MAX_CANARY_SECONDS)
                prompt = None if self._isolation.leaks else await self._read_prompt()
        except (Transient, InDoubt) as error:
            self._context.log.debug("memory.hook_failed", hook="system_prompt_block", error=str(error))
            self._published_description = self._description
            return
        except Refused as error:
            self._context.log.warning("memory.hook_failed", hook="system_prompt_block", error=str(error))
        self._description = {**self._description, "prompt": prompt or ""}
        self._published_description = self._description
        write_json(self._description_file, self._description)

    async def _read_prompt(self) -> str:
        home = self._homes.make_throwaway()
        try:
            async with self._pool.borrow(home) as host:
                self._homes.prepare(home)
                who = {"agent_identity": self._context.agent, "agent_workspace": "hermes"}
                params: dict[str, Any] = {"session": PROMPT_SESSION, "identity": who}
                return str(await host.call("prompt", deadline=self.deadline, **params))
        finally:
            await self._pool.close_home(home)
            shutil.rmtree(home, ignore_errors=True)

    def _list_tool_specs(self) -> list[ToolSpec]:
        found = self._description.get("tools", ())
        chosen = [it for it in found if self._settings.tools is None or it["name"] in self._settings.tools]
        if len(chosen) > self._settings.most_tools:
            left = len(chosen) - self._settings.most_tools
            self._context.log.warning("memory.tools_loaded", offered=len(chosen), left_out=left)
        return [
            ToolSpec(
                name=it["name"], description=it["description"][:2_000], parameters=it["parameters"] or _NO_PARAMETERS
            )
            for it in chosen[: self._settings.most_tools]
        ]

    def _record_identity(self, home: PluginHome, name: str, stamp: Stamp) -> dict[str, str]:
        """Return the identity keywords of a conversation, as they were when the conversation was first seen."""
        names_itself = home.is_owner and is_at_terminal(stamp)
        who = build_identity(stamp, agent=self._context.agent, name=name, names_itself=names_itself)
        place = f"{name} {who.get('user_id', '')}"
        if place not in self._identities:
            if len(self._identities) >= MAX_IDENTITIES:
                self._identities.pop(next(iter(self._identities)))
            self._identities[place] = who
            write_json(self._identities_file, self._identities)
        return self._identities[place]

    def _drop_identities(self, person: str) -> None:
        self._identities = {place: who for place, who in self._identities.items() if who.get("user_id") != person}
        write_json(self._identities_file, self._identities)

    def _find_session_of(self, person: str) -> str:
        """Return the latest conversation of a person."""
        met = (place for place, who in reversed(self._identities.items()) if who.get("user_id") == person)
        return next(met, "").rpartition(" ")[0]


def resolve_path(path: str) -> str:
    """Return a path relative to our working directory as an absolute one, because the host has another working
    directory.
    """
    found = Path(path).expanduser()
    return str(found.absolute()) if Path(path).name != path and found.exists() else path


def find_configured_home(settings: HermesSettings) -> Path | None:
    return Path(settings.hermes_home).expanduser().absolute() if settings.hermes_home else None


def create_host(
    settings: HermesSettings,
    context: PluginContext,
    *,
    home: Path,
    changed: Callable[[str], None],
    watched: tuple[Path, ...] = (),
) -> HermesHostProcess:
    passed = {name: os.environ[name] for name in settings.environ_from if name in os.environ}
    given = {name: it if isinstance(it, str) else it.reveal() for name, it in settings.environ.items()}
    return HermesHostProcess(
        what=find_code(settings),
        python=os.path.expanduser(settings.python),
        home=home.absolute(),
        environ={**passed, **given},
        log=context.log,
        clock=context.clock,
        changed=changed,
        patience=settings.deadline_seconds / 2,
        watched=watched,
        secrets=(
            *(it for it in settings.environ.values() if isinstance(it, SecretString)),
            *(SecretString(value) for value in passed.values()),
        ),
        children=ChildProcesses(Path(context.home or context.directory)),
        policy=ChildPolicy(
            sandbox=SandboxKind(settings.sandbox),
            network=settings.network,
            read_paths=_expand_paths(settings.read_paths),
            write_paths=_expand_paths(settings.write_paths),
            limits=ChildLimits(memory_bytes=settings.max_memory_bytes, cpu_seconds=settings.max_cpu_seconds),
        ),
    )


def _expand_paths(paths: Iterable[str]) -> tuple[Path, ...]:
    return tuple(Path(path).expanduser().absolute() for path in paths)


def find_code(settings: HermesSettings) -> str:
    """Return the plug-in's path, also if it is named by a directory in the configured home's `plugins`, because other
    people's homes have no plug-ins.
    """
    path, home = resolve_path(settings.path), find_configured_home(settings)
    named = home / "plugins" / path if home is not None else None
    return str(named) if named is not None and (named.is_file() or (named / "__init__.py").exists()) else path


class HermesTool:
    """One of a plug-in's tools. It is unknown what running it twice would do."""

    effect = ToolEffect.ONCE

    def __init__(self, plugin: HermesMemory, spec: ToolSpec) -> None:
        self.spec = spec
        self.deadline = plugin.deadline
        self._plugin = plugin

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return await self._plugin.run_tool(self.spec.name, arguments, context)

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


_DELEGATION_HOOK: Final = "on_delegation"
PROMPT_SESSION: Final = "everhold-prompt-block"
"""The session in which the prompt block is asked for. It belongs to nobody."""
MAX_CANARY_SECONDS: Final = 300.0
"""How long the prompt block waits for the canary."""
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}


def _format_utterance(heard: MemoryUtterance, *, alone: bool) -> str:
    """Return an utterance, with its author in a group chat, because a plug-in knows only one user."""
    return heard.text if alone else f"{heard.author.removeprefix('person:')}: {prefix_lines(heard.text)}"


def _is_error(text: object) -> bool:
    try:
        found = json.loads(str(text))
    except ValueError:
        return False
    return isinstance(found, dict) and "error" in found


def _compute_digest(card: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(card, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _list_people(item: Exchange | MemoryNote | JobResult) -> list[str]:
    """Return the people whose words an item contains."""
    authors = [it.author for it in item.heard] if isinstance(item, Exchange) else []
    spoke = [it.removeprefix("person:") for it in authors if it.startswith("person:")]
    return list(dict.fromkeys((*spoke, item.stamp.person)))
