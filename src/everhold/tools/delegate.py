"""The `delegate` tool: gives a task to a sub-agent, which works beside the conversation and reports one result."""

from __future__ import annotations

from typing import Any, Final

from everhold.core.consumers import DELEGATE_SLOTS, delegate_consumer
from everhold.core.entries import Changed, EntryKind, TaskRequested
from everhold.core.policy import ToolReach
from everhold.core.roles import ToolAccess
from everhold.errors import InvalidRequest
from everhold.ports.model import ToolSpec
from everhold.ports.store import Store
from everhold.ports.tool import DelegatedTask, ToolContext, ToolEffect, ToolResult

MAX_TASK_CHARS: Final = 8_000
MAX_CONTEXT_CHARS: Final = 50_000
MAX_NAMED_TOOLS: Final = 50


class DelegateTool:
    """The task is committed with the result of the call, so a repeated call has no second effect."""

    effect = ToolEffect.PURE
    access = ToolAccess.ACT
    deadline = 30.0
    spec = ToolSpec(
        name="delegate",
        description=(
            "Give a task to a sub-agent. It works beside this conversation, sees nothing of it but what you write "
            f"here, and cannot ask. You hear its result later, in a message of its own. At most {DELEGATE_SLOTS} work "
            "at once. Use it for work that takes many steps, or for several things at the same time."
        ),
        parameters={
            "type": "object",
            "properties": {
                "task": {"type": "string", "description": "What to do, and what the result should contain."},
                "context": {"type": "string", "description": "What it has to know: facts, names, addresses, text."},
                "tools": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Names of those of your tools that it may use. If not given: all that it can have.",
                },
            },
            "required": ["task"],
            "additionalProperties": False,
        },
    )

    def __init__(self, store: Store) -> None:
        self._store = store

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.PUBLIC  # its own calls are judged one by one

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task, given = arguments.get("task"), arguments.get("context", "")
        tools = arguments.get("tools") or []
        if not isinstance(task, str) or not task.strip() or not isinstance(given, str):
            raise InvalidRequest("`task` and `context` must be texts", remedy="call it again with a task")
        if not isinstance(tools, list) or not all(isinstance(name, str) for name in tools):
            raise InvalidRequest("`tools` must be a list of names", remedy="leave it out to give it all tools")
        for name, text, most in (("task", task, MAX_TASK_CHARS), ("context", given, MAX_CONTEXT_CHARS)):
            if len(text) > most:
                raise InvalidRequest(
                    f"`{name}` has {len(text):,} characters, and may have {most:,}", remedy="shorten it"
                )
        slot = await self._find_free_slot(context.session)
        if slot is None:
            raise InvalidRequest(
                f"{DELEGATE_SLOTS} sub-agents work for this conversation already",
                remedy="wait until you hear a result, or do it yourself",
            )
        request = DelegatedTask(
            task=task.strip(), context=given.strip(), tools=tuple(tools[:MAX_NAMED_TOOLS]), slot=slot
        )
        return ToolResult(
            text=f"Sub-agent {slot + 1} has begun. Its result comes in a later message; do not wait for it.",
            delegated=(request,),
        )

    async def _find_free_slot(self, session: str) -> int | None:
        """Return the first slot without a task that has no result yet. Only a turn gives tasks, and a session has one
        turn at a time.
        """
        for slot in range(DELEGATE_SLOTS):
            cursor = await self._store.get_cursor(delegate_consumer(slot), session)
            if cursor is None:
                return slot
            changes = await self._store.list_entries(session, after=cursor.processed_seq, kinds=(EntryKind.CHANGED,))
            if not any(is_task_of_slot(entry.body, slot) for entry in changes):
                return slot
        return None


def is_task_of_slot(body: object, slot: int) -> bool:
    match body:
        case Changed(change=TaskRequested(delegation=delegation)):
            return delegation is not None and delegation.slot == slot
        case _:
            return False
