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
async def door(tmp_path: Path) -> AsyncIterator[IngressHarness]:
    door = IngressHarness(tmp_path)
    yield door
    await door.store.close()


# -- default deny ------------------------------------------------------------------------------------------------------


async def test_who_is_listed_may_speak_directly_and_a_stranger_may_not(door: IngressHarness) -> None:
    assert (await door.send_and_read("hello")).stamp.person == "ada"
    assert (await door.send_and_read("hello", sender="7")).stamp.person == "fake:7"
    verdict = await door.send_message("hello", sender="666")
    assert (verdict.outcome, verdict.session) == ("denied", "")
    assert len(await door.store.list_sessions()) == 2, "a stranger leaves no session"


async def test_what_is_not_let_in_is_not_brought_again(door: IngressHarness) -> None:
    """Nothing of it is kept but how far the platform was read: else it would come with every start, and for ever."""
    for value in ("7", "8"):
        read = PlatformOffset(key="offset", value=value)
        assert (await door.send_message("hello", sender="666", offset=read)).outcome == "denied"
        (record,) = await door.store.list_state_records(StateNamespace.PLATFORM_OFFSET, scope="fake:main")
        assert (record.key, record.value) == ("offset", value)


@pytest.mark.parametrize("name", ["ada", "fake:1001", "root", "1001", "*"])
async def test_a_name_lets_nobody_in(door: IngressHarness, name: str) -> None:
    assert (await door.send_message("hello", sender="666", name=name)).outcome == "denied"


@pytest.mark.parametrize("sender", ["ada", "root", "*", "fake:1001"])
async def test_an_id_that_looks_like_a_person_is_not_that_person(door: IngressHarness, sender: str) -> None:
    assert (await door.send_message("hello", sender=sender)).outcome == "denied"


async def test_an_account_that_is_gone_hears_nobody(door: IngressHarness) -> None:
    door.settings = door.settings.model_copy(update={"platforms": {}})
    assert (await door.send_message("hello")).outcome == "denied"


async def test_a_list_is_for_its_account_and_its_scope(door: IngressHarness) -> None:
    assert (await door.send_message("hello", sender="7", platform="other")).outcome == "denied"
    assert (await door.send_message("hello", chat="elsewhere")).outcome == "denied"
    assert (await door.send_message("hello", chat="room")).outcome == "accepted"
    assert (await door.send_message("hello", chat="room", sender="666")).outcome == "denied"
    assert (await door.send_message("hello", chat="open", sender="666")).outcome == "accepted"


async def test_whoever_is_turned_away_in_a_group_leaves_its_id_in_the_log(door: IngressHarness) -> None:
    """It is what has to stand in the configuration, and no platform shows it."""
    await door.send_message("hello", chat="-100200", sender="666")
    (line,) = door.log.find_events("message.denied")
    assert (line["platform"], line["account"], line["chat"]) == ("fake", "main", "-100200")


async def test_an_owner_may_speak_everywhere(door: IngressHarness) -> None:
    assert (await door.send_message("hello", sender="1", chat="elsewhere")).outcome == "accepted"
    assert (await door.send_message("hello", sender="1")).outcome == "accepted"


# -- pairing -----------------------------------------------------------------------------------------------------------


async def code_for(door: IngressHarness, sender: str = "666", **more: str) -> str:
    await door.send_message("let me in", sender=sender, **more)
    found = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", (await door.read_notices())[-1])
    assert found
    return found[0]


async def test_a_stranger_is_let_in_by_a_code_that_somebody_approves_here(door: IngressHarness) -> None:
    code = await code_for(door, name="Eve")
    (waiting,) = await door.admission.pairing.list_requests()
    assert (waiting["identity"], waiting["name"]) == ("fake:666", "Eve")
    assert code not in str(waiting), "who waits is shown, the code has to come from them"
    approved = await door.admission.pairing.approve_code(code.lower().replace("-", " "))
    assert approved["identity"] == "fake:666"
    assert (await door.send_message("thank you", sender="666")).outcome == "accepted"
    assert (await door.send_message("hello", sender="666", chat="room")).outcome == "denied", (
        "a direct chat is all it opens"
    )
    assert (await door.send_message("hello", sender="666", platform="other")).outcome == "denied", "and of one account"


