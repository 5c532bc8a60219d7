"""The people of the town: they write as long as the storm lasts, and they know how to bring about any commit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from everhold.core.entries import Place
from everhold.ports.platform import Incoming
from everhold.ports.store import Step
from everhold.testing.kill.town import EDITED, TOKEN, Square, Town

PADDING: Final = "and so on and so forth " * 250

TALK: Final = (
    "", "", "", "", "", "",
    "[look]", "[file]", "[book]", "[pay]", "[pay file]", "[file book | pay]", "[book]", "[note]", "[tell]", "[pay]",
    "long", "busy [look]", "faint", "later", f"fill {PADDING}", "[wait]",
)  # fmt: skip
"""What a message may ask for besides an answer."""

ORDERS: Final = (
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


class Chat:
    """One conversation. What was written in it, in order, is on its square."""

    def __init__(self, square: Square, name: str, dice: random.Random, *, odd: bool = False) -> None:
        self.square = square
        self.name = name
        self.dice = dice
        self.odd = odd
        """Its people give orders, and take back what was said."""
        self.tokens: list[str] = []
        self._messages = 0

    def say(self, more: str = "", *, before: str = "") -> str:
        """Write a message; its name."""
        token = f"{self.name}.m{self._messages + 1}"
        self.tokens.append(token)
        self._write(f"{before}{token} {more}".strip())
        return token

    def order(self, text: str) -> None:
        self._write(text)

    def edit(self) -> None:
        """Change the last message: what it says now is something new."""
        token = f"{self.name}.m{self._messages}"
        if self.tokens and self.tokens[-1] == token:
            changed = f"{token}{EDITED}"
            self.tokens.append(changed)
            self._write(changed, message=str(self._messages), revision="1")

    def _write(self, text: str, *, message: str = "", revision: str = "") -> None:
        if not message:
            self._messages += 1
            message = str(self._messages)
        origin = Place(platform=self.square.name, account="main", chat=self.name, message=message)
        event = "edit" if revision else "message"
        self.square.write(Incoming(origin=origin, text=text, sender="ada", name="Ada", event=event, revision=revision))

    async def talk(self) -> None:
        """Write until cancelled, not much faster than one is answered."""
        while True:
            roll = self.dice.random()
            if self.odd and roll < 0.25:
                self.order(self.dice.choice(ORDERS))
            elif roll < 0.05:
                self.edit()
            else:
                asked = self.dice.choice(TALK)
                # an order to try again does everything again, and rightly so
                self.say(asked if not self.odd or ("pay" not in asked and "book" not in asked) else "[look]")
            await asyncio.sleep(self.dice.random() * 0.4)
            for _ in range(20):
                if self._unanswered() < 5:
                    break
                await asyncio.sleep(0.05)

    def _unanswered(self) -> int:
        seen = [token for shown in self.square.shown if shown.chat == self.name for token in TOKEN.findall(shown.text)]
        return len(self.tokens) - (self.tokens.index(seen[-1]) + 1 if seen and seen[-1] in self.tokens else 0)


class People:
    """All chats of a town."""

    def __init__(self, town: Town, seed: int) -> None:
        self.town = town
        self.dice = random.Random(f"people/{seed}")
        self.chats: dict[str, Chat] = {}
        self.notes: list[str] = []
        """What somebody in charge wanted noted."""
        self.secrets: list[str] = []
        """What somebody in charge wanted forgotten."""
        self.linked: list[str] = []
        self.purses: list[str] = []
        """Out of which something was paid that left nothing else behind."""
        self.bookmarks: list[str] = []
        """What somebody in charge wanted marked as read so far, without anything to keep of it."""
        for platform in town.squares:
            for _ in range(2):
                self.meet(platform)
        self.meet("keyed", odd=True)
        self.meet("blind", odd=True)
        town.workshop.steer = self._steer
        self._tasks: list[asyncio.Task[None]] = []

    def meet(self, platform: str = "keyed", *, odd: bool = False) -> Chat:
        """A new chat."""
        name = f"{platform}-{len(self.chats)}"
        chat = Chat(self.town.squares[platform], name, random.Random(self.dice.random()), odd=odd)
        self.chats[name] = chat
        return chat

    def start(self, *, odd: bool = True) -> None:
        """Let everybody talk; without the odd ones it is quieter."""
        talking = [chat for number, chat in enumerate(self.chats.values()) if odd or (number % 2 and not chat.odd)]
        self._tasks = [asyncio.create_task(chat.talk(), name=chat.name) for chat in talking]

    async def rest(self) -> None:
        """Nobody writes any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def _steer(self, token: str) -> Callable[[], bool]:
        chat = self.chats[token.rpartition(".")[0]]
        chat.say(before="/steer ")
        number = len(chat.square.updates)
        return lambda: chat.square.confirmed >= number

    # -- what somebody in charge wants -------------------------------------------------------------------------------

    def want_noted(self) -> None:
        token = self.meet().say()
        self.notes.append(f"remember {token}")
        self.town.office.order("note", message=token, text=self.notes[-1])

    def want_forgotten(self) -> None:
        secret = f"hush{self.dice.randbytes(6).hex()}"
        token = self.meet().say(secret)
        self.secrets.append(secret)
        self.town.office.order("erase", message=token)

    def want_replayed(self) -> None:
        self.meet().say("refuse")
        self.town.office.order("replay")

    def want_linked(self) -> None:
        self.linked.append(f"keyed:{self.dice.randbytes(4).hex()}")
        self.town.office.order("link", identity=self.linked[-1], person="ada")

    def want_paid(self) -> None:
        self.purses.append(f"call:{self.dice.randbytes(4).hex()}")
        self.town.office.order("pay", purse=self.purses[-1])

    def want_marked(self) -> None:
        self.bookmarks.append(self.dice.randbytes(4).hex())
        self.town.office.order("mark", name=self.bookmarks[-1])

    # -- how to bring about a commit ---------------------------------------------------------------------------------

    def provoke(self, step: Step) -> None:
        """Do something that makes a serving process come to this commit."""
        match step:
            case Step.THINK | Step.RETURN:
                self.meet().say("[look]")
            case Step.CALL:
                self.meet().say("[pay file]")
            case Step.TAKE | Step.RENEW:
                self.meet().say("[wait]")
            case Step.PAUSE:
                self.meet().say("busy [look]")
            case Step.COMMAND | Step.CURSOR_SETTLE:
                self.meet().order("/status")
            case Step.COMPRESSION_BEGIN | Step.COMPRESSION_END:
                chat = self.meet()
                for _ in range(3):
                    chat.say(f"fill {PADDING} [look]")
            case Step.DELIVERY_RETRY:
                self.meet().say("later")
            case Step.BACKLINK:
                chat = self.meet()
                chat.say()
                chat.order("/branch")
            case Step.JOB:
                chat = self.meet()
                chat.say()
                chat.order("/background find it out")
            case Step.DRAFT:
                self.meet().say("long")
            case Step.NOTE:
                self.want_noted()
            case Step.ERASE:
                self.want_forgotten()
            case Step.REPLAY:
                self.want_replayed()
            case Step.PEOPLE:
                self.want_linked()
            case Step.SPEND:
                self.want_paid()
            case Step.STATE:
                self.want_marked()
            case _:
                self.meet().say()
