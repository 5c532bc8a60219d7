"""The memory tools: curated facts that are in every prompt (`memory`), and notes that are found when they matter
(`remember`, `conclude`). They decide and write nothing: what they note commits with their result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from everhold.core.entries import Entry, Kind, Noted
from everhold.core.facts import LONGEST, TARGETS, Fact, fact_id, fold, foreign, holding, listed, marked, meant, size
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Effect, Result, ToolContext

MOST_OPERATIONS: Final = 50
LONGEST_NOTE: Final = 8_000
LIMITS: Final[Mapping[str, int]] = {"user": 2_000, "memory": 3_000}
"""Characters that facts of each target may take in every prompt."""
NOBODY: Final = "Nothing can be remembered here: it is not known who is present."


class Known(Protocol):
    """What knows the facts there are."""

    async def all(self, agent: str) -> Sequence[Fact]: ...


class Wrong(Exception):
    """An operation that cannot be carried out, in words for the model."""


class Memory:
    """Curates facts. Pure: a run that is repeated before its commit has changed nothing yet, and ids are the call's."""

    effect = Effect.PURE
    deadline = 10.0

    def __init__(self, facts: Known, *, limits: Mapping[str, int] = LIMITS) -> None:
        self.facts = facts
        self.limits = limits
        operation: dict[str, Any] = {
            "action": {"type": "string", "enum": ["add", "replace", "remove"]},
            "target": {
                "type": "string",
                "enum": list(TARGETS),
                "description": "`user`: about the person; `memory`: anything else to keep in mind here.",
            },
            "content": {"type": "string", "maxLength": LONGEST, "description": "The fact, in one sentence."},
            "old_text": {"type": "string", "description": "For replace and remove: the fact's id, or a part of it."},
        }
        self.spec = ToolSpec(
            name="memory",
            description=(
                "Change the facts you keep in mind for whoever is here; they are shown to you in every turn. Add what "
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
                        "maxItems": MOST_OPERATIONS,
                        "items": {"type": "object", "properties": operation, "required": ["action"]},
                    },
                },
                "additionalProperties": False,
            },
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        if not context.stamp.audience:
            return Result(text=NOBODY, error=True)
        given = arguments.get("operations")
        operations = given if isinstance(given, list) and given else [arguments]
        if len(operations) > MOST_OPERATIONS:
            return Result(text=f"At most {MOST_OPERATIONS} operations at once.", error=True)
        facts = list(await self.facts.all(context.agent))
        notes: list[Noted] = []
        said: list[str] = []
        for number, operation in enumerate(operations):
            try:
                note, line = self._one(operation, holding(facts, context.stamp.audience), context, number)
            except Wrong as wrong:
                which = f"Operation {number + 1}: " if len(operations) > 1 else ""
                return Result(text=f"{which}{wrong} Nothing was changed.", error=True)
            said.append(line)
            if note is not None:
                notes.append(note)
                facts = _with(facts, note, context)
        over = self._over(holding(facts, context.stamp.audience), notes)
        if over:
            return Result(text=over, error=True)
        return Result(text="\n".join(said), notes=tuple(notes))

    async def probe(self, context: ToolContext) -> Result | None:
        return None

    def _one(
        self, operation: object, facts: Sequence[Fact], context: ToolContext, number: int
    ) -> tuple[Noted | None, str]:
        """The note an operation makes, or None where it changes nothing; and what to say about it."""
        if not isinstance(operation, dict):
            raise Wrong("It is not an object with an `action`.")
        action, content = operation.get("action"), operation.get("content")
        if action not in ("add", "replace", "remove"):
            raise Wrong("Say `action`: add, replace or remove.")
        target = operation.get("target", "memory")
        if target not in TARGETS:
            raise Wrong(f"`target` is one of {', '.join(TARGETS)}.")
        text = content.strip() if isinstance(content, str) else ""
        if action != "remove" and not text:
            raise Wrong("Say what to remember: `content`.")
        if len(text) > LONGEST:
            raise Wrong(f"A fact has at most {LONGEST} characters, this one {len(text)}. Use `remember` for more.")
        if action == "add":
            if any(fact.text == text and fact.target == target for fact in facts):
                return None, f"Known already: {text}"
            note = Noted(text=text, fact=fact_id(context.key, number), tags=(target,), stamp=context.stamp)
            if source := foreign(text, said=context.said, sources=context.sources):
                return marked(note, source), _only_noted(text, source)
            return note, f"Added {note.fact}: {text}"
        old = self._meant(operation.get("old_text"), facts)
        if action == "replace" and old.text == text:
            return None, f"It says that already: {text}"
        if action == "replace" and (source := foreign(text, said=context.said, sources=context.sources)):
            note = Noted(text=text, tags=(old.target,), stamp=context.stamp)
            return marked(note, source), _only_noted(text, source)
        if action == "remove" and context.sources and not context.said:
            raise Wrong(f"What a person had noted is not removed at the word of {context.sources[0]}.")
        note = Noted(
            text=text if action == "replace" else old.text,
            action=action,
            fact=old.id,
            supersedes=old.seq if old.session == context.session else 0,
            tags=(old.target,),
            stamp=context.stamp,
        )
        return note, f"Replaced {old.id}: {text}" if action == "replace" else f"Removed {old.id}: {old.text}"

    def _meant(self, words: object, facts: Sequence[Fact]) -> Fact:
        if not isinstance(words, str) or not words.strip():
            raise Wrong("Say which fact: its id or a part of its text (`old_text`).")
        found = meant(facts, words.strip())
        if len(found) == 1:
            return found[0]
        if not found:
            raise Wrong(f"No fact here contains {words!r}. There are:\n{listed(facts)}\n")
        raise Wrong(f"{len(found)} facts contain {words!r}; give the id:\n{listed(found)}\n")

    def _over(self, facts: Sequence[Fact], notes: Sequence[Noted]) -> str:
        """Why there is no room for what these notes add; nothing if there is. What shrinks is never refused."""
        for target in sorted({tag for note in notes if note.fact and note.action != "remove" for tag in note.tags}):
            used, limit = size(facts, target), self.limits.get(target, 0)
            if used > limit:
                return (
                    f"There is no room: facts under {target!r} may have {limit} characters, and would have {used}. "
                    "Nothing was changed. Replace or remove some (several at once with `operations`), or keep details "
                    f"with `remember`. There would be:\n{listed([fact for fact in facts if fact.target == target])}"
                )
        return ""


