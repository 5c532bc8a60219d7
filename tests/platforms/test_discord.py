"""Features of Discord: sessions that are resumed or lost, forgotten nonces, threads, roles, and commands."""

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

from everhold.core.access import NOTICE_PREFIX
from everhold.core.attachments import build_attachment
from everhold.core.entries import Heard
from everhold.errors import InDoubt, Refused, TooLong, Transient
from everhold.infra.secret import SecretString
from everhold.platforms.discord import parsing
from everhold.platforms.discord.adapter import DiscordPlatform, make_nonce
from everhold.platforms.discord.settings import DiscordSettings, factory
from everhold.ports.platform import SupportsIntroduction
from everhold.ports.plugin import PluginContext
from everhold.testing.contracts.platform import PlatformHarness
from everhold.testing.platforms.discord import DiscordServer
from tests.platforms.remote_discord import TOKEN, RemoteDiscord, open_remote_discord
from tests.waiting import LIMIT_SECONDS

CHAT, GROUP, ME = RemoteDiscord.chat, RemoteDiscord.group, "900"


@pytest.fixture
async def remote() -> AsyncIterator[RemoteDiscord]:
    async with open_remote_discord(DiscordPlatform) as remote:
        yield remote


@pytest.fixture
async def harness(remote: RemoteDiscord, tmp_path: Path) -> AsyncIterator[PlatformHarness]:
    harness = PlatformHarness(remote, tmp_path)
    yield harness
    await harness.close()


@pytest.fixture
def server(remote: RemoteDiscord) -> DiscordServer:
    return remote.server


async def connected(harness: PlatformHarness) -> None:
    """Listen, and wait until missed messages are read, so that the following events come from Discord's gateway."""
    harness.start()

    async def met() -> bool:
        return await harness.offset("alive") is not None

    await harness.wait_until(met, what="connecting")


