"""Checks promise P9 against a session's log: nothing ran without permission, nothing approved ran twice, and nothing
that was asked or allowed was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from everhold.core.approvals import (
    APPROVER_OPERATOR,
    REQUEST_REASON,
    RULE_REASON,
    ApprovalRecord,
    ApprovalState,
    RememberedRule,
    compute_call_digest,
)
from everhold.core.entries import (
    ApprovalDecided,
    ApprovalRequested,
    Began,
    Called,
    Changed,
    Ended,
    Entry,
    Returned,
    RuleRevoked,
    Thought,
    ToolCall,
)

JUDGED_BEFORE_SECONDS: Final = 120.0
"""How long after the end of a rule a call may start that was judged before."""
AddFinding = Callable[[str, int], None]


class RuleHistory:
    """What the logs of all sessions say about remembered rules: who made them, who used them, and which ended."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[int, ApprovalRequested]] = {}
        """Rule -> the position of the answer that made it, and its request."""
        self.revoked: dict[str, Entry] = {}
        """Rule -> the entry that ended it."""
        self.uses: list[tuple[str, str, Entry]] = []
        """Each use: rule, tool and entry."""

    def __iadd__(self, other: RuleHistory) -> RuleHistory:
        self.made |= other.made
        self.revoked |= other.revoked
        self.uses += other.uses
        return self

    def find_unfounded_uses(self) -> Iterator[tuple[str, Entry]]:
        """Yield each call that ran by a rule that did not allow it."""
        for rule, tool, entry in self.uses:
            if rule not in self.made:
                yield f"a call ran by rule {rule}, which nobody made", entry
                continue
            pos, request = self.made[rule]
            end = self.revoked.get(rule)
            is_late = end is not None and entry.pos > end.pos and entry.at > end.at + JUDGED_BEFORE_SECONDS
            if entry.pos < pos or is_late:
                yield f"a call ran by rule {rule}, which was not in force", entry
            if tool != request.tool:
                yield f"a call of {tool} ran by rule {rule}, which is about {request.tool}", entry

    def find_unfounded_rules(self, rules: Mapping[str, RememberedRule]) -> Iterator[tuple[str, str]]:
        """Yield each rule in force that the logs do not have, with the session that it names."""
        for id, rule in rules.items():
            request = self.made[id][1] if id in self.made else None
            if request is None or id in self.revoked:
                yield f"rule {id} is in force, but nobody made it, or it was revoked", rule.session
            elif (rule.digest, rule.role, rule.place, rule.via) != (
                request.digest,
                int(request.role),
                request.place,
                request.via,
            ):
                yield f"rule {id} allows another call than the one that was answered", rule.session


