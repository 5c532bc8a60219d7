"""Approvals: what a request binds, how it is shown, who may answer it, and what became of it.

A call that needs a person's permission becomes an entry and a small record of its state. Nothing waits for the answer.
"""

from __future__ import annotations

import enum
import hashlib
import json
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from everhold.core.entries import (
    ApprovalDecided,
    ApprovalRequested,
    ChatLocation,
    Entry,
    NoticeChoice,
    StoredRecord,
    Thought,
    ToolCall,
)
from everhold.core.people import PERSON_MEMBER, PeopleDirectory

APPROVER_OWNER: Final = "owner"
APPROVER_SELF: Final = "self"
"""Whoever asked."""
APPROVER_OPERATOR: Final = "operator"
"""The ground of an answer by an operator of this gateway, who may answer every request."""
OPERATOR_MEMBER: Final = "operator:"
"""The prefix of an operator in `by`."""
APPROVAL_NOTICE: Final = "approval"
"""The `about` of a notice that shows a request."""
REQUEST_REASON: Final = "request:"
"""The prefix of an approved request in the reason of a call, and in the trigger of its operation."""
RULE_REASON: Final = "rule:"
"""The prefix of a remembered rule in the reason of a call."""

EXPIRE_SECONDS: Final = 72 * 3_600.0
MOST_PENDING: Final = 10
REMEMBER_DENIAL_SECONDS: Final = 24 * 3_600.0
"""How long the same call is refused without asking again, after a person denied it."""
RULE_SECONDS: Final = 90 * 86_400.0
"""How long a remembered rule lives."""
CLOCK_BACK_SECONDS: Final = 86_400.0
"""If the clock shows a time so long before a request was made, it was wrong then, and so is the end of the request."""
MAX_SHOWN_CHARS: Final = 12_000
"""A call with longer arguments is not asked about, because a person could not read them."""
MAX_PREVIEW_CHARS: Final = 200
ID_CHARS: Final = 8
MIN_PREFIX_CHARS: Final = 4
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class ApprovalState(enum.StrEnum):
    OPEN = "open"
    """It waits for an answer."""
    ALLOWED = "allowed"
    """It was allowed, and runs next."""
    RUNNING = "running"
    """It was started. It is never started again, whatever happens."""
    DENIED = "denied"
    """It was denied. The same call is refused without asking for a while."""


class ApprovalRecord(StoredRecord, frozen=True):
    """The state of a request that is not settled. It has no words in it; those are in the log."""

    session: str
    digest: str
    agent: str
    tool: str
    at: float
    until: float
    """When the request expires; for a denied one, when the same call may be asked about again."""
    state: ApprovalState = ApprovalState.OPEN


class RememberedRule(StoredRecord, frozen=True):
    """An answer that counts for every later call that is exactly the same, by an equally trusted person."""

    digest: str
    """Of the call, with the tool's description. It is another one when any of these changes."""
    agent: str
    tool: str
    role: int
    """The role of the turn that asked. A turn of somebody with a lower role is not covered."""
    place: str
    via: str
    session: str
    """Where the answer is in the log."""
    request: str
    by: str
    at: float
    until: float


def encode_record(record: ApprovalRecord | RememberedRule) -> str:
    return msgspec.json.encode(record).decode()


_records: Final = msgspec.json.Decoder(ApprovalRecord)
_rules: Final = msgspec.json.Decoder(RememberedRule)


def decode_approval(text: str) -> ApprovalRecord:
    return _records.decode(text)


def decode_rule(text: str) -> RememberedRule:
    return _rules.decode(text)


# -- keys --------------------------------------------------------------------------------------------------------------


def make_approval_id(key: str, attempt: int = 0) -> str:
    """Return a short id for the request of the call with this key. Another `attempt` gives another id, for the case
    that one is taken.
    """
    number = int.from_bytes(hashlib.sha256(f"approval:{attempt}:{key}".encode()).digest()[:8])
    digits = []
    for _ in range(ID_CHARS):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def clean_approval_id(text: str) -> str:
    """Return an id as it is stored, from what a person typed. Letters that look like digits are read as such."""
    return text.strip().strip("#").upper().translate(str.maketrans("OIL", "011"))


def request_key(id: str) -> str:
    """Return the dedup key of a request. Its id is used once."""
    return f"approval:{id}"


def decision_key(id: str) -> str:
    """Return the dedup key of what became of a request: there is one outcome."""
    return f"approval-decided:{id}"


def start_key(id: str) -> str:
    """Return the dedup key of the start of an approved call: it starts once."""
    return f"approval-started:{id}"


def report_key(id: str) -> str:
    """Return the dedup key of the message that reports what became of a request."""
    return f"approval-reported:{id}"


def name_run(id: str) -> str:
    """Return the reason of an approved call."""
    return f"{REQUEST_REASON}{id}"


