"""A memory plug-in of hermes-agent as a provider: the log in front of it, its process beside ours.

Such a plug-in never says that something was kept; its calls just return. So what is handed over stays replayable, and
nothing here claims more than it knows.
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
from everhold.memories.hermes.host import Host
from everhold.memories.hermes.identity import identity
from everhold.memories.hermes.readback import question, shows
from everhold.ports.memory import (
    SEEN,
    Batch,
    Capability,
    Exchange,
    Found,
    Health,
    Note,
    Query,
    Retraction,
    Scope,
    Switch,
    Utterance,
)
from everhold.ports.model import ToolSpec
from everhold.ports.platform import Delivery
from everhold.ports.plugin import Context
from everhold.ports.tool import Effect, Result, Tool, ToolContext

if TYPE_CHECKING:
    from everhold.memories.hermes.settings import HermesSettings

MOST_KNOWN: Final = 5_000
LOOK_SECONDS: Final = 5.0
"""How long a look at what became of something may take."""
MOST_VAIN: Final = 3
"""Looks in a row that may fail before nobody looks for a while."""
VAIN_SECONDS: Final = 60.0
"""That while."""
BLIND_SECONDS: Final = 600.0
"""How long one that cannot be searched is waited for before it is handed again what it may have."""
LONGEST: Final = 8_000
"""Characters of what a plug-in recalls."""


class HermesPlugin:
    delivery = Delivery.UNACKNOWLEDGED
    visible_after = 0.0

    def __init__(self, settings: HermesSettings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self.deadline = settings.deadline_seconds
        directory = Path(context.directory)
        self._card_file = directory / "card.json"
        self._known_file = directory / "sessions.json"
        self._files = ""
        self._host = host_of(settings, context, changed=self._changed)
        self._card: dict[str, Any] = _read(self._card_file)
        self._known: dict[str, dict[str, str]] = _read(self._known_file)
        """A conversation and who talks -> what `initialize` wants to know, as it was stamped on what was said."""
        self._latest = {place.rpartition(" ")[0]: place for place in self._known}
        self._names: dict[str, str] = {}
        self._handed = self._seen = 0
        self._vain = 0
        """Looks in a row that failed."""
        self._vain_at = 0.0
        """When the last of them did."""
        self._looks = asyncio.Lock()
        self._blind_since: float | None = None
        self._capabilities = {Capability.HEALTH, Capability.CLOSE, Capability.SIGNATURE}
        hooks = self._card.get("hooks", ())
        if self._offered():
            self._capabilities.add(Capability.TOOLS)
        if "on_pre_compress" in hooks:
            self._capabilities.add(Capability.BEFORE_COMPRESS)
        if self._card.get("searches") and settings.read_back:
            self._capabilities.add(Capability.PROBE)
        if "on_session_switch" in hooks:
            self._capabilities.add(Capability.SESSION_SWITCHED)
        if _OVERSEES in hooks or not self._card:  # one that was never seen may have it
            self._capabilities.add(Capability.JOBS)
        if self._card.get("prompt"):
            self._capabilities.add(Capability.PROMPT)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(self._capabilities)

    @property
    def pid(self) -> int | None:
        return self._host.pid

    # -- store and find ------------------------------------------------------------------------------------------------

    async def store(self, batch: Batch) -> Mapping[str, str]:
        for item in batch.items:
            if isinstance(item, Exchange):
                who = self._meet(batch.name, item.session, item.stamp)
                await self._exchange(batch.name, who, item)
            elif isinstance(item, Note):
                who = self._meet(batch.name, item.session, item.stamp)
                replaced = batch.replaced.get(item.supersedes) or batch.replaced.get(item.fact, "")
                await self._note(batch.name, who, item, replaced=replaced)
            self._handed += 1
        if batch.jobs:
            await self._host.start()
        # nobody is made ready for what it does not want to hear
        for job in batch.jobs if _OVERSEES in self._host.card.get("hooks", ()) else ():
            who = self._meet(batch.name, job.session, job.stamp)
            told = {"task": job.task, "result": job.result, "child": job.key}
            await self._ask("job", session=batch.name, identity=who, **told)
            self._handed += 1
        # a `prefetch` may be worked out beforehand for the next turn: it is not taken away for a look
        seen = await self._glance(batch) if self._host.card.get("searches") == "tool" else []
        self._seen += len(seen)
        return {item.key: SEEN if item.key in seen else "" for item in (*batch.items, *batch.jobs)}

    async def probe(self, batch: Batch) -> Sequence[str]:
        """What it shows of it. That something is not shown says nothing.

        While it cannot be searched it is likely to be unable to keep anything, too, and many do not say so: that is
        waited out, for as long as a search may be expected to work again.
        """
        await self._host.start()
        if not self._searched():
            return []
        seen: list[str] = []
        try:
            await self._look(batch, seen)
        except (TimeoutError, Transient, Refused, InDoubt) as error:
            now = self._context.clock.monotonic()
            self._blind_since = now if self._blind_since is None else self._blind_since
            if now - self._blind_since < BLIND_SECONDS:
                raise Transient(f"it cannot be searched: {str(error) or 'no answer in time'}") from error
        else:
            self._blind_since = None
        return seen

    async def find(self, query: Query) -> Sequence[Found]:
        name = query.name or self._somewhere_of(query.person)
        if not name:
            return []  # asked from nowhere about somebody it was never told of
        stamp = query.stamp if query.stamp.person else Stamp(person=query.person, audience=query.audience)
        who = self._meet(name, query.session, stamp)
        text = await self._ask("prefetch", session=name, identity=who, query=query.text)
        return [Found(text=str(text)[:LONGEST], score=1.0)] if text and str(text).strip() else []

    async def _exchange(self, name: str, who: dict[str, str], item: Exchange) -> None:
        heard = "\n\n".join(_attributed(it, alone=len({one.author for one in item.heard}) < 2) for it in item.heard)
        said = "\n\n".join(it.text for it in item.said)
        if heard.strip() and said.strip():
            await self._ask("turn", session=name, identity=who, user=heard, assistant=said)

    async def _note(self, name: str, who: dict[str, str], note: Note, *, replaced: str) -> None:
        metadata = {"session_id": name, "write_origin": "everhold", "everhold_key": note.key}
        if replaced:
            metadata["old_text"] = replaced  # its only way to know which of its own this is about
        target = "user" if note.stamp.person else "memory"
        params = {"action": note.action, "target": target, "content": note.text, "metadata": metadata}
        await self._ask("write", session=name, identity=who, **params)

    def _searched(self) -> bool:
        return bool(self._settings.read_back and self._host.card.get("searches"))

    async def _glance(self, batch: Batch) -> list[str]:
        """A look at what it was just told. Nothing that goes wrong here matters."""
        now = self._context.clock.monotonic()
        if not self._searched() or (self._vain >= MOST_VAIN and now - self._vain_at < VAIN_SECONDS):
            return []
        seen: list[str] = []
        try:
            await self._look(batch, seen)
        except (TimeoutError, Transient, Refused, InDoubt) as error:
            self._vain += 1
            self._vain_at = self._context.clock.monotonic()
            self._context.log.debug("memory.not_read_back", error=str(error) or "it took too long")
        else:
            self._vain = 0
        return seen

    async def _look(self, batch: Batch, seen: list[str]) -> None:
        """Search it for what it was told; the keys of what it shows go to `seen`."""
        until = self._context.clock.monotonic() + min(LOOK_SECONDS * 2, self.deadline / 4)
        for item in (*batch.items, *batch.jobs):
            asked, left = question(item), until - self._context.clock.monotonic()
            if asked is None or isinstance(item, Retraction) or left <= 0:
                continue
            who = self._meet(batch.name, item.session, item.stamp)
            # one after another: several sessions may be replayed, or handed over, at once
            async with asyncio.timeout(min(LOOK_SECONDS, left)), self._looks:
                found = await self._host.ask(
                    "look", deadline=self.deadline, session=batch.name, identity=who, query=asked.words
                )
            if shows(asked, found):
                seen.append(item.key)

    # -- what else there may be ----------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return [PluginTool(self, spec) for spec in self._offered()]

    def prompt(self) -> str:
        return str(self._card.get("prompt", ""))

    async def before_compress(self, scope: Scope, view: Sequence[Utterance]) -> str:
        who = self._met(scope.name)
        if who is None:
            return ""
        messages = [
            {"role": "assistant" if it.author.startswith("agent:") else "user", "content": it.text} for it in view
        ]
        return str(await self._ask("compress", session=scope.name, identity=who, messages=messages) or "")

    async def session_switched(self, switch: Switch) -> None:
        who = self._met(switch.after.name)
        if who is None and switch.how == "branch":
            who = self._met(switch.before.name)  # in the same chat; of another one nobody knows yet where it is
        if who is not None and self._host.running:
            ends = switch.how in ("new", "fold")
            params = {"parent": switch.before.name, "reset": switch.how == "new", "ends": ends}
            await self._ask("switch", session=switch.after.name, identity=who, **params)

    async def health(self) -> Health:
        unknown = self._handed - self._seen
        handed = f"{self._handed} handed over by this process, {self._seen} seen there, {unknown} nobody knows of"
        if self._host.problem:
            return Health(well=False, text=f"{self._host.problem}; {handed}")
        return Health(well=True, text=f"unacknowledged: {handed}")

    async def close(self) -> None:
        await self._host.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        """Changes with the plug-in's own files, and with what it says about itself."""
        return {"hermes-plugin.card": _digest(self._card), "hermes-plugin.files": self._files}

    async def run_tool(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Result:
        session = self._names.get(context.session, context.session)
        who = self._meet(session, context.session, context.stamp)
        try:
            text = await self._ask("tool", session=session, identity=who, name=name, arguments=arguments)
        except Refused as error:
            return Result(text=error.message, error=True)
        return Result(text=str(text)[:LONGEST], error=_is_error(text))

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, /, **params: Any) -> Any:
        await self._host.start()
        await self._learn(params)
        return await self._host.ask(method, deadline=self.deadline, **params)

    async def _learn(self, params: dict[str, Any]) -> None:
        """What the plug-in says about itself, kept for the next time an agent is built with it."""
        card = dict(self._host.card)
        if not card or {**self._card, "prompt": ""} == {**card, "prompt": ""}:
            return
        with contextlib.suppress(Refused, InDoubt):
            session, who = params.get("session", ""), params.get("identity", {})
            card["prompt"] = await self._host.ask("prompt", deadline=self.deadline, session=session, identity=who)
        self._card = card
        _write(self._card_file, card)

    def _offered(self) -> list[ToolSpec]:
        found = self._card.get("tools", ())
        chosen = [it for it in found if self._settings.tools is None or it["name"] in self._settings.tools]
        if len(chosen) > self._settings.most_tools:
            left = len(chosen) - self._settings.most_tools
            self._context.log.warning("memory.tools", offered=len(chosen), left_out=left)
        return [
            ToolSpec(name=it["name"], description=it["description"][:2_000], parameters=it["parameters"] or _NOTHING)
            for it in chosen[: self._settings.most_tools]
        ]

    def _meet(self, name: str, session: str, stamp: Stamp) -> dict[str, str]:
        """Who and where a conversation is, as it was when it was first met."""
        self._names[session] = name
        who = identity(stamp, agent=self._context.agent)
        place = f"{name} {who.get('user_id', '')}"
        if place not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.pop(next(iter(self._known)))
            self._known[place] = who
            self._latest[name] = place
            _write(self._known_file, self._known)
        return self._known[place]

    def _met(self, name: str) -> dict[str, str] | None:
        """Whoever talked there last."""
        return self._known.get(self._latest.get(name, ""))

    def _somewhere_of(self, person: str) -> str:
        """The conversation with somebody that was met last."""
        met = (place for place, who in reversed(self._known.items()) if who.get("user_id") == person)
        return next(met, "").rpartition(" ")[0]

    def _changed(self, files: str) -> None:
        self._files = files


