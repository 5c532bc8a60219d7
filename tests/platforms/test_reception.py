"""Who may speak: nobody who was not let in, by ids that nobody can take, and strangers hear one word an hour."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everhold.config import parse
from everhold.core import pairing
from everhold.core.address import Address, parse as parse_address
from everhold.core.commands import OWNERS_ONLY
from everhold.core.entries import AddressBound, Changed, Command, Draft, Heard, Place
from everhold.errors import Misuse, NotFound
from everhold.ports.platform import Incoming, PlatformOffset, Verdict
from everhold.ports.store import Change, StateNamespace, Step
from tests.platforms.stage import CONFIG, Door


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    door = Door(tmp_path)
    yield door
    await door.store.close()


# -- default deny ------------------------------------------------------------------------------------------------------


async def test_who_is_listed_may_speak_directly_and_a_stranger_may_not(door: Door) -> None:
    assert (await door.heard("hello")).stamp.person == "ada"
    assert (await door.heard("hello", sender="7")).stamp.person == "fake:7"
    verdict = await door.say("hello", sender="666")
    assert (verdict.outcome, verdict.session) == ("denied", "")
    assert len(await door.store.list_sessions()) == 2, "a stranger leaves no session"


async def test_what_is_not_let_in_is_not_brought_again(door: Door) -> None:
    """Nothing of it is kept but how far the platform was read: else it would come with every start, and for ever."""
    for value in ("7", "8"):
        read = PlatformOffset(key="offset", value=value)
        assert (await door.say("hello", sender="666", offset=read)).outcome == "denied"
        (record,) = await door.store.list_state_records(StateNamespace.PLATFORM_OFFSET, scope="fake:main")
        assert (record.key, record.value) == ("offset", value)


@pytest.mark.parametrize("name", ["ada", "fake:1001", "root", "1001", "*"])
async def test_a_name_lets_nobody_in(door: Door, name: str) -> None:
    assert (await door.say("hello", sender="666", name=name)).outcome == "denied"


@pytest.mark.parametrize("sender", ["ada", "root", "*", "fake:1001"])
async def test_an_id_that_looks_like_a_person_is_not_that_person(door: Door, sender: str) -> None:
    assert (await door.say("hello", sender=sender)).outcome == "denied"


async def test_an_account_that_is_gone_hears_nobody(door: Door) -> None:
    door.settings = door.settings.model_copy(update={"platforms": {}})
    assert (await door.say("hello")).outcome == "denied"


async def test_a_list_is_for_its_account_and_its_scope(door: Door) -> None:
    assert (await door.say("hello", sender="7", platform="other")).outcome == "denied"
    assert (await door.say("hello", chat="elsewhere")).outcome == "denied"
    assert (await door.say("hello", chat="room")).outcome == "accepted"
    assert (await door.say("hello", chat="room", sender="666")).outcome == "denied"
    assert (await door.say("hello", chat="open", sender="666")).outcome == "accepted"


async def test_whoever_is_turned_away_in_a_group_leaves_its_id_in_the_log(door: Door) -> None:
    """It is what has to stand in the configuration, and no platform shows it."""
    await door.say("hello", chat="-100200", sender="666")
    (line,) = door.log.of("message.denied")
    assert (line["platform"], line["account"], line["chat"]) == ("fake", "main", "-100200")


async def test_an_owner_may_speak_everywhere(door: Door) -> None:
    assert (await door.say("hello", sender="1", chat="elsewhere")).outcome == "accepted"
    assert (await door.say("hello", sender="1")).outcome == "accepted"


# -- pairing -----------------------------------------------------------------------------------------------------------


async def code_for(door: Door, sender: str = "666", **more: str) -> str:
    await door.say("let me in", sender=sender, **more)
    found = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", (await door.whispers())[-1])
    assert found
    return found[0]


async def test_a_stranger_is_let_in_by_a_code_that_somebody_approves_here(door: Door) -> None:
    code = await code_for(door, name="Eve")
    (waiting,) = await door.reception.pairing.waiting()
    assert (waiting["identity"], waiting["name"]) == ("fake:666", "Eve")
    assert code not in str(waiting), "who waits is shown, the code has to come from them"
    approved = await door.reception.pairing.approve(code.lower().replace("-", " "))
    assert approved["identity"] == "fake:666"
    assert (await door.say("thank you", sender="666")).outcome == "accepted"
    assert (await door.say("hello", sender="666", chat="room")).outcome == "denied", "a direct chat is all it opens"
    assert (await door.say("hello", sender="666", platform="other")).outcome == "denied", "and of one account"


async def test_whoever_was_let_in_as_somebody_is_a_stranger_again_when_that_is_taken_back(door: Door) -> None:
    pairing = door.reception.pairing
    await pairing.approve(await code_for(door), person="ada")
    assert (await door.heard("hello", sender="666")).stamp.person == "ada"
    await pairing.revoke("fake:666")
    assert (await door.say("still here", sender="666")).outcome == "denied"
    assert await door.store.list_identity_links() == []


async def test_who_was_somebody_before_they_were_let_in_stays_that(door: Door) -> None:
    """Nobody knows of an old grant, either, what came with it."""
    pairing = door.reception.pairing
    code = await code_for(door)
    await door.store.link_identity("fake:666", "ada", at=door.clock.at)
    await pairing.approve(code, person="ada")
    await pairing.revoke("fake:666")
    assert await door.store.list_identity_links() == [("fake:666", "ada")]


async def test_a_code_counts_once_and_for_ten_minutes(door: Door) -> None:
    code = await code_for(door)
    await door.reception.pairing.approve(code)
    with pytest.raises(NotFound):
        await door.reception.pairing.approve(code)
    await door.reception.pairing.revoke("fake:666")
    assert (await door.say("hello", sender="666")).outcome == "denied"
    late = await code_for(door, sender="667")
    door.clock.at += 601
    with pytest.raises(Misuse, match="too old"):
        await door.reception.pairing.approve(late)
    assert await door.reception.pairing.waiting() == []
    assert (await door.say("hello", sender="667")).outcome == "denied"


async def test_guessing_ends_after_five_tries_and_voids_what_could_be_guessed(door: Door) -> None:
    code = await code_for(door)
    for _ in range(5):
        with pytest.raises(NotFound):
            await door.reception.pairing.approve("AAAA-AAAA")
    with pytest.raises(Misuse, match="too many"):
        await door.reception.pairing.approve(code)
    door.clock.at += 601
    with pytest.raises(NotFound):
        await door.reception.pairing.approve(code)


async def test_a_stranger_hears_one_word_an_hour_also_after_a_restart(door: Door) -> None:
    for _ in range(5):
        await door.say("hello?", sender="666")
    await door.whispers()
    door.reception = door.reopened()
    await door.say("hello?", sender="666")
    assert len(await door.whispers()) == 1
    door.clock.at += 3_601
    await door.say("hello?", sender="666")
    assert len(await door.whispers()) == 2


async def test_a_crowd_of_strangers_is_not_answered_without_end(door: Door) -> None:
    for number in range(pairing.MOST_WAITING + 5):
        await door.say("hello", sender=f"9{number}")
    assert len(await door.whispers()) == pairing.MOST_WAITING
    door.clock.at += 4_000
    await door.say("hello", sender="950")
    kept = await door.store.list_state_records(StateNamespace.PAIRING_REQUEST)
    assert len(kept) == 1, "strangers are forgotten"


async def test_strangers_in_groups_and_bots_and_closed_houses_hear_nothing(door: Door) -> None:
    await door.say("hello", sender="666", chat="room")
    await door.say("hello", sender="667", bot=True)
    door.settings = door.settings.model_copy(
        update={"access": door.settings.access.model_copy(update={"pairing": False})}
    )
    await door.say("hello", sender="668")
    assert await door.whispers() == []


async def test_whoever_is_approved_by_name_is_that_person(door: Door) -> None:
    await door.reception.pairing.approve(await code_for(door), person="ada")
    assert (await door.heard("it is me", sender="666")).stamp.person == "ada"


async def test_no_code_is_kept_where_it_could_be_read(door: Door, tmp_path: Path) -> None:
    code = await code_for(door)
    await door.store.close()
    for file in tmp_path.iterdir():  # noqa: ASYNC240  # nothing else is waiting
        assert pairing.normal(code).encode() not in file.read_bytes().replace(b"-", b"")
    assert code not in str(door.log.lines)
    door.store = door.store.open(tmp_path / "log.db", chance=door.reception._chance)


@given(st.binary(min_size=64, max_size=64))
def test_a_code_is_readable_and_fair(chance: bytes) -> None:
    try:
        code = pairing.code_of(chance)
    except AssertionError:
        return  # a draw that hypothesis likes and chance does not: sixty bytes of the unfair kind
    assert re.fullmatch(r"[A-HJKMNP-TV-Z2-9]{4}-[A-HJKMNP-TV-Z2-9]{4}", code)
    assert not set(code) & set("ILOU01")


# -- one person, two platforms -----------------------------------------------------------------------------------------


async def said(door: Door, text: str, **more: str) -> str:
    before = len(await door.whispers())
    await door.say(text, **more)
    now = await door.whispers()
    return now[-1] if len(now) > before else ""


def code_in(text: str) -> str:
    found = re.search(r"/link ([A-Z2-9]{4}-[A-Z2-9]{4})", text)
    assert found, text
    return found[1]


async def test_two_sides_are_one_person_once_both_have_said_so(door: Door) -> None:
    first = code_in(await said(door, "/link"))
    await door.say(f"/link {first}", sender="55", platform="other")
    await door.whispers()
    second = code_in(door.other.shown[-1].text)
    assert await door.store.get_person("other:55") is None, "one side alone proves nothing"
    await door.say(f"/link {second}")
    assert await door.store.get_person("other:55") == "ada"
    assert (await door.heard("me again", sender="55", platform="other")).stamp.person == "ada"


async def test_the_second_word_counts_only_from_whoever_began(door: Door) -> None:
    first = code_in(await said(door, "/link"))
    await door.say(f"/link {first}", sender="55", platform="other")
    await door.whispers()
    second = code_in(door.other.shown[-1].text)
    await door.say(f"/link {second}", sender="7")
    await door.say(f"/link {second}", sender="55", platform="other")
    assert await door.store.get_person("other:55") is None


async def test_nobody_is_talked_into_being_somebody_else(door: Door) -> None:
    first = code_in(await said(door, "/link", sender="7"))
    assert "You are ada here" in await said(door, f"/link {first}")
    assert (await door.heard("still me")).stamp.person == "ada"


async def test_a_stranger_who_guesses_link_codes_hears_nothing(door: Door) -> None:
    code_in(await said(door, "/link"))
    before = len(await door.whispers())
    for _ in range(10):
        await door.say("/link AAAA-AAAA", sender="666")
    assert len(await door.whispers()) == before


# -- groups ------------------------------------------------------------------------------------------------------------


def with_groups(**groups: object) -> str:
    text = ", ".join(f"{key}: {str(value).lower()}" for key, value in groups.items())
    return CONFIG.replace("chats: {watched: {}}", f"groups: {{{text}}}")


async def test_chatter_is_not_kept_unless_it_is_observed(door: Door, tmp_path: Path) -> None:
    assert (await door.say("just talking", chat="room", addressed=False)).outcome == "ignored"
    assert await door.store.list_sessions() == []
    (tmp_path / "b").mkdir()
    watching = Door(tmp_path / "b", with_groups(observe=True))
    kept = await watching.heard("just talking", chat="room", addressed=False)
    assert not kept.asks
    assert (await watching.say("me too", chat="room", sender="666", addressed=False)).outcome == "denied"
    assert (await watching.heard("you there?", chat="room")).asks
    await watching.store.close()


async def test_a_chat_may_have_an_agent_sessions_and_manners_of_its_own(tmp_path: Path) -> None:
    config = CONFIG.replace(
        "chats: {watched: {}}", "chats: {room: {agent: coder, sessions: {group: shared}, groups: {answer: always}}}"
    )
    door = Door(tmp_path, config)
    heard = await door.heard("anybody?", chat="room", addressed=False)
    assert heard.asks
    assert heard.stamp.address == "agent:coder:fake/main:group:room"
    assert heard.stamp.audience == ("chat:agent:coder:fake/main:group:room",)
    other = await door.heard("hello", chat="open")
    assert other.stamp.address == "agent:main:fake:group:open:person:1001"
    await door.store.close()


@pytest.mark.parametrize("command", sorted(OWNERS_ONLY))
async def test_in_a_group_some_commands_need_an_owner(door: Door, command: str) -> None:
    heard = await door.heard(f"/{command} x", chat="room")
    assert heard.command is not None
    assert (heard.command.name, heard.command.argument) == ("barred", command)
    by_owner = await door.heard(f"/{command} x", chat="room", sender="1")
    assert by_owner.command is not None
    assert by_owner.command.name == command
    alone = await door.heard(f"/{command} x")
    assert alone.command is not None
    assert alone.command.name == command


async def test_a_command_that_is_not_meant_for_us_is_text(tmp_path: Path) -> None:
    door = Door(tmp_path, with_groups(observe=True))
    assert (await door.heard("/new", chat="room", addressed=False)).command is None
    await door.store.close()


# -- bots --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [".", "..", "ok", "👍", "⚙ I could not answer: the model is down"])
async def test_bots_are_not_answered_when_they_only_acknowledge_or_fail(door: Door, text: str) -> None:
    assert not (await door.heard(text, sender="7", bot=True)).asks
    assert (await door.heard(text, sender="7")).asks, "a human is"


async def test_a_machine_s_notice_is_heard_and_not_answered(door: Door) -> None:
    assert not (await door.heard("your build failed", sender="7", notice=True)).asks


async def test_a_loop_ends_by_itself_also_where_the_platform_carries_no_count(door: Door) -> None:
    from everhold.core.entries import Draft, Heard, Said
    from everhold.ports.store import Change, Step

    asked = 0
    for turn in range(40):
        verdict = await door.say(f"and then? {turn}", sender="7", bot=True)
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
                entries=(Draft(body=said, author="agent:main"),),
            )
        )
    assert asked == door.settings.loops.max_hops
    (loop,) = door.reception.about()["loops"]
    assert (loop["agent"], loop["chat"], loop["hops"]) == ("main", "7", 8)
    assert (await door.heard("I am human", sender="7")).asks
    assert door.reception.about()["loops"] == [], "and it is no news any more"
    assert (await door.heard("so?", sender="7", bot=True)).asks, "a human spoke, and it may go on"


async def test_hops_that_a_platform_carries_count(door: Door) -> None:
    assert (await door.heard("hi", sender="7", bot=True, hops=7)).asks
    assert not (await door.heard("hi", sender="7", bot=True, hops=8)).asks


@pytest.mark.parametrize("halt, wake", [("!halt", "!resume"), ("/halt", "/wake"), (" !halt\n", "/wake@bot")])
async def test_a_halt_word_silences_a_chat_until_a_human_lifts_it(door: Door, halt: str, wake: str) -> None:
    order = await door.heard(halt, chat="room", addressed=False)
    assert order.command is not None
    assert order.command.name == "halt"
    door.reception = door.reopened()
    assert not (await door.heard("hello?", chat="room")).asks, "also after a restart"
    assert not (await door.heard("hello?", chat="room", sender="7", bot=True)).asks
    assert (await door.heard("hello?", chat="open")).asks, "another chat is another matter"
    assert (await door.heard("!resume", chat="room", sender="7", bot=True)).command is None, "no bot lifts it"
    await door.reception.open()
    assert [it["chat"] for it in door.reception.about()["halted"]] == ["room"]
    await door.heard(wake, chat="room", addressed=False)
    assert (await door.heard("hello?", chat="room")).asks
    assert door.reception.about()["halted"] == []


@pytest.mark.parametrize("platform", ["terminal", "http"])
@pytest.mark.parametrize("text, word", [("/halt", "halt"), ("!halt", "halt"), ("/wake", "wake"), ("/link", "link")])
async def test_nobody_is_silenced_or_linked_where_there_is_nobody_else(
    door: Door, platform: str, text: str, word: str
) -> None:
    heard = await door.heard(text, platform=platform)
    assert heard.command == Command(name="alone", argument=word)
    assert (await door.heard("hello", platform=platform)).asks
    assert door.reception.about()["halted"] == []


async def test_an_order_that_is_delivered_again_is_not_obeyed_again(door: Door) -> None:
    await door.heard("!halt", chat="room", id="h")
    await door.heard("!resume", chat="room", id="r")
    assert (await door.say("!halt", chat="room", id="h")).outcome == "duplicate"
    assert (await door.heard("hello?", chat="room")).asks, "a human lifted it since"
    await door.heard("!halt", chat="room", id="h2")
    assert (await door.say("!resume", chat="room", id="r")).outcome == "duplicate"
    assert not (await door.heard("hello?", chat="room")).asks, "and a repeat lifts nothing"


async def test_an_order_that_was_obeyed_and_not_kept_is_kept_when_it_comes_again(door: Door) -> None:
    origin = Place(platform="fake", account="main", chat="room", message="h")
    await door.reception(Incoming(origin=origin, text="!halt", sender="1001", kind="group"))  # and here it crashed
    door.reception = door.reopened()
    assert (await door.say("!halt", chat="room", id="h")).outcome == "accepted"
    assert not (await door.heard("hello?", chat="room")).asks


async def test_a_chat_that_gets_another_id_stays_the_conversation_it_was(door: Door) -> None:
    before = await door.say("hello", chat="room")
    assert (await door.say("hello", chat="hall")).outcome == "denied"
    await door.moves.moved("fake", "room", "hall")
    for _ in range(2):
        after = await door.say("hello", chat="hall")
        assert (after.outcome, after.session) == ("accepted", before.session)
        assert (await door.say("hello", chat="hall", sender="666")).outcome == "denied"
        entry = await door.store.get_entry(after.session, after.seq)
        assert isinstance(entry.body, Heard)
        assert entry.body.origin.chat == "hall", "the answer goes where it is now"
        first = await door.store.get_entry(before.session, before.seq)
        assert isinstance(first.body, Heard)
        assert entry.body.stamp == first.body.stamp, "and memory files it with what was there before"
        door.reception = door.reopened()
        await door.moves.moved("fake", "room", "hall")  # platforms say so more than once
    await door.moves.moved("fake", "hall", "castle")
    assert (await door.say("hello", chat="castle")).session == before.session
    assert await door.store.verify() == []


async def test_a_halt_holds_and_is_lifted_under_the_chat_s_new_id(door: Door) -> None:
    await door.heard("!halt", chat="room")
    await door.moves.moved("fake", "room", "hall")
    assert not (await door.heard("hello?", chat="hall")).asks
    await door.heard("!resume", chat="hall")
    assert (await door.heard("hello?", chat="hall")).asks
    assert door.reception.about()["halted"] == []


async def test_settings_are_found_under_either_id(door: Door) -> None:
    door.settings = parse(CONFIG.replace("room: [ada", "hall: [ada").replace("watched", "room"))
    await door.moves.moved("fake", "room", "hall")
    assert (await door.say("hello", chat="hall")).outcome == "accepted"
    assert (await door.say("hello", chat="hall", sender="666")).outcome == "denied"


async def test_a_stranger_halts_nobody(door: Door) -> None:
    assert (await door.say("!halt", chat="room", sender="666")).outcome == "denied"
    assert (await door.heard("hello?", chat="room")).asks


async def test_a_halt_reaches_every_conversation_of_its_chat(door: Door) -> None:
    bob = await door.say("do something long", chat="room", sender="7")
    elsewhere = await door.say("do something long", chat="open", sender="7")
    await door.heard("!halt", chat="room")
    texts = [entry.body.text for entry in await door.store.list_entries(bob.session)]  # type: ignore[union-attr]
    assert texts == ["do something long", "!halt"]
    assert len(await door.store.list_entries(elsewhere.session)) == 1


# -- a direct chat that another one takes over -------------------------------------------------------------------------


async def alone(door: Door, text: str, *, sender: str, chat: str = "!room", **more: Any) -> Verdict:
    """Said alone with the agent, on a platform where the other one in a chat may become somebody else."""
    verdict = await door.say(text, sender=sender, chat=chat, kind="dm", changes_hands=True, **more)
    assert verdict.outcome == "accepted", verdict
    return verdict


async def test_a_direct_chat_stays_with_whoever_was_first_in_it(door: Door) -> None:
    """Ada leaves, and Eve is alone with the agent in the same room: she is told nothing of what Ada told it."""
    ada = await alone(door, "my secret", sender="1001")
    eve = await alone(door, "hello", sender="7")
    assert eve.session != ada.session
    entry = await door.store.get_entry(eve.session, eve.seq)
    assert isinstance(entry.body, Heard)
    assert entry.body.stamp.audience == ("person:fake:7",)
    door.reception = door.reopened()
    door.accept._known.clear()
    assert (await alone(door, "I am back", sender="1001")).session == ada.session
    assert (await alone(door, "me too", sender="7")).session == eve.session
    assert (await alone(door, "elsewhere", sender="7", chat="!other")).session not in (ada.session, eve.session)


async def test_a_direct_chat_from_before_that_was_kept_is_whose_it_was(door: Door) -> None:
    """The log knows who spoke first: an older session stays what it is, whoever speaks first after an update."""
    old = await door.say("my secret", chat="!room", kind="dm")
    assert await door.store.list_state_records(StateNamespace.DM_OWNER) == []
    assert (await alone(door, "hello", sender="7")).session != old.session
    assert (await alone(door, "I am back", sender="1001")).session == old.session


async def test_a_direct_chat_that_leads_to_a_session_from_elsewhere_is_its_owner_s(door: Door) -> None:
    """Ada went on here in a session that she began in another chat, before it was kept whose a chat is."""
    began = await door.say("my secret")
    here = await door.say("/resume", chat="!room", kind="dm")
    entry = await door.store.get_entry(here.session, here.seq)
    assert isinstance(entry.body, Heard)
    bound = AddressBound(address=entry.body.stamp.address, previous=here.session, by="person:ada")
    draft = Draft(body=Changed(change=bound), author="person:ada")
    await door.store.commit(Change(step=Step.BACKLINK, session=began.session, at=door.clock.at, entries=(draft,)))
    door.accept._known.clear()
    assert (await alone(door, "hello", sender="7")).session not in (began.session, here.session)
    assert (await alone(door, "I am back", sender="1001")).session == began.session


async def test_a_direct_chat_stays_somebody_s_who_gets_a_name_or_another_id(door: Door) -> None:
    mine = await alone(door, "hello", sender="7")
    await door.store.link_identity("fake:7", "grace", at=door.clock.at)
    assert (await alone(door, "I am Grace now", sender="7")).session == mine.session
    await door.store.link_identity("fake:1001b", "ada", at=door.clock.at)
    ada = await alone(door, "hello", sender="1001", chat="!hers")
    door.settings = parse(CONFIG.replace('["fake:1001"]', '["fake:1001", "fake:1001b"]'))
    assert (await alone(door, "from my new account", sender="1001b", chat="!hers")).session == ada.session


async def test_who_is_not_let_in_takes_no_chat_over(door: Door) -> None:
    refused = await door.say("hello", sender="666", chat="!room", kind="dm", changes_hands=True)
    assert refused.outcome == "denied"
    first = await alone(door, "hello", sender="1001")
    entry = await door.store.get_entry(first.session, first.seq)
    assert isinstance(entry.body, Heard)
    assert parse_address(entry.body.stamp.address).person == ""


async def test_a_thread_in_a_direct_chat_is_whose_the_chat_is(door: Door) -> None:
    old = await door.say("my secret", chat="!room", kind="dm")

    async def inside(sender: str) -> Address:
        door.said += 1
        place = Place(platform="fake", account="main", chat="!room", thread="t", message=str(door.said))
        verdict = await door.accept(Incoming(origin=place, text="hello", sender=sender, kind="dm", changes_hands=True))
        entry = await door.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        return parse_address(entry.body.stamp.address)

    assert (await inside("7")).person == "7"
    assert (await inside("1001")).person == ""
    assert (await alone(door, "and outside", sender="1001")).session == old.session