async def heard(harness: PlatformHarness, server: DiscordServer, text: str, **more: Any) -> Heard:
    """Write a message and return its entry."""
    await connected(harness)
    await server.write_message(text, **{"channel": GROUP, **more})
    await server.write_message("that was it", channel=CHAT)
    await harness.wait_until_heard("that was it")
    return (await harness.read_heard())[0]


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_a_broken_connection_is_resumed_and_gets_missed_events(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    await connected(harness)
    await server.write_message("before", channel=CHAT)
    await harness.wait_until_heard("before")
    looks = [name for name, _ in server.calls].count("GET messages")
    server.abort_sockets()
    for number in range(3):
        await server.write_message(f"meanwhile {number}", channel=CHAT)
    await harness.wait_until_heard("meanwhile 2")
    assert (server.identified, server.resumed) == (1, 1)
    assert await harness.read_texts() == ["before", *(f"meanwhile {number}" for number in range(3))]
    assert [name for name, _ in server.calls].count("GET messages") == looks, "nothing had to be looked for"


async def test_after_a_lost_session_missed_messages_are_read_from_the_history(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    server.add_channel("3002")
    server.add_channel("4001", parent=GROUP)
    await connected(harness)
    await server.write_message("before", channel=CHAT)
    await server.write_message("before, too", channel=GROUP)
    await harness.wait_until_heard("before", "before, too")
    server.disconnect()
    server.forget_sessions()
    for number in range(250):
        await server.write_message(f"much {number}", channel=GROUP)
    await server.write_message("in a channel that was silent", channel="3002")
    await server.write_message("in a thread", channel="4001")
    await server.write_message("in private", channel=CHAT)
    server.reconnect()
    await harness.wait_until_heard("much 249", "in a channel that was silent", "in a thread", "in private")
    assert server.identified == 2
    texts = await harness.read_texts()
    assert [it for it in texts if it.startswith("much")] == [f"much {number}" for number in range(250)]
    assert len(texts) == 255
    thread = next(body for body in await harness.read_heard() if body.text == "in a thread")
    assert (thread.origin.chat, thread.origin.thread) == (GROUP, "4001")


async def test_the_first_message_of_a_known_sender_is_heard_after_downtime(
    remote: RemoteDiscord, tmp_path: Path
) -> None:
    class Friends(PlatformHarness):
        def make_context(self) -> PluginContext:
            context = super().make_context()
            assert context.account_context is not None
            account_context = msgspec.structs.replace(
                context.account_context, list_known_senders=lambda: frozenset({"1001", "1002", "nobody"})
            )
            return msgspec.structs.replace(context, account_context=account_context)

    harness = Friends(remote, tmp_path)
    await remote.server.write_message("hello?", channel=CHAT)
    await connected(harness)
    await harness.wait_until_heard("hello?")
    asked = [fields for name, fields in remote.server.calls if name == "POST users"]
    await harness.restart()
    await remote.server.write_message("again", channel=CHAT)
    await harness.wait_until_heard("again")
    assert len([fields for name, fields in remote.server.calls if name == "POST users"]) == len(asked) == 2
    await harness.close()


async def test_rate_limit_buckets_are_respected_before_they_are_empty(tmp_path: Path) -> None:
    async with DiscordServer(bucket=3, window=0.2) as server:
        server.add_bot(TOKEN)
        server.add_direct_channel(CHAT)
        harness = PlatformHarness(RemoteDiscord(server, DiscordPlatform), tmp_path)
        for number in range(8):
            await harness.platform.send(harness.make_outgoing(str(number), key=f"s:{number}:0"))
        assert [it["content"] for it in server.list_shown_messages(CHAT)] == [str(number) for number in range(8)]
        assert server.rate_limited_count == 0
        await harness.close()


async def test_only_channels_with_new_messages_are_read_after_a_gap(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    for number in range(20):
        server.add_channel(str(5000 + number))
    await connected(harness)
    await server.write_message("hello", channel=GROUP)
    await harness.wait_until_heard("hello")
    await harness.stop()
    await server.write_message("meanwhile", channel=GROUP)
    looks = [name for name, _ in server.calls].count("GET messages")
    await harness.restart()
    await harness.wait_until_heard("meanwhile")
    assert [name for name, _ in server.calls].count("GET messages") == looks + 1


async def test_a_requested_reconnect_is_made(harness: PlatformHarness, server: DiscordServer) -> None:
    await connected(harness)
    await server.write_message("before", channel=CHAT)
    await harness.wait_until_heard("before")
    await server.request_reconnect()

    async def resumed() -> bool:
        return server.resumed == 1

    await harness.wait_until(resumed, what="coming back")
    await server.write_message("behind", channel=CHAT)
    await harness.wait_until_heard("behind")
    assert harness.troubles == []


async def test_messages_from_before_the_bot_joined_are_not_heard(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    await server.write_message("long ago", channel=GROUP, id=str(parsing.make_snowflake(1_600_000_000)))
    await server.write_message("just now", channel=GROUP)
    harness.start()
    await harness.wait_until_heard("just now")
    assert await harness.read_texts() == ["just now"]


@pytest.mark.parametrize("why", ["token", "intent"])
async def test_a_problem_for_the_operator_is_reported(
    harness: PlatformHarness, remote: RemoteDiscord, why: str
) -> None:
    settings = remote.settings()
    if why == "token":
        settings = settings.model_copy(update={"token": SecretString("wrong-canary")})
    else:
        remote.server.bots[TOKEN].reads_messages = False
    bot = DiscordPlatform(settings, harness.make_context())
    with pytest.raises(Refused) as caught:
        await bot.listen(harness._accept)
    assert caught.value.remedy
    assert "canary" not in str(caught.value)
    if why == "token":
        with pytest.raises(Transient):  # the message is valid, and waits
            await bot.send(harness.make_outgoing("hello"))
    await bot.aclose()


async def test_the_introduction_says_how_to_add_the_bot(harness: PlatformHarness, server: DiscordServer) -> None:
    assert isinstance(harness.platform, SupportsIntroduction)
    me = await harness.platform.introduce()
    assert me.name == "everhold"
    assert "https://discord.com/oauth2/authorize?client_id=900" in me.hello


@pytest.mark.parametrize("why", ["token", "intent"])
async def test_an_introduction_fails_with_the_reason(harness: PlatformHarness, remote: RemoteDiscord, why: str) -> None:
    wrong = remote.settings().model_copy(update={"token": SecretString("wrong-canary")} if why == "token" else {})
    remote.server.bots[TOKEN].reads_messages = why != "intent"
    bot = DiscordPlatform(wrong, harness.make_context())
    with pytest.raises(Refused) as caught:
        await bot.introduce()
    assert caught.value.remedy
    await bot.aclose()


# -- receiving ---------------------------------------------------------------------------------------------------------


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
async def test_messages_that_address_the_bot(
    harness: PlatformHarness, server: DiscordServer, text: str, meant: bool
) -> None:
    assert (await heard(harness, server, text)).asks is meant


async def test_a_reply_to_the_bot_addresses_it_and_a_reply_to_a_person_does_not(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    remote_id = await harness.platform.send(
        harness.make_outgoing("what do you think?", to=harness.make_location(chat=GROUP))
    )
    mine = await heard(harness, server, "a lot", reply_to=remote_id)
    assert mine.asks
    human = await server.write_message("I think so", channel=GROUP)
    await server.write_message("me too", channel=GROUP, reply_to=human)
    await harness.wait_until_heard("me too")
    assert not next(body for body in await harness.read_heard() if body.text == "me too").asks


async def test_a_mention_is_readable_and_a_command_after_it_is_a_command(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    body = await heard(harness, server, f"well, <@{ME}>?")
    assert body.text == "well, @everhold?"
    await server.write_message(f"<@{ME}>  /status", channel=GROUP)

    async def met() -> bool:
        return any(body.command is not None and body.command.name == "status" for body in await harness.read_heard())

    await harness.wait_until(met, what="a command")


async def test_a_thread_belongs_to_its_channel_and_is_answered_there(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    await connected(harness)
    server.add_channel("4001", parent=GROUP)
    await server.write_message(f"<@{ME}> hi", channel="4001")
    await harness.wait_until_heard("@everhold hi")
    (body,) = await harness.read_heard()
    assert (body.origin.chat, body.origin.thread) == (GROUP, "4001")
    assert body.stamp.address.endswith(":thread:4001")
    await harness.platform.send(harness.make_outgoing("hello", to=body.origin))
    assert [it["content"] for it in server.list_shown_messages("4001")] == ["hello"]


async def test_a_slash_command_is_committed_and_then_confirmed(harness: PlatformHarness, server: DiscordServer) -> None:
    await connected(harness)
    id = await server.use_command("title", "A better one", channel=GROUP)

    async def confirmed() -> bool:
        return [it for it, _ in server.interaction_responses] == [id]

    await harness.wait_until(confirmed, what="its being confirmed")
    (body,) = await harness.read_heard()
    assert body.command is not None
    assert (body.command.name, body.command.argument) == ("title", "A better one")
    assert (body.origin.chat, body.stamp.person) == (GROUP, "1001")


async def test_a_slash_command_that_was_not_committed_is_not_confirmed(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    await connected(harness)
    harness.dies_at = "before"
    await server.use_command("title", "A better one", channel=GROUP)
    await harness.wait_until_killed()
    assert server.interaction_responses == []


async def test_the_commands_are_announced_in_a_form_that_discord_accepts(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    await connected(harness)
    names = [command["name"] for command in server.bots[TOKEN].commands]
    assert {"new", "compress", "status", "halt", "link"} <= set(names)


async def test_previews_and_our_own_messages_are_not_heard(harness: PlatformHarness, server: DiscordServer) -> None:
    await connected(harness)
    id = await server.write_message("see https://example.org", channel=CHAT)
    await server._dispatch_message(
        "MESSAGE_UPDATE", CHAT, {**server.messages[CHAT][id], "embeds": [{"title": "Example"}]}
    )
    remote_id = await harness.platform.send(harness.make_outgoing("I th …"))
    await harness.platform.send(harness.make_outgoing("I think", edits=remote_id))
    await server.write_message("pinned something", channel=CHAT, type=6)
    await server.write_message("the end", channel=CHAT)
    await harness.wait_until_heard("the end")
    assert await harness.read_texts() == ["see https://example.org", "the end"]


async def test_a_webhook_is_a_bot_and_a_sender_is_an_id(harness: PlatformHarness, server: DiscordServer) -> None:
    body = await heard(harness, server, "deployed", user="77", name="1001", webhook_id="77")
    assert (body.bot, body.stamp.person, body.sender) == (True, "77", "1001")


async def test_malformed_events_are_stored_unparsed_if_their_sender_can_be_read(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    await connected(harness)
    await server.dispatch_event("MESSAGE_CREATE", {"id": 7, "channel_id": {"odd": 1}, "author": {"id": "1001"}})
    await server.dispatch_event("MESSAGE_CREATE", ["no", "message"])
    await server.dispatch_event("INTERACTION_CREATE", {"type": 2, "member": {"user": {"id": "1001"}}})
    await server.write_message("behind", channel=CHAT)
    await harness.wait_until_heard("behind")
    assert [body.asks for body in await harness.read_heard()] == [False, False, True]


# -- sending -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells_nonces", [True, False])
@pytest.mark.parametrize("chat", [GROUP, CHAT])
async def test_a_reply_that_arrived_long_ago_is_found_when_its_nonce_is_forgotten(
    tmp_path: Path, tells_nonces: bool, chat: str
) -> None:
    async with DiscordServer(nonce_seconds=0.0, tells_nonces=tells_nonces) as server:
        server.add_bot(TOKEN)
        server.add_channel(GROUP)
        server.add_direct_channel(CHAT, "1001")
        harness = PlatformHarness(RemoteDiscord(server, DiscordPlatform), tmp_path)
        question = await server.write_message("well?", channel=chat, id=str(parsing.make_snowflake(1_600_000_000)))
        out = harness.make_outgoing("  yes ", to=harness.make_location(chat=chat, message=question))
        server.plan_fault("POST messages", "drop after")
        with pytest.raises(InDoubt):
            await harness.platform.send(out)
        assert await harness.platform.send(out) == server.list_shown_messages(chat)[0]["id"]
        assert len(server.list_shown_messages(chat)) == 1
        await harness.platform.send(harness.make_outgoing("no", to=out.to, key="s:2:0"))
        assert len(server.list_shown_messages(chat)) == 2
        again = await server.write_message("and now?", channel=chat, id=str(parsing.make_snowflake(1_600_000_001)))
        await harness.platform.send(
            harness.make_outgoing("yes", to=harness.make_location(chat=chat, message=again), key="s:3:0")
        )
        assert len(server.list_shown_messages(chat)) == 3, "it says the same to another question"
        await harness.close()


async def test_a_reply_that_was_sent_in_time_is_found_when_it_is_sent_again_late(tmp_path: Path) -> None:
    """The process was killed during a send and started minutes later; the reply is shown once."""
    async with DiscordServer(nonce_seconds=0.0, tells_nonces=False) as server:
        server.add_bot(TOKEN)
        server.add_direct_channel(CHAT, "1001")
        harness = PlatformHarness(RemoteDiscord(server, DiscordPlatform), tmp_path)
        question = await server.write_message(
            "well?", channel=CHAT, id=str(parsing.make_snowflake(harness.clock.now() - 1))
        )
        out = harness.make_outgoing("yes", to=harness.make_location(chat=CHAT, message=question))
        first = await harness.platform.send(out)
        assert "message_reference" not in server.list_shown_messages(CHAT)[0]
        real = harness.clock.now
        harness.clock.now = lambda: real() + 600.0  # type: ignore[method-assign]  # time passes
        assert await harness.platform.send(out) == first
        assert len(server.list_shown_messages(CHAT)) == 1
        await harness.close()


async def test_a_reply_to_a_new_message_relies_on_its_nonce_without_a_probe(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    from everhold.testing.contracts.platform_harness import ContractClock

    question = await server.write_message(
        "well?", channel=GROUP, id=str(parsing.make_snowflake(ContractClock().now() - 1))
    )
    out = harness.make_outgoing("yes", to=harness.make_location(chat=GROUP, message=question))
    first = await harness.platform.send(out)
    assert await harness.platform.send(out) == first
    assert [it["content"] for it in server.list_shown_messages(GROUP)] == ["yes"]
    assert "GET messages" not in [name for name, _ in server.calls]


async def test_an_answer_in_a_server_is_a_reply(harness: PlatformHarness, server: DiscordServer) -> None:
    body = await heard(harness, server, f"<@{ME}> hi")
    now = str(parsing.make_snowflake(harness.clock.now()))
    await harness.platform.send(harness.make_outgoing("hello", to=body.origin))
    await harness.platform.send(harness.make_outgoing("hello", to=harness.make_location(message=now), key="s:2:0"))
    assert server.list_shown_messages(GROUP)[-1]["message_reference"]["message_id"] == body.origin.message
    assert "message_reference" not in server.list_shown_messages(CHAT)[-1]


async def test_a_reply_never_mentions_everyone(harness: PlatformHarness, server: DiscordServer) -> None:
    await harness.platform.send(harness.make_outgoing("@everyone look"))
    (given,) = [fields for name, fields in server.calls if name == "POST messages"]
    assert given["allowed_mentions"]["parse"] == ["users"]
    assert (given["nonce"], given["enforce_nonce"]) == (make_nonce("s:1:0"), True)
    assert len(given["nonce"]) <= 25


async def test_notices_are_marked_where_other_bots_can_read_them(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    await harness.platform.send(harness.make_outgoing("halted", to=harness.make_location(chat=GROUP), notice=True))
    await harness.platform.send(harness.make_outgoing("halted", notice=True, key="s:2:0"))
    assert [it["content"] for it in (*server.list_shown_messages(GROUP), *server.list_shown_messages(CHAT))] == [
        f"{NOTICE_PREFIX}halted",
        "halted",
    ]


async def test_a_probe_does_not_confuse_two_files(harness: PlatformHarness, server: DiscordServer) -> None:
    asked = await server.write_message("both, please", channel=GROUP)
    files = [build_attachment(data, name=name) for name, data in (("a.txt", b"one"), ("b.txt", b"three"))]
    for data in (b"one", b"three"):
        await harness.store_blob(data)
    place = harness.make_location(chat=GROUP, message=asked)
    outs = [harness.make_outgoing("", to=place, key=f"s:1:{part}", file=file) for part, file in enumerate(files)]
    await harness.platform.send(outs[0])
    for message in server.messages[GROUP].values():
        message.pop("nonce", None)  # long ago
    assert await harness.platform.probe(outs[0]) is not None
    assert await harness.platform.probe(outs[1]) is None


async def test_no_token_gets_into_a_log(
    harness: PlatformHarness, remote: RemoteDiscord, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await connected(harness)
    remote.fail_next_send("broken")
    with pytest.raises(InDoubt):
        await harness.platform.send(harness.make_outgoing("hello"))
    assert caplog.text
    assert TOKEN not in caplog.text


async def test_a_reply_whose_draft_was_deleted_is_sent(harness: PlatformHarness, server: DiscordServer) -> None:
    await harness.platform.send(harness.make_outgoing("the whole text", edits="4711"))
    assert [it["content"] for it in server.list_shown_messages(CHAT)] == ["the whole text"]


async def test_a_text_that_is_too_long_raises_too_long(harness: PlatformHarness) -> None:
    with pytest.raises(TooLong):
        await harness.platform.send(harness.make_outgoing("x" * 2001))


async def test_a_rate_limit_is_respected_without_another_call(harness: PlatformHarness, server: DiscordServer) -> None:
    server.retry_after_seconds[CHAT] = 7
    for _ in range(3):
        with pytest.raises(Transient) as caught:
            await harness.platform.send(harness.make_outgoing("hello"))
        assert caught.value.retry_after is not None
    assert [name for name, _ in server.calls].count("POST messages") == 1
    await harness.platform.send(harness.make_outgoing("elsewhere", to=harness.make_location(chat=GROUP)))


async def test_a_server_error_is_not_retried_by_the_library(harness: PlatformHarness, remote: RemoteDiscord) -> None:
    remote.fail_next_send("broken")
    with pytest.raises(InDoubt):
        await harness.platform.send(harness.make_outgoing("hello"))
    assert [name for name, _ in remote.server.calls].count("POST messages") == 1


def test_ids_contain_the_time() -> None:
    assert parsing.parse_snowflake_seconds(str(parsing.make_snowflake(1_700_000_000.5))) == 1_700_000_000.5
    assert parsing.parse_snowflake_seconds("") == parsing.parse_snowflake_seconds("interaction") == 0.0
    assert parsing.make_snowflake(0) == 0


def test_the_factory_brings_the_settings_and_the_adapter(harness: PlatformHarness, remote: RemoteDiscord) -> None:
    assert factory.Settings is DiscordSettings
    assert isinstance(factory(remote.settings(), harness.make_context()), DiscordPlatform)


# -- the server --------------------------------------------------------------------------------------------------------


async def test_the_unmodified_library_works_with_the_fake_server(
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
            await server.write_message("hello", channel=GROUP)
            message = await got.get()
            assert (message.content, str(message.channel)) == ("hello", f"c{GROUP}")
            reply = await message.reply("thinking …")
            await reply.edit(content="an answer")
            with pytest.raises(discord.HTTPException) as caught:
                await message.channel.send("x" * 2001)
            assert caught.value.code == 50035
            server.abort_sockets()
            await server.write_message("while it was away", channel=GROUP)
            assert (await got.get()).content == "while it was away"
            history = [it.content async for it in message.channel.history(after=message, oldest_first=True)]
        assert history == ["an answer", "while it was away"]
        assert (server.identified, server.resumed) == (1, 1)
    finally:
        await client.close()
        await asyncio.gather(running, return_exceptions=True)


def test_a_command_in_another_direct_chat_belongs_to_its_sender() -> None:
    """Discord lets people use a command in their direct chats with each other, and reports those like ours."""
    used = {"id": "7", "type": parsing.COMMAND_INTERACTION_TYPE, "data": {"name": "status"}, "user": {"id": "1001"}}
    found = parsing.parse_command(used, channel=parsing.parse_channel({"id": "9", "type": 3}), account="main")
    assert found is not None
    assert (found.kind, found.can_change_owner) == ("dm", True)


# -- strangers and malformed events ------------------------------------------------------------------------------------


async def test_strangers_do_not_displace_the_direct_chats_of_known_people(
    harness: PlatformHarness, server: DiscordServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Direct chats cannot be listed. A chat that drops out of our list is not read after a gap."""
    monkeypatch.setattr("everhold.platforms.discord.catch_up.MAX_DIRECT_CHATS", 3)
    await connected(harness)
    await server.write_message("it is me", channel=CHAT)
    await harness.wait_until_heard("it is me")
    for number in range(5):
        stranger = f"77{number}"
        harness.denied.add(stranger)
        server.add_direct_channel(f"90{number}", user=stranger)
        await server.write_message("let me in", channel=f"90{number}", user=stranger)

    async def met() -> bool:
        return [it.outcome for it in harness.results].count("denied") == 5

    await harness.wait_until(met, what="the strangers")
    assert await harness.offset("direct") == f'["{CHAT}"]'
    assert [await harness.offset(f"channel/90{number}") for number in range(5)] == [None] * 5
    await harness.stop()
    await server.write_message("while you were away", channel=CHAT)
    await harness.restart()
    await harness.wait_until_heard("while you were away")


async def test_a_stranger_who_writes_while_missed_messages_are_read_is_not_stored(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    """The history of a channel with a waiting event is read, too."""
    harness.denied.add("666")
    server.add_direct_channel("900", user="666")
    await connected(harness)
    await harness.stop()
    server.hang_calls("GET guilds")
    asked = [name for name, _ in server.calls].count("GET guilds")
    await harness.restart()

    async def is_asked() -> bool:
        return [name for name, _ in server.calls].count("GET guilds") > asked

    await harness.wait_until(is_asked, what="the list of channels")
    await server.write_message("let me in", channel="900", user="666")
    await asyncio.sleep(0.2)  # the event waits; if it is late, the test only finds less
    server.release_calls("GET guilds")

    async def met() -> bool:
        return "denied" in [it.outcome for it in harness.results]

    await harness.wait_until(met, what="the stranger")
    await harness.stop()
    assert await harness.offset("direct") is None
    assert await harness.offset("channel/900") is None


async def test_a_stranger_s_command_gets_no_answer(harness: PlatformHarness, server: DiscordServer) -> None:
    harness.denied.add("1001")
    await connected(harness)
    await server.use_command("status", channel=CHAT)
    await server.use_command("status", channel=GROUP)

    async def met() -> bool:
        return len(harness.results) == 2

    await harness.wait_until(met, what="the commands")
    assert {it.outcome for it in harness.results} == {"denied"}
    assert server.interaction_responses == []
    assert await harness.offset("direct") is None


async def test_a_stranger_s_new_thread_causes_no_request(harness: PlatformHarness, server: DiscordServer) -> None:
    harness.denied.add("666")
    await connected(harness)
    await server.create_thread("3777", parent=GROUP)
    before = [name for name, _ in server.calls].count("GET channel")
    await server.write_message("look at my thread", channel="3777", user="666")
    await server.write_message("that was it", channel="3777")
    await harness.wait_until_heard("that was it")
    (body,) = await harness.read_heard()
    assert (body.origin.chat, body.origin.thread) == (GROUP, "3777")
    assert [name for name, _ in server.calls].count("GET channel") == before


async def test_a_command_in_a_private_channel_of_others_is_not_in_a_direct_chat(
    harness: PlatformHarness, server: DiscordServer
) -> None:
    """A person can use the commands of an app in a direct chat with another person. The bot is not in it."""
    await connected(harness)
    user = {"id": "1001", "username": "ada"}
    command = {"id": "5", "type": 2, "token": "t", "channel_id": "8001", "context": 2, "user": user}
    await server.dispatch_event("INTERACTION_CREATE", {**command, "data": {"name": "status"}})
    await server.write_message("that was it", channel=CHAT)
    await harness.wait_until_heard("that was it")
    (body, _) = await harness.read_heard()
    assert ":dm:" not in body.stamp.address
    assert await harness.offset("direct") == f'["{CHAT}"]'


async def test_a_button_of_anybody_does_nothing(harness: PlatformHarness, server: DiscordServer) -> None:
    """We send no buttons. A press of one, whoever forged it, is no message and gets no answer."""
    await connected(harness)
    pressed = {"id": "5", "type": 3, "token": "t", "channel_id": CHAT, "user": {"id": "1001", "username": "ada"}}
    await server.dispatch_event("INTERACTION_CREATE", {**pressed, "data": {"custom_id": "approve", "name": "halt"}})
    await server.write_message("that was it", channel=CHAT)
    await harness.wait_until_heard("that was it")
    assert await harness.read_texts() == ["that was it"]
    assert server.interaction_responses == []


@pytest.mark.parametrize("event", ["GUILD_CREATE", "CHANNEL_CREATE", "THREAD_CREATE"])
async def test_a_malformed_description_does_not_stop_the_listener(
    harness: PlatformHarness, server: DiscordServer, event: str
) -> None:
    await connected(harness)
    junk: list[Any] = [None, 5, "x", [], {}, {"id": None}, {"id": "5", "type": [], "parent_id": {}}]
    for it in junk:
        await server.dispatch_event(event, it)
        await server.dispatch_event(event, {"id": "1", "roles": it, "channels": it, "threads": it})
        await server.dispatch_event(event, {"id": "1", "roles": [it], "channels": [it], "threads": [it]})
    identified = server.identified
    await server.write_message("that was it", channel=CHAT)
    await harness.wait_until_heard("that was it")
    assert server.identified == identified, "the connection was lost"