def is_over(*, at: float, until: float, now: float) -> bool:
    """Return whether the time of a request from `at` until `until` is over. It also is if the clock was set back since
    by so much that the end cannot be believed.
    """
    return now >= until or now < at - CLOCK_BACK_SECONDS


# -- the digest --------------------------------------------------------------------------------------------------------


def compute_spec_digest(spec: Any) -> str:
    """Return the digest of a tool's description, as the model and the person were shown it."""
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()


def compute_call_digest(*, agent: str, call: ToolCall, effect: str, reach: str, spec: str, bound: str = "") -> str:
    """Return the digest of exactly what would run. Another argument, effect, reach or description is another call, and
    so is one that depends on something else now.
    """
    parts = {
        "agent": agent,
        "tool": call.tool,
        "arguments": call.arguments,
        "effect": effect,
        "reach": reach,
        "spec": spec,
        "bound": bound,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def find_requested_call(entries: Iterable[Entry], request: Entry) -> ToolCall | None:
    """Return the call that a request is about, from the entries of its operation; None if it was erased."""
    body = request.body
    assert isinstance(body, ApprovalRequested)
    thoughts = [it for it in entries if it.op == request.op and it.seq < request.seq and it.kind == "thought"]
    newest = max(thoughts, key=lambda it: it.seq, default=None)
    if newest is None or not isinstance(newest.body, Thought):
        return None
    return next((call for call in newest.body.calls if call.id == body.call), None)


# -- who may answer ----------------------------------------------------------------------------------------------------


def find_ground(
    request: ApprovalRequested, *, is_owner: bool, authors: Collection[str], label: str, is_operator: bool = False
) -> str:
    """Return why somebody may answer a request; empty if they may not.

    `authors` are all authors that are the same person. `is_owner` is about the chat of the request. `label` is the
    person's proven name.
    """
    for approver in request.approvers:
        if approver == APPROVER_OWNER and is_owner:
            return approver
        if approver == APPROVER_SELF and request.author and request.author in authors:
            return approver
        if label and approver == label and approver not in (APPROVER_OWNER, APPROVER_SELF):
            return approver
    return APPROVER_OPERATOR if is_operator else ""


def describe_approvers(approvers: Collection[str]) -> str:
    words = {APPROVER_OWNER: "an owner of this chat", APPROVER_SELF: "whoever asked"}
    return " or ".join(words.get(approver, approver) for approver in approvers)


def describe_author(by: str, people: PeopleDirectory) -> str:
    """Return who answered, as people read it now. It is not for texts that are stored."""
    if not by:
        return "nobody"
    if by.startswith(OPERATOR_MEMBER):
        return f"operator {by.removeprefix(OPERATOR_MEMBER)}"
    return people.describe_identity(by.removeprefix(PERSON_MEMBER))


# -- texts -------------------------------------------------------------------------------------------------------------


def escape_text(text: str) -> str:
    """Return a text in which nothing is invisible or changes the direction of what follows. Line breaks stay."""
    return "".join(char if char == "\n" or not _is_hidden(char) else f"\\u{{{ord(char):x}}}" for char in text)


def _escape_name(name: str) -> str:
    """Return the name of an argument on one line. The model chooses it as it chooses the value."""
    return escape_text(name).replace("\n", "\\u{a}")


def _is_hidden(char: str) -> bool:
    # Other spaces than the plain one look like it.
    return unicodedata.category(char) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp") or (
        char != " " and unicodedata.category(char) == "Zs"
    )


def render_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as a person reads them: whole, in order, with nothing hidden."""
    lines = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
        shown = escape_text(text).replace("\n", "\n    ")
        quoted = isinstance(value, str) and value != value.strip()
        lines.append(f"  {_escape_name(name)}: {json.dumps(text, ensure_ascii=True) if quoted else shown}")
    return "\n".join(lines) or "  (no arguments)"


def _quote_code(text: str) -> str:
    """Return a text as a block of code, so that no platform formats it. Marks that would end the block are escaped."""
    return "```\n" + text.replace("```", "\\u{60}" * 3) + "\n```"


_EFFECT_WORDS: Final = {
    "pure": "changes nothing",
    "keyed": "safe to repeat",
    "probe": "can be checked",
    "once": "runs at most once",
}
_REACH_WORDS: Final = {
    "own": "this conversation",
    "public": "reads public data",
    "private": "reads private data",
    "change": "changes this machine",
    "outside": "acts outside",
}


def render_request(body: ApprovalRequested, call: ToolCall | None, *, until: str) -> str:
    """Return what a person is shown before the answer. Only facts: the model's reasons are not among them."""
    shown = "  (erased)" if call is None else _quote_code(render_arguments(call.arguments))
    remember = f" · /approve {body.id} always" if body.remember else ""
    return (
        f"{body.agent} asks to run {body.tool} ({_EFFECT_WORDS.get(body.effect, body.effect)}, "
        f"{_REACH_WORDS.get(body.reach, body.reach)})\n"
        f"{shown}\n"
        f"{_explain_because(body)}. Request {body.id}, digest {body.digest[:8]}, until {until}.\n"
        f"/approve {body.id}{remember} · /deny {body.id} [REASON]"
    )


