"""The bodies of the requests and responses about approvals."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class ApprovalDecisionView(Struct):
    """What became of a request: `allowed`, `denied`, `expired` or `withdrawn`. `rule` is the rule that it made."""

    outcome: str
    by: str
    at: float
    rule: str
    text: str


class ApprovalView(Struct):
    """A call that needs permission. `text` is what a chat shows; `arguments` are those that would run. `because` is why
    the policy asks: `default`, `config:N` or `foreign`. `state` is `open`, `allowed`, `running` or `settled`.
    """

    id: str
    session: str
    seq: int
    agent: str
    tool: str
    arguments: str
    effect: str
    reach: str
    because: str
    asked_by: str
    at: float
    expires: float
    digest: str
    approvers: list[str]
    can_remember: bool
    """Whether `always` is accepted."""
    can_answer: bool
    """Whether the caller may answer it now."""
    state: str
    decision: ApprovalDecisionView | None
    text: str


class ApprovalListResponse(Struct):
    """The requests that are not settled."""

    approvals: list[ApprovalView]


class ApprovalAnswerRequest(Struct, forbid_unknown_fields=True):
    """An answer."""

    decision: Literal["once", "always", "deny"]
    digest: Annotated[str, Meta(max_length=64, description="The digest of what you were shown.")] = ""
    note: Annotated[str, Meta(max_length=2_000, description="The reason of a denial, for the agent.")] = ""


class ApprovalAnswerResponse(Struct):
    id: str
    text: str


class RuleView(Struct):
    """A rule that an answer made. It covers exactly this call, by somebody with at least this role, in such a place."""

    id: str
    agent: str
    tool: str
    arguments: str
    role: str
    place: str
    via: str
    by: str
    at: float
    until: float
    session: str
    request: str


class RuleListResponse(Struct):
    rules: list[RuleView]


class RuleRevocationResponse(Struct):
    revoked: str
