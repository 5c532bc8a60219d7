"""Honcho's tools, under Honcho's own names. They show only what the people present may see.

A tool writes by a note in the log. The note is committed before Honcho receives it, and is delivered even if Honcho is
down now.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Noted
from everhold.core.roles import TOOL_ROLES, PersonRole, ToolAccess
from everhold.memories.remote import read_time, unescape_nul
from everhold.memories.scope import get_only_person
from everhold.ports.memory import MemoryHit, MemoryQuery
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult

if TYPE_CHECKING:
    from everhold.memories.honcho.provider import HonchoMemory

REASONING_LEVELS: Final = ("minimal", "low", "medium", "high", "max")
MAX_RESULTS: Final = 20
AUDIENCE_UNKNOWN: Final = ToolResult(
    text="The audience of this chat is unknown, so nothing from Honcho can be shown here.", error=True
)
OWN_PEER_REFUSED: Final = ToolResult(
    text="Honcho keeps one record about yourself for all your chats, so no chat can read or write it: other people "
    "would learn what was said here. Store facts about the person you are talking to (`user`); honcho_context "
    "shows this conversation.",
    error=True,
)
_PEER_SCHEMA: Final = {
    "type": "string",
    "enum": ["user"],
    "description": "About whom: `user` is the person you are talking to (in a group: the group).",
}


def _build_tool(
    memory: HonchoMemory,
    name: str,
    description: str,
    properties: dict[str, Any],
    act: Callable[[HonchoMemory, dict[str, Any], ToolContext], Awaitable[ToolResult]],
    *,
    required: Sequence[str] = (),
    effect: ToolEffect = ToolEffect.PURE,
    access: ToolAccess = ToolAccess.READ,
    deadline: float = 15.0,
    shows_hits: bool = False,
) -> Tool:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    spec = ToolSpec(name=name, description=description, parameters=parameters)
    return HonchoTool(memory, spec, act, effect=effect, access=access, deadline=deadline, shows_hits=shows_hits)


def build_tools(memory: HonchoMemory) -> Sequence[Tool]:
    tool = functools.partial(_build_tool, memory)
    query = {"type": "string", "description": "What to search for."}
    return (
        tool(
            "honcho_profile",
            "Read the card of a peer: a short list of lasting facts about them. Give `card` to replace it.",
            {
                "peer": _PEER_SCHEMA,
                "card": {"type": "array", "items": {"type": "string"}, "description": "The new card."},
            },
            _run_profile,
            effect=ToolEffect.KEYED,
        ),
        tool(
            "honcho_search",
            "Search what was said and what was concluded from it, in this and earlier conversations.",
            {"query": query, "limit": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS}},
            _run_search,
            required=("query",),
            shows_hits=True,
        ),
        tool(
            "honcho_reasoning",
            "Ask Honcho a question about the person you are talking to; it reasons. Slow: search first.",
            {"query": query, "reasoning_level": {"type": "string", "enum": list(REASONING_LEVELS)}},
            _run_reasoning,
            required=("query",),
            deadline=memory.settings.reasoning_seconds,
        ),
        tool(
            "honcho_context",
            "Show what Honcho knows about this conversation: summary, facts about the peer, card, last messages.",
            {},
            _run_context,
        ),
        tool(
            "honcho_conclude",
            "Store a lasting fact about the person you are talking to (`conclusion`), list stored facts (`list`, "
            "filtered by `query`), or delete one by its id (`delete_id`). Exactly one of the three.",
            {
                "conclusion": {"type": "string", "description": "The fact, in one sentence."},
                "list": {"type": "boolean"},
                "query": query,
                "delete_id": {"type": "string", "description": "The id that a list gave."},
            },
            _run_conclude,
            effect=ToolEffect.KEYED,
            shows_hits=True,
            access=ToolAccess.NOTE,
        ),
    )


class HonchoTool:
    """One Honcho tool."""

    def __init__(
        self,
        memory: HonchoMemory,
        spec: ToolSpec,
        act: Callable[[HonchoMemory, dict[str, Any], ToolContext], Awaitable[ToolResult]],
        *,
        effect: ToolEffect,
        access: ToolAccess,
        deadline: float,
        shows_hits: bool,
    ) -> None:
        self.spec = spec
        self.shows_hits = shows_hits
        self.effect = effect
        self.access = access
        self.deadline = deadline
        self._memory = memory
        self._act = act

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if not context.stamp.audience or context.agent != self._memory.agent:
            return AUDIENCE_UNKNOWN
        if arguments.get("peer") == "ai":
            return OWN_PEER_REFUSED
        return await self._act(self._memory, arguments, context)

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


async def _run_profile(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    about = _get_subject_peer(memory, context)
    card = arguments.get("card")
    if card is not None:
        if not isinstance(card, list) or not all(isinstance(line, str) for line in card):
            return ToolResult(text="`card` is a list of lines.", error=True)
        if (refused := _refuse_change("Replacing the card", context)) is not None:
            return refused
        await memory.client.call(
            "writing the card",
            lambda sdk: memory.client.get_peer(sdk, memory.peers.agent_peer).aio.set_card(card, about),
        )
        return ToolResult(text="The card was replaced.")
    lines = await memory.client.call(
        "reading the card", lambda sdk: memory.client.get_peer(sdk, memory.peers.agent_peer).aio.get_card(about)
    )
    return ToolResult(text="\n".join(lines) if lines else "There is nothing on this card yet.")


async def _run_search(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    text = arguments.get("query")
    if not isinstance(text, str) or not text.strip():
        return ToolResult(text="Say what to look for (`query`).", error=True)
    limit = arguments.get("limit")
    found = await memory.find(
        MemoryQuery(
            text=text,
            agent=context.agent,
            session=context.session,
            name=memory.session_names.get(context.session, context.session),
            audience=context.stamp.audience,
            person=context.stamp.person,
            limit=min(limit, MAX_RESULTS) if isinstance(limit, int) and limit > 0 else 10,
            present=context.present,
            peers=context.peers,
        )
    )
    return ToolResult(text="Nothing was found.", hits=tuple(found))


async def _run_reasoning(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    text = arguments.get("query")
    if not isinstance(text, str) or not text.strip():
        return ToolResult(text="Ask something (`query`).", error=True)
    level = arguments.get("reasoning_level")
    about = _get_subject_peer(memory, context)
    # without a session it would reason over what other people said, too
    session = memory.session_names.get(context.session)
    if session is None:
        return ToolResult(text="Honcho knows nothing here yet.")
    answer = await memory.client.call(
        "reasoning",
        lambda sdk: memory.client.get_peer(sdk, memory.peers.agent_peer).aio.chat(
            text[:10_000],
            target=about,
            session=session,
            reasoning_level=level if level in REASONING_LEVELS else memory.settings.reasoning,
        ),
    )
    return ToolResult(text=str(answer) if answer else "Honcho has no answer to that yet.")


async def _run_context(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    about = _get_subject_peer(memory, context)
    name = memory.session_names.get(context.session)
    parts: list[str] = []
    if name and get_only_person(context.stamp.audience):
        found = await memory.client.call(
            "reading the context",
            lambda sdk: memory.client.get_session(sdk, name).aio.context(
                summary=True, tokens=1_500, peer_target=about, peer_perspective=memory.peers.agent_peer
            ),
        )
        if found is not None:
            parts += [found.summary.content] if found.summary else []
            parts += [
                f"[{message.peer_id}] {message.content}"
                for message in found.messages
                if not message.metadata.get("everhold") or memory.can_hear(message, context)
            ]
            parts += [found.peer_representation or "", *(found.peer_card or ())]
    else:
        known = await memory.client.call(
            "reading the context",
            lambda sdk: memory.client.get_peer(sdk, memory.peers.agent_peer).aio.context(target=about),
        )
        parts += [known.representation or "", *(known.peer_card or ())] if known else []
    return ToolResult(text="\n".join(part for part in parts if part) or "Honcho knows nothing here yet.")


async def _run_conclude(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    conclusion, gone = arguments.get("conclusion"), arguments.get("delete_id")
    listing = bool(arguments.get("list"))
    if [bool(conclusion), bool(gone), listing].count(True) != 1:
        return ToolResult(text="Give exactly one of `conclusion`, `list` and `delete_id`.", error=True)
    about = _get_subject_peer(memory, context)
    if conclusion:
        if not isinstance(conclusion, str) or not conclusion.strip():
            return ToolResult(text="`conclusion` is a sentence.", error=True)
        return ToolResult(text="Stored; it will be delivered to Honcho.", notes=(Noted(text=conclusion.strip()),))
    mine = {"observer_id": memory.peers.agent_peer, "observed_id": about}
    if gone:
        if (refused := _refuse_change("Deleting a conclusion", context)) is not None:
            return refused
        # an id alone could reach conclusions that the people present may not see
        if not await memory.client.list_conclusions({**mine, "id": {"in": [str(gone)]}}):
            return ToolResult(text=f"There is no conclusion {gone} here.", error=True)
        await memory.client.delete_conclusion(str(gone), observer=memory.peers.agent_peer, about=about)
        return ToolResult(text=f"Conclusion {gone} was deleted.")
    text = arguments.get("query")
    if isinstance(text, str) and text.strip():
        view = await memory.search_conclusions(text, about, MAX_RESULTS)
    else:
        view = (await memory.client.list_conclusions(mine))[:MAX_RESULTS]
    hits = tuple(
        MemoryHit(text=unescape_nul(one.content), at=read_time(one.created_at), remote_id=one.id) for one in view
    )
    return ToolResult(text="Nothing was concluded yet.", hits=hits)


def _refuse_change(what: str, context: ToolContext) -> ToolResult | None:
    """Return the refusal if this turn may not change what Honcho keeps here; None if it may. In a group the record
    belongs to everybody there.
    """
    if context.sources and not context.said:
        return ToolResult(text=f"{what} needs a person's own words, and this turn contains none.", error=True)
    cell = TOOL_ROLES[ToolAccess.CHANGE][context.place]
    if cell.allows_others(context.role):
        return None
    needed = cell.others or PersonRole.MEMBER
    return ToolResult(
        text=f"{what} needs the role {needed.label} here, and the least trusted person whose words this turn takes is "
        f"{context.role.label}.",
        error=True,
    )


def _get_subject_peer(memory: HonchoMemory, context: ToolContext) -> str:
    """Return the peer of the people present: a group's peer if there is more than one."""
    listeners = sorted(context.stamp.audience, key=lambda one: one.startswith("person:"))
    latest = {identity: peers[0] for identity, peers in context.peers.items() if peers}
    return memory.peers.list_audience_peers(listeners[:1], latest)[0]
