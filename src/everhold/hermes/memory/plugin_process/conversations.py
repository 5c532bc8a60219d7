"""One provider for each conversation, asked in the way its own signatures want to be asked."""

from __future__ import annotations

import inspect
import json
import re
import sys
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .hermes_modules import HermesMemoryProvider

MAX_PROVIDERS = 64
"""Conversations whose providers are kept at the same time; the one that was silent longest goes first."""
THREAD_WAIT_SECONDS = 5.0
"""How long somebody waits for the threads of a call that has returned."""
STARTUP_WAIT_SECONDS = 20.0
"""How long if a plug-in is getting ready: what is said meanwhile is lost in some of them."""
QUEUE_FILES = ("/queue.py", "concurrent/futures/thread.py")
EVENT_LOOP_FILES = ("/selectors.py", "asyncio/base_events.py")
IDLE_SAMPLES = 3
"""So often in a row somebody has to be seen at a queue: what was just put there may not have been noticed yet."""
TOOL_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every vendor takes for the name of a tool."""
OWN_THREAD_PREFIX = "everhold-"
"""How the names of the host's own threads begin."""
MAX_MESSAGES = 200
"""What of a conversation is remembered for the hooks that want to see it."""


def call_with_accepted_arguments(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call it with as much as it takes: the texts go by position, since everybody names them differently."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return method(*args, **kwargs)
    if not any(it.kind is it.VAR_KEYWORD for it in parameters):
        known = {it.name for it in parameters if it.kind in (it.KEYWORD_ONLY, it.POSITIONAL_OR_KEYWORD)}
        kwargs = {name: value for name, value in kwargs.items() if name in known}
    if not any(it.kind is it.VAR_POSITIONAL for it in parameters):
        places = [it for it in parameters if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)]
        args = args[: len(places)]
        taken = {it.name for it in places[: len(args)]}
        kwargs = {name: value for name, value in kwargs.items() if name not in taken}
    return method(*args, **kwargs)


def has_own_hook(provider: Any, hook: str) -> bool:
    """Whether a plug-in has something of its own to do there: its base has every hook, and does nothing."""
    own = getattr(type(provider), hook, None)
    return own is not None and own is not getattr(HermesMemoryProvider, hook)


class PluginThreads:
    """What a plug-in goes on doing after its call has returned: it is waited for, unless it never ends.

    One that waits at a queue has done what it was given, and is waited for again whenever it was given something.
    """

    def __init__(self, most: float) -> None:
        self._max_wait_seconds = min(most, STARTUP_WAIT_SECONDS)
        self.wait_seconds = STARTUP_WAIT_SECONDS
        self._queued: set[int] = set()
        self._endless: set[int] = set()
        self._before: set[int] = set()

    def __enter__(self) -> PluginThreads:
        self._before = {thread.ident or 0 for thread in threading.enumerate()}
        return self

    def __exit__(self, *_: object) -> None:
        began = time.monotonic()
        for thread in threading.enumerate():
            ident = thread.ident or 0
            if thread.name.startswith(OWN_THREAD_PREFIX) or ident in self._endless:
                continue
            if ident not in self._before or ident in self._queued:
                self._wait_for_thread(thread, ident, began)

    def _wait_for_thread(self, thread: threading.Thread, ident: int, began: float) -> None:
        idle, since = 0, began
        while thread.is_alive():
            frame = sys._current_frames().get(ident)
            idle = idle + 1 if _is_waiting_in(frame, QUEUE_FILES) else 0
            if idle == IDLE_SAMPLES:
                self._queued.add(ident)
                return
            now = time.monotonic()
            since = now if _is_importing(frame) else since  # it has not even begun, and will
            # a loop may turn for ever
            patience = (
                THREAD_WAIT_SECONDS
                if ident in self._queued or _is_waiting_in(frame, EVENT_LOOP_FILES)
                else self.wait_seconds
            )
            if now - since > patience or now - began > self._max_wait_seconds:
                if ident not in self._queued:  # whoever is no better than that is not waited for again
                    (self._queued if since == now else self._endless).add(ident)
                return
            thread.join(0.01)


def _is_waiting_in(frame: types.FrameType | None, where: tuple[str, ...]) -> bool:
    """Whether the innermost of what a thread is at, threading's own parts aside, is one of these files."""
    while frame is not None and frame.f_code.co_filename.endswith("threading.py") and frame.f_back is not None:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(where)