async def test_whoever_was_let_in_as_somebody_is_a_stranger_again_when_that_is_taken_back(door: IngressHarness) -> None:
    pairing = door.admission.pairing
    await pairing.approve_code(await code_for(door), person="ada")
    assert (await door.send_and_read("hello", sender="666")).stamp.person == "ada"
    await pairing.revoke_identity("fake:666")
    assert (await door.send_message("still here", sender="666")).outcome == "denied"
    assert await door.store.list_identity_links() == []


async def test_who_was_somebody_before_they_were_let_in_stays_that(door: IngressHarness) -> None:
    """Nobody knows of an old grant, either, what came with it."""
    pairing = door.admission.pairing
    code = await code_for(door)
    await door.store.link_identity("fake:666", "ada", at=door.clock.at)
    await pairing.approve_code(code, person="ada")
    await pairing.revoke_identity("fake:666")
    assert await door.store.list_identity_links() == [("fake:666", "ada")]


async def test_a_code_counts_once_and_for_ten_minutes(door: IngressHarness) -> None:
    code = await code_for(door)
    await door.admission.pairing.approve_code(code)
    with pytest.raises(NotFound):
        await door.admission.pairing.approve_code(code)
    await door.admission.pairing.revoke_identity("fake:666")
    assert (await door.send_message("hello", sender="666")).outcome == "denied"
    late = await code_for(door, sender="667")
    door.clock.at += 601
    with pytest.raises(InvalidRequest, match="too old"):
        await door.admission.pairing.approve_code(late)
    assert await door.admission.pairing.list_requests() == []
    assert (await door.send_message("hello", sender="667")).outcome == "denied"


async def test_guessing_ends_after_five_tries_and_voids_what_could_be_guessed(door: IngressHarness) -> None:
    code = await code_for(door)
    for _ in range(5):
        with pytest.raises(NotFound):
            await door.admission.pairing.approve_code("AAAA-AAAA")
    with pytest.raises(InvalidRequest, match="too many"):
        await door.admission.pairing.approve_code(code)
    door.clock.at += 601
    with pytest.raises(NotFound):
        await door.admission.pairing.approve_code(code)


async def test_a_stranger_hears_one_word_an_hour_also_after_a_restart(door: IngressHarness) -> None:
    for _ in range(5):
        await door.send_message("hello?", sender="666")
    await door.read_notices()
    door.admission = door.open_admission()
    await door.send_message("hello?", sender="666")
    assert len(await door.read_notices()) == 1
    door.clock.at += 3_601
    await door.send_message("hello?", sender="666")
    assert len(await door.read_notices()) == 2


async def test_a_crowd_of_strangers_is_not_answered_without_end(door: IngressHarness) -> None:
    for number in range(pairing.MAX_PAIRING_REQUESTS + 5):
        await door.send_message("hello", sender=f"9{number}")
    assert len(await door.read_notices()) == pairing.MAX_PAIRING_REQUESTS
    door.clock.at += 4_000
    await door.send_message("hello", sender="950")
    kept = await door.store.list_state_records(StateNamespace.PAIRING_REQUEST)
    assert len(kept) == 1, "strangers are forgotten"


async def test_strangers_in_groups_and_bots_and_closed_houses_hear_nothing(door: IngressHarness) -> None:
    await door.send_message("hello", sender="666", chat="room")
    await door.send_message("hello", sender="667", bot=True)
    door.settings = door.settings.model_copy(
        update={"access": door.settings.access.model_copy(update={"pairing": False})}
    )
    await door.send_message("hello", sender="668")
    assert await door.read_notices() == []


async def test_whoever_is_approved_by_name_is_that_person(door: IngressHarness) -> None:
    await door.admission.pairing.approve_code(await code_for(door), person="ada")
    assert (await door.send_and_read("it is me", sender="666")).stamp.person == "ada"


async def test_no_code_is_kept_where_it_could_be_read(door: IngressHarness, tmp_path: Path) -> None:
    code = await code_for(door)
    await door.store.close()
    for file in tmp_path.iterdir():  # noqa: ASYNC240  # nothing else is waiting
        assert pairing.normalize_code(code).encode() not in file.read_bytes().replace(b"-", b"")
    assert code not in str(door.log.lines)
    door.store = door.store.open(tmp_path / "log.db", chance=door.admission._chance)


