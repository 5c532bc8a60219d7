"""Simulated users for the kill tests: they write messages, and can provoke any commit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from everhold.core.entries import ChatLocation
from everhold.ports.platform import IncomingMessage
from everhold.ports.store import Step
from everhold.testing.kill.world import EDITED_SUFFIX, TOKEN_PATTERN, KillPlatform, KillWorld

PADDING: Final = "and so on and so forth " * 250

MESSAGE_REQUESTS: Final = (
    "", "", "", "", "", "",
    "[look]", "[file]", "[book]", "[pay]", "[pay file]", "[file book | pay]", "[book]", "[note]", "[tell]", "[pay]",
    "long", "busy [look]", "faint", "later", f"fill {PADDING}", "[wait]",
)  # fmt: skip
"""What a message may request besides an answer."""

CHAT_COMMANDS: Final = (
    "/status",
    "/undo",
    "/retry",
    "/new",
    "/title of the day",
    "/branch",
    "/stop",
    "/undo compress",
    "/background look around",
)

PROVOCATIONS: Final = {
    Step.THINK: ("[look]",),
    Step.RETURN: ("[look]",),
    Step.CALL: ("[pay file]",),
    Step.TAKE: ("[wait]",),
    Step.RENEW: ("[wait]",),
    Step.PAUSE: ("busy [look]",),
    Step.COMMAND: ("/status",),
    Step.CURSOR_SETTLE: ("/status",),
    Step.COMPRESSION_BEGIN: (f"fill {PADDING} [look]",) * 3,
    Step.COMPRESSION_END: (f"fill {PADDING} [look]",) * 3,
    Step.DELIVERY_RETRY: ("later",),
    Step.BACKLINK: ("", "/branch"),
    Step.JOB: ("", "/background find it out"),
    Step.DRAFT: ("long",),
}
"""What is written in a new chat to provoke a commit. Any message provokes the other steps."""


class KillChat:
    """One conversation. Its platform keeps the messages in order."""

    def __init__(
        self,
        platform: KillPlatform,
        name: str,
        rng: random.Random,
        *,
        sends_commands: bool = False,
        sender: str = "ada",
    ) -> None:
        self.platform = platform
        self.sender = sender
        self.name = name
        self.rng = rng
        self.sends_commands = sends_commands
        """Whether its users use commands and undo turns."""
        self.tokens: list[str] = []
        self._messages = 0

    def write_message(self, more: str = "", *, before: str = "") -> str:
        """Write a message; return its name."""
        token = f"{self.name}.m{self._messages + 1}"
        self.tokens.append(token)
        self._write_text(f"{before}{token} {more}".strip())
        return token

    def write_command(self, text: str) -> None:
        self._write_text(text)

    def edit_last_message(self) -> None:
        """Edit the last message. The new text counts as a new message."""
        token = f"{self.name}.m{self._messages}"
        if self.tokens and self.tokens[-1] == token:
            changed = f"{token}{EDITED_SUFFIX}"
            self.tokens.append(changed)
            self._write_text(changed, message=str(self._messages), revision="1")

    def _write_text(self, text: str, *, message: str = "", revision: str = "") -> None:
        if not message:
            self._messages += 1
            message = str(self._messages)
        origin = ChatLocation(platform=self.platform.name, account="main", chat=self.name, message=message)
        event = "edit" if revision else "message"
        self.platform.write_message(
            IncomingMessage(
                origin=origin,
                text=text,
                sender=self.sender,
                name=self.sender.capitalize(),
                event=event,
                revision=revision,
            )
        )

    async def write_until_cancelled(self) -> None:
        """Write until cancelled, at about the pace of the answers."""
        while True:
            roll = self.rng.random()
            if self.sends_commands and roll < 0.25:
                self.write_command(self.rng.choice(CHAT_COMMANDS))
            elif roll < 0.05:
                self.edit_last_message()
            else:
                asked = self.rng.choice(MESSAGE_REQUESTS)
                # `/retry` repeats all effects on purpose
                self.write_message(
                    asked if not self.sends_commands or ("pay" not in asked and "book" not in asked) else "[look]"
                )
            await asyncio.sleep(self.rng.random() * 0.4)
            for _ in range(20):
                if self._count_unanswered() < 5:
                    break
                await asyncio.sleep(0.05)

    def _count_unanswered(self) -> int:
        seen = [
            token
            for shown in self.platform.shown
            if shown.chat == self.name
            for token in TOKEN_PATTERN.findall(shown.text)
        ]
        return len(self.tokens) - (self.tokens.index(seen[-1]) + 1 if seen and seen[-1] in self.tokens else 0)


class KillPeople:
    """All chats of a trial."""

    def __init__(self, world: KillWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(f"people/{seed}")
        self.chats: dict[str, KillChat] = {}
        self.notes: list[str] = []
        """The notes that the operator ordered."""
        self.secrets: list[str] = []
        """The secrets that the operator ordered to erase."""
        self.linked: list[str] = []
        self.unlinked: list[str] = []
        """Identities that the operator ordered to link and then to unlink."""
        self.forgotten: list[str] = []
        """Identities of people whom the operator ordered to forget."""
        self.budgets: list[str] = []
        """The budgets with a spend that has no other trace."""
        self.bookmarks: list[str] = []
        """The offsets that the operator ordered to store."""
        for platform in world.platforms:
            for _ in range(2):
                self.open_chat(platform)
        self.open_chat("keyed", odd=True)
        self.open_chat("blind", odd=True)
        world.toolbox.steer = self._write_steering_message
        self._tasks: list[asyncio.Task[None]] = []

    def open_chat(self, platform: str = "keyed", *, odd: bool = False, sender: str = "ada") -> KillChat:
        """Open a new chat."""
        name = f"{platform}-{len(self.chats)}"
        rng = random.Random(self.rng.random())
        chat = KillChat(self.world.platforms[platform], name, rng, sends_commands=odd, sender=sender)
        self.chats[name] = chat
        return chat

    def start(self, *, odd: bool = True) -> None:
        """Start writing in all chats."""
        talking = [
            chat for number, chat in enumerate(self.chats.values()) if odd or (number % 2 and not chat.sends_commands)
        ]
        self._tasks = [asyncio.create_task(chat.write_until_cancelled(), name=chat.name) for chat in talking]

    async def stop(self) -> None:
        """Stop writing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def _write_steering_message(self, token: str) -> Callable[[], bool]:
        chat = self.chats[token.rpartition(".")[0]]
        chat.write_message(before="/steer ")
        number = len(chat.platform.incoming_messages)
        return lambda: chat.platform.confirmed >= number

    # -- orders of the operator --------------------------------------------------------------------------------------

    def request_note(self) -> None:
        token = self.open_chat().write_message()
        self.notes.append(f"remember {token}")
        self.world.operator_orders.request("note", message=token, text=self.notes[-1])

    def request_erasure(self) -> None:
        secret = f"hush{self.rng.randbytes(6).hex()}"
        token = self.open_chat().write_message(secret)
        self.secrets.append(secret)
        self.world.operator_orders.request("erase", message=token)

    def request_replay(self) -> None:
        self.open_chat().write_message("refuse")
        self.world.operator_orders.request("replay")

    def request_link(self) -> None:
        self.linked.append(f"keyed:{self.rng.randbytes(4).hex()}")
        self.world.operator_orders.request("link", identity=self.linked[-1], person="ada")

    def request_unlink(self) -> None:
        self.unlinked.append(f"keyed:{self.rng.randbytes(4).hex()}")
        self.world.operator_orders.request("link", identity=self.unlinked[-1], person="ada")
        self.world.operator_orders.request("unlink", identity=self.unlinked[-1])

    def request_forgetting(self) -> None:
        """Let a person with two identities tell two secrets, and order to forget the person."""
        identities = [f"guest{self.rng.randbytes(4).hex()}" for _ in range(2)]
        secrets = [f"hush{self.rng.randbytes(6).hex()}" for _ in identities]
        chats = [self.open_chat(sender=identity) for identity in identities]
        first, second = (chat.write_message(secret) for chat, secret in zip(chats, secrets, strict=True))
        self.secrets += secrets
        self.forgotten += identities
        order = {"identity": identities[0], "other": identities[1]}
        self.world.operator_orders.request("join", **order, message=first, other_message=second)
        self.world.operator_orders.request("forget", **order)

    def request_anything(self) -> None:
        """Order one of the operations on people, an erasure or a note."""
        self.rng.choice(
            (self.request_link, self.request_unlink, self.request_forgetting, self.request_erasure, self.request_note)
        )()

    def request_spending(self) -> None:
        self.budgets.append(f"call:{self.rng.randbytes(4).hex()}")
        self.world.operator_orders.request("pay", budget=self.budgets[-1])

    def request_state_record(self) -> None:
        self.bookmarks.append(self.rng.randbytes(4).hex())
        self.world.operator_orders.request("mark", name=self.bookmarks[-1])

    # -- provoking a commit ------------------------------------------------------------------------------------------

    def provoke_commit(self, step: Step) -> None:
        """Make a serving process reach this commit."""
        wanted = {
            Step.NOTE: self.request_note,
            Step.ERASE: self.rng.choice((self.request_erasure, self.request_forgetting)),
            Step.REPLAY: self.request_replay,
            Step.PEOPLE: self.rng.choice((self.request_link, self.request_unlink)),
            Step.SPEND: self.request_spending,
            Step.STATE: self.request_state_record,
        }
        if step in wanted:
            wanted[step]()
            return
        chat = self.open_chat()
        for text in PROVOCATIONS.get(step, ("",)):
            if text.startswith("/"):
                chat.write_command(text)
            else:
                chat.write_message(text)
