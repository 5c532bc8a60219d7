"""Ends remembered rules. An answer `always` makes one: it allows exactly the same call until it ends or is revoked."""

from __future__ import annotations

from everhold.core.approvals import clean_approval_id
from everhold.core.entries import Changed, EntryDraft, RuleRevoked
from everhold.engine.approvals.decisions import AnsweringPerson, AnswerResult, AnswerStatus, ApprovalService
from everhold.engine.approvals.records import RequestedCall, StoredRule, find_request, list_rules
from everhold.errors import Conflict
from everhold.ports.store import Change, Step


class ListedRule(StoredRule, frozen=True, kw_only=True):
    """A remembered rule with the request that made it."""

    requested: RequestedCall
    can_revoke: bool


async def list_known_rules(service: ApprovalService, who: AnsweringPerson) -> list[ListedRule]:
    """Return the rules in force, with whether somebody may revoke each: whoever could answer its request may."""
    now = await service.store.get_time()
    found = []
    for it in await list_rules(service.store):
        requested = await find_request(service.store, it.rule.request)
        if requested is None or it.rule.until <= now:
            continue
        can_revoke = bool(await service.find_ground(requested.body, who))
        found.append(ListedRule(id=it.id, stored=it.stored, rule=it.rule, requested=requested, can_revoke=can_revoke))
    return found


async def revoke_rule(service: ApprovalService, typed: str, who: AnsweringPerson) -> AnswerResult:
    """End a rule. Calls that it allowed are asked about again, also in turns that are running."""
    id = clean_approval_id(typed)
    while True:
        found = next((it for it in await list_known_rules(service, who) if it.id == id), None)
        if found is None and await _is_revoked_by(service, id, who):
            return _confirm(id)
        if found is None:
            text = f"There is no rule {typed[:40]!r}. /approvals rules lists them."
            return AnswerResult(status=AnswerStatus.UNKNOWN, text=text)
        if not found.can_revoke:
            return AnswerResult(status=AnswerStatus.FORBIDDEN, text=f"You may not revoke rule {id}.", id=id)
        author = who.by if who.identity else "system"
        draft = EntryDraft(body=Changed(change=RuleRevoked(rule=id, by=who.by)), author=author, dedup=_make_key(id))
        try:
            await service.gates.commit(
                Change(
                    step=Step.DECIDE,
                    session=found.rule.session,
                    at=service.gates.clock.now(),
                    entries=(draft,),
                    state_writes=(found.stored.replace_with(None),),
                )
            )
        except Conflict:
            continue  # somebody revoked it at this moment
        service.gates.log.info("approval.rule_revoked", rule=id, tool=found.rule.tool)
        return _confirm(id)


def _confirm(id: str) -> AnswerResult:
    return AnswerResult(
        status=AnswerStatus.DECIDED, text=f"Revoked: rule {id}. The call needs permission again.", id=id
    )


async def _is_revoked_by(service: ApprovalService, id: str, who: AnsweringPerson) -> bool:
    """Return whether the same person revoked it before. A message may be handled again after the revocation."""
    place = await service.store.find_entry_place(_make_key(id))
    if place is None:
        return False
    body = (await service.store.get_entry(place[0], place[1])).body
    return isinstance(body, Changed) and isinstance(body.change, RuleRevoked) and body.change.by == who.by


def _make_key(id: str) -> str:
    return f"rule-revoked:{id}"