class ApprovalAudit:
    """One pass over the requests of a log. `add_finding` takes a text and the seq of an entry."""

    def __init__(self, add_finding: AddFinding) -> None:
        self.add_finding = add_finding
        self.requests: dict[str, tuple[int, ApprovalRequested]] = {}
        """Request -> its seq and body."""
        self.decisions: dict[str, ApprovalDecided] = {}
        self.started: set[str] = set()
        self.ended: set[str] = set()
        """Requests whose call ended, or was given up."""
        self.request_by_op: dict[int, str] = {}
        """The running operations of approved calls."""
        self.rules = RuleHistory()
        self._calls: dict[int, dict[str, ToolCall]] = {}
        """Turn -> the calls of its newest thought."""

    def check_entry(self, entry: Entry) -> None:
        match entry.body:
            case Began(type="action", trigger=trigger):
                self.request_by_op[entry.seq] = trigger.removeprefix(REQUEST_REASON)
            case Thought(calls=calls):
                self._calls[entry.op or 0] = {call.id: call for call in calls}
            case ApprovalRequested():
                self._check_requested(entry, entry.body)
            case ApprovalDecided():
                self._check_decided(entry, entry.body)
            case Called():
                self._check_called(entry, entry.body)
            case Changed(change=RuleRevoked(rule=rule)):
                self.rules.revoked[rule] = entry
            case Returned(approval=id) if entry.op in self.request_by_op and id != self.request_by_op[entry.op]:
                self.add_finding(f"the result of request {self.request_by_op[entry.op]} names another one", entry.seq)
            case Ended():
                self._calls.pop(entry.op or 0, None)
                self._check_ended(entry)
            case _:
                pass

    def _check_requested(self, entry: Entry, body: ApprovalRequested) -> None:
        if body.id in self.requests:
            self.add_finding(f"request {body.id} was made twice", entry.seq)
        self.requests[body.id] = entry.seq, body
        call = self._calls.get(entry.op or 0, {}).get(body.call)
        if call is None:
            return  # it was erased; the other checks find a call that nobody asked for
        digest = compute_call_digest(
            agent=body.agent, call=call, effect=body.effect, reach=body.reach, spec=body.spec, bound=body.bound
        )
        if digest != body.digest:
            self.add_finding(f"request {body.id} shows another call than the one the model asked for", entry.seq)

    def _check_decided(self, entry: Entry, body: ApprovalDecided) -> None:
        if body.request in self.decisions:
            self.add_finding(f"request {body.request} was decided twice", entry.seq)
            return
        self.decisions[body.request] = body
        asked = self.requests.get(body.request)
        if asked is None:
            self.add_finding(f"request {body.request} was decided, but never made", entry.seq)
            return
        request = asked[1]
        if body.digest != request.digest:
            self.add_finding(f"the decision about request {body.request} is about another call", entry.seq)
        if body.rule:
            self._check_rule_made(entry, body, request)
        if body.outcome not in ("allowed", "denied"):
            return
        if not body.by or body.ground not in (*request.approvers, APPROVER_OPERATOR):
            who = body.by or "nobody"
            self.add_finding(f"request {body.request} was {body.outcome} by {who}, who may not answer it", entry.seq)
        if body.outcome == "allowed" and entry.at >= request.expires:
            self.add_finding(f"request {body.request} was allowed after it had expired", entry.seq)

    def _check_rule_made(self, entry: Entry, body: ApprovalDecided, request: ApprovalRequested) -> None:
        if body.outcome != "allowed" or not request.remember:
            self.add_finding(f"request {body.request} made rule {body.rule}, although it could not", entry.seq)
        self.rules.made[body.rule] = entry.pos, request

    def _check_called(self, entry: Entry, body: Called) -> None:
        running = self.request_by_op.get(entry.op or 0)
        if body.because.startswith(RULE_REASON):
            self.rules.uses.append((body.because.removeprefix(RULE_REASON), body.tool, entry))
        if not body.because.startswith(REQUEST_REASON):
            if running is not None:
                self.add_finding(f"a call of request {running} ran for another reason", entry.seq)
            return
        id = body.because.removeprefix(REQUEST_REASON)
        if running != id:
            self.add_finding(f"a call ran for request {id} outside its operation", entry.seq)
        if id in self.started:
            self.add_finding(f"the call of request {id} ran twice", entry.seq)
        self.started.add(id)
        asked, decided = self.requests.get(id), self.decisions.get(id)
        if asked is None or decided is None or decided.outcome != "allowed":
            self.add_finding(f"the call of request {id} ran without permission", entry.seq)
        elif (body.digest, body.tool) != (asked[1].digest, asked[1].tool):
            self.add_finding(f"the call that ran for request {id} is not the one that was shown", entry.seq)
        elif entry.at >= asked[1].expires:
            self.add_finding(f"the call of request {id} ran after it had expired", entry.seq)

    def _check_ended(self, entry: Entry) -> None:
        id = self.request_by_op.pop(entry.op or 0, None)
        if id is None:
            return
        if id in self.ended:
            self.add_finding(f"the call of request {id} ended twice", entry.seq)
        self.ended.add(id)
        decided = self.decisions.get(id)
        if decided is None or decided.outcome != "allowed":
            self.add_finding(f"request {id} came to an end without permission", entry.seq)

    def find_expected_states(self) -> dict[str, ApprovalState]:
        """Return the state that the record of each unsettled request has to have."""
        found: dict[str, ApprovalState] = {}
        running = set(self.request_by_op.values())
        for id in self.requests:
            decided = self.decisions.get(id)
            if decided is None:
                found[id] = ApprovalState.OPEN
            elif decided.outcome == "allowed" and id not in self.ended:
                found[id] = ApprovalState.RUNNING if id in running else ApprovalState.ALLOWED
        return found

    def check_records(self, records: dict[str, ApprovalRecord]) -> None:
        """Compare the records of the session with what the log says. A denied request keeps its record for a while."""
        expected = self.find_expected_states()
        for id, state in expected.items():
            record = records.get(id)
            seq = self.requests[id][0]
            if record is None:
                self.add_finding(f"request {id} was forgotten: it is {state}, and nothing waits for it", seq)
            elif record.state is not state:
                self.add_finding(f"request {id} is {state}, but its record says {record.state}", seq)
            elif record.digest != self.requests[id][1].digest:
                self.add_finding(f"the record of request {id} is about another call", seq)
        for id, record in records.items():
            decided = self.decisions.get(id)
            is_denied = decided is not None and decided.outcome == "denied" and record.state is ApprovalState.DENIED
            if id not in expected and not is_denied:
                self.add_finding(f"there is a record of request {id}, which is settled or was never made", 0)
