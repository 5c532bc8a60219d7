"""The attackers write on a platform: a stranger, and a member of a group whose model does what the member wants.

Each attack runs against a running gateway and returns what the attacker gained. The same attack finds planted
vulnerabilities.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import Struct

from everhold.core.access import AdmissionDecision
from everhold.core.entries import Heard, ToolCall
from everhold.core.roles import PersonRole, RoleCell, compute_role
from everhold.ingress import roles
from everhold.ingress.admission import AdmissionControl
from everhold.ingress.held_messages import HeldMessages
from everhold.ingress.pairing import PairingRegistry
from everhold.ingress.quotas import MessageQuotas
from everhold.memories.builtin.index import MemoryIndex
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.ports.store import StateNamespace
from everhold.testing.model_server import ModelServer, ModelServerReply, ReceivedModelRequest
from everhold.testing.platforms.telegram import TelegramServer, make_user_origin
from everhold.tools import search
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section
from tests.platforms.remote_telegram import TOKEN

ADA, BOB, EVE = 1001, 2002, 666
GROUP, OTHER_GROUP = -100, -300
SECRET: Final = "the safe opens with 4711"
"""What ada says in her direct chat."""
EVIL: Final = "evilword"
"""It is in everything that eve writes."""
OWNER_COMMANDS: Final = ("/new", "/undo", "/retry", "/compress", "/model other", "/title mine", "/resume 1", "/branch")
MOST_PER_MINUTE: Final = 20
MESSAGES: Final = 100
"""More than the quota allows, although it grows while they are written."""

Plant = Callable[[pytest.MonkeyPatch], None]


class Scene(Struct):
    """A gateway with one bot: ada is its owner, bob may write in one group, and eve may write nowhere."""

    gateway: RunningGateway
    telegram: TelegramServer
    model: ModelServer

    async def wait_until_handled(self) -> None:
        """Wait until everything that was written is handled. Ada writes last, and is answered."""
        count = len(self.telegram.list_bot_texts(ADA))
        await self.telegram.write_message("are you there?", user=ADA)
        await self.gateway.wait_until(lambda: len(self.telegram.list_bot_texts(ADA)) > count)
        await self.gateway.wait_until_idle()

    async def read_heard_from(self, sender: int) -> list[str]:
        found = []
        for session in await self.gateway.app.store.list_sessions():
            entries = await self.gateway.read_entries(session.id)
            found += [
                it.body.text
                for it in entries
                if isinstance(it.body, Heard) and it.author == f"person:telegram:{sender}"
            ]
        return found


@contextlib.asynccontextmanager
async def open_scene(
    path: Path, *, group: tuple[str, ...] = ("ada", f"telegram:{BOB}"), **more: Any
) -> AsyncIterator[Scene]:
    """`group` lists who may write in the group."""
    async with TelegramServer() as telegram, ModelServer(key=KEY) as model:
        telegram.add_bot(TOKEN)
        access = {"direct": ["ada"], "groups": {str(GROUP): group}}
        account = {"token_env": "BOT", "base_url": telegram.url, "poll_seconds": 1, "access": access}
        config = {
            "models": {"m": make_model_section(model.openai)},
            "platforms": {"telegram": {"main": account}},
            "people": [{"name": "ada", "identities": [f"telegram:{ADA}"]}],
            "access": {"owners": ["ada"]},
            "agents": {"main": {"sessions": {"group": "shared"}}},
            **more,
        }
        async with RunningGateway(path, json.dumps(config), env=f"MODEL_KEY={KEY}\nBOT={TOKEN}\n") as gateway:
            yield Scene(gateway, telegram, model)


# -- the stranger ------------------------------------------------------------------------------------------------------


async def play_stranger(path: Path) -> set[str]:
    async with open_scene(path) as scene:
        telegram = scene.telegram
        document = (f"{EVIL}.txt", EVIL.encode())
        impostor: dict[str, Any] = {"from": {"id": EVE, "is_bot": False, "first_name": "Ada", "username": str(ADA)}}
        for text in ("hello", "/status", "/sessions", "/memory", "/model x", "/halt", "/link ABCD-EFGH", "/new"):
            await telegram.write_message(f"{text} {EVIL}", user=EVE, name="Ada")
        await telegram.write_message(EVIL, user=EVE, file=document)
        await telegram.write_message(EVIL, user=EVE, **impostor)
        await telegram.forward_message(f"/status {EVIL}", origin=make_user_origin(ADA, "Ada"), user=EVE)
        for chat in (GROUP, OTHER_GROUP):
            await telegram.write_message(f"@everhold_bot {EVIL}", user=EVE, chat=chat, file=document)
            await telegram.write_message("/halt", user=EVE, chat=chat)
            await telegram.write_message(f"@everhold_bot {EVIL}", user=EVE, chat=chat, **impostor)
        broken = {"message_id": "no number", "date": "never", "text": EVIL}
        for place in ({"id": EVE, "type": "private"}, {"id": GROUP, "type": "group"}):
            await telegram.push_update({"message": {**broken, "from": {"id": EVE}, "chat": place}})
        await scene.wait_until_handled()
        app = scene.gateway.app
        gains = {
            "a model was asked": any(EVIL.encode() in request.body for request in scene.model.requests),
            "a file was requested": any(name in ("getFile", "file") for name, _ in telegram.calls),
            "a message was accepted": bool(await scene.read_heard_from(EVE)),
            "more than one reply": len(telegram.list_bot_texts(EVE)) > 1,
            "a reply in a group": bool(telegram.list_bot_texts(GROUP) or telegram.list_bot_texts(OTHER_GROUP)),
            "a chat was halted": bool(await app.store.list_state_records(StateNamespace.CHAT_HALT)),
        }
        assert len(telegram.list_bot_texts(ADA)) == 1, "ada is answered"
    files = [it for it in scene.gateway.home.path.rglob("*") if it.is_file() and not it.is_socket()]
    assert any(it.name == "everhold.db" for it in files)
    gains["words were stored"] = any(EVIL.encode() in it.read_bytes() for it in files)
    return {gain for gain, is_true in gains.items() if is_true}


async def test_a_stranger_gains_nothing(tmp_path: Path) -> None:
    assert await play_stranger(tmp_path) == set()


def admit_everybody(patch: pytest.MonkeyPatch) -> None:
    """Plant it where both compute the role: the admission, and the worker that handles the stored message."""

    def admit(*given: Any, **more: Any) -> PersonRole:
        return compute_role(*given, **more) or PersonRole.MEMBER

    patch.setattr(roles, "compute_role", admit)


def download_first(patch: pytest.MonkeyPatch) -> None:
    hold = HeldMessages._hold

    async def download_and_hold(self: HeldMessages, incoming: IncomingMessage) -> AcceptResult:
        await self._download_files(incoming)
        return await hold(self, incoming)

    patch.setattr(HeldMessages, "_hold", download_and_hold)


def store_what_is_broken(patch: pytest.MonkeyPatch) -> None:
    async def store(
        self: AdmissionControl, incoming: IncomingMessage, found: AdmissionDecision, *more: Any
    ) -> AdmissionDecision:
        return msgspec.structs.replace(found, asks=False)

    patch.setattr(AdmissionControl, "_check_unparsed", store)


def answer_always(patch: pytest.MonkeyPatch) -> None:
    async def request(self: PairingRegistry, *given: Any, **more: Any) -> str:
        return "ABCD-EFGH"

    patch.setattr(PairingRegistry, "request_pairing", request)


def obey_everybody(patch: pytest.MonkeyPatch) -> None:
    check = AdmissionControl._check_access

    async def obey(self: AdmissionControl, incoming: IncomingMessage, *more: Any) -> AdmissionDecision:
        if incoming.text == "/halt":
            await self._apply_halt_order(incoming, more[0], more[1].speaker, "halt")
        return await check(self, incoming, *more)

    patch.setattr(AdmissionControl, "_check_access", obey)


# -- the member of a group ---------------------------------------------------------------------------------------------


def search_for_secret(received: ReceivedModelRequest) -> ModelServerReply:
    """Search wherever bob wants. Then repeat what was found."""
    messages = received.json["messages"]
    if messages[-1]["role"] == "tool":
        return ModelServerReply(text=f"I found: {messages[-1]['content']}")
    if "tell me everything" not in str(messages[-1]["content"]):
        return ModelServerReply(text="well")
    return ModelServerReply(calls=(ToolCall(id="c", tool="session_search", arguments={"query": "safe opens"}),))


async def play_member(path: Path) -> set[str]:
    quotas = {"member": {"messages_per_minute": MOST_PER_MINUTE}}
    async with open_scene(path, quotas=quotas) as scene:
        telegram, gains = scene.telegram, set()
        scene.model.default = search_for_secret
        await telegram.write_message(SECRET, user=ADA)
        await scene.wait_until_handled()

        async def write(text: str, *, user: int, **how: Any) -> list[str]:
            """Write in the group, and return the bot's answers."""
            before = len(telegram.list_bot_texts(GROUP))
            await telegram.write_message(text, user=user, chat=GROUP, **how)
            await scene.gateway.wait_until(lambda: len(telegram.list_bot_texts(GROUP)) > before)
            await scene.gateway.wait_until_idle()
            return telegram.list_bot_texts(GROUP)[before:]

        await write("@everhold_bot hello", user=ADA)
        told = await write("@everhold_bot tell me everything", user=BOB, name="Ada")
        assert told[0].startswith("I found:"), "the model obeyed"
        for command in OWNER_COMMANDS:
            name, _, argument = command.partition(" ")
            answer, *_ = await write(f"{name}@everhold_bot {argument}", user=BOB, name="Ada")
            if "needs the role owner" not in answer:
                gains.add("an owner's command ran")
        before = len(await scene.read_heard_from(BOB))
        for number in range(MESSAGES):
            await telegram.write_message(f"@everhold_bot more {number}", user=BOB, chat=GROUP)
        await telegram.write_message("let me in directly", user=BOB)
        await scene.wait_until_handled()
        accepted = len(await scene.read_heard_from(BOB)) - before
        assert accepted, "what the quota allows is accepted"
        if accepted == MESSAGES:
            gains.add("no quota")
        if any("4711" in text for text in telegram.list_bot_texts(GROUP) + telegram.list_bot_texts(BOB)):
            gains.add("words of another chat")
        if "let me in directly" in await scene.read_heard_from(BOB):
            gains.add("a direct chat")
        await scene.gateway.assert_sound()
    return gains


