"""What memory services behind an SDK share: capabilities, the signature of the settings, the text and metadata of an
item, reading of answers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from everhold.core.exchange import get_original_key
from everhold.core.peers import make_safe_id
from everhold.core.provenance import prefix_lines
from everhold.errors import EverholdError
from everhold.infra.secret import SecretString
from everhold.memories.errors import convert_partial_failure
from everhold.memories.scope import build_audience_marks
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryProvider,
    MemoryQuery,
    MemoryUtterance,
    ProviderHealth,
)
from everhold.ports.tool import ToolContext, ToolResult

if TYPE_CHECKING:
    from pydantic import BaseModel

REMOTE_CAPABILITIES: Final = frozenset(
    {
        MemoryCapability.PROBE,
        MemoryCapability.RETRACT,
        MemoryCapability.TOOLS,
        MemoryCapability.REMOVE,
        MemoryCapability.FORGET,
        MemoryCapability.EXPORT,
        MemoryCapability.HEALTH,
        MemoryCapability.CLOSE,
        MemoryCapability.SIGNATURE,
    }
)
_ESCAPE_CHAR: Final = "\ue000"
"""From the private use area. It escapes itself and the NUL character, which no database accepts."""
_ESCAPED_PATTERN: Final = re.compile("\ue000([\ue001\ue002])")


def compute_signature(provider: str, settings: BaseModel) -> dict[str, str]:
    """Return `provider.key -> value` for every setting. A secret appears as a fingerprint, so a corrected key is a
    change.
    """
    return {f"{provider}.{name}": _format_setting(getattr(settings, name)) for name in type(settings).model_fields}


def _format_setting(value: object) -> str:
    if isinstance(value, SecretString):
        return hashlib.sha256(value.reveal().encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return repr(sorted(value.items()) if isinstance(value, dict) else value)


async def store_each(
    batch: MemoryBatch, keep: Callable[[MemoryBatch, MemoryItem], Awaitable[str]]
) -> Mapping[str, str]:
    """Store one item after the other and return key -> remote id. An error says whether earlier items were stored."""
    remotes: dict[str, str] = {}
    for item in batch.items:
        try:
            remotes[item.key] = await keep(batch, item)
        except EverholdError as error:
            raise convert_partial_failure(bool(remotes), error) from error
    return remotes


def escape_nul(text: str) -> str:
    """Return `text` without NUL, which databases refuse or silently drop; `unescape_nul` restores it."""
    return text.replace(_ESCAPE_CHAR, "\ue000\ue001").replace("\x00", "\ue000\ue002")


def unescape_nul(text: str) -> str:
    return _ESCAPED_PATTERN.sub(lambda found: _ESCAPE_CHAR if found[1] == "\ue001" else "\x00", text)


def format_exchange(exchange: Exchange) -> str:
    """Return an exchange as one text, with a paragraph for each utterance. No line of one can pose as another."""
    spoken = [(_name_speaker(one), one.text) for one in exchange.heard]
    spoken += [(exchange.agent, one.text) for one in exchange.said]
    return escape_nul("\n\n".join(f"{who}: {prefix_lines(text.strip())}" for who, text in spoken if text.strip()))


def _name_speaker(heard: MemoryUtterance) -> str:
    """Return how a text names a speaker: by the peer, but by the identity if the peer is only a form of it."""
    person = heard.stamp.person
    if heard.peer and heard.peer != make_safe_id(person):
        return heard.peer
    return person or heard.author.rpartition(":")[2]


def find_outdated_text(batch: MemoryBatch, note: MemoryNote) -> str:
    """Return the text that a note replaces or removes; empty for a note that adds."""
    if note.action == "add":
        return ""
    known = batch.replaced.get(note.supersedes) or batch.replaced.get(note.fact)
    # a note that removes repeats the removed text
    return known or (note.text if note.action == "remove" else "")


def make_text(item: Exchange | MemoryNote) -> str:
    """Return the text to store for an item; empty for a note that only removes."""
    if isinstance(item, Exchange):
        return format_exchange(item)
    return "" if item.action == "remove" else escape_nul(item.text.strip())


def make_metadata(item: Exchange | MemoryNote) -> dict[str, Any]:
    """Return the metadata to store with the text. `read_hit` and the audience check use it."""
    about = {
        "everhold": item.key,
        "everhold_agent": item.agent,
        "everhold_session": item.session,
        "everhold_seq": (*item.heard, *item.said)[0].seq if isinstance(item, Exchange) else item.seq,
        "everhold_person": item.stamp.person,
        "everhold_parent": item.parent if isinstance(item, Exchange) else "",
        "everhold_fact": item.fact if isinstance(item, MemoryNote) else "",
        "everhold_tags": ",".join(item.tags),
        "everhold_at": item.at,
    }
    return {name: value for name, value in about.items() if value not in ("", None, 0.0)} | build_audience_marks(
        item.stamp.audience
    )


def read_hit(text: str, about: Mapping[str, Any], *, person: str, score: float = 0.0, at: float = 0.0) -> MemoryHit:
    """Build a hit from a text and its metadata `about`. `person` is the owner if the metadata does not name one."""
    return MemoryHit(
        text=unescape_nul(text),
        score=score,
        session=str(about.get("everhold_session", "")),
        seq=int(about.get("everhold_seq") or 0),
        person=str(about.get("everhold_person", "")) or person,
        at=at,
        key=str(about.get("everhold", "")),
    )


def read_time(when: object) -> float:
    """Convert a time from an SDK, a datetime or ISO text, to seconds; 0 if there is none."""
    if isinstance(when, datetime):
        return when.timestamp()
    try:
        return datetime.fromisoformat(str(when)).timestamp() if when else 0.0
    except ValueError:
        return 0.0


async def check_health(ask: Awaitable[object]) -> ProviderHealth:
    """Return healthy if the service answers `ask`, otherwise the error it failed with."""
    try:
        await ask
    except EverholdError as error:
        return ProviderHealth(healthy=False, text=error.message)
    return ProviderHealth(healthy=True)


async def search_for_tool(memory: MemoryProvider, text: str, context: ToolContext, *, limit: int) -> ToolResult:
    """Return the answer of a search tool: every hit that the people present may see."""
    found = await memory.find(
        MemoryQuery(
            text=text,
            agent=context.agent,
            session=context.session,
            name=context.session,
            audience=context.stamp.audience,
            person=context.stamp.person,
            limit=limit,
            present=context.present,
            peers=context.peers,
        )
    )
    return ToolResult(text="Nothing was found.", hits=tuple(found))


CLOCK_DIFFERENCE_SECONDS: Final = 300.0
"""How far the clock of a service may be ahead of ours. What was stored so long after an erasure began goes, too."""


class ErasureScope:
    """Decides which items of a person an erasure takes. A request may be repeated days later, and by then the person
    may have come back.
    """

    def __init__(self, target: ErasureTarget) -> None:
        self.before = target.before
        self.erased_keys = frozenset(map(get_original_key, target.keys))
        self.kept_keys = target.kept_keys

    def takes_item(self, key: str, *, at: float = 0.0, stored_at: float = 0.0) -> bool:
        """Return whether an item goes: its key was erased, or it is older than the erasure and the log does not have
        it. `at` is our time of it, `stored_at` the service's; 0 if unknown. In doubt it goes.
        """
        original = get_original_key(key)
        if original and original in self.erased_keys:
            return True
        if original in self.kept_keys:
            return False
        return at <= self.before if at else stored_at <= self.before + CLOCK_DIFFERENCE_SECONDS


DELETION_SEPARATOR: Final = "\t"


def make_deletion_id(kind: str, *parts: str) -> str:
    """Return the id of a deletion, from which its parts can be read again."""
    return DELETION_SEPARATOR.join((kind, *parts))


def split_deletion_id(id: str) -> tuple[str, list[str]]:
    kind, *parts = id.split(DELETION_SEPARATOR)
    return kind, parts


def build_states(left: Mapping[str, bool]) -> dict[str, ErasureState]:
    """Return the states of deletions, by whether something of them is left."""
    return {id: ErasureState.ASKED if is_left else ErasureState.CONFIRMED for id, is_left in left.items()}
