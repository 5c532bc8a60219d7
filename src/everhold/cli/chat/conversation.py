"""A conversation with a session: sends each message exactly once, shows all committed entries, survives restarts.

The output follows the log by seq, so it continues without a gap after a gateway was killed and restarted. Each message
has an id, so a message that is sent again after a lost connection is accepted once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from everhold.cli import message
from everhold.cli.chat.terminal import ChatTerminal
from everhold.cli.client import ApiClient
from everhold.cli.reconnect import ReconnectingClient
from everhold.cli.reply_wait import ReplyWait
from everhold.errors import InvalidRequest

SHOWN_ENTRIES_AT_START: Final = 40
"""The number of last entries that are searched for the last exchange."""
HISTORY_LINES: Final = 1_000


class TerminalConversation:
    """One conversation in one terminal."""

    def __init__(self, terminal: ChatTerminal, connection: ReconnectingClient) -> None:
        self.terminal = terminal
        self.connection = connection
        self.location: dict[str, Any] = {}
        self.session = ""
        self.title = ""
        self.after = 0
        self.acknowledged = False
        """Whether the last message is known to be committed."""
        self._own: set[str] = set()
        """Ids of the messages that were typed here, which are on the screen already."""
        self._answer: ReplyWait | None = None
        self._answered = asyncio.Event()
        self._unasked: list[dict[str, Any]] = []
        """Entries that arrived before the message was confirmed; the reply may be among them."""
        self._fault: BaseException | None = None
        self._grown_text: tuple[int, str] = (0, "")
        self._following: asyncio.Task[None] | None = None

    # -- start and end -------------------------------------------------------------------------------------------------

    async def open_session(self, name: str, *, agent: str) -> list[str]:
        """Find the location of the chat, and return the person's earlier messages, for the line editor's history."""
        calls = await self.connection.open()
        self.location = await calls.find_chat_location(name, agent=agent)
        found = self.location["session"]
        if found is None:
            self.terminal.print_remark(
                f"new session with {self.location['agent']} · /help lists commands · Ctrl-D exits"
            )
            return []
        self.title = found["title"]
        title = f"“{found['title']}” · " if found["title"] else ""
        self.terminal.print_remark(f"{title}session {found['id']} · {self.location['agent']} · /help · Ctrl-D exits")
        return await self._catch_up(calls, found["id"], found["last_seq"])

    def describe_session(self) -> str:
        """Return the session's title, or its id if it has none."""
        return f"“{self.title}”" if self.title else f"session {self.session}"

    async def close(self) -> None:
        self._stop_following()
        await self.connection.close()

    async def _catch_up(self, calls: ApiClient, session: str, last: int) -> list[str]:
        said_before: list[str] = []
        exchange: list[dict[str, Any]] = []
        async for entry in calls.read_entries(session, after=max(0, last - HISTORY_LINES)):
            if entry["kind"] == "heard" and entry["body"] and entry["author"].startswith("person:"):
                said_before.append(entry["body"]["text"])
                if not entry["body"].get("command"):
                    exchange = []
            if entry["seq"] > last - SHOWN_ENTRIES_AT_START:
                exchange.append(entry)
            self.after = entry["seq"]
        for entry in exchange if self.terminal.live else ():
            self._show_entry(entry)
        self._start_following(session)
        return said_before

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send_and_wait(self, text: str) -> str:
        """Send a message, wait for the reply, and return the outcome. Cancelling the wait does not undo the message."""
        self._answer, self._unasked, self.acknowledged = None, [], False
        self._answered.clear()
        verdict = await self._send_message(message.make_message(self.location, text))
        self.acknowledged = True
        self._answer = ReplyWait(verdict["seq"])
        if verdict["session"] != self.session or self._following is None:
            self.after = verdict["seq"] - 1
            self.terminal.print_remark(f"session {verdict['session']}")
            self._start_following(verdict["session"])
        else:
            for entry in self._unasked:
                self._check_reply(self._answer, entry)
        await self._answered.wait()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return self._answer.outcome or "waiting"

    async def stop_turn(self) -> None:
        """Stop the running turn."""
        await self._send_message(message.make_message(self.location, "/stop"))

    async def _send_message(self, given: dict[str, Any]) -> dict[str, Any]:
        self._own.add(given["id"])
        return await self.connection.call(lambda calls: calls.send_message(given))

    # -- following ---------------------------------------------------------------------------------------------------

    def _start_following(self, session: str) -> None:
        self._stop_following()
        self.session = session
        self._following = asyncio.ensure_future(self._keep_following(session))
        self._following.add_done_callback(self._on_follow_ended)

    def _on_follow_ended(self, task: asyncio.Task[None]) -> None:
        """Wake up `send_and_wait` with the error, because the log is not followed any more."""
        if not task.cancelled() and task is self._following:
            self._following = None
            self._fault = task.exception()
            self._answered.set()

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def _keep_following(self, session: str) -> None:
        async for event in self.connection.follow_session(session, after=self.after):
            self._observe_event(event)

    def _observe_event(self, event: dict[str, Any]) -> None:
        if "reset" in event:
            self._grown_text = (event["reset"]["op"], "")
            return
        if "delta" in event:
            op, at, text = (event["delta"][key] for key in ("op", "at", "text"))
            before = self._grown_text[1] if self._grown_text[0] == op else ""
            self._grown_text = (op, before[:at] + text)
            self.terminal.update_reply(self.location["agent"], op, self._grown_text[1])
            return
        entry = event["entry"]
        if entry["seq"] != self.after + 1:
            raise InvalidRequest(
                f"entry {self.after + 1} of session {self.session} was skipped", remedy="please report it"
            )
        self.after = entry["seq"]
        self._show_entry(entry)
        if self._answer is None:
            self._unasked.append(entry)
        else:
            self._check_reply(self._answer, entry)

    def _check_reply(self, answer: ReplyWait, entry: dict[str, Any]) -> None:
        if entry["seq"] > answer.seq and not answer.outcome:
            # a message that waits for a model is answered later, and the person can continue to type
            if answer.observe_entry(entry) or (answer.released and self.terminal.live):
                self._answered.set()

    def _show_entry(self, entry: dict[str, Any]) -> None:
        """Show the entries of the conversation. `everhold sessions show` shows all entries."""
        body = entry["body"]
        if body is None:
            return
        match entry["kind"]:
            case "heard" if self.terminal.live and body["origin"].get("message") not in self._own:
                self.terminal.print_message(entry["author"].removeprefix("person:"), body["text"], "cyan")
            case "said":
                self.terminal.print_reply(entry["author"].removeprefix("agent:"), entry["op"] or 0, body["text"])
            case "notified":
                self.terminal.print_message("everhold", body["text"], "yellow")
            case "thought" if body.get("calls"):
                self.terminal.finish_growing_reply()
                self.terminal.print_remark("uses " + ", ".join(call["tool"] for call in body["calls"]))
            case "noted":
                done = "removed" if body.get("action") == "remove" else "remembered"
                self.terminal.print_remark(f"{done}: {body['text']}")
            case _:
                return
