"""Keeps one plug-in provider per conversation, and calls its hooks with the arguments that their signatures accept."""

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
"""Maximum number of conversations with a provider. The least recently used provider is shut down first."""
THREAD_WAIT_SECONDS = 5.0
"""How long to wait for the threads of a call that has returned."""
STARTUP_WAIT_SECONDS = 20.0
"""How long to wait while a plug-in initialises, because some plug-ins lose what they receive before they are ready."""
QUEUE_FILES = ("/queue.py", "concurrent/futures/thread.py")
EVENT_LOOP_FILES = ("/selectors.py", "asyncio/base_events.py")
IDLE_SAMPLES = 3
"""How often in a row a thread must be seen waiting at a queue to count as idle, because it may not have noticed a new
item yet.
"""
TOOL_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The tool names that every model vendor accepts."""
OWN_THREAD_PREFIX = "everhold-"
"""The prefix of the names of the host's own threads."""
MAX_MESSAGES = 200
"""Messages of a conversation that are kept for the hooks that receive them."""


def call_with_accepted_arguments(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method with the arguments it accepts. Texts are passed by position, because plug-ins name them
    differently.
    """
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
    """Whether a plug-in overrides this hook. The base class has every hook and does nothing in it."""
    own = getattr(type(provider), hook, None)
    return own is not None and own is not getattr(HermesMemoryProvider, hook)


class PluginThreads:
    """Waits for the threads in which a plug-in continues after its call has returned, unless they never end.

    A thread that waits at a queue has finished its work. It is waited for again after the next call.
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
            since = now if _is_importing(frame) else since  # it has not begun its work yet
            # an event loop may run for ever
            patience = (
                THREAD_WAIT_SECONDS
                if ident in self._queued or _is_waiting_in(frame, EVENT_LOOP_FILES)
                else self.wait_seconds
            )
            if now - since > patience or now - began > self._max_wait_seconds:
                if ident not in self._queued:  # a thread that does not end is not waited for again
                    (self._queued if since == now else self._endless).add(ident)
                return
            thread.join(0.01)


def _is_waiting_in(frame: types.FrameType | None, where: tuple[str, ...]) -> bool:
    """Whether a thread is in one of these files, ignoring the frames of the threading module."""
    while frame is not None and frame.f_code.co_filename.endswith("threading.py") and frame.f_back is not None:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(where)


def _is_importing(frame: types.FrameType | None) -> bool:
    """Whether a thread is executing an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class ConversationProvider:
    """The provider of one conversation."""

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
        """End a part of the conversation; another part may begin."""
        said, self.messages = self.messages, []
        self.call_hook("on_session_end", said)

    def shut_down(self) -> None:
        """End the conversation in this process."""
        try:
            self.end_session()
        finally:
            self.call_hook("shutdown")


class ConversationProviders:
    def __init__(self, make: Callable[[], Any], home: str, most: float) -> None:
        """`most` limits how long any call waits for threads, because the caller has a deadline."""
        self._make_provider = make
        self._max_wait_seconds = most
        self._home = home
        self._providers: OrderedDict[tuple[str, str], ConversationProvider] = OrderedDict()
        self._provider_locks: dict[tuple[str, str], threading.Lock] = {}
        self._lock = threading.Lock()

    def get_provider(self, session: str, identity: dict[str, Any]) -> ConversationProvider:
        """Return the provider of a user in a conversation, and initialise it on first use.

        A recall and a delivery may call at the same time. The second one waits until the provider is ready.
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
        """Insert a provider as the most recently used one; return the providers that must be shut down for it."""
        removed = []
        with self._lock:
            self._providers[place] = conversation
            self._providers.move_to_end(place)
            while len(self._providers) > MAX_PROVIDERS:
                left, other = self._providers.popitem(last=False)
                self._provider_locks.pop(left, None)
                removed.append(other)
        return removed

    def shut_down_all(self) -> list[str]:
        """Shut down all providers and return their errors."""
        problems = []
        while self._providers:
            (session, _), conversation = self._providers.popitem()
            try:
                conversation.shut_down()
            # an error of one provider does not stop the shutdown of the others
            except Exception as error:
                problems.append(f"{session}: {type(error).__name__}: {error}")
        return problems


def normalize_tool_schemas(found: Any) -> list[dict[str, Any]]:
    """Convert tool schemas, flat or wrapped, to one form, without those that no model accepts."""
    tools = []
    for schema in found or ():
        inner = schema.get("function", schema) if isinstance(schema, dict) else {}
        name = inner.get("name") if isinstance(inner, dict) else None
        if isinstance(name, str) and name:
            parameters = inner.get("parameters") or inner.get("input_schema") or {}
            if not TOOL_NAME_PATTERN.fullmatch(name) or not isinstance(parameters, dict):
                # a model vendor would refuse every request that contains it
                sys.stderr.write(f"the tool {name[:80]!r} cannot be offered: its name or its parameters are invalid\n")
                continue
            tools.append(
                {
                    "name": inner["name"],
                    "description": str(inner.get("description") or ""),
                    "parameters": json.loads(json.dumps(parameters, default=str)),
                }
            )
    return tools