def meant(path: str) -> str:
    """A path that is given from here, as anybody would write it: its host works elsewhere."""
    found = Path(path).expanduser()
    return str(found.absolute()) if Path(path).name != path and found.exists() else path


def host_of(settings: HermesSettings, context: Context, *, changed: Callable[[str], None]) -> Host:
    home = Path(settings.hermes_home).expanduser() if settings.hermes_home else Path(context.directory) / "hermes"
    passed = {name: os.environ[name] for name in settings.environ_from if name in os.environ}
    given = {name: it if isinstance(it, str) else it.reveal() for name, it in settings.environ.items()}
    return Host(
        what=meant(settings.path),
        python=os.path.expanduser(settings.python),
        home=home.absolute(),
        environ={**passed, **given},
        log=context.log,
        clock=context.clock,
        changed=changed,
        patience=settings.deadline_seconds / 2,
    )


class PluginTool:
    """One of a plug-in's tools. Nobody can tell what running it twice would do."""

    effect = Effect.ONCE

    def __init__(self, plugin: HermesPlugin, spec: ToolSpec) -> None:
        self.spec = spec
        self.deadline = plugin.deadline
        self._plugin = plugin

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        return await self._plugin.run_tool(self.spec.name, arguments, context)

    async def probe(self, context: ToolContext) -> Result | None:
        return None


_OVERSEES: Final = "on_delegation"
_NOTHING: Final = {"type": "object", "properties": {}}


def _attributed(heard: Utterance, *, alone: bool) -> str:
    """In company it has to be said who speaks: a plug-in knows one user only."""
    return heard.text if alone else f"{heard.author.removeprefix('person:')}: {heard.text}"


def _is_error(text: object) -> bool:
    try:
        found = json.loads(str(text))
    except ValueError:
        return False
    return isinstance(found, dict) and "error" in found


def _digest(card: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(card, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, value: dict[str, Any]) -> None:
    """May be lost: what is in here can be learned again."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(value, sort_keys=True))
        scratch.chmod(0o600)
        scratch.replace(path)
    except OSError:
        return