@given(st.binary(min_size=64, max_size=64))
def test_a_code_is_readable_and_fair(chance: bytes) -> None:
    try:
        code = pairing.make_code(chance)
    except AssertionError:
        return  # a draw that hypothesis likes and chance does not: sixty bytes of the unfair kind
    assert re.fullmatch(r"[A-HJKMNP-TV-Z2-9]{4}-[A-HJKMNP-TV-Z2-9]{4}", code)
    assert not set(code) & set("ILOU01")


# -- one person, two platforms -----------------------------------------------------------------------------------------


async def said(door: IngressHarness, text: str, **more: str) -> str:
    before = len(await door.read_notices())
    await door.send_message(text, **more)
    now = await door.read_notices()
    return now[-1] if len(now) > before else ""


def code_in(text: str) -> str:
    found = re.search(r"/link ([A-Z2-9]{4}-[A-Z2-9]{4})", text)
    assert found, text
    return found[1]


async def test_two_sides_are_one_person_once_both_have_said_so(door: IngressHarness) -> None:
    first = code_in(await said(door, "/link"))
    await door.send_message(f"/link {first}", sender="55", platform="other")
    await door.read_notices()
    second = code_in(door.other.shown_messages[-1].text)
    assert await door.store.get_person("other:55") is None, "one side alone proves nothing"
    await door.send_message(f"/link {second}")
    assert await door.store.get_person("other:55") == "ada"
    assert (await door.send_and_read("me again", sender="55", platform="other")).stamp.person == "ada"


async def test_the_second_word_counts_only_from_whoever_began(door: IngressHarness) -> None:
    first = code_in(await said(door, "/link"))
    await door.send_message(f"/link {first}", sender="55", platform="other")
    await door.read_notices()
    second = code_in(door.other.shown_messages[-1].text)
    await door.send_message(f"/link {second}", sender="7")
    await door.send_message(f"/link {second}", sender="55", platform="other")
    assert await door.store.get_person("other:55") is None


async def test_nobody_is_talked_into_being_somebody_else(door: IngressHarness) -> None:
    first = code_in(await said(door, "/link", sender="7"))
    assert "You are ada here" in await said(door, f"/link {first}")
    assert (await door.send_and_read("still me")).stamp.person == "ada"


async def test_a_stranger_who_guesses_link_codes_hears_nothing(door: IngressHarness) -> None:
    code_in(await said(door, "/link"))
    before = len(await door.read_notices())
    for _ in range(10):
        await door.send_message("/link AAAA-AAAA", sender="666")
    assert len(await door.read_notices()) == before


# -- groups ------------------------------------------------------------------------------------------------------------


def with_groups(**groups: object) -> str:
    text = ", ".join(f"{key}: {str(value).lower()}" for key, value in groups.items())
    return CONFIG.replace("chats: {watched: {}}", f"groups: {{{text}}}")


async def test_chatter_is_not_kept_unless_it_is_observed(door: IngressHarness, tmp_path: Path) -> None:
    assert (await door.send_message("just talking", chat="room", addressed=False)).outcome == "ignored"
    assert await door.store.list_sessions() == []
    (tmp_path / "b").mkdir()
    watching = IngressHarness(tmp_path / "b", with_groups(observe=True))
    kept = await watching.send_and_read("just talking", chat="room", addressed=False)
    assert not kept.asks
    assert (await watching.send_message("me too", chat="room", sender="666", addressed=False)).outcome == "denied"
    assert (await watching.send_and_read("you there?", chat="room")).asks
    await watching.store.close()


async def test_a_chat_may_have_an_agent_sessions_and_manners_of_its_own(tmp_path: Path) -> None:
    config = CONFIG.replace(
        "chats: {watched: {}}", "chats: {room: {agent: coder, sessions: {group: shared}, groups: {answer: always}}}"
    )
    door = IngressHarness(tmp_path, config)
    heard = await door.send_and_read("anybody?", chat="room", addressed=False)
    assert heard.asks
    assert heard.stamp.address == "agent:coder:fake/main:group:room"
    assert heard.stamp.audience == ("chat:agent:coder:fake/main:group:room",)
    other = await door.send_and_read("hello", chat="open")
    assert other.stamp.address == "agent:main:fake:group:open:person:1001"
    await door.store.close()