def _is_importing(frame: types.FrameType | None) -> bool:
    """Whether a thread is in the middle of an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class ConversationProvider:
    """One conversation's provider."""

    def __init__(self, provider: Any, session: str, most: float = STARTUP_WAIT_SECONDS) -> None:
        self.provider = provider
        self.session = session
        self.turns = 0
        self.threads = PluginThreads(most)
        self.messages: list[dict[str, Any]] = []

    def has_hook(self, hook: str) -> bool:
        return callable(getattr(self.provider, hook, None))

    def call_hook(self, hook: str, *args: Any, **kwargs: Any) -> Any:
        return (
            call_with_accepted_arguments(getattr(self.provider, hook), *args, **kwargs) if self.has_hook(hook) else None
        )

    def has_note_hook(self) -> bool:
        return has_own_hook(self.provider, "on_memory_write")

    def begin_turn(self, text: str) -> None:
        self.turns += 1
        self.call_hook("on_turn_start", self.turns, text)

    def sync_turn(self, user: str, assistant: str) -> None:
        said = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        self.messages = [*self.messages, *said][-MAX_MESSAGES:]
        with self.threads:
            self.call_hook("sync_turn", user, assistant, session_id=self.session, messages=list(self.messages))
        self.call_hook("queue_prefetch", user, session_id=self.session)

    def end_session(self) -> None:
        """A part of its conversation is over, and another may begin."""
        said, self.messages = self.messages, []
        self.call_hook("on_session_end", said)

    def shut_down(self) -> None:
        """Its conversation is over as far as this process is concerned."""
        try:
            self.end_session()
        finally:
            self.call_hook("shutdown")


class ConversationProviders:
    def __init__(self, make: Callable[[], Any], home: str, most: float) -> None:
        """`most` is how long any call may wait for threads: whoever asked does not wait for ever."""
        self._make_provider = make
        self._max_wait_seconds = most
        self._home = home
        self._providers: OrderedDict[tuple[str, str], ConversationProvider] = OrderedDict()
        self._provider_locks: dict[tuple[str, str], threading.Lock] = {}
        self._lock = threading.Lock()

    def get_provider(self, session: str, identity: dict[str, Any]) -> ConversationProvider:
        """The seat of somebody in a conversation; its provider is initialised when it is first needed.

        Whoever recalls and whoever hands over come at the same time: the second waits until it is ready.
        """
        place = (session, str(identity.get("user_id", "")))
        with self._lock:
            provider_lock = self._provider_locks.setdefault(place, threading.Lock())
        with provider_lock:
            conversation = self._providers.get(place)
            if conversation is None:
                conversation = ConversationProvider(self._make_provider(), session, self._max_wait_seconds)
                kwargs = {"hermes_home": self._home, "agent_context": "primary", "platform": "cli", **identity}
                with conversation.threads:
                    conversation.call_hook("initialize", session, **kwargs)
                conversation.threads.wait_seconds = THREAD_WAIT_SECONDS
            gone = self._insert_provider(place, conversation)
        for other in gone:
            other.shut_down()
        return conversation

    def _insert_provider(
        self, place: tuple[str, str], conversation: ConversationProvider
    ) -> list[ConversationProvider]:
        """Put it at the end of the row; those who have to go for it."""
        gone = []
        with self._lock:
            self._providers[place] = conversation
            self._providers.move_to_end(place)
            while len(self._providers) > MAX_PROVIDERS:
                left, other = self._providers.popitem(last=False)
                self._provider_locks.pop(left, None)
                gone.append(other)
        return gone

    def shut_down_all(self) -> list[str]:
        """Everybody goes; what went wrong on the way out."""
        problems = []
        while self._providers:
            (session, _), conversation = self._providers.popitem()
            try:
                conversation.shut_down()
            # whatever one of them raises, the others get to leave as well
            except Exception as error:
                problems.append(f"{session}: {type(error).__name__}: {error}")
        return problems


def normalize_tool_schemas(found: Any) -> list[dict[str, Any]]:
    """Tool schemas in one form: flat ones, wrapped ones, and without what no model could be offered."""
    tools = []
    for schema in found or ():
        inner = schema.get("function", schema) if isinstance(schema, dict) else {}
        name = inner.get("name") if isinstance(inner, dict) else None
        if isinstance(name, str) and name:
            parameters = inner.get("parameters") or inner.get("input_schema") or {}
            if not TOOL_NAME_PATTERN.fullmatch(name) or not isinstance(parameters, dict):
                # a model's vendor would refuse every request that offers it
                sys.stderr.write(
                    f"the tool {name[:80]!r} cannot be offered: its name or its parameters are no such thing\n"
                )
                continue
            tools.append(
                {
                    "name": inner["name"],
                    "description": str(inner.get("description") or ""),
                    "parameters": json.loads(json.dumps(parameters, default=str)),
                }
            )
    return tools