def _with(facts: Sequence[Fact], note: Noted, context: ToolContext) -> list[Fact]:
    """The facts as they will be once a note is committed."""
    if not note.fact:
        return list(facts)
    kept = [
        fact
        for fact in facts
        if not (fact.holds and fact.id == note.fact and set(context.stamp.audience) <= set(fact.stamp.audience))
    ]
    if note.action == "remove":
        return kept
    entry = Entry(
        session=context.session,
        seq=0,
        pos=0,
        kind=Kind.NOTED,
        op=context.op,
        author=f"agent:{context.agent}",
        at=0.0,
        version=1,
        body=note,
        digest=b"",
    )
    return [*kept, *fold([entry], agent=context.agent)]


def _only_noted(text: str, source: str) -> str:
    return (
        f"Noted as coming from {source}, not as a fact: nobody here said so. If it should be one, ask the person to "
        f"confirm it: {text}"
    )


class Remember:
    """Notes something somebody said. There is no limit to how many; they are found when they matter."""

    effect = Effect.PURE
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
                    "text": {"type": "string", "maxLength": LONGEST_NOTE},
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

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        text = arguments.get("text")
        if not context.stamp.audience:
            return Result(text=NOBODY, error=True)
        if not isinstance(text, str) or not text.strip():
            return Result(text="Say what to note: `text`.", error=True)
        if len(text) > LONGEST_NOTE:
            return Result(text=f"A note has at most {LONGEST_NOTE} characters, this one {len(text)}.", error=True)
        note = Noted(text=text.strip(), cites=_numbers(arguments.get("cites")), tags=self.tags, stamp=context.stamp)
        if source := foreign(note.text, said=context.said, sources=context.sources):
            note = marked(note, source)
            return Result(text=f"Noted, as coming from {source}.", notes=(note,))
        return Result(text="Noted.", notes=(note,))

    async def probe(self, context: ToolContext) -> Result | None:
        return None


class Conclude(Remember):
    """Notes what an agent makes of what it heard, so that it can be told from what was said."""

    name = "conclude"
    about = (
        "Note a conclusion of your own about the people here: a preference, a habit, a plan that follows from what was "
        "said. It is kept as yours, not as theirs. Say it in one self-contained sentence."
    )
    tags = ("conclusion",)


def _numbers(value: object) -> tuple[int, ...]:
    given: Collection[object] = value if isinstance(value, list) else ()
    return tuple(one for one in given if isinstance(one, int) and not isinstance(one, bool) and one > 0)[:100]


def memory_tools(facts: Known, *, limits: Mapping[str, int] = LIMITS) -> dict[str, Memory | Remember]:
    """What `memory` in an agent's tools brings."""
    return {"memory": Memory(facts, limits=limits), "remember": Remember(), "conclude": Conclude()}