@pytest.mark.parametrize("command", [name for name in COMMANDS if needs_owner_in_group(ChatCommand(name=name))])
async def test_in_a_group_some_commands_need_an_owner(door: IngressHarness, command: str) -> None:
    heard = await door.send_and_read(f"/{command} x", chat="room")
    assert heard.command is not None
    assert (heard.command.name, heard.command.argument) == ("barred", command)
    by_owner = await door.send_and_read(f"/{command} x", chat="room", sender="1")
    assert by_owner.command is not None
    assert by_owner.command.name == command
    alone = await door.send_and_read(f"/{command} x")
    assert alone.command is not None
    assert alone.command.name == command


async def test_a_command_that_is_not_meant_for_us_is_text(tmp_path: Path) -> None:
    door = IngressHarness(tmp_path, with_groups(observe=True))
    assert (await door.send_and_read("/new", chat="room", addressed=False)).command is None
    await door.store.close()


# -- bots --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [".", "..", "ok", "👍", "⚙ I could not answer: the model is down"])
async def test_bots_are_not_answered_when_they_only_acknowledge_or_fail(door: IngressHarness, text: str) -> None:
    assert not (await door.send_and_read(text, sender="7", bot=True)).asks
    assert (await door.send_and_read(text, sender="7")).asks, "a human is"


async def test_a_machine_s_notice_is_heard_and_not_answered(door: IngressHarness) -> None:
    assert not (await door.send_and_read("your build failed", sender="7", notice=True)).asks


async def test_a_loop_ends_by_itself_also_where_the_platform_carries_no_count(door: IngressHarness) -> None:
    from everhold.core.entries import EntryDraft, Heard, Said
    from everhold.ports.store import Change, Step

    asked = 0
    for turn in range(40):
        verdict = await door.send_message(f"and then? {turn}", sender="7", bot=True)
        entry = await door.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        if not entry.body.asks:
            break
        asked += 1
        said = Said(text="go on", to=entry.body.origin, hops=entry.body.hops + 1)
        await door.store.commit(
            Change(
                step=Step.END,
                session=verdict.session,
                at=door.clock.at,
                entries=(EntryDraft(body=said, author="agent:main"),),
            )
        )
    assert asked == door.settings.loops.max_hops
    (loop,) = door.admission.describe()["loops"]
    assert (loop["agent"], loop["chat"], loop["hops"]) == ("main", "7", 8)
    assert (await door.send_and_read("I am human", sender="7")).asks
    assert door.admission.describe()["loops"] == [], "and it is no news any more"
    assert (await door.send_and_read("so?", sender="7", bot=True)).asks, "a human spoke, and it may go on"


async def test_hops_that_a_platform_carries_count(door: IngressHarness) -> None:
    assert (await door.send_and_read("hi", sender="7", bot=True, hops=7)).asks
    assert not (await door.send_and_read("hi", sender="7", bot=True, hops=8)).asks


@pytest.mark.parametrize("halt, wake", [("!halt", "!wake"), ("/halt", "/wake"), (" !halt\n", "/wake@bot")])
async def test_a_halt_word_silences_a_chat_until_a_human_lifts_it(door: IngressHarness, halt: str, wake: str) -> None:
    order = await door.send_and_read(halt, chat="room", addressed=False)
    assert order.command is not None
    assert order.command.name == "halt"
    door.admission = door.open_admission()
    assert not (await door.send_and_read("hello?", chat="room")).asks, "also after a restart"
    assert not (await door.send_and_read("hello?", chat="room", sender="7", bot=True)).asks
    assert (await door.send_and_read("hello?", chat="open")).asks, "another chat is another matter"
    assert (await door.send_and_read("!wake", chat="room", sender="7", bot=True)).command is None, "no bot lifts it"
    await door.admission.load_halts()
    assert [it["chat"] for it in door.admission.describe()["halted"]] == ["room"]
    await door.send_and_read(wake, chat="room", addressed=False)
    assert (await door.send_and_read("hello?", chat="room")).asks
    assert door.admission.describe()["halted"] == []


@pytest.mark.parametrize("platform", ["terminal", "http"])
@pytest.mark.parametrize("text, word", [("/halt", "halt"), ("!halt", "halt"), ("/wake", "wake"), ("/link", "link")])
async def test_nobody_is_silenced_or_linked_where_there_is_nobody_else(
    door: IngressHarness, platform: str, text: str, word: str
) -> None:
    heard = await door.send_and_read(text, platform=platform)
    assert heard.command == ChatCommand(name="alone", argument=word)
    assert (await door.send_and_read("hello", platform=platform)).asks
    assert door.admission.describe()["halted"] == []


