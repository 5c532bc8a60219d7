"""The routes about approvals, which `routes.py` has among all others."""

from __future__ import annotations

from typing import Final

from everhold.api import approval_schemas, approvals
from everhold.api.route_types import ApiRoute, ResponseBody, RouteParameter

_REQUEST: Final = RouteParameter("id", "The request's id, or the beginning of the id of an open one.", "path")

APPROVAL_ROUTES: Final = (
    ApiRoute(
        "GET /api/approvals",
        approvals.list_requests,
        "List requests for permission",
        about="Those that are not settled: they wait for an answer, or what was allowed has not ended. You see those "
        "that you may answer, and those of your conversations.",
        response_bodies={200: ResponseBody("The requests, the oldest first.", approval_schemas.ApprovalListResponse)},
    ),
    ApiRoute(
        "GET /api/approvals/{id}",
        approvals.show_request,
        "Show a request for permission",
        about="Also one that was settled long ago.",
        parameters=(_REQUEST,),
        response_bodies={200: ResponseBody("The request.", approval_schemas.ApprovalView)},
        refusal_statuses=(404,),
    ),
    ApiRoute(
        "POST /api/approvals/{id}",
        approvals.answer_request,
        "Answer a request for permission",
        about="`once`: the call runs, once. `always`: it runs, and the same call needs no permission later. `deny`: it "
        "does not run. `always` needs a login from the last fifteen minutes. The first answer stands: 409 if there was "
        "another one. 409 also if the digest is not that of the request.",
        parameters=(_REQUEST,),
        request_type=approval_schemas.ApprovalAnswerRequest,
        response_bodies={200: ResponseBody("The answer was taken.", approval_schemas.ApprovalAnswerResponse)},
        refusal_statuses=(400, 403, 404, 409),
    ),
    ApiRoute(
        "GET /api/rules",
        approvals.list_remembered_rules,
        "List the rules that answers made",
        about="Operators see all, others those that they may revoke. Rules of the configuration are in `policy.rules`.",
        response_bodies={200: ResponseBody("The rules, the oldest first.", approval_schemas.RuleListResponse)},
    ),
    ApiRoute(
        "POST /api/rules/{id}/revoke",
        approvals.revoke_remembered_rule,
        "Revoke a rule",
        parameters=(RouteParameter("id", "The rule's id.", "path"),),
        response_bodies={200: ResponseBody("The rule's id.", approval_schemas.RuleRevocationResponse)},
        refusal_statuses=(403, 404),
    ),
)