def list_choices(body: ApprovalRequested) -> tuple[NoticeChoice, ...]:
    """Return the buttons under a request."""
    always = (NoticeChoice(label="Always this", command=f"/approve {body.id} always"),) if body.remember else ()
    return (
        NoticeChoice(label="Allow once", command=f"/approve {body.id}"),
        *always,
        NoticeChoice(label="Deny", command=f"/deny {body.id}"),
    )


def _explain_because(body: ApprovalRequested) -> str:
    if body.because == "foreign":
        return "Asked because I read words here that do not come from the person who asks"
    word, _, number = body.because.partition(":")
    return f"Asked by rule {number} of policy.rules" if word == "config" else "Asked by default"


def render_line(id: str, record: ApprovalRecord, *, until: str) -> str:
    """Return a request on one line."""
    state = "waits until" if record.state is ApprovalState.OPEN else f"{record.state}, until"
    return f"{id} · {record.agent} · {record.tool} · {state} {until}"


def render_rule(id: str, rule: RememberedRule, call: ToolCall | None, *, until: str) -> str:
    """Return a remembered rule with exactly what it allows."""
    shown = "  (erased)" if call is None else render_arguments(call.arguments)
    return f"{id} · {rule.agent} may run {rule.tool} until {until}\n{shown}"


WAITING_TEXT: Final = (
    "Not run yet: {tool} needs a person's approval. Request {id} shows them the call; it may take days. Its outcome "
    "comes as a message to this conversation, so do not call it again. Go on with what does not need it, or answer."
)
JOINED_TEXT: Final = (
    "Not run yet: the same call already waits for a person's approval as request {id}. Its outcome comes as a message, "
    "so do not call it again."
)
DENIED_LATELY_TEXT: Final = (
    "Not run: a person denied the same call (request {id}) less than a day ago. Do not ask for it again."
)
TOO_MANY_TEXT: Final = (
    "Not run: {count} requests of this conversation already wait for approval, and no more are made. Tell the person; "
    "/approvals lists them."
)
TOO_LONG_TEXT: Final = (
    "Not run: {tool} needs a person's approval, and its arguments are {count} characters long, too long to show to a "
    "person (at most {most}). Do it in smaller calls."
)
AFTER_WAITING_TEXT: Final = (
    "Not run: an earlier call of this answer waits for a person's approval. Call it again if it does not depend on "
    "that one."
)


def render_report(id: str, tool: str, what: str) -> str:
    """Return the message by which the conversation hears what became of a request."""
    return f"Request {id} ({tool}): {what}"


def describe_outcome(decided: ApprovalDecided) -> str:
    """Return what became of a request, in a few words and without names."""
    match decided.outcome:
        case "expired":
            return "it expired without an answer"
        case "withdrawn":
            return "it was withdrawn, because the turn that asked was taken back or erased"
        case _:
            return "it was always allowed" if decided.rule else f"it was {decided.outcome}"


def describe_decision(decided: ApprovalDecided, people: PeopleDirectory) -> str:
    """Return what became of a request, and who decided it."""
    by = f" by {describe_author(decided.by, people)}" if decided.by else ""
    return f"{describe_outcome(decided)}{by}"


# -- remembered rules --------------------------------------------------------------------------------------------------


def make_rule_id(request: str) -> str:
    return f"R{request}"


def find_rule(rules: Mapping[str, RememberedRule], *, digest: str, role: int, place: str, via: str, now: float) -> str:
    """Return the id of the remembered rule that covers a call; empty if none does. It covers the same call by somebody
    with at least the role of then, in the same kind of place.
    """
    for id, rule in rules.items():
        is_covered = rule.role <= role and (rule.place, rule.via) == (place, via)
        if rule.digest == digest and is_covered and now < rule.until:
            return id
    return ""


def build_rule(body: ApprovalRequested, *, session: str, by: str, now: float) -> RememberedRule:
    return RememberedRule(
        digest=body.digest,
        agent=body.agent,
        tool=body.tool,
        role=int(body.role),
        place=body.place,
        via=body.via,
        session=session,
        request=body.id,
        by=by,
        at=now,
        until=now + RULE_SECONDS,
    )


def change_state(record: ApprovalRecord, state: ApprovalState, *, until: float | None = None) -> ApprovalRecord:
    return structs.replace(record, state=state, until=record.until if until is None else until)


class ApprovalTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are made, as the configuration says."""

    approvers: tuple[str, ...] = (APPROVER_OWNER,)
    to: tuple[ChatLocation, ...] = ()
    """Where a request is shown besides the chat that asks."""
    expire_seconds: float = EXPIRE_SECONDS
    most_pending: int = MOST_PENDING
    denial_seconds: float = REMEMBER_DENIAL_SECONDS
    """How long the same call is refused without asking, after a person denied it."""
