"""The people of the simulated world: they write, write again, change their minds, thank each other and give orders."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from typing import Final

from everhold.core.access import Admission
from everhold.core.entries import Place
from everhold.ports.platform import Incoming, PlatformOffset
from everhold.ports.store import Change, Step
from everhold.testing.sim.farside import SimPlatform
from everhold.testing.sim.world import World

ORDERS: Final = (
    "/new", "/undo", "/undo 2", "/undo compress", "/retry", "/stop", "/title", "/branch", "/resume", "/status",
    "/compress", "/compress here 1", "/background",
)  # fmt: skip
MEDDLING: Final = ("/new", "/undo", "/retry", "/undo compress")
STRANGER: Final = "stranger"
"""Whom nobody wants to hear. How far was read moves on all the same."""
_WAY_BACK: Final = re.compile(r"/resume ([0-9a-z]{26})")


class Chat:
    """One conversation on one platform, with a person in it, sometimes a second one, and a bot."""

    def __init__(self, world: World, number: int, platform: SimPlatform) -> None:
        self.world = world
        self.name = f"c{number}"
        self.platform = platform
        self.dice = random.Random(f"{world.seed}/{self.name}")
        self.group = self.dice.random() < 0.4
        self.finished = False
        self.sessions: Callable[[], Mapping[str, str]] = dict
        """token -> the session it was heard in."""
        self._messages = 0
        self._edits: dict[str, int] = {}

    @property
    def place(self) -> Place:
        return Place(platform=self.platform.name, account=self.platform.account, chat=self.name)

    async def live(self) -> None:
        """Write what this chat has to say, in bursts."""
        dice, profile = self.dice, self.world.profile
        await asyncio.sleep(dice.random() * 5)
        for _ in range(profile.messages):
            self._speak()
            await asyncio.sleep(dice.choice((0.0, 0.3, 3.0, 30.0)) * dice.random())
            if dice.random() < profile.commands:
                self._order()
                await asyncio.sleep(dice.choice((0.0, 3.0, 20.0)) * dice.random())
        self.finished = True

    def _speak(self) -> None:
        dice = self.dice
        roll = dice.random()
        if roll < 0.12 and self._edits:
            self._edit()
        elif roll < 0.2 and self.group:
            self._write(f"{self._token()} by the way", addressed=False)
        elif roll < 0.26:
            self._write("ok", bot=True)
        elif roll < 0.32:
            self._write(f"/{dice.choice(('steer', 'queue'))} {self._token()} {self._secret()}")
        elif roll < 0.36:
            self._write("psst", sender=STRANGER)
        else:
            self._edits[self._write(f"{self._token()} {self._secret()}")] = 0

    def meddle(self, change: Change) -> None:
        """Change the view while somebody makes a summary of it, now and then: people have a way of doing that."""
        if change.step is not Step.COMPRESSION_BEGIN or not self.world.chance(self.world.profile.commands):
            return
        heard = next((token for token, where in self.sessions().items() if where == change.session), "")
        if heard.partition(".")[0] == self.name:
            self.world.loop.call_later(self.dice.random() * 3, self._order, self.dice.choice(MEDDLING))

    def _order(self, order: str = "") -> None:
        order = order or self.dice.choice(ORDERS)
        if order == "/title":
            order = f"/title {self.name} number {self._messages}"
        elif order == "/background":
            order = f"/background {self._token()}"
        elif order == "/resume":
            ways = [
                way for out in self.platform.shown if out.to.chat == self.name for way in _WAY_BACK.findall(out.text)
            ]
            if not ways:
                return
            order = f"/resume {self.dice.choice(ways)}"
        self._write(order)

    def _edit(self) -> None:
        message = self.dice.choice(sorted(self._edits))
        self._edits[message] += 1
        revision = self._edits[message]
        text = f"{self.name}.m{message}e{revision} {self._secret()}"
        self._hand_in(text, message=message, event="edit", revision=str(revision))

    def _write(self, text: str, *, addressed: bool = True, bot: bool = False, sender: str = "") -> str:
        self._messages += 1
        message = str(self._messages)
        self._hand_in(text, message=message, addressed=addressed, bot=bot, sender=sender)
        return message

    def _token(self) -> str:
        return f"{self.name}.m{self._messages + 1}"

    def _secret(self) -> str:
        return f"hush-{self.dice.randbytes(4).hex()}"

    def _hand_in(
        self,
        text: str,
        *,
        message: str,
        event: str = "message",
        revision: str = "",
        addressed: bool = True,
        bot: bool = False,
        sender: str = "",
    ) -> None:
        sender = sender or ("bot" if bot else self.dice.choice(("ada", "ben")) if self.group else "ada")
        place = self.place
        origin = Place(platform=place.platform, account=place.account, chat=place.chat, message=message)
        self.platform.write(
            Incoming(
                origin=origin,
                text=text,
                sender=sender,
                name=sender,
                kind="group" if self.group else "dm",
                event=event,
                revision=revision,
                addressed=addressed,
                bot=bot,
                offset=make_offset(origin) if sender == STRANGER else None,
            )
        )


def make_offset(read: Place) -> PlatformOffset:
    """What is committed of a message that nobody keeps: that it was read."""
    return PlatformOffset(key=f"{read.chat}/{read.message}", value="read")


async def reception(incoming: Incoming) -> Admission:
    """Everybody may speak but strangers; a group talks in one session."""
    return Admission(agent="main", person=incoming.sender, group="shared", ignored=incoming.sender == STRANGER)
