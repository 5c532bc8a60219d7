"""The memory tools: curated facts that are in every prompt (`memory`), and notes that are recalled when they matter
(`remember`, `conclude`). They write nothing themselves; their notes commit with the call's result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from everhold.core.entries import Entry, EntryKind, Noted
from everhold.core.facts import (
    FACT_TARGETS,
    MAX_FACT_CHARS,
    Fact,
    build_fact_id,
    build_fact_versions,
    count_fact_chars,
    explain_foreign_change,
    find_note_source,
    is_visible_to,
    list_contradicted,
    mark_note_source,
    match_facts,
    render_fact_list,
    select_valid_facts,
)
from everhold.core.people import PeopleDirectory
from everhold.core.roles import ToolAccess
from everhold.ports.model import ToolSpec
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult

MAX_OPERATIONS: Final = 50
MAX_NOTE_CHARS: Final = 8_000
FACT_LIMITS_CHARS: Final[Mapping[str, int]] = {"user": 2_000, "memory": 3_000}
"""Maximum characters of the facts of each target in every prompt."""
NOBODY_PRESENT: Final = "Nothing can be remembered here, because it is not known who is present."


class FactSource(Protocol):
    """Returns the current facts."""

    async def list_versions(self, agent: str) -> Sequence[Fact]: ...

    async def get_people(self) -> PeopleDirectory: ...


class InvalidOperation(Exception):
    """An operation that cannot be carried out, with the reason for the model."""


class FactMemoryTool:
    """Curates facts. It is pure: a repeated run before the commit has no effect, and ids derive from the call."""

    effect = ToolEffect.PURE
    access = ToolAccess.NOTE
    deadline = 10.0

    def __init__(self, facts: FactSource, *, limits: Mapping[str, int] = FACT_LIMITS_CHARS) -> None:
        self.facts = facts
        self.limits = limits
        operation: dict[str, Any] = {
            "action": {"type": "string", "enum": ["add", "replace", "remove"]},
            "target": {
                "type": "string",
                "enum": list(FACT_TARGETS),
                "description": "`user`: about the person; `memory`: anything else to keep.",
            },
            "content": {"type": "string", "maxLength": MAX_FACT_CHARS, "description": "The fact, in one sentence."},
            "old_text": {"type": "string", "description": "For replace and remove: the fact's id, or a part of it."},
        }
        self.spec = ToolSpec(
            name="memory",
            description=(
                "Change the facts you keep about the people here; they are shown to you in every turn. Add what "
                "will matter for long, replace what has changed (what held before is kept with its time), remove what "
                "is wrong. `operations` does several at once, all or none. There is little room "
                f"({', '.join(f'{name}: {limit} characters' for name, limit in limits.items())}): for details use "
                "`remember`."
            ),
            parameters={
                "type": "object",
                "properties": {
                    **operation,
                    "operations": {
                        "type": "array",
                        "maxItems": MAX_OPERATIONS,
                        "items": {"type": "object", "properties": operation, "required": ["action"]},
                    },
                },
                "additionalProperties": False,
            },
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if not context.stamp.audience:
            return ToolResult(text=NOBODY_PRESENT, error=True)
        given = arguments.get("operations")
        operations = given if isinstance(given, list) and given else [arguments]
        if len(operations) > MAX_OPERATIONS:
            return ToolResult(text=f"At most {MAX_OPERATIONS} operations at once.", error=True)
        facts = list(await self.facts.list_versions(context.agent))
        people = await self.facts.get_people()
        present = people.expand_audience(context.stamp.audience)
        notes: list[Noted] = []
        said: list[str] = []
        for number, operation in enumerate(operations):
            try:
                visible = select_valid_facts(facts, present)
                note, line = self._apply_operation(operation, visible, context, number, people)
            except InvalidOperation as wrong:
                which = f"Operation {number + 1}: " if len(operations) > 1 else ""
                return ToolResult(text=f"{which}{wrong} Nothing was changed.", error=True)
            said.append(line)
            if note is not None:
                notes.append(note)
                facts = _apply_note(facts, note, context, people)
        over = self._find_limit_problem(select_valid_facts(facts, present), notes)
        if over:
            return ToolResult(text=over, error=True)
        return ToolResult(text="\n".join(said), notes=tuple(notes))

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    def _apply_operation(
        self,
        operation: object,
        facts: Sequence[Fact],
        context: ToolContext,
        number: int,
        people: PeopleDirectory,
    ) -> tuple[Noted | None, str]:
        """Return the note of an operation, or None if it changes nothing; and the text of the result."""
        if not isinstance(operation, dict):
            raise InvalidOperation("The operation is not an object with an `action`.")
        action, content = operation.get("action"), operation.get("content")
        if action not in ("add", "replace", "remove"):
            raise InvalidOperation("Say `action`: add, replace or remove.")
        target = operation.get("target", "memory")
        if target not in FACT_TARGETS:
            raise InvalidOperation(f"`target` is one of {', '.join(FACT_TARGETS)}.")
        if action == "remove" and context.sources and not context.said:
            raise InvalidOperation("Only a person's own words can remove a fact, and this turn contains none.")
        text = content.strip() if isinstance(content, str) else ""
        if action != "remove" and not text:
            raise InvalidOperation("Say what to remember: `content`.")
        if len(text) > MAX_FACT_CHARS:
            raise InvalidOperation(
                f"A fact has at most {MAX_FACT_CHARS} characters, this one {len(text)}. Use `remember` for more."
            )
        if action == "add":
            if any(fact.text == text and fact.target == target for fact in facts):
                return None, f"Known already: {text}"
            note = Noted(text=text, fact=build_fact_id(context.key, number), tags=(target,), stamp=context.stamp)
            if source := find_note_source(text, context):
                return mark_note_source(note, source), _format_noted_reply(text, source)
            return note, f"Added {note.fact}: {text}"
        old = self._find_fact(operation.get("old_text"), facts)
        if refusal := explain_foreign_change(old, context, people):
            raise InvalidOperation(refusal)
        if action == "replace" and old.text == text:
            return None, f"It says that already: {text}"
        if action == "replace" and (source := find_note_source(text, context)):
            note = Noted(text=text, tags=(old.target,), stamp=context.stamp)
            return mark_note_source(note, source), _format_noted_reply(text, source)
        note = Noted(
            text=text if action == "replace" else old.text,
            action=action,
            fact=old.id,
            supersedes=old.seq if old.session == context.session else 0,
            tags=(old.target,),
            stamp=context.stamp,
        )
        return note, f"Replaced {old.id}: {text}" if action == "replace" else f"Removed {old.id}: {old.text}"

    def _find_fact(self, words: object, facts: Sequence[Fact]) -> Fact:
        if not isinstance(words, str) or not words.strip():
            raise InvalidOperation("Say which fact: its id or a part of its text (`old_text`).")
        found = match_facts(facts, words.strip())
        if len(found) == 1:
            return found[0]
        if not found:
            raise InvalidOperation(f"No fact here contains {words[:200]!r}. There are:\n{render_fact_list(facts)}\n")
        raise InvalidOperation(f"{len(found)} facts contain {words[:200]!r}; give the id:\n{render_fact_list(found)}\n")

    def _find_limit_problem(self, facts: Sequence[Fact], notes: Sequence[Noted]) -> str:
        """Return why these notes do not fit, or an empty text. An operation that shrinks the facts is never refused."""
        for target in sorted({tag for note in notes if note.fact and note.action != "remove" for tag in note.tags}):
            used, limit = count_fact_chars(facts, target), self.limits.get(target, 0)
            if used > limit:
                listed = render_fact_list([fact for fact in facts if fact.target == target])
                return (
                    f"There is no room: facts under {target!r} may have {limit} characters, and would have {used}. "
                    "Nothing was changed. Replace or remove some (several at once with `operations`), or keep details "
                    f"with `remember`. There would be:\n{listed}"
                )
        return ""


def _apply_note(facts: Sequence[Fact], note: Noted, context: ToolContext, people: PeopleDirectory) -> list[Fact]:
    """Return the facts as they will be after a note is committed."""
    if not note.fact:
        return list(facts)
    present = people.expand_audience(context.stamp.audience)
    kept = [fact for fact in facts if not (fact.is_valid and fact.id == note.fact and is_visible_to(fact, present))]
    if note.action == "remove":
        return kept
    entry = Entry(
        session=context.session,
        seq=0,
        pos=0,
        kind=EntryKind.NOTED,
        op=context.op,
        author=f"agent:{context.agent}",
        at=0.0,
        version=1,
        body=note,
        digest=b"",
    )
    added = build_fact_versions([entry], agent=context.agent, people=people)
    gone = {number for new in added for number in list_contradicted(kept, new, present, people)}
    return [*(fact for number, fact in enumerate(kept) if number not in gone), *added]


def _format_noted_reply(text: str, source: str) -> str:
    return (
        f"Noted as coming from {source}, not as a fact: nobody here said so. If it should be one, ask the person to "
        f"confirm it: {text}"
    )


class RememberTool:
    """Stores a note about something that a person said. Their number is not limited; they are recalled when they
    matter."""

    effect = ToolEffect.PURE
    access = ToolAccess.NOTE
    deadline = 5.0
    name = "remember"
    about = (
        "Note something for later: a detail, a decision, a date, a promise. It is found again when it matters, in this "
        "and later conversations with those who are present now. Say it in one self-contained sentence."
    )
    tags: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.spec = ToolSpec(
            name=self.name,
            description=self.about,
            parameters={
                "type": "object",
                "properties": {
                    "text": {"type": "string", "maxLength": MAX_NOTE_CHARS},
                    "cites": {
                        "type": "array",
                        "items": {"type": "integer", "minimum": 1},
                        "description": "The numbers of the entries it rests on, if you know them.",
                    },
                },
                "required": ["text"],
                "additionalProperties": False,
            },
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        text = arguments.get("text")
        if not context.stamp.audience:
            return ToolResult(text=NOBODY_PRESENT, error=True)
        if not isinstance(text, str) or not text.strip():
            return ToolResult(text="Say what to note: `text`.", error=True)
        if len(text) > MAX_NOTE_CHARS:
            return ToolResult(text=f"A note has at most {MAX_NOTE_CHARS} characters, this one {len(text)}.", error=True)
        note = Noted(
            text=text.strip(), cites=_as_positive_integers(arguments.get("cites")), tags=self.tags, stamp=context.stamp
        )
        if source := find_note_source(note.text, context):
            note = mark_note_source(note, source)
            return ToolResult(text=f"Noted, as coming from {source}.", notes=(note,))
        return ToolResult(text="Noted.", notes=(note,))

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


class ConcludeTool(RememberTool):
    """Stores an agent's own conclusion, so that it can be distinguished from what people said."""

    name = "conclude"
    about = (
        "Note a conclusion of your own about the people here: a preference, a habit, a plan that follows from what was "
        "said. It is kept as yours, not as theirs. Say it in one self-contained sentence."
    )
    tags = ("conclusion",)


def _as_positive_integers(value: object) -> tuple[int, ...]:
    given: Collection[object] = value if isinstance(value, list) else ()
    return tuple(one for one in given if isinstance(one, int) and not isinstance(one, bool) and one > 0)[:100]


def build_memory_tools(
    facts: FactSource, *, limits: Mapping[str, int] = FACT_LIMITS_CHARS
) -> dict[str, FactMemoryTool | RememberTool]:
    """The tools that `memory` in an agent's configuration stands for."""
    return {"memory": FactMemoryTool(facts, limits=limits), "remember": RememberTool(), "conclude": ConcludeTool()}
