"""A memory plug-in of hermes-agent as a provider, running in its own process.

Such a plug-in never confirms that something was stored; its calls just return. So delivered items stay available for a
resend, and this provider reports only what it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Stamp
from everhold.errors import InDoubt, Refused, Transient
from everhold.hermes.memory.host import HermesHostProcess
from everhold.hermes.memory.identity import build_identity
from everhold.hermes.memory.readback import build_readback_query, is_evidence_shown
from everhold.ports.memory import (
    SEEN_REMOTE_ID,
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    MemoryScope,
    MemoryUtterance,
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
        self._changed_files = ""
        self._host = create_host(settings, context, changed=self._on_config_changed)
        self._description: dict[str, Any] = _read_json(self._description_file)
        self._identities: dict[str, dict[str, str]] = _read_json(self._identities_file)
        """Conversation and user -> the keywords for `initialize`, from the stamp of what was said."""
        self._latest_identity = {place.rpartition(" ")[0]: place for place in self._identities}
        self._session_names: dict[str, str] = {}
        self._stored_count = self._confirmed_count = 0
        self._failed_checks = 0
        """Readback searches in a row that failed."""
        self._failed_check_at = 0.0
        """When the last of them failed."""
        self._check_lock = asyncio.Lock()
        self._unsearchable_since: float | None = None
        self._capabilities = {MemoryCapability.HEALTH, MemoryCapability.CLOSE, MemoryCapability.SIGNATURE}
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
        return self._host.pid

    # -- store and find ------------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        for item in batch.items:
            if isinstance(item, Exchange):
                who = self._record_identity(batch.name, item.session, item.stamp)
                await self._send_exchange(batch.name, who, item)
            elif isinstance(item, MemoryNote):
                who = self._record_identity(batch.name, item.session, item.stamp)
                replaced = batch.replaced.get(item.supersedes) or batch.replaced.get(item.fact, "")
                await self._send_note(batch.name, who, item, replaced=replaced)
            self._stored_count += 1
        if batch.jobs:
            await self._host.start()
        # do not initialise a provider for results that the plug-in does not want
        for job in batch.jobs if _DELEGATION_HOOK in self._host.description.get("hooks", ()) else ():
            who = self._record_identity(batch.name, job.session, job.stamp)
            params = {"task": job.task, "result": job.result, "child": job.key}
            await self._call_plugin("job", session=batch.name, identity=who, **params)
            self._stored_count += 1
        # A `prefetch` may have been prepared for the next turn, so a readback must not consume it.
        seen = await self._check_stored(batch) if self._host.description.get("searches") == "tool" else []
        self._confirmed_count += len(seen)
        return {item.key: SEEN_REMOTE_ID if item.key in seen else "" for item in (*batch.items, *batch.jobs)}

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        """Return the keys of the items that the plug-in shows. An item that it does not show may still be stored.

        A plug-in that cannot be searched is probably unable to store, too, and many do not report that. So delivery
        waits, for as long as the search can be expected to work again.
        """
        await self._host.start()
        if not self._can_search():
            return []
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
        name = query.name or self._find_session_of(query.person)
        if not name:
            return []  # a query without a session about a person this memory does not know
        stamp = query.stamp if query.stamp.person else Stamp(person=query.person, audience=query.audience)
        who = self._record_identity(name, query.session, stamp)
        text = await self._call_plugin("prefetch", session=name, identity=who, query=query.text)
        return [MemoryHit(text=str(text)[:MAX_RECALL_CHARS], score=1.0)] if text and str(text).strip() else []

    async def _send_exchange(self, name: str, who: dict[str, str], item: Exchange) -> None:
        heard = "\n\n".join(
            _format_utterance(it, alone=len({one.author for one in item.heard}) < 2) for it in item.heard
        )
        said = "\n\n".join(it.text for it in item.said)
        if heard.strip() and said.strip():
            await self._call_plugin("turn", session=name, identity=who, user=heard, assistant=said)

    async def _send_note(self, name: str, who: dict[str, str], note: MemoryNote, *, replaced: str) -> None:
        metadata = {"session_id": name, "write_origin": "everhold", "everhold_key": note.key}
        if replaced:
            metadata["old_text"] = replaced  # the plug-in identifies its own entry only by its text
        target = "user" if note.stamp.person else "memory"
        params = {"action": note.action, "target": target, "content": note.text, "metadata": metadata}
        await self._call_plugin("write", session=name, identity=who, **params)

    def _can_search(self) -> bool:
        return bool(self._settings.read_back and self._host.description.get("searches"))

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
            who = self._record_identity(batch.name, item.session, item.stamp)
            # one search at a time, because several sessions may be delivered or resent at once
            async with asyncio.timeout(min(CHECK_SECONDS, left)), self._check_lock:
                found = await self._host.call(
                    "look", deadline=self.deadline, session=batch.name, identity=who, query=asked.words
                )
            if is_evidence_shown(asked, found):
                seen.append(item.key)

    # -- other capabilities --------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return [HermesTool(self, spec) for spec in self._list_tool_specs()]

    def prompt(self) -> str:
        return str(self._description.get("prompt", ""))

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        who = self._find_identity(scope.name)
        if who is None:
            return ""
        messages = [
            {"role": "assistant" if it.author.startswith("agent:") else "user", "content": it.text} for it in view
        ]
        return str(await self._call_plugin("compress", session=scope.name, identity=who, messages=messages) or "")

    async def session_switched(self, switch: SessionSwitch) -> None:
        who = self._find_identity(switch.after.name)
        if who is None and switch.how == "branch":
            who = self._find_identity(
                switch.before.name
            )  # in the same chat; in another chat the identity is not known yet
        if who is not None and self._host.is_running:
            ends = switch.how in ("new", "compression")
            params = {"parent": switch.before.name, "reset": switch.how == "new", "ends": ends}
            await self._call_plugin("switch", session=switch.after.name, identity=who, **params)

    async def health(self) -> ProviderHealth:
        unknown = self._stored_count - self._confirmed_count
        handed = f"{self._stored_count} sent by this process, {self._confirmed_count} confirmed, {unknown} unknown"
        if self._host.problem:
            return ProviderHealth(well=False, text=f"{self._host.problem}; {handed}")
        return ProviderHealth(well=True, text=f"unacknowledged: {handed}")

    async def close(self) -> None:
        await self._host.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        """Return a signature that changes with the plug-in's own files and with its description of itself."""
        return {"hermes-plugin.card": _compute_digest(self._description), "hermes-plugin.files": self._changed_files}

    async def run_tool(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        session = self._session_names.get(context.session, context.session)
        who = self._record_identity(session, context.session, context.stamp)
        try:
            text = await self._call_plugin("tool", session=session, identity=who, name=name, arguments=arguments)
        except Refused as error:
            return ToolResult(text=error.message, error=True)
        return ToolResult(text=str(text)[:MAX_RECALL_CHARS], error=_is_error(text))

    # -- internals -----------------------------------------------------------------------------------------------------

    async def _call_plugin(self, method: str, /, **params: Any) -> Any:
        await self._host.start()
        await self._update_description(params)
        return await self._host.call(method, deadline=self.deadline, **params)

    async def _update_description(self, params: dict[str, Any]) -> None:
        """Save what the plug-in reports about itself for the next time an agent is built with it."""
        card = dict(self._host.description)
        if not card or {**self._description, "prompt": ""} == {**card, "prompt": ""}:
            return
        with contextlib.suppress(Refused, InDoubt):
            session, who = params.get("session", ""), params.get("identity", {})
            card["prompt"] = await self._host.call("prompt", deadline=self.deadline, session=session, identity=who)
        self._description = card
        _write_json(self._description_file, card)

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

    def _record_identity(self, name: str, session: str, stamp: Stamp) -> dict[str, str]:
        """Return the identity keywords of a conversation, as they were when the conversation was first seen."""
        self._session_names[session] = name
        who = build_identity(stamp, agent=self._context.agent)
        place = f"{name} {who.get('user_id', '')}"
        if place not in self._identities:
            if len(self._identities) >= MAX_IDENTITIES:
                self._identities.pop(next(iter(self._identities)))
            self._identities[place] = who
            self._latest_identity[name] = place
            _write_json(self._identities_file, self._identities)
        return self._identities[place]

    def _find_identity(self, name: str) -> dict[str, str] | None:
        """Return the identity of the last speaker in a conversation."""
        return self._identities.get(self._latest_identity.get(name, ""))

    def _find_session_of(self, person: str) -> str:
        """Return the latest conversation of a person."""
        met = (place for place, who in reversed(self._identities.items()) if who.get("user_id") == person)
        return next(met, "").rpartition(" ")[0]

    def _on_config_changed(self, files: str) -> None:
        self._changed_files = files


def resolve_path(path: str) -> str:
    """Return a path relative to our working directory as an absolute one, because the host has another working
    directory.
    """
    found = Path(path).expanduser()
    return str(found.absolute()) if Path(path).name != path and found.exists() else path


def create_host(
    settings: HermesSettings, context: PluginContext, *, changed: Callable[[str], None]
) -> HermesHostProcess:
    home = Path(settings.hermes_home).expanduser() if settings.hermes_home else Path(context.directory) / "hermes"
    passed = {name: os.environ[name] for name in settings.environ_from if name in os.environ}
    given = {name: it if isinstance(it, str) else it.reveal() for name, it in settings.environ.items()}
    return HermesHostProcess(
        what=resolve_path(settings.path),
        python=os.path.expanduser(settings.python),
        home=home.absolute(),
        environ={**passed, **given},
        log=context.log,
        clock=context.clock,
        changed=changed,
        patience=settings.deadline_seconds / 2,
    )


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
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}


def _format_utterance(heard: MemoryUtterance, *, alone: bool) -> str:
    """Return an utterance, with its author in a group chat, because a plug-in knows only one user."""
    return heard.text if alone else f"{heard.author.removeprefix('person:')}: {heard.text}"


def _is_error(text: object) -> bool:
    try:
        found = json.loads(str(text))
    except ValueError:
        return False
    return isinstance(found, dict) and "error" in found


def _compute_digest(card: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(card, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file that may be lost, because its content can be determined again."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(value, sort_keys=True))
        scratch.chmod(0o600)
        scratch.replace(path)
    except OSError:
        return
