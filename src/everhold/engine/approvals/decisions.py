"""Answers a request: in the session that asked, in one commit, whoever answers and from wherever. The first answer
stands, because its entry has a key that no second one can have.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Literal

from msgspec import Struct, structs

from everhold.core import approvals
from everhold.core.approvals import ApprovalState
from everhold.core.consumers import APPROVALS, TURN
from everhold.core.entries import (
    ApprovalDecided,
    ApprovalReport,
    ApprovalRequested,
    Attachment,
    ChatLocation,
    EntryDraft,
    Heard,
    Notified,
    TextPiece,
)
from everhold.core.message_split import split_text
from everhold.core.people import PERSON_MEMBER
from everhold.core.roles import PersonRole
from everhold.core.schedule import format_local_time
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.approvals.records import (
    RequestedCall,
    StoredApproval,
    find_decision,
    find_request,
    get_approval,
    is_chat_halted,
    list_approvals,
)
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.roles import RoleSource
from everhold.errors import Conflict
from everhold.ports.store import Change, StateNamespace, StateWrite, Step, Store, Wakeup


class ApprovalAnswer(Struct, frozen=True, kw_only=True):
    """What somebody answers. `digest` is that of the call as they were shown it; empty: it is not compared."""

    allow: bool
    always: bool = False
    note: str = ""
    digest: str = ""


class AnsweringPerson(Struct, frozen=True, kw_only=True):
    """Who answers, and from where. `by` is `person:<identity>` or `operator:<name>`."""

    by: str
    origin: ChatLocation | None = None
    is_operator: bool = False

    @property
    def identity(self) -> str:
        return self.by.removeprefix(PERSON_MEMBER) if self.by.startswith(PERSON_MEMBER) else ""


class AnswerStatus(enum.StrEnum):
    DECIDED = "decided"
    ALREADY = "already"
    """Somebody else was first, or it ended without an answer."""
    UNKNOWN = "unknown"
    FORBIDDEN = "forbidden"
    CHANGED = "changed"
    """What was shown is not what is asked about."""
    NOT_REMEMBERED = "not_remembered"
    """The answer cannot become a rule."""


class AnswerResult(Struct, frozen=True, kw_only=True):
    """What became of an answer, and what whoever answered is told."""

    status: AnswerStatus
    text: str
    id: str = ""


class ApprovalService:
    """Lists requests and takes answers, for chats and for the API."""

    def __init__(self, gates: Gates, *, runtimes: AgentRuntimes, wakeups: Wakeups, roles: RoleSource) -> None:
        self.gates = gates
        self.store: Store = gates.store
        self.runtimes = runtimes
        self.wakeups = wakeups
        self.roles = roles

    async def find_id(self, typed: str) -> str:
        """Return the id that a person typed, or of the only open request that begins with it."""
        id = approvals.clean_approval_id(typed)
        if len(id) < approvals.MIN_PREFIX_CHARS:
            return id
        found = [it.id for it in await list_approvals(self.store) if it.id.startswith(id)]
        return found[0] if len(found) == 1 else id

    async def find_ground(self, body: ApprovalRequested, who: AnsweringPerson) -> str:
        """Return why somebody may answer a request; empty if they may not."""
        people = await self.store.get_people()
        authors: Collection[str] = people.list_same_authors(who.by) if who.identity else ()
        label = people.find_proven_label(who.identity) if who.identity else ""
        is_owner = False
        if who.identity:
            address = body.stamp.address
            standing = await self.roles.find_person_role(who.identity, address=address) if address else None
            is_owner = standing is not None and standing.role is PersonRole.OWNER
        return approvals.find_ground(body, is_owner=is_owner, authors=authors, label=label, is_operator=who.is_operator)

    async def answer(self, typed: str, answer: ApprovalAnswer, who: AnsweringPerson) -> AnswerResult:
        """Answer a request. Whoever is not first is told what was decided."""
        id = await self.find_id(typed)
        requested = await find_request(self.store, id)
        if requested is None:
            text = f"There is no request {id or typed!r}. /approvals lists those that wait."
            return AnswerResult(status=AnswerStatus.UNKNOWN, text=text)
        while True:
            try:
                return await self._answer_once(id, requested, answer, who)
            except Conflict:
                continue  # somebody answered at this moment, or it began to run

    async def _answer_once(
        self, id: str, requested: RequestedCall, answer: ApprovalAnswer, who: AnsweringPerson
    ) -> AnswerResult:
        body = requested.body
        ground = await self.find_ground(body, who)
        if not ground:
            text = f"You may not answer request {id}; {approvals.describe_approvers(body.approvers)} may."
            return AnswerResult(status=AnswerStatus.FORBIDDEN, text=text, id=id)
        open_one = await self._find_open(id)
        if open_one is None:
            return await self._explain_decision(requested, answer, who)
        if answer.digest and answer.digest != body.digest:
            text = f"Request {id} is about another call than the one that was shown. Read it again, and answer then."
            return AnswerResult(status=AnswerStatus.CHANGED, text=text, id=id)
        now = await self.store.get_time()
        if (outcome := find_ending(requested, now=now)) is not None:
            runtime = self._get_runtime(requested)
            await end_unanswered(self.gates, self.wakeups, runtime, requested, open_one, outcome, now=now)
            return await self._explain_decision(requested, answer, who)
        if answer.always and not (answer.allow and body.remember):
            text = f"Request {id} cannot become a rule. Answer it without `always`: /approve {id}"
            return AnswerResult(status=AnswerStatus.NOT_REMEMBERED, text=text, id=id)
        await self._decide(requested, open_one, answer, who, ground, now=now)
        return AnswerResult(status=AnswerStatus.DECIDED, text=_confirm(id, body, answer), id=id)

    async def _find_open(self, id: str) -> StoredApproval | None:
        found = await get_approval(self.store, id)
        return found if found is not None and found.record.state is ApprovalState.OPEN else None

    async def _explain_decision(
        self, requested: RequestedCall, answer: ApprovalAnswer, who: AnsweringPerson
    ) -> AnswerResult:
        """Return what was decided before. A message that is handled again, because its first answer was not committed,
        gets the same answer, and so does a request to the API that is repeated.
        """
        id = requested.body.id
        entry = await find_decision(self.store, id)
        if entry is None or not isinstance(entry.body, ApprovalDecided):
            return AnswerResult(status=AnswerStatus.ALREADY, text=f"Request {id} is not open.", id=id)
        decided = entry.body
        first = ApprovalAnswer(allow=decided.outcome == "allowed", always=bool(decided.rule))
        if _is_repeated(decided, first, answer, who):
            return AnswerResult(status=AnswerStatus.DECIDED, text=_confirm(id, requested.body, first), id=id)
        people = await self.store.get_people()
        at = format_local_time(entry.at, self._get_runtime(requested).zone)
        text = f"Request {id} is settled: {approvals.describe_decision(decided, people)}, {at}."
        return AnswerResult(status=AnswerStatus.ALREADY, text=text, id=id)

    def _get_runtime(self, requested: RequestedCall) -> AgentRuntime:
        return self.runtimes.get_runtime(requested.body.agent, {})

    async def _decide(
        self,
        requested: RequestedCall,
        stored: StoredApproval,
        answer: ApprovalAnswer,
        who: AnsweringPerson,
        ground: str,
        *,
        now: float,
    ) -> None:
        """Commit an answer. Raises Conflict if another one was committed first."""
        body = requested.body
        rule = approvals.make_rule_id(body.id) if answer.always else ""
        outcome: Literal["allowed", "denied"] = "allowed" if answer.allow else "denied"
        decided = ApprovalDecided(
            request=body.id,
            digest=body.digest,
            outcome=outcome,
            by=who.by,
            ground=ground,
            origin=who.origin,
            rule=rule,
        )
        if answer.allow:
            record = structs.replace(stored.record, state=ApprovalState.ALLOWED, at=now)
        else:
            policy = self._get_runtime(requested).get_policy()
            terms = policy.approvals if policy is not None else approvals.ApprovalTerms()
            until = now + terms.denial_seconds
            record = approvals.change_state(stored.record, ApprovalState.DENIED, until=until)
        writes = [stored.stored.replace_with(approvals.encode_record(record))]
        if rule:
            value = approvals.encode_record(
                approvals.build_rule(body, session=requested.entry.session, by=who.by, now=now)
            )
            writes.append(StateWrite(namespace=StateNamespace.APPROVAL_RULE, key=rule, value=value, version=0))
        author = who.by if who.identity else "system"
        drafts = [EntryDraft(body=decided, author=author, dedup=approvals.decision_key(body.id))]
        wakeups = [Wakeup(consumer=APPROVALS)]
        if not answer.allow:
            drafts += build_report(
                self._get_runtime(requested),
                body,
                f"{approvals.describe_outcome(decided)}, and it did not run.",
                pieces=_quote_note(answer.note, who),
                asks=bool(answer.note) and not await is_chat_halted(self.store, body.stamp.address),
                tells=not _is_same_chat(who.origin, body.origin),
            )
            wakeups += list_report_wakeups(self._get_runtime(requested), drafts)
        await _commit_decision(
            self.gates, self.wakeups, requested.entry.session, drafts, tuple(writes), tuple(wakeups), now=now
        )
        self.gates.log.info("approval.decided", request=body.id, outcome=outcome, tool=body.tool, always=bool(rule))


def _confirm(id: str, body: ApprovalRequested, answer: ApprovalAnswer) -> str:
    if not answer.allow:
        return f"Denied: request {id} does not run."
    if answer.always:
        return (
            f"Allowed, and the same call of {body.tool} by {body.agent} is allowed from now on: rule "
            f"{approvals.make_rule_id(id)}. Request {id} runs now."
        )
    return f"Allowed: request {id} runs now, once. {body.agent} gets the outcome."


def _is_repeated(decided: ApprovalDecided, first: ApprovalAnswer, answer: ApprovalAnswer, who: AnsweringPerson) -> bool:
    if decided.by != who.by or decided.origin != who.origin:
        return False
    if who.origin is not None:
        return bool(who.origin.message)
    return (first.allow, first.always) == (answer.allow, answer.always)


def _quote_note(note: str, who: AnsweringPerson) -> tuple[TextPiece, ...]:
    """Return the reason of a denial as words of whoever denied, so that they are erased with that person."""
    return (TextPiece(source="quoted", by=who.identity, text=note),) if note else ()


def _is_same_chat(one: ChatLocation | None, other: ChatLocation | None) -> bool:
    if one is None or other is None:
        return False
    return (one.platform, one.account, one.chat, one.thread) == (
        other.platform,
        other.account,
        other.chat,
        other.thread,
    )


# -- endings without an answer -----------------------------------------------------------------------------------------


def find_ending(requested: RequestedCall, *, now: float) -> Literal["expired", "withdrawn"] | None:
    """Return how an open request ends by itself; None if it may still be answered."""
    if requested.is_undone or requested.call is None:
        return "withdrawn"
    is_over = approvals.is_over(at=requested.entry.at, until=requested.body.expires, now=now)
    return "expired" if is_over else None


async def end_unanswered(
    gates: Gates,
    wakeups: Wakeups,
    runtime: AgentRuntime,
    requested: RequestedCall,
    stored: StoredApproval,
    outcome: Literal["expired", "withdrawn"],
    *,
    now: float,
) -> None:
    """Commit that nobody answered a request. Raises Conflict if somebody did."""
    body = requested.body
    decided = ApprovalDecided(request=body.id, digest=body.digest, outcome=outcome)
    drafts = [EntryDraft(body=decided, author="system", dedup=approvals.decision_key(body.id))]
    if outcome == "expired":
        drafts += build_report(
            runtime, body, f"{approvals.describe_outcome(decided)}, and it did not run.", asks=False, tells=True
        )
    await _commit_decision(
        gates,
        wakeups,
        requested.entry.session,
        drafts,
        (stored.stored.replace_with(None),),
        list_report_wakeups(runtime, drafts),
        now=now,
    )
    gates.log.info("approval.decided", request=body.id, outcome=outcome, tool=body.tool, always=False)


# -- what the conversation hears ---------------------------------------------------------------------------------------


def build_report(
    runtime: AgentRuntime,
    body: ApprovalRequested,
    what: str,
    *,
    asks: bool,
    tells: bool = False,
    pieces: tuple[TextPiece, ...] = (),
    files: tuple[Attachment, ...] = (),
) -> list[EntryDraft]:
    """Return the message by which the conversation hears what became of a request. If it `asks`, a turn answers it,
    with the rights of the turn that asked. `tells`: the people in the chat are told, too.
    """
    assert body.origin is not None
    text = approvals.render_report(body.id, body.tool, what)
    heard = Heard(
        origin=structs.replace(body.origin, message=""),
        text=text,
        asks=asks,
        sender="everhold",
        speaker=body.speaker,
        hops=body.hops,
        attachments=files,
        stamp=body.stamp,
        pieces=pieces,
        role=body.role,
        approval=ApprovalReport(request=body.id, tool=body.tool, origin=body.via),
    )
    drafts = [EntryDraft(body=heard, author=body.author, dedup=approvals.report_key(body.id))]
    if tells:
        parts = split_text(text, runtime.text_limit(body.origin))
        notice = Notified(text=text, about=approvals.APPROVAL_NOTICE, to=body.origin, parts=parts)
        drafts.append(EntryDraft(body=notice, author="system"))
    return drafts


def list_report_wakeups(runtime: AgentRuntime, drafts: Collection[EntryDraft]) -> tuple[Wakeup, ...]:
    bodies = [draft.body for draft in drafts]
    asks = any(isinstance(body, Heard) and body.asks for body in bodies)
    return (*((Wakeup(consumer=TURN),) if asks else ()), *runtime.list_platform_wakeups(bodies))


async def _commit_decision(
    gates: Gates,
    wakeups: Wakeups,
    session: str,
    drafts: Collection[EntryDraft],
    state_writes: tuple[StateWrite, ...],
    wakes: tuple[Wakeup, ...],
    *,
    now: float,
) -> None:
    """Commit to a session that this worker does not hold. `now` is the time by which the expiry was judged."""
    done = await gates.commit(
        Change(
            step=Step.DECIDE,
            session=session,
            at=now,
            entries=tuple(drafts),
            wakeups=wakes,
            state_writes=state_writes,
        )
    )
    if done.duplicate:
        raise Conflict(f"session {session}: the request was answered at this moment")
    wakeups.notify(session)


async def list_answerable(service: ApprovalService, who: AnsweringPerson, *, session: str = "") -> list[StoredApproval]:
    """Return the open requests that somebody may answer, and those of `session`."""
    found = []
    for it in await list_approvals(service.store):
        if it.record.state is ApprovalState.DENIED:
            continue
        requested = await find_request(service.store, it.id)
        if requested is None:
            continue
        if it.record.session == session or await service.find_ground(requested.body, who):
            found.append(it)
    return found
