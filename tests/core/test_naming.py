"""The names memory providers see: readable where they can be, and never one name for two sessions."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from everhold.core.address import Address
from everhold.core.naming import Hermes, Origin, Rule, hermes_limited, hermes_name, name

IDS = st.text(min_size=1, max_size=12) | st.sampled_from(["1", "-1", "a-b", "a", "b", "1:2", "1/2", "%31", "é", "--"])
RULES = st.builds(
    Rule,
    strategy=st.sampled_from(["per-session", "per-directory", "per-repo", "global"]),
    workspace=st.sampled_from(["home", "my work", ""]),
    peer=st.sampled_from(["", "ada", "a-b", "ä"]),
    limit=st.sampled_from([40, 64, 100]),
)


def test_a_plain_direct_chat_is_called_exactly_by_its_address() -> None:
    address = str(Address(agent="main", platform="telegram", kind="dm", chat="123456"))
    assert name(Origin(session="s1", address=address), Rule()).text == "agent-main-telegram-dm-123456"


def test_the_order_is_title_address_strategy_workspace() -> None:
    origin = Origin(session="abc", title="Plans", address="agent:main:http:dm:me", directory="/src/app", repo="app")
    rule = Rule(strategy="per-repo", workspace="home")
    sources = []
    for field in ("title", "address", "repo", "directory"):
        sources.append(name(origin, rule).source)
        origin = structs.replace(origin, **{field: ""})
    sources.append(name(origin, rule).source)
    assert sources == ["title", "address", "per-repo", "per-directory", "workspace"]


def test_what_is_empty_after_sanitising_falls_through() -> None:
    origin = Origin(session="abc", title="!!!", address="agent:main:http:dm:me")
    assert name(origin, Rule()).source == "address"


def test_repositories_of_one_name_in_two_places_give_different_names() -> None:
    rule = Rule(strategy="per-repo")
    names = {name(Origin(session="s", repo=repo), rule).text for repo in ("/home/a/api", "/srv/b/api")}
    assert len(names) == 2
    assert all(text.startswith("api-") for text in names)


def test_equal_titles_of_different_owners_give_different_names() -> None:
    names = {name(Origin(session="s", owner=owner, title="Work"), Rule()).text for owner in ("ada", "bob")}
    assert len(names) == 2
    assert all(text.startswith("Work-") for text in names)


def test_the_peer_prefix_applies_to_every_branch() -> None:
    rule = Rule(peer="ada", strategy="per-session")
    for origin in (
        Origin(session="s1", title="Plans"),
        Origin(session="s1", address="agent:main:telegram:dm:1"),
        Origin(session="s1"),
    ):
        assert name(origin, rule).text.startswith("ada-")


def test_a_user_and_a_thread_of_one_number_are_two_names() -> None:
    base = Address(agent="main", platform="telegram", kind="group", chat="100")
    texts = {
        name(Origin(session="s", address=str(structs.replace(base, **{field: "42"}))), Rule()).text
        for field in ("thread", "person")
    }
    assert len(texts) == 2


@given(st.lists(st.tuples(IDS, IDS, IDS, IDS), min_size=2, max_size=2, unique=True), RULES)
def test_two_addresses_never_share_a_name(parts: list[tuple[str, str, str, str]], rule: Rule) -> None:
    texts = []
    for agent, platform, chat, thread in parts:
        address = Address(agent=agent, platform=platform, kind="group", chat=chat, thread=thread)
        texts.append(name(Origin(session="s", address=str(address)), rule).text)
    assert texts[0] != texts[1]


@given(
    st.builds(Origin, session=IDS, owner=IDS, title=st.text(max_size=200), directory=st.text(max_size=60), repo=IDS),
    RULES,
)
def test_every_name_is_one_a_provider_takes(origin: Origin, rule: Rule) -> None:
    text = name(origin, rule).text
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert len(text) <= rule.limit
    assert name(origin, rule).text == text


ORIGINS = st.builds(
    Origin,
    session=st.just("s"),
    owner=IDS,
    title=st.text(max_size=80) | IDS,
    address=st.just("") | st.builds(lambda chat: str(Address(agent="main", platform="t", kind="dm", chat=chat)), IDS),
    directory=st.just("") | st.builds("/{}/{}".format, IDS, IDS),
)


@given(st.tuples(ORIGINS, ORIGINS), RULES)
def test_two_sessions_share_a_name_only_if_they_are_named_after_the_same_thing(
    pair: tuple[Origin, Origin], rule: Rule
) -> None:
    one, other = (name(origin, rule) for origin in pair)
    if one.text == other.text:
        assert one.source == other.source
        match one.source:
            case "title":
                assert (pair[0].owner, pair[0].title) == (pair[1].owner, pair[1].title)
            case "address":
                assert pair[0].address == pair[1].address
            case "per-directory":
                assert pair[0].directory == pair[1].directory


@given(ORIGINS, RULES)
def test_hermes_names_are_ones_its_service_takes(origin: Origin, rule: Rule) -> None:
    text = hermes_name(origin, rule).text
    assert re.fullmatch(r"[A-Za-z0-9_-]*", text)
    assert hermes_name(origin, rule).text == text


def test_directories_of_one_name_are_told_apart() -> None:
    names = {name(Origin(session="s", directory=path), Rule()).text for path in ("/a/app", "/b/app")}
    assert len(names) == 2
    assert all(text.startswith("app-") for text in names)


class TestHermes:
    @pytest.mark.parametrize(
        "origin, rule, expected",
        [
            (Origin(session="s", address="agent:main:telegram:dm:123"), Rule(peer="ada"), "agent-main-telegram-dm-123"),
            (Origin(session="20260101_120000_ab12cd"), Rule(strategy="per-session"), "20260101_120000_ab12cd"),
            (Origin(session="s", title="My Plans!"), Rule(peer="ada"), "ada-My-Plans"),
            (Origin(session="s", directory="/src/my app"), Rule(), "my-app"),
            (Origin(session="s", repo="everhold", directory="/x/y"), Rule(strategy="per-repo"), "everhold"),
            (Origin(session="s", repo="/x/everhold", directory="/x/everhold/y"), Rule(strategy="per-repo"), "everhold"),
            (Origin(session="s"), Rule(strategy="global", workspace="hermes"), "hermes"),
        ],
    )
    def test_its_names_are_reproduced(self, origin: Origin, rule: Rule, expected: str) -> None:
        assert hermes_name(origin, rule).text == expected

    def test_the_map_comes_before_the_title(self) -> None:
        origin = Origin(session="s", title="T", directory="/src/app")
        assert hermes_name(origin, Rule(), Hermes(sessions={"/src/app": "mapped"})).text == "mapped"

    @pytest.mark.parametrize("length", [99, 100, 101, 102])
    def test_a_key_of_a_hundred_characters_is_the_longest_that_stays_whole(self, length: int) -> None:
        key = "agent:main:matrix:group:".ljust(length, "x")
        plain = key.replace(":", "-")
        digest = hashlib.sha256(key.encode()).hexdigest()[:8]
        assert hermes_limited(key) == (plain if length <= 100 else f"{plain[:91]}-{digest}")
        assert len(hermes_limited(key)) == min(length, 100)
        assert hermes_name(Origin(session="s", address=key), Rule()).text == hermes_limited(key)

    def test_a_long_key_is_cut_to_a_hundred_with_its_hash(self) -> None:
        address = str(Address(agent="main", platform="matrix", kind="group", chat="!" + "x" * 120 + ":example.org"))
        text = hermes_name(Origin(session="s", address=address), Rule()).text
        assert len(text) == 100
        assert re.search(r"-[0-9a-f]{8}$", text)
