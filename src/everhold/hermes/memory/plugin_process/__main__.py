"""The host process: reads requests from a pipe, one JSON object per line, and writes answers to another.

Plug-ins print, leave threads running and call os._exit. So the pipes are moved to other descriptors before a plug-in is
loaded. What a plug-in prints goes to stderr, which the parent process bounds.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from .settings_watch import PluginConfigWatch

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Maximum size of one answer. A longer answer is refused, so that a plug-in cannot fill the parent's memory."""
QUEUE_NAMES = {"prefetch": "ask", "tool": "ask", "prompt": "ask", "examine": "ask", "look": "look"}
"""Requests that expect an answer have their own queue, and so do readback searches. All others share one."""
WATCH_INTERVAL_SECONDS = 1.0


class HermesPluginServer:
    def __init__(self, out: int) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._queues: dict[str, queue.Queue[dict[str, Any]]] = {}
        self._providers: Any = None
        self._make: Any = None
        self._search: Any = None
        self._tools: list[dict[str, Any]] = []

    def write_message(self, thing: dict[str, Any]) -> None:
        data = json.dumps(thing, default=str).encode()
        if len(data) > MAX_ANSWER_BYTES:
            data = json.dumps({"id": thing.get("id"), "error": f"the answer has {len(data)} bytes, too many"}).encode()
        with self._lock:
            view = memoryview(data + b"\n")
            while view:
                view = view[os.write(self._out, view) :]

    def read_requests(self, source: Any) -> None:
        for line in source:
            question = json.loads(line)
            # Requests for an answer do not wait for deliveries or for readback searches.
            queue_name = QUEUE_NAMES.get(question["method"], "tell")
            if queue_name not in self._queues:
                self._queues[queue_name] = queue.Queue()
                threading.Thread(
                    target=self._serve_queue,
                    args=(self._queues[queue_name],),
                    name=f"everhold-{queue_name}",
                    daemon=True,
                ).start()
            self._queues[queue_name].put(question)

    def _serve_queue(self, questions: queue.Queue[dict[str, Any]]) -> None:
        while True:
            question = questions.get()
            try:
                result = getattr(self, f"do_{question['method']}")(**question.get("params", {}))
                self.write_message({"id": question["id"], "result": result})
            # foreign code: any error it raises is the answer
            except BaseException as error:
                if question["method"] != "look":  # a readback search may fail, so its traceback is not logged
                    sys.stderr.write(traceback.format_exc())
                self.write_message({"id": question["id"], "error": f"{type(error).__name__}: {error}"})

    # -- requests ------------------------------------------------------------------------------------------------------

    def do_load(self, what: str, home: str, patience: float, watched: list[str]) -> dict[str, Any]:
        from .conversations import (
            ConversationProviders,
            call_with_accepted_arguments,
            has_own_hook,
            normalize_tool_schemas,
        )
        from .discovery import find_plugin
        from .known_searches import KNOWN_SEARCHES
        from .search import find_search

        plugin = find_plugin(what)
        self._make = plugin.make
        self._providers = ConversationProviders(self._make, home, patience)
        sample = self._make()
        name = getattr(sample, "name", "") or type(sample).__name__
        available = bool(sample.is_available()) if callable(getattr(sample, "is_available", None)) else True
        threading.Thread(
            target=self._watch_config, args=(Path(home), watched, sample), name="everhold-watch", daemon=True
        ).start()
        tools = normalize_tool_schemas(
            call_with_accepted_arguments(sample.get_tool_schemas) if hasattr(sample, "get_tool_schemas") else ()
        )
        self._tools = tools
        by, self._search = find_search(sample, tools)
        if by == "tool":
            self._search = KNOWN_SEARCHES.get(str(name), self._search)
        return {
            "name": str(name),
            "available": available,
            "tools": tools,
            "searches": by,
            "hooks": sorted(
                hook
                for hook in ("on_pre_compress", "on_session_switch", "on_memory_write", "prefetch", "handle_tool_call")
                if callable(getattr(sample, hook, None))
            )
            + [hook for hook in ("on_delegation", "system_prompt_block") if has_own_hook(sample, hook)],
            "code": plugin.compute_code_digest(),
            "signature": self._read_signature(sample),
            "settings": sample.get_config_schema() if callable(getattr(sample, "get_config_schema", None)) else [],
        }

    def do_prompt(self, session: str, identity: dict[str, Any]) -> str:
        return str(self._providers.get_provider(session, identity).call_hook("system_prompt_block") or "")

    def do_turn(self, session: str, identity: dict[str, Any], user: str, assistant: str) -> None:
        self._providers.get_provider(session, identity).sync_turn(user, assistant)

    def do_write(
        self, session: str, identity: dict[str, Any], action: str, target: str, content: str, metadata: dict[str, Any]
    ) -> bool:
        conversation = self._providers.get_provider(session, identity)
        if conversation.has_note_hook():
            with conversation.threads:
                conversation.call_hook("on_memory_write", action, target, content, metadata=metadata)
            return True
        # a plug-in without a hook for notes receives the note as a turn
        conversation.sync_turn(f"Please remember: {content}", "I will.")
        return False

    def do_job(self, session: str, identity: dict[str, Any], task: str, result: str, child: str) -> None:
        conversation = self._providers.get_provider(session, identity)
        with conversation.threads:
            conversation.call_hook("on_delegation", task, result, child_session_id=child)

    def do_prefetch(self, session: str, identity: dict[str, Any], query: str) -> str:
        conversation = self._providers.get_provider(session, identity)
        conversation.begin_turn(query)
        return str(conversation.call_hook("prefetch", query, session_id=session) or "")

    def do_look(self, session: str, identity: dict[str, Any], query: str) -> list[str]:
        """Return the texts that a search of the plug-in shows."""
        from .search import extract_texts

        return (
            extract_texts(self._search(self._providers.get_provider(session, identity), query))
            if self._search is not None
            else []
        )

    def do_examine(self, session: str, identity: dict[str, Any], query: str, word: str) -> list[str]:
        """Return where the plug-in shows a word to a user: recall, prompt block, reading tools."""
        from .examination import examine_conversation

        return examine_conversation(self._providers.get_provider(session, identity), self._tools, query, word)

    def do_tool(self, session: str, identity: dict[str, Any], name: str, arguments: dict[str, Any]) -> str:
        found = self._providers.get_provider(session, identity).call_hook("handle_tool_call", name, arguments)
        return found if isinstance(found, str) else json.dumps(found, default=str)

    def do_compress(self, session: str, identity: dict[str, Any], messages: list[dict[str, Any]]) -> str:
        return str(self._providers.get_provider(session, identity).call_hook("on_pre_compress", messages) or "")

    def do_switch(self, session: str, identity: dict[str, Any], parent: str, reset: bool, ends: bool) -> None:
        conversation = self._providers.get_provider(session, identity)
        if ends and conversation.messages:
            with conversation.threads:
                conversation.end_session()
        conversation.call_hook("on_session_switch", session, parent_session_id=parent, reset=reset)

    def do_save(self, values: dict[str, Any], home: str) -> bool:
        from .hermes_modules import HermesMemoryProvider

        made = self._make()
        own = getattr(type(made), "save_config", None)
        if own is None or own is HermesMemoryProvider.save_config:
            return False
        made.save_config(values, home)
        return True

    def do_close(self) -> list[str]:
        return self._providers.shut_down_all() if self._providers is not None else []

    # -- notifications -------------------------------------------------------------------------------------------------

    def _read_signature(self, sample: Any) -> str:
        for hook in ("cache_busting_signature", "identity_signature"):
            if callable(getattr(sample, hook, None)):
                try:
                    return json.dumps(getattr(sample, hook)(), sort_keys=True, default=str)
                # foreign code: an error counts as no change
                except Exception:
                    return ""
        return ""

    def _watch_config(self, home: Path, watched: list[str], sample: Any) -> None:
        """Send a notification when the plug-in's configuration or signature changed, so that the gateway rebuilds the
        memory.
        """
        watch = PluginConfigWatch()
        watch.start(home, [Path(path) for path in watched], self._read_signature(sample))
        while True:
            threading.Event().wait(WATCH_INTERVAL_SECONDS)
            if now := watch.check_changed(self._read_signature(sample)):
                self.write_message({"event": "changed", "files": now})


def main() -> None:
    source, out = os.fdopen(os.dup(0), "rb"), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    from .hermes_modules import install_modules

    install_modules()
    HermesPluginServer(out).read_requests(source)
    # The parent closed the pipe. Exit without waiting for threads of the plug-in.
    os._exit(0)


if __name__ == "__main__":
    main()