async def test_an_order_that_is_delivered_again_is_not_obeyed_again(door: IngressHarness) -> None:
    await door.send_and_read("!halt", chat="room", id="h")
    await door.send_and_read("!wake", chat="room", id="r")
    assert (await door.send_message("!halt", chat="room", id="h")).outcome == "duplicate"
    assert (await door.send_and_read("hello?", chat="room")).asks, "a human lifted it since"
    await door.send_and_read("!halt", chat="room", id="h2")
    assert (await door.send_message("!wake", chat="room", id="r")).outcome == "duplicate"
    assert not (await door.send_and_read("hello?", chat="room")).asks, "and a repeat lifts nothing"


async def test_an_order_that_was_obeyed_and_not_kept_is_kept_when_it_comes_again(door: IngressHarness) -> None:
    origin = ChatLocation(platform="fake", account="main", chat="room", message="h")
    await door.admission(
        IncomingMessage(origin=origin, text="!halt", sender="1001", kind="group")
    )  # and here it crashed
    door.admission = door.open_admission()
    assert (await door.send_message("!halt", chat="room", id="h")).outcome == "accepted"
    assert not (await door.send_and_read("hello?", chat="room")).asks


async def test_a_chat_that_gets_another_id_stays_the_conversation_it_was(door: IngressHarness) -> None:
    before = await door.send_message("hello", chat="room")
    assert (await door.send_message("hello", chat="hall")).outcome == "denied"
    await door.moves.add_alias("fake", "room", "hall")
    for _ in range(2):
        after = await door.send_message("hello", chat="hall")
        assert (after.outcome, after.session) == ("accepted", before.session)
        assert (await door.send_message("hello", chat="hall", sender="666")).outcome == "denied"
        entry = await door.store.get_entry(after.session, after.seq)
        assert isinstance(entry.body, Heard)
        assert entry.body.origin.chat == "hall", "the answer goes where it is now"
        first = await door.store.get_entry(before.session, before.seq)
        assert isinstance(first.body, Heard)
        assert entry.body.stamp == first.body.stamp, "and memory files it with what was there before"
        door.admission = door.open_admission()
        await door.moves.add_alias("fake", "room", "hall")  # platforms say so more than once
    await door.moves.add_alias("fake", "hall", "castle")
    assert (await door.send_message("hello", chat="castle")).session == before.session
    assert await door.store.verify() == []


async def test_a_halt_holds_and_is_lifted_under_the_chat_s_new_id(door: IngressHarness) -> None:
    await door.send_and_read("!halt", chat="room")
    await door.moves.add_alias("fake", "room", "hall")
    assert not (await door.send_and_read("hello?", chat="hall")).asks
    await door.send_and_read("!wake", chat="hall")
    assert (await door.send_and_read("hello?", chat="hall")).asks
    assert door.admission.describe()["halted"] == []


async def test_settings_are_found_under_either_id(door: IngressHarness) -> None:
    door.settings = parse_settings(CONFIG.replace("room: [ada", "hall: [ada").replace("watched", "room"))
    await door.moves.add_alias("fake", "room", "hall")
    assert (await door.send_message("hello", chat="hall")).outcome == "accepted"
    assert (await door.send_message("hello", chat="hall", sender="666")).outcome == "denied"


async def test_a_stranger_halts_nobody(door: IngressHarness) -> None:
    assert (await door.send_message("!halt", chat="room", sender="666")).outcome == "denied"
    assert (await door.send_and_read("hello?", chat="room")).asks


async def test_a_halt_reaches_every_conversation_of_its_chat(door: IngressHarness) -> None:
    bob = await door.send_message("do something long", chat="room", sender="7")
    elsewhere = await door.send_message("do something long", chat="open", sender="7")
    await door.send_and_read("!halt", chat="room")
    texts = [entry.body.text for entry in await door.store.list_entries(bob.session)]  # type: ignore[union-attr]
    assert texts == ["do something long", "!halt"]
    assert len(await door.store.list_entries(elsewhere.session)) == 1


# -- a direct chat that another one takes over -------------------------------------------------------------------------


