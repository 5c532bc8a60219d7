"""Honcho's tools, under the names people know. They see what whoever is present may know, and nothing else.

Writing is a note in the log: it is kept before anybody asks Honcho, and delivered whatever state that is in.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.entries import Noted
from everhold.memories.scope import alone
from everhold.ports.memory import Query
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Effect, Result, Tool, ToolContext

if TYPE_CHECKING:
    from everhold.memories.honcho.provider import HonchoMemory

LEVELS: Final = ("minimal", "low", "medium", "high", "max")
MOST: Final = 20
NOBODY: Final = Result(text="It is not known who is present: nothing of Honcho's can be shown here.", error=True)
OWN: Final = Result(
    text="What Honcho holds about yourself is one for everybody you talk with, so no chat reads or writes it: somebody "
    "else would hear of what was said here. Keep facts about whoever you talk with (`user`); honcho_context shows this "
    "conversation.",
    error=True,
)
_PEER: Final = {
    "type": "string",
    "enum": ["user"],
    "description": "About whom: `user` is whoever you talk with (in company: this room).",
}


def _build_tool(
    memory: HonchoMemory,
    name: str,
    description: str,
    properties: dict[str, Any],
    act: Callable[[HonchoMemory, dict[str, Any], ToolContext], Awaitable[Result]],
    *,
    required: Sequence[str] = (),
    effect: Effect = Effect.PURE,
    deadline: float = 15.0,
) -> Tool:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    spec = ToolSpec(name=name, description=description, parameters=parameters)
    return HonchoTool(memory, spec, act, effect=effect, deadline=deadline)


def tools_of(memory: HonchoMemory) -> Sequence[Tool]:
    tool = functools.partial(_build_tool, memory)
    query = {"type": "string", "description": "What to look for."}
    return (
        tool(
            "honcho_profile",
            "Read the card of a peer: a short list of lasting facts about them. Give `card` to replace it.",
            {"peer": _PEER, "card": {"type": "array", "items": {"type": "string"}, "description": "The new card."}},
            _profile,
            effect=Effect.KEYED,
        ),
        tool(
            "honcho_search",
            "Search what was really said, and what was concluded from it, in this and earlier conversations.",
            {"query": query, "limit": {"type": "integer", "minimum": 1, "maximum": MOST}},
            _search,
            required=("query",),
        ),
        tool(
            "honcho_reasoning",
            "Ask Honcho a question about whoever you talk with; it reasons over what it knows. Slow: search first.",
            {"query": query, "reasoning_level": {"type": "string", "enum": list(LEVELS)}},
            _reasoning,
            required=("query",),
            deadline=memory.settings.reasoning_seconds,
        ),
        tool(
            "honcho_context",
            "What Honcho holds about this conversation now: summary, what it knows of the peer, card, last messages.",
            {},
            _context,
        ),
        tool(
            "honcho_conclude",
            "Keep a lasting fact about whoever you talk with (`conclusion`), list what is kept (`list`, narrowed by "
            "`query`), or delete one by its id (`delete_id`). Exactly one of the three.",
            {
                "conclusion": {"type": "string", "description": "The fact, in one sentence."},
                "list": {"type": "boolean"},
                "query": query,
                "delete_id": {"type": "string", "description": "The id that a list gave."},
            },
            _conclude,
            effect=Effect.KEYED,
        ),
    )


class HonchoTool:
    """One of them."""

    def __init__(
        self,
        memory: HonchoMemory,
        spec: ToolSpec,
        act: Callable[[HonchoMemory, dict[str, Any], ToolContext], Awaitable[Result]],
        *,
        effect: Effect,
        deadline: float,
    ) -> None:
        self.spec = spec
        self.effect = effect
        self.deadline = deadline
        self._memory = memory
        self._act = act

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        if not context.stamp.audience or context.agent != self._memory.agent:
            return NOBODY
        if arguments.get("peer") == "ai":
            return OWN
        return await self._act(self._memory, arguments, context)

    async def probe(self, context: ToolContext) -> Result | None:
        return None


async def _profile(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> Result:
    about = _about(memory, context)
    card = arguments.get("card")
    if card is not None:
        if not isinstance(card, list) or not all(isinstance(line, str) for line in card):
            return Result(text="`card` is a list of lines.", error=True)
        await memory.client.read(
            "writing the card", lambda sdk: memory.client.peer(sdk, memory.peers.ai).aio.set_card(card, about)
        )
        return Result(text="The card was replaced.")
    lines = await memory.client.read(
        "reading the card", lambda sdk: memory.client.peer(sdk, memory.peers.ai).aio.get_card(about)
    )
    return Result(text="\n".join(lines) if lines else "There is nothing on this card yet.")


async def _search(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> Result:
    text = arguments.get("query")
    if not isinstance(text, str) or not text.strip():
        return Result(text="Say what to look for (`query`).", error=True)
    limit = arguments.get("limit")
    found = await memory.find(
        Query(
            text=text,
            agent=context.agent,
            session=context.session,
            name=memory.names.get(context.session, context.session),
            audience=context.stamp.audience,
            person=context.stamp.person,
            limit=min(limit, MOST) if isinstance(limit, int) and limit > 0 else 10,
        )
    )
    return Result(text="\n\n".join(f"[{it.person}] {it.text}" for it in found) or "Nothing was found.")


async def _reasoning(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> Result:
    text = arguments.get("query")
    if not isinstance(text, str) or not text.strip():
        return Result(text="Ask something (`query`).", error=True)
    level = arguments.get("reasoning_level")
    about = _about(memory, context)
    # without a session it would think over what was said to others, too
    session = memory.names.get(context.session)
    if session is None:
        return Result(text="Honcho knows nothing here yet.")
    answer = await memory.client.read(
        "reasoning",
        lambda sdk: memory.client.peer(sdk, memory.peers.ai).aio.chat(
            text[:10_000],
            target=about,
            session=session,
            reasoning_level=level if level in LEVELS else memory.settings.reasoning,
        ),
    )
    return Result(text=str(answer) if answer else "Honcho has no answer to that yet.")


async def _context(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> Result:
    about = _about(memory, context)
    name = memory.names.get(context.session)
    parts: list[str] = []
    if name and alone(context.stamp.audience):
        found = await memory.client.read(
            "reading the context",
            lambda sdk: memory.client.session(sdk, name).aio.context(
                summary=True, tokens=1_500, peer_target=about, peer_perspective=memory.peers.ai
            ),
        )
        if found is not None:
            parts += [found.summary.content] if found.summary else []
            parts += [
                f"[{message.peer_id}] {message.content}"
                for message in found.messages
                if not message.metadata.get("everhold") or memory.may_hear(message.metadata, context.stamp.audience)
            ]
            parts += [found.peer_representation or "", *(found.peer_card or ())]
    else:
        known = await memory.client.read(
            "reading the context", lambda sdk: memory.client.peer(sdk, memory.peers.ai).aio.context(target=about)
        )
        parts += [known.representation or "", *(known.peer_card or ())] if known else []
    return Result(text="\n".join(part for part in parts if part) or "Honcho knows nothing here yet.")


async def _conclude(memory: HonchoMemory, arguments: dict[str, Any], context: ToolContext) -> Result:
    conclusion, gone = arguments.get("conclusion"), arguments.get("delete_id")
    listing = bool(arguments.get("list"))
    if [bool(conclusion), bool(gone), listing].count(True) != 1:
        return Result(text="Give exactly one of `conclusion`, `list` and `delete_id`.", error=True)
    about = _about(memory, context)
    if conclusion:
        if not isinstance(conclusion, str) or not conclusion.strip():
            return Result(text="`conclusion` is a sentence.", error=True)
        return Result(text="Kept; it will be delivered to Honcho.", notes=(Noted(text=conclusion.strip()),))
    mine = {"observer_id": memory.peers.ai, "observed_id": about}
    if gone:
        # an id alone would reach what others may not know of
        if not await memory.client.conclusions({**mine, "id": {"in": [str(gone)]}}):
            return Result(text=f"There is no conclusion {gone} here.", error=True)
        await memory.client.unconclude(str(gone), observer=memory.peers.ai, about=about)
        return Result(text=f"Conclusion {gone} was deleted.")
    text = arguments.get("query")
    if isinstance(text, str) and text.strip():
        view = await memory.concluded(text, about, MOST)
    else:
        view = (await memory.client.conclusions(mine))[:MOST]
    return Result(text="\n".join(f"{one.id}: {one.content}" for one in view) or "Nothing was concluded yet.")


def _about(memory: HonchoMemory, context: ToolContext) -> str:
    """The peer that stands for whoever is present; a room, wherever somebody else may listen."""
    listeners = sorted(context.stamp.audience, key=lambda one: one.startswith("person:"))
    return memory.peers.about(listeners[:1])[0]
