"""One provider for each conversation, asked in the way its own signatures want to be asked."""

from __future__ import annotations

import inspect
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .offered import MemoryProvider

MOST_SEATS = 64
"""Conversations whose providers are kept at the same time; the one that was silent longest goes first."""
LINGER_SECONDS = 5.0
"""How long somebody waits for the threads of a call that has returned."""
OURS = "everhold-"
"""How the names of the host's own threads begin."""
MOST_MESSAGES = 200
"""What of a conversation is remembered for the hooks that want to see it."""


def call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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


class Threads:
    """What a plug-in goes on doing after its call has returned: it is waited for, unless it never ends."""

    def __init__(self) -> None:
        self._workers: set[int] = set()
        self._before: set[int] = set()

    def __enter__(self) -> Threads:
        self._before = {thread.ident or 0 for thread in threading.enumerate()}
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + LINGER_SECONDS
        for thread in threading.enumerate():
            ident = thread.ident or 0
            if ident in self._before or ident in self._workers or thread.name.startswith(OURS):
                continue
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self._workers.add(ident)  # one that works for ever: nobody waits for it again


class Seat:
    """One conversation's provider."""

    def __init__(self, provider: Any, session: str) -> None:
        self.provider = provider
        self.session = session
        self.turns = 0
        self.threads = Threads()
        self.messages: list[dict[str, Any]] = []

    def has(self, hook: str) -> bool:
        return callable(getattr(self.provider, hook, None))

    def ask(self, hook: str, *args: Any, **kwargs: Any) -> Any:
        return call(getattr(self.provider, hook), *args, **kwargs) if self.has(hook) else None

    def listens_to_notes(self) -> bool:
        """Whether the plug-in has something of its own to do when a note is written."""
        own = getattr(type(self.provider), "on_memory_write", None)
        return own is not None and own is not MemoryProvider.on_memory_write

    def begin(self, text: str) -> None:
        self.turns += 1
        self.ask("on_turn_start", self.turns, text)

    def turn(self, user: str, assistant: str) -> None:
        said = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        self.messages = [*self.messages, *said][-MOST_MESSAGES:]
        with self.threads:
            self.ask("sync_turn", user, assistant, session_id=self.session, messages=list(self.messages))
        self.ask("queue_prefetch", user, session_id=self.session)

    def leave(self) -> None:
        """Its conversation is over as far as this process is concerned."""
        try:
            self.ask("on_session_end", list(self.messages))
        finally:
            self.ask("shutdown")


class Seats:
    def __init__(self, make: Callable[[], Any], home: str) -> None:
        self._make = make
        self._home = home
        self._seats: OrderedDict[tuple[str, str], Seat] = OrderedDict()

    def take(self, session: str, identity: dict[str, Any]) -> Seat:
        """The seat of somebody in a conversation; its provider is initialised when it is first needed."""
        place = (session, str(identity.get("user_id", "")))
        seat = self._seats.get(place)
        if seat is None:
            seat = Seat(self._make(), session)
            kwargs = {"hermes_home": self._home, "agent_context": "primary", "platform": "cli", **identity}
            with seat.threads:  # what is said while a plug-in is still getting ready is lost in some of them
                seat.ask("initialize", session, **kwargs)
            self._seats[place] = seat
            while len(self._seats) > MOST_SEATS:
                self._seats.popitem(last=False)[1].leave()
        self._seats.move_to_end(place)
        return seat

    def leave(self) -> list[str]:
        """Everybody goes; what went wrong on the way out."""
        problems = []
        while self._seats:
            (session, _), seat = self._seats.popitem()
            try:
                seat.leave()
            # whatever one of them raises, the others get to leave as well
            except Exception as error:
                problems.append(f"{session}: {type(error).__name__}: {error}")
        return problems


def schemas(found: Any) -> list[dict[str, Any]]:
    """Tool schemas in one form: flat ones, wrapped ones, and without what has no name."""
    tools = []
    for schema in found or ():
        inner = schema.get("function", schema) if isinstance(schema, dict) else {}
        if isinstance(inner, dict) and isinstance(inner.get("name"), str) and inner["name"]:
            parameters = inner.get("parameters") or inner.get("input_schema") or {}
            tools.append(
                {
                    "name": inner["name"],
                    "description": str(inner.get("description") or ""),
                    "parameters": json.loads(json.dumps(parameters, default=str)),
                }
            )
    return tools
