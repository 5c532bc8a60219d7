"""What is Discord's own: sessions that are resumed or lost, nonces that are forgotten, threads, roles, and commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import discord
import msgspec
import pytest
from discord.gateway import DiscordWebSocket
from discord.http import Route
from yarl import URL

from everhold.core.access import NOTICE
from everhold.core.attachments import attachment
from everhold.core.entries import Heard
from everhold.errors import InDoubt, Refused, TooLong, Transient
from everhold.platforms.discord import reading
from everhold.platforms.discord.adapter import Discord, nonce
from everhold.platforms.discord.settings import DiscordSettings, factory
from everhold.ports.platform import Introducing
from everhold.ports.plugin import Context
from everhold.secret import Secret
from everhold.testing.contracts.platform import Desk
from everhold.testing.platforms.discord import DiscordServer
from tests.platforms.discord_stage import TOKEN, DiscordStage, discord_stage
from tests.waiting import LIMIT_SECONDS

CHAT, GROUP, ME = DiscordStage.chat, DiscordStage.group, "900"


@pytest.fixture
async def stage() -> AsyncIterator[DiscordStage]:
    async with discord_stage(Discord) as stage:
        yield stage


@pytest.fixture
async def desk(stage: DiscordStage, tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(stage, tmp_path)
    yield desk
    await desk.close()


@pytest.fixture
def server(stage: DiscordStage) -> DiscordServer:
    return stage.server


async def connected(desk: Desk) -> None:
    """Listen, and have looked for what was missed: from here on it is the gateway that tells."""
    desk.start()

    async def met() -> bool:
        return await desk.offset("alive") is not None

    await desk.until(met, what="connecting")


async def heard(desk: Desk, server: DiscordServer, text: str, **more: Any) -> Heard:
    """Write something and see what became of it."""
    await connected(desk)
    await server.write(text, **{"channel": GROUP, **more})
    await server.write("that was it", channel=CHAT)
    await desk.until_heard("that was it")
    return (await desk.heard())[0]


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_a_connection_that_breaks_is_resumed_and_told_what_it_missed(desk: Desk, server: DiscordServer) -> None:
    await connected(desk)
    await server.write("before", channel=CHAT)
    await desk.until_heard("before")
    looks = [name for name, _ in server.calls].count("GET messages")
    server.cut()
    for number in range(3):
        await server.write(f"meanwhile {number}", channel=CHAT)
    await desk.until_heard("meanwhile 2")
    assert (server.identified, server.resumed) == (1, 1)
    assert await desk.texts() == ["before", *(f"meanwhile {number}" for number in range(3))]
    assert [name for name, _ in server.calls].count("GET messages") == looks, "nothing had to be looked for"


async def test_a_session_that_is_lost_is_made_up_for_from_the_history(desk: Desk, server: DiscordServer) -> None:
    server.channel("3002")
    server.channel("4001", parent=GROUP)
    await connected(desk)
    await server.write("before", channel=CHAT)
    await server.write("before, too", channel=GROUP)
    await desk.until_heard("before", "before, too")
    server.disconnect()
    server.forget_sessions()
    for number in range(250):
        await server.write(f"much {number}", channel=GROUP)
    await server.write("in a channel that was silent", channel="3002")
    await server.write("in a thread", channel="4001")
    await server.write("in private", channel=CHAT)
    server.reconnect()
    await desk.until_heard("much 249", "in a channel that was silent", "in a thread", "in private")
    assert server.identified == 2
    texts = await desk.texts()
    assert [it for it in texts if it.startswith("much")] == [f"much {number}" for number in range(250)]
    assert len(texts) == 255
    thread = next(body for body in await desk.heard() if body.text == "in a thread")
    assert (thread.origin.chat, thread.origin.thread) == (GROUP, "4001")


async def test_the_first_word_of_somebody_who_is_let_in_is_heard_even_if_nobody_listened(
    stage: DiscordStage, tmp_path: Path
) -> None:
    class Friends(Desk):
        def context(self) -> Context:
            context = super().context()
            assert context.station is not None
            station = msgspec.structs.replace(context.station, friends=lambda: frozenset({"1001", "1002", "nobody"}))
            return msgspec.structs.replace(context, station=station)

    desk = Friends(stage, tmp_path)
    await stage.server.write("hello?", channel=CHAT)
    await connected(desk)
    await desk.until_heard("hello?")
    asked = [fields for name, fields in stage.server.calls if name == "POST users"]
    await desk.restart()
    await stage.server.write("again", channel=CHAT)
    await desk.until_heard("again")
    assert len([fields for name, fields in stage.server.calls if name == "POST users"]) == len(asked) == 2
    await desk.close()


async def test_buckets_are_minded_before_they_run_empty(tmp_path: Path) -> None:
    async with DiscordServer(bucket=3, window=0.2) as server:
        server.bot(TOKEN)
        server.direct(CHAT)
        desk = Desk(DiscordStage(server, Discord), tmp_path)
        for number in range(8):
            await desk.platform.send(desk.out(str(number), key=f"s:{number}:0"))
        assert [it["content"] for it in server.shown(CHAT)] == [str(number) for number in range(8)]
        assert server.limited == 0
        await desk.close()


async def test_only_what_went_on_is_looked_into_after_a_gap(desk: Desk, server: DiscordServer) -> None:
    for number in range(20):
        server.channel(str(5000 + number))
    await connected(desk)
    await server.write("hello", channel=GROUP)
    await desk.until_heard("hello")
    await desk.stop()
    await server.write("meanwhile", channel=GROUP)
    looks = [name for name, _ in server.calls].count("GET messages")
    await desk.restart()
    await desk.until_heard("meanwhile")
    assert [name for name, _ in server.calls].count("GET messages") == looks + 1


async def test_a_wish_to_reconnect_is_followed(desk: Desk, server: DiscordServer) -> None:
    await connected(desk)
    await server.write("before", channel=CHAT)
    await desk.until_heard("before")
    await server.ask_to_reconnect()

    async def resumed() -> bool:
        return server.resumed == 1

    await desk.until(resumed, what="coming back")
    await server.write("behind", channel=CHAT)
    await desk.until_heard("behind")
    assert desk.troubles == []


async def test_what_was_said_before_there_was_a_bot_is_nobody_s_business(desk: Desk, server: DiscordServer) -> None:
    await server.write("long ago", channel=GROUP, id=str(reading.snowflake(1_600_000_000)))
    await server.write("just now", channel=GROUP)
    desk.start()
    await desk.until_heard("just now")
    assert await desk.texts() == ["just now"]


@pytest.mark.parametrize("why", ["token", "intent"])
async def test_what_somebody_has_to_mend_is_said(desk: Desk, stage: DiscordStage, why: str) -> None:
    settings = stage.settings()
    if why == "token":
        settings = settings.model_copy(update={"token": Secret("wrong-canary")})
    else:
        stage.server.bots[TOKEN].reads = False
    bot = Discord(settings, desk.context())
    with pytest.raises(Refused) as caught:
        await bot.listen(desk._accept)
    assert caught.value.remedy
    assert "canary" not in str(caught.value)
    if why == "token":
        with pytest.raises(Transient):  # the message is fine, and waits
            await bot.send(desk.out("hello"))
    await bot.aclose()


async def test_it_introduces_itself_and_says_how_to_bring_it_along(desk: Desk, server: DiscordServer) -> None:
    assert isinstance(desk.platform, Introducing)
    me = await desk.platform.introduce()
    assert me.name == "everhold"
    assert "https://discord.com/oauth2/authorize?client_id=900" in me.hello


@pytest.mark.parametrize("why", ["token", "intent"])
async def test_it_does_not_introduce_itself_when_something_is_wrong(desk: Desk, stage: DiscordStage, why: str) -> None:
    wrong = stage.settings().model_copy(update={"token": Secret("wrong-canary")} if why == "token" else {})
    stage.server.bots[TOKEN].reads = why != "intent"
    bot = Discord(wrong, desk.context())
    with pytest.raises(Refused) as caught:
        await bot.introduce()
    assert caught.value.remedy
    await bot.aclose()


# -- what is heard -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, meant",
    [
        ("hello all", False),
        (f"<@{ME}> hello", True),
        (f"hello <@!{ME}>", True),
        (f"hello <@&{ME}1>", True),
        ("hello <@&3>", False),
        ("hello <@901>", False),
        ("/status", False),
    ],
)
async def test_what_is_meant_for_the_bot(desk: Desk, server: DiscordServer, text: str, meant: bool) -> None:
    assert (await heard(desk, server, text)).asks is meant


async def test_an_answer_to_the_bot_is_meant_for_it_and_one_to_somebody_else_is_not(
    desk: Desk, server: DiscordServer
) -> None:
    remote = await desk.platform.send(desk.out("what do you think?", to=desk.place(chat=GROUP)))
    mine = await heard(desk, server, "a lot", reply_to=remote)
    assert mine.asks
    human = await server.write("I think so", channel=GROUP)
    await server.write("me too", channel=GROUP, reply_to=human)
    await desk.until_heard("me too")
    assert not next(body for body in await desk.heard() if body.text == "me too").asks


async def test_a_mention_reads_like_one_and_a_command_behind_it_is_one(desk: Desk, server: DiscordServer) -> None:
    body = await heard(desk, server, f"well, <@{ME}>?")
    assert body.text == "well, @everhold?"
    await server.write(f"<@{ME}>  /status", channel=GROUP)

    async def met() -> bool:
        return any(body.command is not None and body.command.name == "status" for body in await desk.heard())

    await desk.until(met, what="a command")


async def test_a_thread_belongs_to_its_channel_and_is_answered_there(desk: Desk, server: DiscordServer) -> None:
    await connected(desk)
    server.channel("4001", parent=GROUP)
    await server.write(f"<@{ME}> hi", channel="4001")
    await desk.until_heard("@everhold hi")
    (body,) = await desk.heard()
    assert (body.origin.chat, body.origin.thread) == (GROUP, "4001")
    assert body.stamp.address.endswith(":thread:4001")
    await desk.platform.send(desk.out("hello", to=body.origin))
    assert [it["content"] for it in server.shown("4001")] == ["hello"]


async def test_a_slash_command_is_kept_then_confirmed(desk: Desk, server: DiscordServer) -> None:
    await connected(desk)
    id = await server.command("title", "A better one", channel=GROUP)

    async def confirmed() -> bool:
        return [it for it, _ in server.answers] == [id]

    await desk.until(confirmed, what="its being confirmed")
    (body,) = await desk.heard()
    assert body.command is not None
    assert (body.command.name, body.command.argument) == ("title", "A better one")
    assert (body.origin.chat, body.stamp.person) == (GROUP, "1001")


async def test_a_slash_command_that_was_not_kept_is_not_confirmed(desk: Desk, server: DiscordServer) -> None:
    await connected(desk)
    desk.dies = "before"
    await server.command("title", "A better one", channel=GROUP)
    await desk.killed()
    assert server.answers == []


async def test_the_commands_are_announced_and_their_list_is_one_discord_takes(
    desk: Desk, server: DiscordServer
) -> None:
    await connected(desk)
    names = [command["name"] for command in server.bots[TOKEN].commands]
    assert {"new", "compress", "status", "halt", "link"} <= set(names)


async def test_previews_and_our_own_words_are_not_heard(desk: Desk, server: DiscordServer) -> None:
    await connected(desk)
    id = await server.write("see https://example.org", channel=CHAT)
    await server._tell("MESSAGE_UPDATE", CHAT, {**server.messages[CHAT][id], "embeds": [{"title": "Example"}]})
    remote = await desk.platform.send(desk.out("I th …"))
    await desk.platform.send(desk.out("I think", edits=remote))
    await server.write("pinned something", channel=CHAT, type=6)
    await server.write("the end", channel=CHAT)
    await desk.until_heard("the end")
    assert await desk.texts() == ["see https://example.org", "the end"]


async def test_a_webhook_is_a_bot_and_a_sender_is_an_id(desk: Desk, server: DiscordServer) -> None:
    body = await heard(desk, server, "deployed", user="77", name="1001", webhook_id="77")
    assert (body.bot, body.stamp.person, body.sender) == (True, "77", "1001")


async def test_what_makes_no_sense_is_kept_wherever_it_stands(desk: Desk, server: DiscordServer) -> None:
    await connected(desk)
    await server.happen("MESSAGE_CREATE", {"id": 7, "channel_id": {"odd": 1}})
    await server.happen("MESSAGE_CREATE", ["no", "message"])
    await server.happen("INTERACTION_CREATE", {"type": 2})
    await server.write("behind", channel=CHAT)
    await desk.until_heard("behind")
    assert [body.asks for body in await desk.heard()] == [False, False, False, True]


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells_nonces", [True, False])
@pytest.mark.parametrize("chat", [GROUP, CHAT])
async def test_a_reply_that_arrived_long_ago_is_found_when_its_nonce_is_forgotten(
    tmp_path: Path, tells_nonces: bool, chat: str
) -> None:
    async with DiscordServer(nonce_seconds=0.0, tells_nonces=tells_nonces) as server:
        server.bot(TOKEN)
        server.channel(GROUP)
        server.direct(CHAT, "1001")
        desk = Desk(DiscordStage(server, Discord), tmp_path)
        question = await server.write("well?", channel=chat, id=str(reading.snowflake(1_600_000_000)))
        out = desk.out("  yes ", to=desk.place(chat=chat, message=question))
        server.fault("POST messages", "drop after")
        with pytest.raises(InDoubt):
            await desk.platform.send(out)
        assert await desk.platform.send(out) == server.shown(chat)[0]["id"]
        assert len(server.shown(chat)) == 1
        await desk.platform.send(desk.out("no", to=out.to, key="s:2:0"))
        assert len(server.shown(chat)) == 2
        again = await server.write("and now?", channel=chat, id=str(reading.snowflake(1_600_000_001)))
        await desk.platform.send(desk.out("yes", to=desk.place(chat=chat, message=again), key="s:3:0"))
        assert len(server.shown(chat)) == 3, "it says the same to another question"
        await desk.close()


async def test_a_reply_that_was_sent_in_time_is_found_when_it_is_sent_again_late(tmp_path: Path) -> None:
    """Killed while it said something to somebody, and started minutes later: nobody is told twice."""
    async with DiscordServer(nonce_seconds=0.0, tells_nonces=False) as server:
        server.bot(TOKEN)
        server.direct(CHAT, "1001")
        desk = Desk(DiscordStage(server, Discord), tmp_path)
        question = await server.write("well?", channel=CHAT, id=str(reading.snowflake(desk.clock.now() - 1)))
        out = desk.out("yes", to=desk.place(chat=CHAT, message=question))
        first = await desk.platform.send(out)
        assert "message_reference" not in server.shown(CHAT)[0]
        real = desk.clock.now
        desk.clock.now = lambda: real() + 600.0  # type: ignore[method-assign]  # time passes
        assert await desk.platform.send(out) == first
        assert len(server.shown(CHAT)) == 1
        await desk.close()


async def test_a_reply_to_something_new_rests_on_its_nonce_and_asks_for_nothing(
    desk: Desk, server: DiscordServer
) -> None:
    from everhold.testing.contracts.platform_desk import Clock

    question = await server.write("well?", channel=GROUP, id=str(reading.snowflake(Clock().now() - 1)))
    out = desk.out("yes", to=desk.place(chat=GROUP, message=question))
    first = await desk.platform.send(out)
    assert await desk.platform.send(out) == first
    assert [it["content"] for it in server.shown(GROUP)] == ["yes"]
    assert "GET messages" not in [name for name, _ in server.calls]


async def test_an_answer_in_a_server_hangs_on_its_question(desk: Desk, server: DiscordServer) -> None:
    body = await heard(desk, server, f"<@{ME}> hi")
    now = str(reading.snowflake(desk.clock.now()))
    await desk.platform.send(desk.out("hello", to=body.origin))
    await desk.platform.send(desk.out("hello", to=desk.place(message=now), key="s:2:0"))
    assert server.shown(GROUP)[-1]["message_reference"]["message_id"] == body.origin.message
    assert "message_reference" not in server.shown(CHAT)[-1]


async def test_nobody_calls_everybody(desk: Desk, server: DiscordServer) -> None:
    await desk.platform.send(desk.out("@everyone look"))
    (given,) = [fields for name, fields in server.calls if name == "POST messages"]
    assert given["allowed_mentions"]["parse"] == ["users"]
    assert (given["nonce"], given["enforce_nonce"]) == (nonce("s:1:0"), True)
    assert len(given["nonce"]) <= 25


async def test_notices_are_marked_where_other_bots_can_read_them(desk: Desk, server: DiscordServer) -> None:
    await desk.platform.send(desk.out("halted", to=desk.place(chat=GROUP), notice=True))
    await desk.platform.send(desk.out("halted", notice=True, key="s:2:0"))
    assert [it["content"] for it in (*server.shown(GROUP), *server.shown(CHAT))] == [f"{NOTICE}halted", "halted"]


async def test_a_file_that_is_found_again_is_not_taken_for_another(desk: Desk, server: DiscordServer) -> None:
    asked = await server.write("both, please", channel=GROUP)
    files = [attachment(data, name=name) for name, data in (("a.txt", b"one"), ("b.txt", b"three"))]
    for data in (b"one", b"three"):
        await desk.keep(data)
    place = desk.place(chat=GROUP, message=asked)
    outs = [desk.out("", to=place, key=f"s:1:{part}", file=file) for part, file in enumerate(files)]
    await desk.platform.send(outs[0])
    for message in server.messages[GROUP].values():
        message.pop("nonce", None)  # it is long ago
    assert await desk.platform.probe(outs[0]) is not None
    assert await desk.platform.probe(outs[1]) is None


async def test_no_token_gets_into_a_log(desk: Desk, stage: DiscordStage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await connected(desk)
    stage.fail("broken")
    with pytest.raises(InDoubt):
        await desk.platform.send(desk.out("hello"))
    assert caplog.text
    assert TOKEN not in caplog.text


async def test_a_reply_whose_draft_was_deleted_is_sent(desk: Desk, server: DiscordServer) -> None:
    await desk.platform.send(desk.out("the whole text", edits="4711"))
    assert [it["content"] for it in server.shown(CHAT)] == ["the whole text"]


async def test_a_text_that_is_too_long_is_told_apart(desk: Desk) -> None:
    with pytest.raises(TooLong):
        await desk.platform.send(desk.out("x" * 2001))


async def test_a_wait_is_kept_without_asking_again(desk: Desk, server: DiscordServer) -> None:
    server.busy[CHAT] = 7
    for _ in range(3):
        with pytest.raises(Transient) as caught:
            await desk.platform.send(desk.out("hello"))
        assert caught.value.retry_after is not None
    assert [name for name, _ in server.calls].count("POST messages") == 1
    await desk.platform.send(desk.out("elsewhere", to=desk.place(chat=GROUP)))


async def test_an_error_of_theirs_is_not_tried_again_behind_our_back(desk: Desk, stage: DiscordStage) -> None:
    stage.fail("broken")
    with pytest.raises(InDoubt):
        await desk.platform.send(desk.out("hello"))
    assert [name for name, _ in stage.server.calls].count("POST messages") == 1


def test_ids_tell_the_time() -> None:
    assert reading.seconds_of(str(reading.snowflake(1_700_000_000.5))) == 1_700_000_000.5
    assert reading.seconds_of("") == reading.seconds_of("interaction") == 0.0
    assert reading.snowflake(0) == 0


def test_the_factory_brings_the_settings_and_the_adapter(desk: Desk, stage: DiscordStage) -> None:
    assert factory.Settings is DiscordSettings
    assert isinstance(factory(stage.settings(), desk.context()), Discord)


# -- the server --------------------------------------------------------------------------------------------------------


async def test_the_server_is_one_that_the_library_as_it_comes_can_live_with(
    server: DiscordServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Route, "BASE", server.api)
    monkeypatch.setattr(DiscordWebSocket, "DEFAULT_GATEWAY", URL(f"ws://127.0.0.1:{server.port}/gateway"))
    got: asyncio.Queue[discord.Message] = asyncio.Queue()
    ready = asyncio.Event()

    class Stock(discord.Client):
        async def on_ready(self) -> None:
            ready.set()

        async def on_message(self, message: discord.Message) -> None:
            if message.author != self.user:
                await got.put(message)

    intents = discord.Intents.default()
    intents.message_content = True
    client = Stock(intents=intents, guild_ready_timeout=0.1)
    running = asyncio.create_task(client.start(TOKEN))
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await ready.wait()
            await server.write("hello", channel=GROUP)
            message = await got.get()
            assert (message.content, str(message.channel)) == ("hello", f"c{GROUP}")
            reply = await message.reply("thinking …")
            await reply.edit(content="an answer")
            with pytest.raises(discord.HTTPException) as caught:
                await message.channel.send("x" * 2001)
            assert caught.value.code == 50035
            server.cut()
            await server.write("while it was away", channel=GROUP)
            assert (await got.get()).content == "while it was away"
            history = [it.content async for it in message.channel.history(after=message, oldest_first=True)]
        assert history == ["an answer", "while it was away"]
        assert (server.identified, server.resumed) == (1, 1)
    finally:
        await client.close()
        await asyncio.gather(running, return_exceptions=True)


def test_a_command_between_others_is_its_sender_s_alone() -> None:
    """Discord lets people use it in their direct chats with each other, and tells of those like of ours."""
    used = {"id": "7", "type": reading.COMMAND, "data": {"name": "status"}, "user": {"id": "1001"}}
    found = reading.command(used, where=reading.channel({"id": "9", "type": 3}), account="main")
    assert found is not None
    assert (found.kind, found.changes_hands) == ("dm", True)