async def alone(door: IngressHarness, text: str, *, sender: str, chat: str = "!room", **more: Any) -> AcceptResult:
    """Said alone with the agent, on a platform where the other one in a chat may become somebody else."""
    verdict = await door.send_message(text, sender=sender, chat=chat, kind="dm", changes_hands=True, **more)
    assert verdict.outcome == "accepted", verdict
    return verdict


async def test_a_direct_chat_stays_with_whoever_was_first_in_it(door: IngressHarness) -> None:
    """Ada leaves, and Eve is alone with the agent in the same room: she is told nothing of what Ada told it."""
    ada = await alone(door, "my secret", sender="1001")
    eve = await alone(door, "hello", sender="7")
    assert eve.session != ada.session
    entry = await door.store.get_entry(eve.session, eve.seq)
    assert isinstance(entry.body, Heard)
    assert entry.body.stamp.audience == ("person:fake:7",)
    door.admission = door.open_admission()
    door.accept._known_chats.clear()
    assert (await alone(door, "I am back", sender="1001")).session == ada.session
    assert (await alone(door, "me too", sender="7")).session == eve.session
    assert (await alone(door, "elsewhere", sender="7", chat="!other")).session not in (ada.session, eve.session)


async def test_a_direct_chat_from_before_that_was_kept_is_whose_it_was(door: IngressHarness) -> None:
    """The log knows who spoke first: an older session stays what it is, whoever speaks first after an update."""
    old = await door.send_message("my secret", chat="!room", kind="dm")
    assert await door.store.list_state_records(StateNamespace.DM_OWNER) == []
    assert (await alone(door, "hello", sender="7")).session != old.session
    assert (await alone(door, "I am back", sender="1001")).session == old.session


async def test_a_direct_chat_that_leads_to_a_session_from_elsewhere_is_its_owner_s(door: IngressHarness) -> None:
    """Ada went on here in a session that she began in another chat, before it was kept whose a chat is."""
    began = await door.send_message("my secret")
    here = await door.send_message("/resume", chat="!room", kind="dm")
    entry = await door.store.get_entry(here.session, here.seq)
    assert isinstance(entry.body, Heard)
    bound = AddressBound(address=entry.body.stamp.address, previous=here.session, by="person:ada")
    draft = EntryDraft(body=Changed(change=bound), author="person:ada")
    await door.store.commit(Change(step=Step.BACKLINK, session=began.session, at=door.clock.at, entries=(draft,)))
    door.accept._known_chats.clear()
    assert (await alone(door, "hello", sender="7")).session not in (began.session, here.session)
    assert (await alone(door, "I am back", sender="1001")).session == began.session


async def test_a_direct_chat_stays_somebody_s_who_gets_a_name_or_another_id(door: IngressHarness) -> None:
    mine = await alone(door, "hello", sender="7")
    await door.store.link_identity("fake:7", "grace", at=door.clock.at)
    assert (await alone(door, "I am Grace now", sender="7")).session == mine.session
    await door.store.link_identity("fake:1001b", "ada", at=door.clock.at)
    ada = await alone(door, "hello", sender="1001", chat="!hers")
    door.settings = parse_settings(CONFIG.replace('["fake:1001"]', '["fake:1001", "fake:1001b"]'))
    assert (await alone(door, "from my new account", sender="1001b", chat="!hers")).session == ada.session


async def test_who_is_not_let_in_takes_no_chat_over(door: IngressHarness) -> None:
    refused = await door.send_message("hello", sender="666", chat="!room", kind="dm", changes_hands=True)
    assert refused.outcome == "denied"
    first = await alone(door, "hello", sender="1001")
    entry = await door.store.get_entry(first.session, first.seq)
    assert isinstance(entry.body, Heard)
    assert parse_address(entry.body.stamp.address).person == ""


async def test_a_thread_in_a_direct_chat_is_whose_the_chat_is(door: IngressHarness) -> None:
    old = await door.send_message("my secret", chat="!room", kind="dm")

    async def inside(sender: str) -> Address:
        door.said += 1
        place = ChatLocation(platform="fake", account="main", chat="!room", thread="t", message=str(door.said))
        verdict = await door.accept(
            IncomingMessage(origin=place, text="hello", sender=sender, kind="dm", can_change_owner=True)
        )
        entry = await door.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        return parse_address(entry.body.stamp.address)

    assert (await inside("7")).person == "7"
    assert (await inside("1001")).person == ""
    assert (await alone(door, "and outside", sender="1001")).session == old.session
