"""Simulated users: they write messages, edit them, talk to each other, and use chat commands."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from typing import Final

from everhold.core.access import AdmissionDecision
from everhold.core.entries import ChatLocation
from everhold.core.people import build_identity
from everhold.core.roles import PersonRole
from everhold.ports.platform import IncomingMessage, PlatformOffset
from everhold.ports.store import Change, Step, Store
from everhold.testing.sim.remote_services import SimPlatform
from everhold.testing.sim.world import SimWorld

CHAT_COMMANDS: Final = (
    "/new", "/undo", "/undo 2", "/undo compress", "/retry", "/stop", "/title", "/branch", "/resume", "/status",
    "/compress", "/compress here 1", "/background",
)  # fmt: skip
INTERFERING_COMMANDS: Final = ("/new", "/undo", "/retry", "/undo compress")
GROUP_ROLES: Final = (PersonRole.OWNER, PersonRole.OWNER, PersonRole.MEMBER, PersonRole.STRANGER)
STRANGER_ID: Final = "stranger"
"""A sender whose messages are ignored. The platform offset is stored all the same."""
_RESUME_PATTERN: Final = re.compile(r"/resume ([0-9a-z]{26})")


class SimChat:
    """One conversation on one platform, with a person in it, sometimes a second one, and a bot."""

    def __init__(self, world: SimWorld, number: int, platform: SimPlatform) -> None:
        self.world = world
        self.name = f"c{number}"
        self.platform = platform
        self.rng = random.Random(f"{world.seed}/{self.name}")
        self.group = self.rng.random() < 0.4
        self.finished = False
        self.sessions: Callable[[], Mapping[str, str]] = dict
        """token -> the session it was heard in."""
        self._messages = 0
        self._edits: dict[str, int] = {}

    @property
    def location(self) -> ChatLocation:
        return ChatLocation(platform=self.platform.name, account=self.platform.account, chat=self.name)

    async def run(self) -> None:
        """Write this chat's messages, in bursts."""
        rng, profile = self.rng, self.world.profile
        await asyncio.sleep(rng.random() * 5)
        for _ in range(profile.messages):
            self._write_next()
            await asyncio.sleep(rng.choice((0.0, 0.3, 3.0, 30.0)) * rng.random())
            if profile.quiet_seconds:
                await asyncio.sleep(profile.quiet_seconds * rng.random())
            if rng.random() < profile.commands:
                self._write_command()
                await asyncio.sleep(rng.choice((0.0, 3.0, 20.0)) * rng.random())
        self.finished = True

    def _write_next(self) -> None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.12 and self._edits:
            self._edit_message()
        elif roll < 0.2 and self.group:
            self._write_message(f"{self._make_token()} by the session", addressed=False)
        elif roll < 0.26:
            self._write_message("ok", bot=True)
        elif roll < 0.32:
            self._write_message(f"/{rng.choice(('steer', 'queue'))} {self._make_token()} {self._make_secret()}")
        elif roll < 0.36:
            self._write_message("psst", sender=STRANGER_ID)
        else:
            self._edits[self._write_message(f"{self._make_token()} {self._make_secret()}")] = 0

    def interfere(self, change: Change) -> None:
        """Sometimes change the context while a compression runs."""
        if change.step is not Step.COMPRESSION_BEGIN or not self.world.draw_chance(self.world.profile.commands):
            return
        heard = next((token for token, where in self.sessions().items() if where == change.session), "")
        if heard.partition(".")[0] == self.name:
            self.world.loop.call_later(
                self.rng.random() * 3, self._write_command, self.rng.choice(INTERFERING_COMMANDS)
            )

    def say(self, text: str, *, by_bot: bool = False) -> None:
        """Write a text that is not of this chat's own messages."""
        self._write_message(text, bot=by_bot and self.group)

    def _write_command(self, order: str = "") -> None:
        order = order or self.rng.choice(CHAT_COMMANDS)
        if order == "/title":
            order = f"/title {self.name} number {self._messages}"
        elif order == "/background":
            order = f"/background {self._make_token()}"
        elif order == "/resume":
            sessions = [
                session
                for out in self.platform.shown_messages
                if out.to.chat == self.name
                for session in _RESUME_PATTERN.findall(out.text)
            ]
            if not sessions:
                return
            order = f"/resume {self.rng.choice(sessions)}"
        self._write_message(order)

    def _edit_message(self) -> None:
        message = self.rng.choice(sorted(self._edits))
        self._edits[message] += 1
        revision = self._edits[message]
        text = f"{self.name}.m{message}e{revision} {self._make_secret()}"
        self._send_update(text, message=message, event="edit", revision=str(revision))

    def _write_message(self, text: str, *, addressed: bool = True, bot: bool = False, sender: str = "") -> str:
        self._messages += 1
        message = str(self._messages)
        self._send_update(text, message=message, addressed=addressed, bot=bot, sender=sender)
        return message

    def _make_token(self) -> str:
        return f"{self.name}.m{self._messages + 1}"

    def _make_secret(self) -> str:
        return f"hush-{self.rng.randbytes(4).hex()}"

    def _send_update(
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
        # a direct chat has only one other side
        sender = sender or ("ada" if not self.group else "bot" if bot else self.rng.choice(("ada", "ben")))
        place = self.location
        origin = ChatLocation(platform=place.platform, account=place.account, chat=place.chat, message=message)
        self.platform.write_message(
            IncomingMessage(
                origin=origin,
                text=text,
                sender=sender,
                name=sender,
                kind="group" if self.group else "dm",
                event=event,
                revision=revision,
                addressed=addressed,
                bot=bot,
                offset=make_offset(origin) if sender == STRANGER_ID else None,
            )
        )


def make_offset(read: ChatLocation) -> PlatformOffset:
    """Return the offset that is committed for an ignored message."""
    return PlatformOffset(key=f"{read.chat}/{read.message}", value="read")


def choose_group_role(seed: int, chat: str, sender: str) -> PersonRole:
    return random.Random(f"{seed}/{chat}/{sender}/role").choice(GROUP_ROLES)


class SimAdmission:
    """Admits everyone but the stranger. A group shares one session."""

    def __init__(self, store: Store, *, seed: int) -> None:
        self.store = store
        self.seed = seed

    async def __call__(self, incoming: IncomingMessage) -> AdmissionDecision:
        people = await self.store.get_people()
        identity = build_identity(incoming.origin.platform, incoming.sender)
        return AdmissionDecision(
            agent="main",
            identity=identity,
            group="shared",
            ignored=incoming.sender == STRANGER_ID,
            people_version=people.version,
            is_new_identity=identity not in people.identities,
            role=self._choose_role(incoming),
        )

    def _choose_role(self, incoming: IncomingMessage) -> PersonRole:
        """Return the role of a sender, which stays the same in one chat. Most people are owners, so few commands are
        refused.
        """
        if incoming.kind == "dm":
            return PersonRole.MEMBER
        return choose_group_role(self.seed, incoming.origin.chat, incoming.sender)
