"""Who may speak: nobody who was not let in, by ids that nobody can take, and strangers hear one word an hour."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everhold.config import parse_settings
from everhold.core import pairing
from everhold.core.address import Address, parse_address
from everhold.core.commands import COMMANDS, needs_owner_in_group
from everhold.core.entries import AddressBound, Changed, ChatCommand, ChatLocation, EntryDraft, Heard
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.platform import AcceptResult, IncomingMessage, PlatformOffset
from everhold.ports.store import Change, StateNamespace, Step
from tests.ingress.harness import CONFIG, IngressHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngressHarness]:
    harness = IngressHarness(tmp_path)
    yield harness
    await harness.store.close()


# -- default deny ------------------------------------------------------------------------------------------------------


async def test_who_is_listed_may_speak_directly_and_a_stranger_may_not(harness: IngressHarness) -> None:
    assert (await harness.send_and_read("hello")).stamp.person == "ada"
    assert (await harness.send_and_read("hello", sender="7")).stamp.person == "fake:7"
    verdict = await harness.send_message("hello", sender="666")
    assert (verdict.outcome, verdict.session) == ("denied", "")
    assert len(await harness.store.list_sessions()) == 2, "a stranger leaves no session"


async def test_what_is_not_let_in_is_not_brought_again(harness: IngressHarness) -> None:
    """Nothing of it is kept but how far the platform was read: else it would come with every start, and for ever."""
    for value in ("7", "8"):
        read = PlatformOffset(key="offset", value=value)
        assert (await harness.send_message("hello", sender="666", offset=read)).outcome == "denied"
        (record,) = await harness.store.list_state_records(StateNamespace.PLATFORM_OFFSET, scope="fake:main")
        assert (record.key, record.value) == ("offset", value)


@pytest.mark.parametrize("name", ["ada", "fake:1001", "root", "1001", "*"])
async def test_a_name_lets_nobody_in(harness: IngressHarness, name: str) -> None:
    assert (await harness.send_message("hello", sender="666", name=name)).outcome == "denied"


@pytest.mark.parametrize("sender", ["ada", "root", "*", "fake:1001"])
async def test_an_id_that_looks_like_a_person_is_not_that_person(harness: IngressHarness, sender: str) -> None:
    assert (await harness.send_message("hello", sender=sender)).outcome == "denied"


async def test_an_account_that_is_gone_hears_nobody(harness: IngressHarness) -> None:
    harness.settings = harness.settings.model_copy(update={"platforms": {}})
    assert (await harness.send_message("hello")).outcome == "denied"


async def test_a_list_is_for_its_account_and_its_scope(harness: IngressHarness) -> None:
    assert (await harness.send_message("hello", sender="7", platform="other")).outcome == "denied"
    assert (await harness.send_message("hello", chat="elsewhere")).outcome == "denied"
    assert (await harness.send_message("hello", chat="room")).outcome == "accepted"
    assert (await harness.send_message("hello", chat="room", sender="666")).outcome == "denied"
    assert (await harness.send_message("hello", chat="open", sender="666")).outcome == "accepted"


async def test_whoever_is_turned_away_in_a_group_leaves_its_id_in_the_log(harness: IngressHarness) -> None:
    """It is what has to stand in the configuration, and no platform shows it."""
    await harness.send_message("hello", chat="-100200", sender="666")
    (line,) = harness.log.find_events("message.denied")
    assert (line["platform"], line["account"], line["chat"]) == ("fake", "main", "-100200")


async def test_an_owner_may_speak_everywhere(harness: IngressHarness) -> None:
    assert (await harness.send_message("hello", sender="1", chat="elsewhere")).outcome == "accepted"
    assert (await harness.send_message("hello", sender="1")).outcome == "accepted"


# -- pairing -----------------------------------------------------------------------------------------------------------


async def code_for(harness: IngressHarness, sender: str = "666", **more: str) -> str:
    await harness.send_message("let me in", sender=sender, **more)
    found = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", (await harness.read_notices())[-1])
    assert found
    return found[0]


async def test_a_stranger_is_let_in_by_a_code_that_somebody_approves_here(harness: IngressHarness) -> None:
    code = await code_for(harness, name="Eve")
    (waiting,) = await harness.admission.pairing.list_requests()
    assert (waiting["identity"], waiting["name"]) == ("fake:666", "Eve")
    assert code not in str(waiting), "who waits is shown, the code has to come from them"
    approved = await harness.admission.pairing.approve_code(code.lower().replace("-", " "))
    assert approved["identity"] == "fake:666"
    assert (await harness.send_message("thank you", sender="666")).outcome == "accepted"
    assert (await harness.send_message("hello", sender="666", chat="room")).outcome == "denied", (
        "a direct chat is all it opens"
    )
    assert (await harness.send_message("hello", sender="666", platform="other")).outcome == "denied", (
        "and of one account"
    )


async def test_whoever_was_let_in_as_somebody_is_a_stranger_again_when_that_is_taken_back(
    harness: IngressHarness,
) -> None:
    pairing = harness.admission.pairing
    await pairing.approve_code(await code_for(harness), person="ada")
    assert (await harness.send_and_read("hello", sender="666")).stamp.person == "ada"
    await pairing.revoke_identity("fake:666")
    assert (await harness.send_message("still here", sender="666")).outcome == "denied"
    assert await harness.store.list_identity_links() == []


async def test_who_was_somebody_before_they_were_let_in_stays_that(harness: IngressHarness) -> None:
    """Nobody knows of an old grant, either, what came with it."""
    pairing = harness.admission.pairing
    code = await code_for(harness)
    await harness.store.link_identity("fake:666", "ada", at=harness.clock.at)
    await pairing.approve_code(code, person="ada")
    await pairing.revoke_identity("fake:666")
    assert await harness.store.list_identity_links() == [("fake:666", "ada")]


async def test_a_code_counts_once_and_for_ten_minutes(harness: IngressHarness) -> None:
    code = await code_for(harness)
    await harness.admission.pairing.approve_code(code)
    with pytest.raises(NotFound):
        await harness.admission.pairing.approve_code(code)
    await harness.admission.pairing.revoke_identity("fake:666")
    assert (await harness.send_message("hello", sender="666")).outcome == "denied"
    late = await code_for(harness, sender="667")
    harness.clock.at += 601
    with pytest.raises(InvalidRequest, match="too old"):
        await harness.admission.pairing.approve_code(late)
    assert await harness.admission.pairing.list_requests() == []
    assert (await harness.send_message("hello", sender="667")).outcome == "denied"


async def test_guessing_ends_after_five_tries_and_voids_what_could_be_guessed(harness: IngressHarness) -> None:
    code = await code_for(harness)
    for _ in range(5):
        with pytest.raises(NotFound):
            await harness.admission.pairing.approve_code("AAAA-AAAA")
    with pytest.raises(InvalidRequest, match="too many"):
        await harness.admission.pairing.approve_code(code)
    harness.clock.at += 601
    with pytest.raises(NotFound):
        await harness.admission.pairing.approve_code(code)


async def test_a_stranger_hears_one_word_an_hour_also_after_a_restart(harness: IngressHarness) -> None:
    for _ in range(5):
        await harness.send_message("hello?", sender="666")
    await harness.read_notices()
    harness.admission = harness.open_admission()
    await harness.send_message("hello?", sender="666")
    assert len(await harness.read_notices()) == 1
    harness.clock.at += 3_601
    await harness.send_message("hello?", sender="666")
    assert len(await harness.read_notices()) == 2


async def test_only_so_many_strangers_get_a_code(harness: IngressHarness) -> None:
    for number in range(pairing.MAX_PAIRING_REQUESTS + 5):
        await harness.send_message("hello", sender=f"9{number}")
    assert len(await harness.read_notices()) == pairing.MAX_PAIRING_REQUESTS
    harness.clock.at += 4_000
    await harness.send_message("hello", sender="950")
    kept = await harness.store.list_state_records(StateNamespace.PAIRING_REQUEST)
    assert len(kept) == 1, "strangers are forgotten"


async def test_strangers_in_groups_bots_and_accounts_without_pairing_get_no_reply(harness: IngressHarness) -> None:
    await harness.send_message("hello", sender="666", chat="room")
    await harness.send_message("hello", sender="667", bot=True)
    harness.settings = harness.settings.model_copy(
        update={"access": harness.settings.access.model_copy(update={"pairing": False})}
    )
    await harness.send_message("hello", sender="668")
    assert await harness.read_notices() == []


async def test_whoever_is_approved_by_name_is_that_person(harness: IngressHarness) -> None:
    await harness.admission.pairing.approve_code(await code_for(harness), person="ada")
    assert (await harness.send_and_read("it is me", sender="666")).stamp.person == "ada"


async def test_no_code_is_kept_where_it_could_be_read(harness: IngressHarness, tmp_path: Path) -> None:
    code = await code_for(harness)
    await harness.store.close()
    for file in tmp_path.iterdir():  # noqa: ASYNC240  # nothing else is waiting
        assert pairing.normalize_code(code).encode() not in file.read_bytes().replace(b"-", b"")
    assert code not in str(harness.log.lines)
    harness.store = harness.store.open(tmp_path / "log.db", chance=harness.admission._chance)


@given(st.binary(min_size=64, max_size=64))
def test_a_code_is_readable_and_fair(chance: bytes) -> None:
    try:
        code = pairing.make_code(chance)
    except AssertionError:
        return  # a draw that hypothesis likes and chance does not: sixty bytes of the unfair kind
    assert re.fullmatch(r"[A-HJKMNP-TV-Z2-9]{4}-[A-HJKMNP-TV-Z2-9]{4}", code)
    assert not set(code) & set("ILOU01")


# -- one person, two platforms -----------------------------------------------------------------------------------------


async def said(harness: IngressHarness, text: str, **more: str) -> str:
    before = len(await harness.read_notices())
    await harness.send_message(text, **more)
    now = await harness.read_notices()
    return now[-1] if len(now) > before else ""


def code_in(text: str) -> str:
    found = re.search(r"/link ([A-Z2-9]{4}-[A-Z2-9]{4})", text)
    assert found, text
    return found[1]


async def test_two_sides_are_one_person_once_both_have_said_so(harness: IngressHarness) -> None:
    first = code_in(await said(harness, "/link"))
    await harness.send_message(f"/link {first}", sender="55", platform="other")
    await harness.read_notices()
    second = code_in(harness.other.shown_messages[-1].text)
    assert await harness.store.get_person("other:55") is None, "one side alone proves nothing"
    await harness.send_message(f"/link {second}")
    assert await harness.store.get_person("other:55") == "ada"
    assert (await harness.send_and_read("me again", sender="55", platform="other")).stamp.person == "ada"


async def test_the_second_word_counts_only_from_whoever_began(harness: IngressHarness) -> None:
    first = code_in(await said(harness, "/link"))
    await harness.send_message(f"/link {first}", sender="55", platform="other")
    await harness.read_notices()
    second = code_in(harness.other.shown_messages[-1].text)
    await harness.send_message(f"/link {second}", sender="7")
    await harness.send_message(f"/link {second}", sender="55", platform="other")
    assert await harness.store.get_person("other:55") is None


async def test_nobody_is_talked_into_being_somebody_else(harness: IngressHarness) -> None:
    first = code_in(await said(harness, "/link", sender="7"))
    assert "You are ada here" in await said(harness, f"/link {first}")
    assert (await harness.send_and_read("still me")).stamp.person == "ada"


async def test_a_stranger_who_guesses_link_codes_hears_nothing(harness: IngressHarness) -> None:
    code_in(await said(harness, "/link"))
    before = len(await harness.read_notices())
    for _ in range(10):
        await harness.send_message("/link AAAA-AAAA", sender="666")
    assert len(await harness.read_notices()) == before


# -- groups ------------------------------------------------------------------------------------------------------------


def with_groups(**groups: object) -> str:
    text = ", ".join(f"{key}: {str(value).lower()}" for key, value in groups.items())
    return CONFIG.replace("chats: {watched: {}}", f"groups: {{{text}}}")


async def test_chatter_is_not_kept_unless_it_is_observed(harness: IngressHarness, tmp_path: Path) -> None:
    assert (await harness.send_message("just talking", chat="room", addressed=False)).outcome == "ignored"
    assert await harness.store.list_sessions() == []
    (tmp_path / "b").mkdir()
    watching = IngressHarness(tmp_path / "b", with_groups(observe=True))
    kept = await watching.send_and_read("just talking", chat="room", addressed=False)
    assert not kept.asks
    assert (await watching.send_message("me too", chat="room", sender="666", addressed=False)).outcome == "denied"
    assert (await watching.send_and_read("you there?", chat="room")).asks
    await watching.store.close()


async def test_a_chat_may_have_an_agent_sessions_and_settings_of_its_own(tmp_path: Path) -> None:
    config = CONFIG.replace(
        "chats: {watched: {}}", "chats: {room: {agent: coder, sessions: {group: shared}, groups: {answer: always}}}"
    )
    harness = IngressHarness(tmp_path, config)
    heard = await harness.send_and_read("anybody?", chat="room", addressed=False)
    assert heard.asks
    assert heard.stamp.address == "agent:coder:fake/main:group:room"
    assert heard.stamp.audience == ("chat:agent:coder:fake/main:group:room",)
    other = await harness.send_and_read("hello", chat="open")
    assert other.stamp.address == "agent:main:fake:group:open:person:1001"
    await harness.store.close()


@pytest.mark.parametrize("command", [name for name in COMMANDS if needs_owner_in_group(ChatCommand(name=name))])
async def test_in_a_group_some_commands_need_an_owner(harness: IngressHarness, command: str) -> None:
    heard = await harness.send_and_read(f"/{command} x", chat="room")
    assert heard.command is not None
    assert (heard.command.name, heard.command.argument) == ("barred", command)
    by_owner = await harness.send_and_read(f"/{command} x", chat="room", sender="1")
    assert by_owner.command is not None
    assert by_owner.command.name == command
    alone = await harness.send_and_read(f"/{command} x")
    assert alone.command is not None
    assert alone.command.name == command


async def test_a_command_that_is_not_meant_for_us_is_text(tmp_path: Path) -> None:
    harness = IngressHarness(tmp_path, with_groups(observe=True))
    assert (await harness.send_and_read("/new", chat="room", addressed=False)).command is None
    await harness.store.close()


# -- bots --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [".", "..", "ok", "👍", "⚙ I could not answer: the model is down"])
async def test_bots_are_not_answered_when_they_only_acknowledge_or_fail(harness: IngressHarness, text: str) -> None:
    assert not (await harness.send_and_read(text, sender="7", bot=True)).asks
    assert (await harness.send_and_read(text, sender="7")).asks, "a human is"


async def test_a_machine_s_notice_is_heard_and_not_answered(harness: IngressHarness) -> None:
    assert not (await harness.send_and_read("your build failed", sender="7", notice=True)).asks


async def test_a_loop_ends_by_itself_also_where_the_platform_carries_no_count(harness: IngressHarness) -> None:
    from everhold.core.entries import EntryDraft, Heard, Said
    from everhold.ports.store import Change, Step

    asked = 0
    for turn in range(40):
        verdict = await harness.send_message(f"and then? {turn}", sender="7", bot=True)
        entry = await harness.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        if not entry.body.asks:
            break
        asked += 1
        said = Said(text="go on", to=entry.body.origin, hops=entry.body.hops + 1)
        await harness.store.commit(
            Change(
                step=Step.END,
                session=verdict.session,
                at=harness.clock.at,
                entries=(EntryDraft(body=said, author="agent:main"),),
            )
        )
    assert asked == harness.settings.loops.max_hops
    (loop,) = harness.admission.describe()["loops"]
    assert (loop["agent"], loop["chat"], loop["hops"]) == ("main", "7", 8)
    assert (await harness.send_and_read("I am human", sender="7")).asks
    assert harness.admission.describe()["loops"] == [], "and it is no news any more"
    assert (await harness.send_and_read("so?", sender="7", bot=True)).asks, "a human spoke, and it may go on"


async def test_hops_that_a_platform_carries_count(harness: IngressHarness) -> None:
    assert (await harness.send_and_read("hi", sender="7", bot=True, hops=7)).asks
    assert not (await harness.send_and_read("hi", sender="7", bot=True, hops=8)).asks


@pytest.mark.parametrize("halt, wake", [("!halt", "!wake"), ("/halt", "/wake"), (" !halt\n", "/wake@bot")])
async def test_a_halt_word_silences_a_chat_until_a_human_lifts_it(
    harness: IngressHarness, halt: str, wake: str
) -> None:
    order = await harness.send_and_read(halt, chat="room", addressed=False)
    assert order.command is not None
    assert order.command.name == "halt"
    harness.admission = harness.open_admission()
    assert not (await harness.send_and_read("hello?", chat="room")).asks, "also after a restart"
    assert not (await harness.send_and_read("hello?", chat="room", sender="7", bot=True)).asks
    assert (await harness.send_and_read("hello?", chat="open")).asks, "another chat is another matter"
    assert (await harness.send_and_read("!wake", chat="room", sender="7", bot=True)).command is None, "no bot lifts it"
    await harness.admission.load_halts()
    assert [it["chat"] for it in harness.admission.describe()["halted"]] == ["room"]
    await harness.send_and_read(wake, chat="room", addressed=False)
    assert (await harness.send_and_read("hello?", chat="room")).asks
    assert harness.admission.describe()["halted"] == []


@pytest.mark.parametrize("platform", ["terminal", "http"])
@pytest.mark.parametrize("text, word", [("/halt", "halt"), ("!halt", "halt"), ("/wake", "wake"), ("/link", "link")])
async def test_nobody_is_silenced_or_linked_where_there_is_nobody_else(
    harness: IngressHarness, platform: str, text: str, word: str
) -> None:
    heard = await harness.send_and_read(text, platform=platform)
    assert heard.command == ChatCommand(name="alone", argument=word)
    assert (await harness.send_and_read("hello", platform=platform)).asks
    assert harness.admission.describe()["halted"] == []


async def test_an_order_that_is_delivered_again_is_not_obeyed_again(harness: IngressHarness) -> None:
    await harness.send_and_read("!halt", chat="room", id="h")
    await harness.send_and_read("!wake", chat="room", id="r")
    assert (await harness.send_message("!halt", chat="room", id="h")).outcome == "duplicate"
    assert (await harness.send_and_read("hello?", chat="room")).asks, "a human lifted it since"
    await harness.send_and_read("!halt", chat="room", id="h2")
    assert (await harness.send_message("!wake", chat="room", id="r")).outcome == "duplicate"
    assert not (await harness.send_and_read("hello?", chat="room")).asks, "and a repeat lifts nothing"


async def test_an_order_that_was_obeyed_and_not_kept_is_kept_when_it_comes_again(harness: IngressHarness) -> None:
    origin = ChatLocation(platform="fake", account="main", chat="room", message="h")
    await harness.admission(
        IncomingMessage(origin=origin, text="!halt", sender="1001", kind="group")
    )  # and here it crashed
    harness.admission = harness.open_admission()
    assert (await harness.send_message("!halt", chat="room", id="h")).outcome == "accepted"
    assert not (await harness.send_and_read("hello?", chat="room")).asks


async def test_a_chat_that_gets_another_id_stays_the_conversation_it_was(harness: IngressHarness) -> None:
    before = await harness.send_message("hello", chat="room")
    assert (await harness.send_message("hello", chat="hall")).outcome == "denied"
    await harness.chat_aliases.add_alias("fake", "room", "hall")
    for _ in range(2):
        after = await harness.send_message("hello", chat="hall")
        assert (after.outcome, after.session) == ("accepted", before.session)
        assert (await harness.send_message("hello", chat="hall", sender="666")).outcome == "denied"
        entry = await harness.store.get_entry(after.session, after.seq)
        assert isinstance(entry.body, Heard)
        assert entry.body.origin.chat == "hall", "the answer goes where it is now"
        first = await harness.store.get_entry(before.session, before.seq)
        assert isinstance(first.body, Heard)
        assert entry.body.stamp == first.body.stamp, "and memory files it with what was there before"
        harness.admission = harness.open_admission()
        await harness.chat_aliases.add_alias("fake", "room", "hall")  # platforms say so more than once
    await harness.chat_aliases.add_alias("fake", "hall", "castle")
    assert (await harness.send_message("hello", chat="castle")).session == before.session
    assert await harness.store.verify() == []


async def test_a_halt_holds_and_is_lifted_under_the_chat_s_new_id(harness: IngressHarness) -> None:
    await harness.send_and_read("!halt", chat="room")
    await harness.chat_aliases.add_alias("fake", "room", "hall")
    assert not (await harness.send_and_read("hello?", chat="hall")).asks
    await harness.send_and_read("!wake", chat="hall")
    assert (await harness.send_and_read("hello?", chat="hall")).asks
    assert harness.admission.describe()["halted"] == []


async def test_settings_are_found_under_either_id(harness: IngressHarness) -> None:
    harness.settings = parse_settings(CONFIG.replace("room: [ada", "hall: [ada").replace("watched", "room"))
    await harness.chat_aliases.add_alias("fake", "room", "hall")
    assert (await harness.send_message("hello", chat="hall")).outcome == "accepted"
    assert (await harness.send_message("hello", chat="hall", sender="666")).outcome == "denied"


async def test_a_stranger_halts_nobody(harness: IngressHarness) -> None:
    assert (await harness.send_message("!halt", chat="room", sender="666")).outcome == "denied"
    assert (await harness.send_and_read("hello?", chat="room")).asks


async def test_a_halt_reaches_every_conversation_of_its_chat(harness: IngressHarness) -> None:
    bob = await harness.send_message("do something long", chat="room", sender="7")
    elsewhere = await harness.send_message("do something long", chat="open", sender="7")
    await harness.send_and_read("!halt", chat="room")
    texts = [entry.body.text for entry in await harness.store.list_entries(bob.session)]  # type: ignore[union-attr]
    assert texts == ["do something long", "!halt"]
    assert len(await harness.store.list_entries(elsewhere.session)) == 1


# -- a direct chat that another one takes over -------------------------------------------------------------------------


async def alone(harness: IngressHarness, text: str, *, sender: str, chat: str = "!room", **more: Any) -> AcceptResult:
    """Said alone with the agent, on a platform where the other one in a chat may become somebody else."""
    verdict = await harness.send_message(text, sender=sender, chat=chat, kind="dm", can_change_owner=True, **more)
    assert verdict.outcome == "accepted", verdict
    return verdict


async def test_a_direct_chat_stays_with_whoever_was_first_in_it(harness: IngressHarness) -> None:
    """Ada leaves, and Eve is alone with the agent in the same room: she is told nothing of what Ada told it."""
    ada = await alone(harness, "my secret", sender="1001")
    eve = await alone(harness, "hello", sender="7")
    assert eve.session != ada.session
    entry = await harness.store.get_entry(eve.session, eve.seq)
    assert isinstance(entry.body, Heard)
    assert entry.body.stamp.audience == ("person:fake:7",)
    harness.admission = harness.open_admission()
    harness.accept._known_chats.clear()
    assert (await alone(harness, "I am back", sender="1001")).session == ada.session
    assert (await alone(harness, "me too", sender="7")).session == eve.session
    assert (await alone(harness, "elsewhere", sender="7", chat="!other")).session not in (ada.session, eve.session)


async def test_a_direct_chat_from_before_that_was_kept_is_whose_it_was(harness: IngressHarness) -> None:
    """The log knows who spoke first: an older session stays what it is, whoever speaks first after an update."""
    old = await harness.send_message("my secret", chat="!room", kind="dm")
    assert await harness.store.list_state_records(StateNamespace.DM_OWNER) == []
    assert (await alone(harness, "hello", sender="7")).session != old.session
    assert (await alone(harness, "I am back", sender="1001")).session == old.session


async def test_a_direct_chat_that_leads_to_a_session_from_elsewhere_is_its_owner_s(harness: IngressHarness) -> None:
    """Ada went on here in a session that she began in another chat, before it was kept whose a chat is."""
    began = await harness.send_message("my secret")
    here = await harness.send_message("/resume", chat="!room", kind="dm")
    entry = await harness.store.get_entry(here.session, here.seq)
    assert isinstance(entry.body, Heard)
    bound = AddressBound(address=entry.body.stamp.address, previous=here.session, by="person:ada")
    draft = EntryDraft(body=Changed(change=bound), author="person:ada")
    await harness.store.commit(Change(step=Step.BACKLINK, session=began.session, at=harness.clock.at, entries=(draft,)))
    harness.accept._known_chats.clear()
    assert (await alone(harness, "hello", sender="7")).session not in (began.session, here.session)
    assert (await alone(harness, "I am back", sender="1001")).session == began.session


async def test_a_direct_chat_stays_somebody_s_who_gets_a_name_or_another_id(harness: IngressHarness) -> None:
    mine = await alone(harness, "hello", sender="7")
    await harness.store.link_identity("fake:7", "grace", at=harness.clock.at)
    assert (await alone(harness, "I am Grace now", sender="7")).session == mine.session
    await harness.store.link_identity("fake:1001b", "ada", at=harness.clock.at)
    ada = await alone(harness, "hello", sender="1001", chat="!hers")
    harness.settings = parse_settings(CONFIG.replace('["fake:1001"]', '["fake:1001", "fake:1001b"]'))
    assert (await alone(harness, "from my new account", sender="1001b", chat="!hers")).session == ada.session


async def test_who_is_not_let_in_takes_no_chat_over(harness: IngressHarness) -> None:
    refused = await harness.send_message("hello", sender="666", chat="!room", kind="dm", can_change_owner=True)
    assert refused.outcome == "denied"
    first = await alone(harness, "hello", sender="1001")
    entry = await harness.store.get_entry(first.session, first.seq)
    assert isinstance(entry.body, Heard)
    assert parse_address(entry.body.stamp.address).person == ""


async def test_a_thread_in_a_direct_chat_is_whose_the_chat_is(harness: IngressHarness) -> None:
    old = await harness.send_message("my secret", chat="!room", kind="dm")

    async def inside(sender: str) -> Address:
        harness.said += 1
        place = ChatLocation(platform="fake", account="main", chat="!room", thread="t", message=str(harness.said))
        verdict = await harness.accept(
            IncomingMessage(origin=place, text="hello", sender=sender, kind="dm", can_change_owner=True)
        )
        entry = await harness.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        return parse_address(entry.body.stamp.address)

    assert (await inside("7")).person == "7"
    assert (await inside("1001")).person == ""
    assert (await alone(harness, "and outside", sender="1001")).session == old.session
