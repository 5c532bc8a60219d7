"""Approvals in the simulator: a policy that is edited meanwhile, people and an operator who answer requests at any
time, twice, from several places and without the right, and the checks of what became of each request.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

from everhold.core.address import parse_address
from everhold.core.approvals import REQUEST_REASON, RULE_REASON, ApprovalTerms
from everhold.core.entries import ApprovalDecided, ApprovalRequested, Began, Called, Ended, Entry, Heard
from everhold.core.people import PERSON_MEMBER
from everhold.core.policy import PolicyOutcome, PolicyRule, ToolPolicy
from everhold.core.roles import PersonRole
from everhold.engine.approvals.decisions import AnsweringPerson, ApprovalAnswer, ApprovalService
from everhold.engine.approvals.rules import list_known_rules, revoke_rule
from everhold.engine.roles import RoleStanding
from everhold.errors import EverholdError
from everhold.testing.sim.invariants import InvariantWitness
from everhold.testing.sim.people import SimChat, choose_group_role
from everhold.testing.sim.remote_services import TOOL_EFFECTS, SimTool
from everhold.testing.sim.world import SimWorld

ASKED_TOOL: Final = "pay"
"""A tool that no policy of the simulator ever allows unasked."""
OPERATOR: Final = AnsweringPerson(by="operator:sim", is_operator=True)
PACE_SECONDS: Final = 8.0
EXPIRE_SECONDS: Final = (15.0, 60.0, 400.0)


class SimPolicy:
    """The policy of one schedule. An edit counts at once."""

    def __init__(self, world: SimWorld) -> None:
        self.rng = random.Random(f"{world.seed}/policy")
        self.world = world
        self.policy = self._draw_policy()

    def edit(self) -> None:
        self.policy = self._draw_policy()
        self.world.stats["policies edited"] += 1
        self.world.record("operator", f"edits the policy: {self.policy}")

    def _draw_policy(self) -> ToolPolicy:
        rng = self.rng
        asked = {ASKED_TOOL, *rng.sample(sorted(TOOL_EFFECTS), k=rng.randrange(len(TOOL_EFFECTS)))}
        denied = rng.sample(sorted(TOOL_EFFECTS), k=1) if rng.random() < 0.2 else []
        rules = [
            PolicyRule(tool=tool, do=PolicyOutcome.ASK if tool in asked else PolicyOutcome.ALLOW)
            for tool in TOOL_EFFECTS
        ]
        return ToolPolicy(
            rules=(*rules, *(PolicyRule(tool=tool, do=PolicyOutcome.DENY) for tool in denied)),
            after_foreign=rng.choice((PolicyOutcome.ALLOW, PolicyOutcome.ASK)),
            approvals=ApprovalTerms(
                approvers=rng.choice((("owner",), ("self",), ("owner", "self"))),
                expire_seconds=rng.choice(EXPIRE_SECONDS),
                most_pending=rng.choice((1, 3, 10)),
                denial_seconds=30.0,
            ),
        )


class SimRoles:
    """Knows the roles that the simulated admission gives. Implements `engine.roles.RoleSource`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def find_role(self, entry: Entry) -> RoleStanding:
        return RoleStanding(role=entry.body.role if isinstance(entry.body, Heard) else PersonRole.MEMBER)

    async def find_person_role(self, identity: str, *, address: str) -> RoleStanding:
        return RoleStanding(role=find_role_at(self.seed, identity, address))


def find_role_at(seed: int, identity: str, address: str) -> PersonRole:
    chat = parse_address(address)
    if chat.kind == "dm":
        return PersonRole.MEMBER
    return choose_group_role(seed, chat.chat, identity.partition(":")[2])


class SimAnswers:
    """People and an operator who answer requests, with or without the right to, and without waiting for each other."""

    def __init__(
        self,
        world: SimWorld,
        witness: InvariantWitness,
        policy: SimPolicy,
        chats: Sequence[SimChat],
        find_service: Callable[[], ApprovalService | None],
    ) -> None:
        self.world = world
        self.witness = witness
        self.policy = policy
        self.chats = chats
        self.find_service = find_service
        self.rng = random.Random(f"{world.seed}/answers")
        self._known: set[str] = set()

    async def run(self) -> None:
        while not self.world.calm:
            await asyncio.sleep(PACE_SECONDS * 2 * self.rng.random())
            if self.rng.random() < self.world.profile.approvals:
                self._act()

    def _act(self) -> None:
        rng, open_ones = self.rng, self.witness.list_state_keys("approval")
        self._known.update(open_ones)
        roll = rng.random()
        if roll < 0.12:
            self.policy.edit()
        elif roll < 0.2:
            self._start(self._revoke_rules())
        elif self._known:
            chosen = rng.choice(sorted(open_ones) if open_ones and rng.random() < 0.8 else sorted(self._known))
            for _ in range(rng.choice((1, 1, 2))):
                self._answer(chosen)

    def _answer(self, id: str) -> None:
        rng = self.rng
        word = rng.choice(("once", "once", "always", "deny"))
        if rng.random() < 0.4:
            self._start(self._answer_as_operator(id, word))
            return
        text = {"once": f"/approve {id}", "always": f"/approve {id} always", "deny": f"/deny {id} no"}[word]
        self.world.stats["answers in a chat"] += 1
        rng.choice(self.chats).say(text, by_bot=rng.random() < 0.1)

    async def _answer_as_operator(self, id: str, word: str) -> None:
        service = self.find_service()
        if service is not None:
            self.world.stats["answers of the operator"] += 1
            answer = ApprovalAnswer(allow=word != "deny", always=word == "always", note="no" if word == "deny" else "")
            done = await service.answer(id, answer, OPERATOR)
            self.world.record("operator", f"answers {id} with {word}: {done.status}")

    async def _revoke_rules(self) -> None:
        service = self.find_service()
        for rule in await list_known_rules(service, OPERATOR) if service is not None else ():
            assert service is not None
            self.world.stats["rules revoked"] += 1
            await revoke_rule(service, rule.id, OPERATOR)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.world.loop.create_task(self._try(work))

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except EverholdError as error:
            self.world.record("operator", f"gets an error: {error}")


