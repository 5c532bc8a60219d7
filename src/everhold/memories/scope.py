"""Decides which hits of a remote memory the people present may see: each of them must be in the audience of the hit.

Services do not know audiences. So every item is sent with marks for the identities in its audience, and every hit is
checked against them. Where a service separates people (a user, a namespace, a bank), the name is their peer.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from everhold.core.peers import MAX_PEERS, make_safe_id
from everhold.core.people import PERSON_MEMBER, PresentAudience, build_present, can_hear as can_hear_audience
from everhold.ports.memory import MemoryQuery
from everhold.ports.tool import ToolContext

_MARK_PREFIX: Final = "everhold_for_"
_TEMPLATE_SEPARATOR: Final = re.compile(r"\{(?:agent|person)\}(.*)\{(?:agent|person)\}")


def get_only_person(audience: Sequence[str]) -> str:
    """Return the identity if the audience is exactly one person, else an empty string."""
    return (
        audience[0].removeprefix(PERSON_MEMBER) if len(audience) == 1 and audience[0].startswith(PERSON_MEMBER) else ""
    )


def get_present(asked: MemoryQuery | ToolContext) -> PresentAudience:
    """Return the people present. A query without them is about people with one identity each."""
    audience = asked.audience if isinstance(asked, MemoryQuery) else asked.stamp.audience
    return asked.present or build_present(audience)


def list_audiences(present: PresentAudience) -> list[tuple[str, ...]]:
    """Return the audiences that mean the people present: the one of now, then those with other identities of theirs.
    There are at most `MAX_PEERS`.
    """
    members = [[one.member for one in group] for group in present.groups]
    return [tuple(audience) for audience in itertools.islice(itertools.product(*members), MAX_PEERS)]


def list_person_peers(present: PresentAudience, peers: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the peers of the only person present, the latest first; empty if there are others. An identity without a
    peer stands for itself.
    """
    if len(present.groups) != 1 or not get_only_person(present.members):
        return ()
    identities = (one.member.removeprefix(PERSON_MEMBER) for one in present.groups[0])
    found = dict.fromkeys(peer for identity in identities for peer in peers.get(identity) or (identity,))
    return tuple(itertools.islice(found, MAX_PEERS))


def build_audience_marks(audience: Iterable[str]) -> dict[str, str]:
    """Return the metadata that marks an item with its audience, one mark for each member, so that a query can filter by
    any.
    """
    return {_build_mark(one): "yes" for one in audience}


def list_audience_marks(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the marks of an item's audience, from its metadata."""
    return tuple(sorted(name for name in about if name.startswith(_MARK_PREFIX)))


def _build_mark(member: str) -> str:
    return f"{_MARK_PREFIX}{_hash_text(member, 16)}"


def can_hear(
    present: PresentAudience, about: Mapping[str, Any], at: float, *, peers: Mapping[str, Sequence[str]] | None = None
) -> bool:
    """Whether all of `present` were in the audience of the item with the metadata `about`, from the time `at`. False
    for no one.

    `peers`: also accept the marks that were made of the peers of an identity, as early versions made them.
    """
    members = [one for one in present.list_members() if about.get(_build_mark(one)) == "yes"]
    for member in present.list_members() if peers else ():
        old = (peers or {}).get(member.removeprefix(PERSON_MEMBER), ())
        if member not in members and any(about.get(_build_mark(peer)) == "yes" for peer in old):
            members.append(member)
    return can_hear_audience(present, members, at)


def is_only_for(audience: Sequence[str], about: Mapping[str, Any]) -> bool:
    """Whether the item with the metadata `about` has exactly this audience. Items without marks, which everhold did not
    write, count as belonging to it.
    """
    heard_by = {name for name in about if name.startswith(_MARK_PREFIX)}
    return not heard_by or heard_by == set(build_audience_marks(audience))


def hash_audience(audience: Sequence[str]) -> str:
    """Return an audience as one id, for use as part of a name; empty for an empty audience."""
    if not audience:
        return ""
    return make_safe_id("|".join(sorted(audience)))


def name_audience(audience: Sequence[str], peers: Mapping[str, str]) -> str:
    """Return what stands for an audience in a name: the peer of the only person, or a hash of all members."""
    person = get_only_person(audience)
    return peers.get(person, person) if person else hash_audience(audience) or "nobody"


def list_peer_choices(audience: Sequence[str], peers_of: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return the peers to try for items of an audience: none, then each that its only person ever had."""
    person = get_only_person(audience)
    return [{}, *({person: peer} for peer in peers_of.get(person, ()))]


class PresentName(NamedTuple):
    """What stands for the people present in the name of a place."""

    who: str
    is_person: bool
    """It stands for a single person."""
    since: float = 0.0
    """What is older may be somebody else's."""


def list_present_names(present: PresentAudience, peers: Mapping[str, Sequence[str]]) -> list[PresentName]:
    """Return what stood for the people present in names."""
    if own := list_person_peers(present, peers):
        return [PresentName(peer, True, _find_peer_start(peer, present, peers)) for peer in own]
    return [PresentName(hash_audience(audience) or "nobody", False) for audience in list_audiences(present)]


def _find_peer_start(peer: str, present: PresentAudience, peers: Mapping[str, Sequence[str]]) -> float:
    """Return from when on everything of a peer is the only person's: the start of the latest identity that has it."""
    identities = {one.member.removeprefix(PERSON_MEMBER): one.since for one in present.groups[0]}
    return max(since for identity, since in identities.items() if peer in (peers.get(identity) or (identity,)))


def expand_template(template: str, *, agent: str, who: str, is_person: bool) -> tuple[str, ...]:
    """Return the name that a template gives to `who`, then the name it gave before names were made unambiguous.

    A person whose name could be confused with a part of the agent's name (`a` and `b-c` look like `a-b` and `c`) gets a
    hash of both.
    """
    text = template.replace("{agent}", agent).replace("{person}", who)
    between = _TEMPLATE_SEPARATOR.search(template)
    if not is_person or between is None or (between[1] and set(between[1]).isdisjoint(who)):
        return (make_safe_id(text),)
    return make_safe_id(text, parts=f"{agent}\0{who}"), make_safe_id(text)


def make_document_id(key: str) -> str:
    """Return the id of the document for an exchange or note."""
    return f"everhold-{make_safe_id(key)}"


def _hash_text(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
