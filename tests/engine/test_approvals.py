"""A call that needs a person's permission waits in the log, holds nothing meanwhile, and runs once when allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.core import consumers
from everhold.core.address import parse_address
from everhold.core.approvals import APPROVAL_NOTICE
from everhold.core.entries import ApprovalDecided, ChatLocation, Notified, Returned
from everhold.core.policy import PolicyOutcome, PolicyRule
from everhold.core.roles import ChatPlace, PersonRole
from everhold.ports.store import Change, StateNamespace, StateWrite, Step, make_state_scope
from everhold.ports.tool import ToolEffect
from tests.engine.approval_scenario import ApprovalScenario, AskingTool, BoundTool, call_once_for
from tests.engine.test_operations import crash_at_step

STRANGER, KNOWN, MEMBER, OWNER = PersonRole
DIRECT, OWN_SESSION, SHARED = ChatPlace
ALLOW, ASK, DENY = PolicyOutcome
DAY = 86_400.0


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[ApprovalScenario]:
    scenario = ApprovalScenario(tmp_path)
    with scenario.gateway.run_started():
        yield scenario


class TestAsking:
    def test_a_turn_asks_and_ends_and_holds_nothing(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        assert scenario.count_runs() == 0
        shown = "\n".join(scenario.gateway.list_shown_texts())
        assert "main asks to run lamp (runs at most once, acts outside)\n```\n  to: on\n```\n" in shown
        assert f"/approve {request.id} · /approve {request.id} always · /deny {request.id} [REASON]" in shown
        assert "Not run yet: lamp needs a person's approval" in shown, "the model was told, and said so"
        store, run = scenario.gateway.store, scenario.gateway.run
        cursors = run(store.list_cursors())
        assert not [it for it in cursors if it.owner], "nobody holds a cursor while it waits"
        waiting = [it.consumer for it in cursors if it.since is not None]
        assert waiting == [consumers.APPROVALS], "only its expiry is due one day"
        assert not run(store.get_session(cursors[0].session)).running
        assert scenario.list_results()[0].approval == request.id

    def test_the_chat_goes_on_while_a_request_waits(self, scenario: ApprovalScenario) -> None:
        scenario.request()
        scenario.gateway.runtimes.model = call_once_for("nothing")
        assert "There is no tool 'nothing'" in scenario.ask("something else", OWNER, DIRECT)

    def test_an_answer_days_later_and_after_a_restart_runs_exactly_what_was_shown(
        self, scenario: ApprovalScenario
    ) -> None:
        request = scenario.request()
        scenario.gateway.crash()
        scenario.gateway.clock.skew += 2 * DAY
        scenario.restart()
        reply = scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        assert f"Allowed: request {request.id} runs now, once." in reply
        assert scenario.count_runs() == 1
        assert scenario.list_starts() == [f"request:{request.id}"]
        assert f"I read: Request {request.id} (lamp): it was allowed and run. lamp did" in reply
        assert scenario.list_outcomes() == ["allowed"]
        assert not list(scenario.list_records()), "nothing is left to do"
        [decided] = scenario.list_bodies(ApprovalDecided)
        assert (decided.digest, decided.ground, decided.by) == (request.digest, "owner", "person:fake:1")

    def test_the_same_call_joins_the_request_that_waits(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        assert f"already waits for a person's approval as request {request.id}" in scenario.ask("again", OWNER, DIRECT)
        assert len(scenario.list_bodies(type(request))) == 1

    def test_other_arguments_are_another_request(self, scenario: ApprovalScenario) -> None:
        first = scenario.request()
        scenario.gateway.runtimes.model = call_once_for("lamp", {"to": "off"})
        second = scenario.request("again")
        assert first.digest != second.digest
        scenario.ask(f"/approve {second.id}", OWNER, DIRECT)
        assert scenario.list_starts() == [f"request:{second.id}"]

    def test_no_more_than_the_allowed_number_waits(self, scenario: ApprovalScenario) -> None:
        scenario.set_policy(most_pending=2)
        for number in range(2):
            scenario.gateway.runtimes.model = call_once_for("lamp", {"n": number})
            scenario.request()
        scenario.gateway.runtimes.model = call_once_for("lamp", {"n": 3})
        assert "2 requests of this conversation already wait" in scenario.ask("more", OWNER, DIRECT)
        assert len(scenario.list_outcomes()) == 0
        assert len(list(scenario.list_records())) == 2

    def test_a_call_that_nobody_could_read_is_not_asked_about(self, scenario: ApprovalScenario) -> None:
        scenario.gateway.runtimes.model = call_once_for("lamp", {"text": "x" * 12_001})
        assert "too long to show to a person" in scenario.ask("do it", OWNER, DIRECT)
        assert not list(scenario.list_records())


class TestAnswering:
    def test_only_an_approver_may_answer(self, scenario: ApprovalScenario) -> None:
        request = scenario.request(place=SHARED)
        for role in (STRANGER, KNOWN, MEMBER):
            reply = scenario.ask(f"/approve {request.id}", role, SHARED)
            assert f"You may not answer request {request.id}; an owner of this chat may." in reply
        assert scenario.count_runs() == 0
        assert not scenario.list_outcomes()
        scenario.ask(f"/approve {request.id}", OWNER, SHARED)
        assert scenario.count_runs() == 1

    def test_whoever_asked_may_answer_if_the_policy_says_so(self, scenario: ApprovalScenario) -> None:
        scenario.set_policy(PolicyRule(tool="lamp", do=ASK), approvers=("self",))
        request = scenario.request(role=MEMBER)
        assert "You may not answer" in scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        scenario.ask(f"/approve {request.id}", MEMBER, DIRECT)
        assert scenario.count_runs() == 1

    def test_it_may_be_answered_from_another_chat(self, scenario: ApprovalScenario) -> None:
        request = scenario.request(place=SHARED)
        reply = scenario.ask(f"/approve {request.id[:5].lower()}", OWNER, DIRECT)
        assert "Allowed" in reply
        assert scenario.count_runs() == 1
        report = scenario.list_reports()[0]
        assert report.origin.chat == "shared", "the conversation that asked hears the outcome"

    def test_the_first_answer_stands_and_the_second_learns_who_was_first(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        scenario.ask(f"/deny {request.id}", OWNER, DIRECT)
        reply = scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        assert f"Request {request.id} is settled: it was denied by ada, " in reply
        assert scenario.list_outcomes() == ["denied"]
        assert scenario.count_runs() == 0

    def test_a_denial_with_a_reason_is_answered_and_one_without_is_only_heard(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        reply = scenario.ask(f"/deny {request.id} use the other lamp", OWNER, DIRECT)
        assert "I read: Request" in reply
        assert "use the other lamp" in reply
        scenario.gateway.runtimes.model = call_once_for("lamp", {"n": 2})
        second = scenario.request()
        assert "I read" not in scenario.ask(f"/deny {second.id}", OWNER, DIRECT)
        assert [it.asks for it in scenario.list_reports()] == [True, False]

    def test_a_denied_call_is_not_asked_about_again_for_a_day(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        scenario.ask(f"/deny {request.id}", OWNER, DIRECT)
        assert "a person denied the same call" in scenario.ask("again", OWNER, DIRECT)
        scenario.gateway.run_until_idle(DAY + 60)
        assert not list(scenario.list_records())
        assert scenario.request("once more").id != request.id

    def test_text_that_is_no_command_of_a_person_decides_nothing(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        scenario.ask("yes", OWNER, DIRECT)
        scenario.ask(f"please /approve {request.id}", OWNER, DIRECT)
        scenario.ask(f"/approve {request.id}", OWNER, DIRECT, bot=True)
        assert not scenario.list_outcomes()
        assert scenario.count_runs() == 0

    def test_a_list_shows_what_waits_and_each_whole(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        assert f"{request.id} · main · lamp · waits until" in scenario.ask("/approvals", OWNER, DIRECT)
        assert "  to: on\n" in scenario.ask(f"/approvals {request.id}", OWNER, DIRECT)
        assert "No call waits" in scenario.ask("/approvals", MEMBER, DIRECT)
        assert "no open request" in scenario.ask(f"/approvals {request.id}", MEMBER, DIRECT)


class TestEnding:
    def test_a_request_expires_and_the_button_says_why(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        scenario.gateway.run_until_idle(3 * DAY + 60)
        assert scenario.list_outcomes() == ["expired"]
        assert "it expired without an answer" in scenario.gateway.list_shown_texts()[-1]
        assert "it expired" in scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        assert scenario.count_runs() == 0
        assert not list(scenario.list_records())

    def test_a_clock_that_is_set_back_does_not_run_what_expired(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        scenario.gateway.crash()
        scenario.gateway.clock.skew += 4 * DAY
        scenario.restart()
        assert "it expired" in scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        scenario.gateway.clock.skew -= 4 * DAY
        assert "is settled" in scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        assert scenario.list_outcomes() == ["expired"]
        assert scenario.count_runs() == 0

    def test_taking_the_turn_back_withdraws_its_request(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        scenario.ask("/undo", OWNER, DIRECT)
        assert "it was withdrawn" in scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        assert scenario.list_outcomes() == ["withdrawn"]
        assert scenario.count_runs() == 0

    def test_a_new_context_does_not(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        scenario.ask("/new", OWNER, DIRECT)
        scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        assert scenario.count_runs() == 1

    @pytest.mark.parametrize("change", ["description", "gone", "policy", "role", "reach"])
    def test_what_changed_since_it_was_shown_does_not_run(self, scenario: ApprovalScenario, change: str) -> None:
        request = scenario.request(place=SHARED)
        match change:
            case "description":
                other = AskingTool()
                other.spec = type(other.spec)(name="lamp", description="another", parameters={"type": "object"})
                scenario.gateway.runtimes.tools = {"lamp": other}
            case "gone":
                scenario.gateway.runtimes.tools = {}
            case "policy":
                scenario.set_policy(PolicyRule(tool="lamp", do=DENY))
            case "role":
                scenario.change_config("owners: [ada]", "owners: [kim]")
                scenario.send(f"/approve {request.id}", KNOWN, SHARED)
            case "reach":
                assert isinstance(scenario.tool, AskingTool)
                scenario.tool.reach = "change"
        scenario.send(f"/approve {request.id}", OWNER, SHARED)
        assert scenario.count_runs() == 0
        assert "not run, although it was allowed" in scenario.list_reports()[0].text
        assert not scenario.list_starts()
        assert not list(scenario.list_records())

    def test_in_a_silenced_chat_nothing_runs_until_it_may_speak_again(self, scenario: ApprovalScenario) -> None:
        request = scenario.request(place=SHARED)
        store, run = scenario.gateway.store, scenario.gateway.run
        chat = parse_address(request.stamp.address)
        halt = StateWrite(
            namespace=StateNamespace.CHAT_HALT,
            key=chat.chat,
            scope=make_state_scope(chat.platform),
            value='{"by": "fake:1", "at": 0}',
            version=0,
        )
        run(store.commit(Change(step=Step.STATE, session="", at=0.0, state_writes=(halt,))))
        scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        assert scenario.count_runs() == 0
        stored = run(store.get_state_record(halt.namespace, halt.key, scope=halt.scope))
        assert stored is not None
        run(store.commit(Change(step=Step.STATE, session="", at=0.0, state_writes=(stored.replace_with(None),))))
        scenario.gateway.run_until_idle(60)
        assert scenario.count_runs() == 1

    def test_what_a_call_depends_on_is_bound_to_the_answer(self, scenario: ApprovalScenario) -> None:
        tool = BoundTool()
        scenario.use_tool(tool)
        request = scenario.request()
        tool.content = "rm -rf /"
        scenario.ask(f"/approve {request.id}", OWNER, DIRECT)
        assert scenario.count_runs() == 0
        assert "what the call depends on, changed since it was shown" in scenario.list_reports()[0].text
        again = scenario.request("again")
        assert again.digest != request.digest
        scenario.ask(f"/approve {again.id}", OWNER, DIRECT)
        assert scenario.count_runs() == 1

    def test_a_tool_that_cannot_say_what_a_call_depends_on_is_not_asked_about(self, scenario: ApprovalScenario) -> None:
        scenario.use_tool(BoundTool(fails=True))
        assert "bound was not run: it has no workspace" in scenario.ask("do it", OWNER, DIRECT)
        assert not list(scenario.list_records())


class TestShowing:
    def test_a_request_is_shown_to_owners_elsewhere_unless_an_owner_asks(self, scenario: ApprovalScenario) -> None:
        place = ChatLocation(platform="fake", account="main", chat="owners")
        scenario.set_policy(PolicyRule(tool="lamp", do=ASK), to=(place,))
        scenario.request(role=MEMBER)
        notices = [it for it in scenario.list_bodies(Notified) if it.about == APPROVAL_NOTICE]
        assert [it.to.chat for it in notices] == ["2", "owners"]
        assert [[it.command.split()[0] for it in notice.choices] for notice in notices] == [
            ["/approve", "/approve", "/deny"],
            ["/approve", "/approve", "/deny"],
        ]
        scenario.gateway.runtimes.model = call_once_for("lamp", {"to": "off"})
        scenario.request()
        assert [it.to.chat for it in scenario.list_bodies(Notified) if it.about == APPROVAL_NOTICE][2:] == ["1"]

    def test_nothing_in_a_request_is_formatted_or_hidden(self, scenario: ApprovalScenario) -> None:
        scenario.gateway.runtimes.model = call_once_for("lamp", {"to": "```\n[ls](https://example.org)\u202e"})
        scenario.request()
        shown = "\n".join(scenario.gateway.list_shown_texts())
        assert "```\n  to: \\u{60}\\u{60}\\u{60}\n    [ls](https://example.org)\\u{202e}\n```" in shown


class TestRemembering:
    def test_a_rule_that_was_revoked_is_asked_about_again(self, scenario: ApprovalScenario) -> None:
        scenario.set_policy(after_foreign=ALLOW)
        request = scenario.request()
        scenario.ask(f"/approve {request.id} always", OWNER, DIRECT)
        assert f"R{request.id} · main may run lamp until" in scenario.ask("/approvals rules", OWNER, DIRECT)
        assert "No answer made a rule" in scenario.ask("/approvals rules", MEMBER, DIRECT)
        assert "You may not revoke" in scenario.ask(f"/approvals revoke R{request.id}", MEMBER, DIRECT)
        assert "Revoked: rule" in scenario.ask(f"/approvals revoke r{request.id.lower()}", OWNER, DIRECT)
        assert "There is no rule" in scenario.ask(f"/approvals revoke R{request.id}", MEMBER, DIRECT)
        assert scenario.request("again").id != request.id
        assert scenario.count_runs() == 1
        scenario.check_audit()

    def test_always_lets_exactly_the_same_call_run_until_it_is_revoked(self, scenario: ApprovalScenario) -> None:
        scenario.set_policy(after_foreign=ALLOW)
        request = scenario.request()
        assert request.remember
        assert f"rule R{request.id}" in scenario.ask(f"/approve {request.id} always", OWNER, DIRECT)
        scenario.ask("again", OWNER, DIRECT)
        assert scenario.list_starts() == [f"request:{request.id}", f"rule:R{request.id}"]
        scenario.gateway.runtimes.model = call_once_for("lamp", {"to": "off"})
        assert scenario.request().id != request.id, "another argument is another call"

    def test_a_rule_is_not_for_people_with_a_lower_role(self, scenario: ApprovalScenario) -> None:
        scenario.set_policy(PolicyRule(tool="lamp", do=ASK), after_foreign=ALLOW)
        request = scenario.request(place=SHARED)
        scenario.ask(f"/approve {request.id} always", OWNER, SHARED)
        assert scenario.request(role=MEMBER, place=SHARED).id != request.id
        assert scenario.count_runs() == 1

    def test_a_rule_of_the_configuration_can_forbid_remembering(self, scenario: ApprovalScenario) -> None:
        scenario.set_policy(PolicyRule(tool="lamp", do=ASK, remember=False), after_foreign=ALLOW)
        request = scenario.request()
        assert "cannot become a rule" in scenario.ask(f"/approve {request.id} always", OWNER, DIRECT)
        assert not scenario.list_outcomes()

    def test_a_denial_of_the_configuration_is_stronger_than_a_rule(self, scenario: ApprovalScenario) -> None:
        scenario.set_policy(after_foreign=ALLOW)
        request = scenario.request()
        scenario.ask(f"/approve {request.id} always", OWNER, DIRECT)
        scenario.set_policy(PolicyRule(tool="lamp", do=DENY), after_foreign=ALLOW)
        scenario.ask("again", OWNER, DIRECT)
        assert scenario.count_runs() == 1

    def test_after_foreign_words_a_rule_does_not_help(self, scenario: ApprovalScenario) -> None:
        request = scenario.request()
        assert request.remember
        scenario.ask(f"/approve {request.id} always", OWNER, DIRECT)
        second = scenario.request("again")  # the result of the first call is in the context
        assert second.id != request.id
        assert second.because == "foreign"
        assert not second.remember


STEPS = [Step.REQUEST, Step.DECIDE, Step.COMMAND, Step.ACTION_BEGIN, Step.ACTION_END]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("effect", list(ToolEffect))
def test_a_crash_at_any_commit_runs_it_once_and_the_outcome_is_heard_once(
    tmp_path: Path, effect: ToolEffect, step: Step, after: bool
) -> None:
    scenario = ApprovalScenario(tmp_path, AskingTool(effect))
    with scenario.gateway.run_started():
        crash_at_step(scenario.gateway, step, after=after)
        scenario.send("do it", OWNER, DIRECT, rest=False)
        request = finish(scenario)
        scenario.send(f"/approve {request}", OWNER, DIRECT, rest=False)
        finish(scenario)
        assert scenario.list_outcomes() == ["allowed"]
        is_lost = effect is ToolEffect.ONCE and step is Step.ACTION_BEGIN and after
        is_unknown = is_lost or (effect is ToolEffect.ONCE and step is Step.ACTION_END and not after)
        is_repeated = effect is ToolEffect.PURE and step is Step.ACTION_END and not after
        assert scenario.count_runs() == (0 if is_lost else 2 if is_repeated else 1)
        assert scenario.list_starts() == [f"request:{request}"]
        [report] = scenario.list_reports()
        assert ("it is unknown whether it was completed" in report.text) is is_unknown
        [outcome] = [it for it in scenario.list_bodies(Returned) if not it.text]
        assert outcome.unknown is is_unknown
        assert sum("I read: Request" in text for text in scenario.gateway.list_shown_texts()) == 1
        assert not scenario.gateway.run(scenario.gateway.store.list_state_records(StateNamespace.APPROVAL))
        audit = scenario.gateway.run(scenario.gateway.store.audit())
        assert not audit.contradictions
        assert not [it for it in audit.findings if it.level == "broken"]


def finish(scenario: ApprovalScenario) -> str:
    """Let the gateway work, in a new process if it was killed; return the request."""
    scenario.gateway.pass_time()
    process = scenario.gateway.process
    if process is None or process.gates.dead:
        scenario.restart()
    scenario.gateway.run_until_idle()
    records = scenario.gateway.run(scenario.gateway.store.list_state_records(StateNamespace.APPROVAL))
    return "".join(stored.key for stored in records)