# -- checks at the end -------------------------------------------------------------------------------------------------


def check_approvals(
    logs: Mapping[str, Sequence[Entry]], tools: Mapping[str, SimTool], *, seed: int, is_finished: bool
) -> Iterator[str]:
    """Each request has one outcome, by somebody who might decide it; what was allowed ran at most once, and the
    conversation heard of it once.
    """
    for session, log in logs.items():
        requests = {e.body.id: e for e in log if isinstance(e.body, ApprovalRequested)}
        decisions: dict[str, list[ApprovalDecided]] = defaultdict(list)
        for entry in log:
            if isinstance(entry.body, ApprovalDecided):
                decisions[entry.body.request].append(entry.body)
        reports = Counter(e.body.approval.request for e in log if isinstance(e.body, Heard) and e.body.approval)
        gone = sum(e.kind == "heard" and e.body is None for e in log)
        runs = _count_runs(log)
        for id, entry in requests.items():
            assert isinstance(entry.body, ApprovalRequested)
            found = decisions.pop(id, [])
            where = f"{session}: request {id}"
            if len(found) > 1 or (is_finished and not found):
                yield f"{where} has {len(found)} outcomes"
            for decided in found[:1]:
                yield from (f"{where} {why}" for why in _check_decision(entry.body, decided, seed))
                heard = reports[id]
                expected = decided.outcome != "withdrawn"
                if heard > 1 or (is_finished and expected and not heard and not gone):
                    yield f"{where} was {decided.outcome}, and reported {heard} times"
                if decided.outcome != "allowed" and runs[id]:
                    yield f"{where} was {decided.outcome}, and ran"
            if not found and runs[id]:
                yield f"{where} ran, and nobody decided about it"
        for id in decisions:
            yield f"{session}: request {id} was decided and never made"
        for entry in log:
            if isinstance(entry.body, Called) and entry.body.tool == ASKED_TOOL:
                if not entry.body.because.startswith((REQUEST_REASON, RULE_REASON)):
                    yield f"{session}: {ASKED_TOOL} ran unasked in entry {entry.seq}"
    yield from _check_tools(logs, tools)


def _count_runs(log: Sequence[Entry]) -> Counter[str]:
    started = {e.seq: e.body.trigger for e in log if isinstance(e.body, Began) and e.body.type == "action"}
    ended = {e.op for e in log if isinstance(e.body, Ended) and e.body.outcome == "refused"}
    return Counter(trigger.removeprefix(REQUEST_REASON) for op, trigger in started.items() if op not in ended)


def _check_decision(request: ApprovalRequested, decided: ApprovalDecided, seed: int) -> Iterator[str]:
    if decided.outcome not in ("allowed", "denied") or decided.by == OPERATOR.by:
        return
    identity = decided.by.removeprefix(PERSON_MEMBER)
    is_owner = find_role_at(seed, identity, request.stamp.address) is PersonRole.OWNER
    # two identities that were linked meanwhile are one person
    is_self = (
        identity.partition(":")[2] == request.author.partition(":")[2].partition(":")[2] or decided.ground == "self"
    )
    if not ((is_owner and "owner" in request.approvers) or (is_self and "self" in request.approvers)):
        yield f"was {decided.outcome} by {decided.by}, who may not"


def _check_tools(logs: Mapping[str, Sequence[Entry]], tools: Mapping[str, SimTool]) -> Iterator[str]:
    """A tool ran for a request only if it was allowed."""
    allowed = {
        e.body.request
        for log in logs.values()
        for e in log
        if isinstance(e.body, ApprovalDecided) and e.body.outcome == "allowed"
    }
    for tool in tools.values():
        for key in tool.done:
            _, _, id = key.partition(f":{REQUEST_REASON}")
            if id and id not in allowed:
                yield f"{tool.spec.name} ran for request {id}, which was not allowed"