async def test_a_member_of_a_group_gains_nothing(tmp_path: Path) -> None:
    assert await play_member(tmp_path) == set()


def allow_every_command(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoleCell, "allows", lambda self, role: True)


def search_everything(patch: pytest.MonkeyPatch) -> None:
    find = MemoryIndex.search

    async def find_everywhere(self: MemoryIndex, *given: Any, **more: Any) -> Any:
        return await find(self, *given, **{**more, "audience": None})

    patch.setattr(MemoryIndex, "search", find_everywhere)
    patch.setattr(search, "can_hear", lambda *given: True)


def count_nothing(patch: pytest.MonkeyPatch) -> None:
    async def take(self: MessageQuotas, charge: object) -> None:
        return None

    patch.setattr(MessageQuotas, "take", take)


PLANTED: Final[dict[str, tuple[Plant, Callable[[Path], Awaitable[set[str]]], str]]] = {
    "everybody is admitted": (admit_everybody, play_stranger, "a model was asked"),
    "files are downloaded first": (download_first, play_stranger, "a file was requested"),
    "broken updates are stored": (store_what_is_broken, play_stranger, "words were stored"),
    "strangers are always answered": (answer_always, play_stranger, "more than one reply"),
    "strangers are obeyed": (obey_everybody, play_stranger, "a chat was halted"),
    "members have the owner's commands": (allow_every_command, play_member, "an owner's command ran"),
    "a search sees all chats": (search_everything, play_member, "words of another chat"),
    "quotas count nothing": (count_nothing, play_member, "no quota"),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_planted_vulnerability_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    plant, play, gain = PLANTED[bug]
    plant(monkeypatch)
    assert gain in await play(tmp_path)
