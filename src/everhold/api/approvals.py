"""Handlers for requests for permission, and for the rules that answers made."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everhold.api import approval_schemas as schemas
from everhold.api.errors import ApiError, build_json_response
from everhold.api.request import ApiCall
from everhold.core.approvals import (
    OPERATOR_MEMBER,
    ApprovalState,
    describe_author,
    describe_decision,
    render_arguments,
    render_request,
)
from everhold.core.entries import ApprovalDecided
from everhold.core.people import PERSON_MEMBER, PeopleDirectory
from everhold.core.schedule import format_local_time
from everhold.engine.approvals.decisions import (
    AnsweringPerson,
    AnswerResult,
    AnswerStatus,
    ApprovalAnswer,
)
from everhold.engine.approvals.records import (
    RequestedCall,
    find_decision,
    find_request,
    get_approval,
    list_approvals,
)
from everhold.engine.approvals.rules import ListedRule, list_known_rules, revoke_rule
from everhold.errors import NotFound

_REFUSALS: Final = {
    AnswerStatus.ALREADY: (409, "already_answered", "GET /api/approvals lists those that wait"),
    AnswerStatus.CHANGED: (409, "changed", "read the request again"),
    AnswerStatus.NOT_REMEMBERED: (409, "not_remembered", "send `once`"),
    AnswerStatus.UNKNOWN: (404, "not_found", "GET /api/approvals lists those that wait"),
    AnswerStatus.FORBIDDEN: (403, "denied", "somebody else may answer it"),
}
"""The answer to an attempt that changed nothing: status, code and remedy."""


async def list_requests(call: ApiCall) -> Response:
    """Return the open requests that the caller may see, the oldest first."""
    shown = []
    for it in await list_approvals(call.context.store):
        if it.record.state is ApprovalState.DENIED:
            continue
        requested = await find_request(call.context.store, it.id)
        if requested is not None and (view := await _view_request(call, requested, it.record.state)) is not None:
            shown.append(view)
    return build_json_response({"approvals": shown})


async def show_request(call: ApiCall) -> Response:
    """Return a request, also one that was settled."""
    service = call.context.gateway.approvals
    requested = await find_request(call.context.store, await service.find_id(call.path["id"]))
    if requested is not None:
        stored = await get_approval(call.context.store, requested.body.id)
        view = await _view_request(call, requested, stored.record.state if stored is not None else None)
        if view is not None:
            return build_json_response(view)
    raise NotFound(f"there is no request {call.path['id'][:40]!r}", remedy="GET /api/approvals lists those that wait")


async def answer_request(call: ApiCall) -> Response:
    """Allow or deny the call of a request."""
    given = call.decode_body(schemas.ApprovalAnswerRequest)
    if given.decision == "always":  # a rule outlasts the login
        call.require_fresh_login()
    service = call.context.gateway.approvals
    requested = await find_request(call.context.store, await service.find_id(call.path["id"]))
    if requested is None or await _view_request(call, requested, None) is None:
        raise NotFound(
            f"there is no request {call.path['id'][:40]!r}", remedy="GET /api/approvals lists those that wait"
        )
    answer = ApprovalAnswer(
        allow=given.decision != "deny",
        always=given.decision == "always",
        note=given.note,
        digest=given.digest,
    )
    done = await service.answer(requested.body.id, answer, identify_answerer(call))
    _raise_refusal(done)
    return build_json_response({"id": done.id, "text": done.text})


async def list_remembered_rules(call: ApiCall) -> Response:
    """Return the rules that answers made, the oldest first."""
    people = await call.context.store.get_people()
    found = await list_known_rules(call.context.gateway.approvals, identify_answerer(call))
    return build_json_response({"rules": [_view_rule(it, people) for it in found if _is_visible(call, it)]})


async def revoke_remembered_rule(call: ApiCall) -> Response:
    """End a rule."""
    service, who = call.context.gateway.approvals, identify_answerer(call)
    if not any(it.id == call.path["id"] and _is_visible(call, it) for it in await list_known_rules(service, who)):
        raise NotFound(f"there is no rule {call.path['id'][:40]!r}", remedy="GET /api/rules lists the rules")
    done = await revoke_rule(service, call.path["id"], who)
    _raise_refusal(done)
    return build_json_response({"revoked": done.id})


def identify_answerer(call: ApiCall) -> AnsweringPerson:
    """Return who answers: an operator by the name of the credential, else the caller's person."""
    if call.caller.operator:
        name = call.caller.scope.token or call.caller.sender
        return AnsweringPerson(by=f"{OPERATOR_MEMBER}{name}", is_operator=True)
    return AnsweringPerson(by=f"{PERSON_MEMBER}{call.identity}")


def _raise_refusal(done: AnswerResult) -> None:
    if done.status in _REFUSALS:
        status, code, remedy = _REFUSALS[done.status]
        raise ApiError(status, code, done.text, remedy=remedy)


async def _view_request(call: ApiCall, requested: RequestedCall, state: ApprovalState | None) -> dict[str, Any] | None:
    """Return a request as the caller may see it; None if the caller may not. A request is seen by those who may answer
    it and by those who see its conversation."""
    body, session = requested.body, requested.entry.session
    context = call.context
    if not call.caller.scope.can_use(body.agent):
        return None
    can_answer = bool(await context.gateway.approvals.find_ground(body, identify_answerer(call)))
    if not can_answer and not await context.can_see(call.caller, session):
        return None
    zone = context.agents.settings.zone
    decision = await find_decision(context.store, body.id)
    until = format_local_time(body.expires, zone)
    people = await context.store.get_people()
    return {
        "id": body.id,
        "session": session,
        "seq": requested.entry.seq,
        "agent": body.agent,
        "tool": body.tool,
        "arguments": "" if requested.call is None else render_arguments(requested.call.arguments),
        "effect": body.effect,
        "reach": body.reach,
        "because": body.because,
        "asked_by": people.describe_identity(body.author.removeprefix(PERSON_MEMBER)),
        "at": requested.entry.at,
        "expires": body.expires,
        "digest": body.digest,
        "approvers": list(body.approvers),
        "can_remember": body.remember,
        "can_answer": can_answer and decision is None,
        "state": "settled" if state in (None, ApprovalState.DENIED) else state.value,
        "decision": _view_decision(decision.body, decision.at, people) if decision is not None else None,
        "text": render_request(body, requested.call, until=until),
    }


def _view_decision(body: object, at: float, people: PeopleDirectory) -> dict[str, Any]:
    assert isinstance(body, ApprovalDecided)
    return {
        "outcome": body.outcome,
        "by": describe_author(body.by, people),
        "at": at,
        "rule": body.rule,
        "text": describe_decision(body, people),
    }


def _is_visible(call: ApiCall, rule: ListedRule) -> bool:
    return call.caller.scope.can_use(rule.rule.agent) and (call.caller.operator or rule.can_revoke)


def _view_rule(it: ListedRule, people: PeopleDirectory) -> dict[str, Any]:
    rule, asked = it.rule, it.requested
    return {
        "id": it.id,
        "agent": rule.agent,
        "tool": rule.tool,
        "arguments": "" if asked.call is None else render_arguments(asked.call.arguments),
        "role": asked.body.role.label,
        "place": rule.place,
        "via": rule.via,
        "by": describe_author(rule.by, people),
        "at": rule.at,
        "until": rule.until,
        "session": rule.session,
        "request": rule.request,
    }
