"""Every cell of the tables of roles, on a running gateway: who may use which command and which tool in which chat."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from everhold.core.commands import describe_action, get_command_roles, name_action, parse_command
from everhold.core.consumers import TASKS
from everhold.core.entries import (
    Called,
    Changed,
    Ended,
    EntryDraft,
    Heard,
    Noted,
    Returned,
    Stamp,
    TaskRequested,
    ToolCall,
)
from everhold.core.roles import COMMAND_ROLES, TOOL_ROLES, ChatPlace, PersonRole, ToolAccess
from everhold.engine import session_access
from everhold.engine.commands import worker as commands_worker
from everhold.engine.roles import RoleStanding
from everhold.engine.session_access import SessionFit
from everhold.engine.turn import execution
from everhold.errors import Overloaded
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Change, Step, Wakeup
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeModel, FakeTool
from tests.engine.memory_tools import add_memory_tools
from tests.engine.roles_scenario import SENDERS, RolesScenario

STRANGER, KNOWN, MEMBER, OWNER = PersonRole
DIRECT, OWN_SESSION, SHARED = ChatPlace
REFUSED = "needs the role"
EXAMPLES = {
    "title": "/title Plans",
    "title --memory": "/title Plans --memory",
    "memory search": "/memory search tea",
    "memory note": "/memory note tea is green",
    "memory forget": "/memory forget tea",
    "background": "/background count to ten",
    "schedule make": "/schedule in 20m look",
    "schedule remove": "/schedule remove abc",
    "resume": "/resume 01",
}


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[RolesScenario]:
    scenario = RolesScenario(tmp_path)
    with scenario.gateway.run_started():
        yield scenario


# -- the table of commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ChatPlace)
@pytest.mark.parametrize("role", PersonRole)
def test_every_cell_of_the_table_of_commands_holds(tmp_path: Path, role: PersonRole, place: ChatPlace) -> None:
    check_commands(tmp_path, role, place)


def check_commands(path: Path, role: PersonRole, place: ChatPlace) -> None:
    scenario = RolesScenario(path)
    with scenario.gateway.run_started():
        for action, row in COMMAND_ROLES.items():
            if action == "link" and place is DIRECT:
                continue  # the admission handles it, and stores nothing
            text = EXAMPLES.get(action, f"/{action}")
            command = parse_command(text)
            assert command is not None
            assert name_action(command) == action, "the example is for this row"
            # The halt of an earlier row would silence the others.
            scenario.send("/wake", role if place is DIRECT else OWNER, place)
            before = len(scenario.gateway.list_shown_texts())
            verdict = scenario.send(text, role, place)
            if place is DIRECT and role < MEMBER:
                assert verdict.outcome == "denied", f"{text}: in a direct chat nobody below member is heard"
                continue
            reply = "\n".join(scenario.gateway.list_shown_texts()[before:])
            lowest = row[place].role
            refusal = f"{describe_action(action)} {REFUSED}"
            if lowest is None:
                assert "in a direct chat" in reply
            elif role >= lowest:
                assert refusal not in reply, f"{text}: {role.label} may do this in a {place}"
                assert reply, f"{text} is answered"
            else:
                assert f"{refusal} {lowest.label} in this group" in reply, f"{text}: {role.label} may not do this"
                assert f"Your role here is {role.label}" in reply
                assert "an owner (ada)" in reply, "it says whom to ask"


def test_somebody_of_every_role_is_in_the_scenario(scenario: RolesScenario) -> None:
    for role, place in itertools.product(PersonRole, (OWN_SESSION, SHARED)):
        assert scenario.ask("/whoami", role, place).endswith(f"Your role here is {role.label}.")
        verdict = scenario.send("hello", role, place)
        assert (verdict.outcome, scenario.gateway.read_bodies(verdict.session, Heard)[-1].role) == ("accepted", role)


# -- sessions in groups ------------------------------------------------------------------------------------------------


def begin_private(scenario: RolesScenario) -> str:
    private = scenario.send("my illness", OWNER, DIRECT).session
    scenario.send("/title Illness", OWNER, DIRECT)
    return private


@pytest.mark.parametrize("place", [OWN_SESSION, SHARED])
@pytest.mark.parametrize("role", PersonRole)
def test_sessions_in_a_group_shows_no_private_title(
    scenario: RolesScenario, role: PersonRole, place: ChatPlace
) -> None:
    check_sessions(scenario, role, place)


def check_sessions(scenario: RolesScenario, role: PersonRole, place: ChatPlace) -> None:
    private = begin_private(scenario)
    elsewhere = scenario.send("hello", OWNER, SHARED if place is OWN_SESSION else OWN_SESSION).session
    here = scenario.send("hello", role, place).session
    shown = scenario.ask("/sessions", role, place)
    assert here in shown
    assert "Illness" not in shown
    assert private not in shown
    assert elsewhere not in shown


@pytest.mark.parametrize("place", [OWN_SESSION, SHARED])
def test_a_private_session_is_never_continued_in_a_group(scenario: RolesScenario, place: ChatPlace) -> None:
    check_resume(scenario, place)


def check_resume(scenario: RolesScenario, place: ChatPlace) -> None:
    private = begin_private(scenario)
    here = scenario.send("hello", OWNER, place).session
    address = scenario.gateway.run(scenario.gateway.store.get_session(private)).address
    for name in (private, private[:12], "Illness", "illness", address):
        reply = scenario.ask(f"/resume {name}", OWNER, place)
        assert "A private session is never continued in a group" in reply
        assert scenario.send("where am I?", OWNER, place).session == here
    asked = scenario.gateway.runtimes.model.requests[-1]
    assert not any("my illness" in message.text for message in asked.messages)


def test_ones_own_group_session_continues_in_a_direct_chat_as_a_branch(scenario: RolesScenario) -> None:
    gateway = scenario.gateway
    group = scenario.send("the code is kumquat", MEMBER, OWN_SESSION).session
    direct = scenario.send("hello", MEMBER, DIRECT).session
    assert group in scenario.ask("/sessions", MEMBER, DIRECT)
    assert "a copy of it" in scenario.ask(f"/resume {group}", MEMBER, DIRECT)
    branch = scenario.send("a private word", MEMBER, DIRECT).session
    assert branch not in (group, direct)
    assert gateway.run(gateway.store.get_session(branch)).parent == group
    assert any("kumquat" in message.text for message in gateway.runtimes.model.requests[-1].messages)
    scenario.send("what do you know?", MEMBER, OWN_SESSION)
    assert not any("a private word" in message.text for message in gateway.runtimes.model.requests[-1].messages)
    scenario.change_config("owners: [ada]", "owners: [ada, kim]")
    assert "never continued in a group" in scenario.ask(f"/resume {branch}", OWNER, OWN_SESSION), "nor does the branch"
    gateway.assert_sound()


def test_a_linked_person_s_direct_chats_share_sessions_and_a_shared_group_stays_its_own(
    scenario: RolesScenario,
) -> None:
    first = scenario.send("hello", MEMBER, DIRECT).session
    scenario.send("hello", OWNER, DIRECT)
    assert "You have no session" in scenario.ask(f"/resume {first}", OWNER, DIRECT)
    scenario.link("fake:2", "ada")
    assert f"Resumed session {first}" in scenario.ask(f"/resume {first}", OWNER, DIRECT)
    assert scenario.send("me again", OWNER, DIRECT).session == first
    shared = scenario.send("hello", OWNER, SHARED).session
    assert "You have no session" in scenario.ask(f"/resume {shared}", OWNER, DIRECT)


def test_an_owner_moves_between_branches_of_a_group(scenario: RolesScenario) -> None:
    for place in (OWN_SESSION, SHARED):
        group = scenario.send("hello", OWNER, place).session
        assert "Branched" in scenario.ask("/branch", OWNER, place)
        branch = scenario.send("on", OWNER, place).session
        assert branch != group
        assert f"Resumed session {group}" in scenario.ask(f"/resume {group}", OWNER, place)
        assert scenario.send("back", OWNER, place).session == group
    scenario.gateway.assert_sound()


def test_usage_in_a_group_is_that_of_the_session(scenario: RolesScenario) -> None:
    scenario.send("hello", MEMBER, SHARED)
    assert "You today" in scenario.ask("/usage", MEMBER, DIRECT)
    assert "You today" not in scenario.ask("/usage", MEMBER, SHARED)


# -- own and others' ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", PersonRole)
def test_a_person_in_a_shared_group_takes_back_own_notes_and_an_owner_all(
    scenario: RolesScenario, role: PersonRole
) -> None:
    scenario.send("/memory note ada drinks tea", OWNER, SHARED)
    others = scenario.ask("/memory forget drinks tea", role, SHARED)
    if role is OWNER:
        assert others.startswith("Taken back")
        return
    assert others.startswith("Taking back another person's note needs the role owner in this group.")
    assert f"Your role here is {role.label}" in others
    assert "drinks tea" in scenario.ask("/memory", OWNER, SHARED)
    if role is not STRANGER:
        scenario.send("/memory note I drink tea", role, SHARED)
        both = scenario.ask("/memory forget tea", role, SHARED)
        assert "- I drink tea" in both
        assert "- ada drinks tea" not in both
        assert "needs the role owner" in both
    assert "ada drinks tea" in scenario.ask("/memory", OWNER, SHARED)


def test_a_stranger_takes_back_a_note_of_their_own(scenario: RolesScenario) -> None:
    assert scenario.ask("/memory note I drink tea", STRANGER, OWN_SESSION) == "Noted."
    assert "- I drink tea" in scenario.ask("/memory forget tea", STRANGER, OWN_SESSION)


def hold_model(scenario: RolesScenario) -> None:
    scenario.gateway.runtimes.model = HeldModel()


class HeldModel(FakeModel):
    """Never answers."""

    async def answer(self, request: ModelRequest, **_: Any) -> ModelResponse:
        import asyncio

        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")


@pytest.mark.parametrize("role", PersonRole)
def test_a_turn_in_a_shared_group_is_stopped_by_its_asker_or_a_member(
    scenario: RolesScenario, role: PersonRole
) -> None:
    hold_model(scenario)
    session = scenario.send("take your time", STRANGER if role is not STRANGER else KNOWN, SHARED, rest=False).session
    scenario.gateway.pass_time()
    scenario.send("/stop", role, SHARED, rest=False)
    scenario.gateway.pass_time(3.0)
    stopped = scenario.gateway.run(scenario.gateway.store.get_session(session)).running == ""
    assert stopped is (role >= MEMBER)
    if not stopped:
        assert "Stopping another person's turn needs the role member" in scenario.gateway.list_shown_texts()[-1]
        scenario.send("/stop", STRANGER if role is not STRANGER else KNOWN, SHARED, rest=False)
        scenario.gateway.pass_time(3.0)
        assert scenario.gateway.run(scenario.gateway.store.get_session(session)).running == "", "the asker may"


def test_a_stranger_puts_only_own_messages_aside(scenario: RolesScenario) -> None:
    gateway = scenario.gateway
    gateway.runtimes.model.faults.fail_next(Overloaded("down", retry_after=600), times=9)
    session = scenario.send("a question", OWNER, SHARED, rest=False).session
    scenario.send("me, too", STRANGER, SHARED, rest=False)
    gateway.pass_time(5.0)
    before = len(gateway.list_shown_texts())
    scenario.send("/stop", STRANGER, SHARED, rest=False)
    gateway.pass_time(1.0)
    assert "1 waiting message put aside" in "".join(gateway.list_shown_texts()[before:])
    waiting = [entry.body.text for entry in gateway.run(gateway.store.list_pending(session)) if entry.body]  # type: ignore[union-attr]
    assert waiting == ["a question"]


# -- a role that was taken away ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["/undo", "/new", "/title Mine", "/schedule in 20m look"])
def test_a_command_is_refused_if_the_role_was_revoked_before_it_runs(scenario: RolesScenario, text: str) -> None:
    check_revoked(scenario, text)


def check_revoked(scenario: RolesScenario, text: str = "/title Mine") -> None:
    scenario.send("hello", OWNER, SHARED)
    before = len(scenario.gateway.list_shown_texts())
    scenario.change_config_after_admission("owners: [ada]", "owners: [kim]")
    verdict = scenario.send(text, OWNER, SHARED)
    assert scenario.gateway.read_bodies(verdict.session, Heard)[-1].role is OWNER
    (reply,) = scenario.gateway.list_shown_texts()[before:]
    assert f"{REFUSED} owner in this group. Your role here is member. Ask an owner (kim)" in reply
    assert scenario.gateway.run(scenario.gateway.store.get_session(verdict.session)).title == ""


def test_a_role_that_is_given_later_does_not_count_for_an_earlier_command(scenario: RolesScenario) -> None:
    scenario.send("hello", KNOWN, SHARED)
    scenario.change_config_after_admission("owners: [ada]", "owners: [ada, kim]")
    scenario.send("/new", KNOWN, SHARED)
    assert "Your role here is known" in scenario.gateway.list_shown_texts()[-1]
    assert "The context is empty now" in scenario.ask("/new", KNOWN, SHARED)


def test_a_turn_is_refused_if_its_sender_lost_access_before_it_runs(scenario: RolesScenario) -> None:
    gateway = scenario.gateway
    scenario.change_config_after_admission('direct: [ada, "fake:2"]', "direct: [ada]")
    verdict = scenario.send("hello", MEMBER, DIRECT)
    assert gateway.runtimes.model.requests == []
    (ended,) = gateway.read_bodies(verdict.session, Ended)
    assert (ended.outcome, ended.reason) == ("refused", execution.LOST_ACCESS_REASON)
    (shown,) = gateway.list_shown_texts()
    assert shown.startswith("I did not answer. You had access here when you wrote, and you no longer have it.")
    assert "Ask an owner (ada)" in shown
    gateway.assert_sound()


def test_a_command_is_refused_if_its_sender_lost_access_before_it_runs(scenario: RolesScenario) -> None:
    scenario.change_config_after_admission('direct: [ada, "fake:2"]', "direct: [ada]")
    shown = scenario.ask("/status", MEMBER, DIRECT)
    assert shown.startswith("/status needs the role member in this chat. You may no longer speak here.")


def test_a_background_task_is_refused_if_its_sender_lost_access_before_it_runs(scenario: RolesScenario) -> None:
    requested = TaskRequested(text="count", stamp=Stamp(person="fake:2", address="agent:main:fake:dm:2"))
    assert requested.role is MEMBER
    session = scenario.send("hello", MEMBER, DIRECT).session
    gateway = scenario.gateway
    asked = len(gateway.runtimes.model.requests)
    scenario.change_config('direct: [ada, "fake:2"]', "direct: [ada]")
    tell = gateway.read_bodies(session, Heard)[0].origin
    body = Changed(change=structs.replace(requested, tell=tell))
    draft, wakeup = EntryDraft(body=body, author="system"), Wakeup(consumer=TASKS)
    change = Change(step=Step.COMMAND, session=session, at=gateway.clock.now(), entries=(draft,), wakeups=(wakeup,))
    gateway.run(gateway.store.commit(change))
    gateway.run_until_idle(10.0)
    assert "no longer have it" in gateway.list_shown_texts()[-1]
    assert len(gateway.runtimes.model.requests) == asked


# -- tools -------------------------------------------------------------------------------------------------------------


class ScriptedTools:
    """A model that calls one tool whenever it is asked, and then answers with the result."""

    def __init__(self, scenario: RolesScenario) -> None:
        self.calls: list[ToolCall] = []
        add_memory_tools(scenario.gateway, notices=False, limits={"user": 5_000, "memory": 5_000})
        self.model = scenario.gateway.runtimes.model = FakeModel(self._answer)
        self.tool = FakeTool("files_delete", ToolEffect.ONCE)
        scenario.gateway.runtimes.tools |= {"files_delete": self.tool, "look": ReadingTool("look", ToolEffect.PURE)}

    def _answer(self, request: ModelRequest) -> ModelResponse:
        if request.messages[-1].role == "tool":
            return ModelResponse(text=request.messages[-1].text)
        return ModelResponse(calls=tuple(self.calls))

    def call(self, tool: str, **arguments: Any) -> None:
        self.calls = [ToolCall(id="1", tool=tool, arguments=arguments)]

    def count_runs(self) -> int:
        return self.tool.started.total()

    def offered(self) -> set[str]:
        return {spec.name for spec in self.model.requests[-1].tools}


class ReadingTool(FakeTool):
    access = ToolAccess.READ


def needed_for(access: ToolAccess, place: ChatPlace) -> PersonRole:
    cell = TOOL_ROLES[access][place]
    assert cell.role is not None
    return STRANGER if cell.below else cell.role


@pytest.mark.parametrize("place", [OWN_SESSION, SHARED])
@pytest.mark.parametrize("role", PersonRole)
def test_every_cell_of_the_table_of_tools_holds(scenario: RolesScenario, role: PersonRole, place: ChatPlace) -> None:
    tools = ScriptedTools(scenario)
    rows = {"files_delete": ToolAccess.ACT, "look": ToolAccess.READ, "memory": ToolAccess.NOTE}
    tools.call("files_delete", path="x")
    reply = scenario.ask("go on", role, place)
    for tool, access in rows.items():
        assert (tool in tools.offered()) is (role >= needed_for(access, place))
    session = scenario.send("/status", role, place).session
    if role >= MEMBER:
        assert tools.count_runs() == 1
    else:
        assert tools.count_runs() == 0
        assert "files_delete was not run: it needs the role member here" in reply
        assert f"is {role.label}" in reply
        assert not scenario.gateway.read_bodies(session, Called)
        assert scenario.gateway.read_bodies(session, Returned)[-1].error
    scenario.gateway.assert_sound()


@pytest.mark.parametrize("place", [OWN_SESSION, SHARED])
@pytest.mark.parametrize("role", PersonRole)
def test_a_note_of_a_stranger_is_material_and_no_fact(
    scenario: RolesScenario, role: PersonRole, place: ChatPlace
) -> None:
    tools = ScriptedTools(scenario)
    for tool in ("memory", "remember"):
        arguments = {"action": "add", "content": "The door code is 12"} if tool == "memory" else {"text": "Door: 12"}
        tools.call(tool, **arguments)
        session = scenario.send("the door code is 12", role, place).session
        note = scenario.gateway.read_bodies(session, Noted)[-1]
        assert bool(note.origin) is (role < KNOWN)
        assert bool(note.fact) is (tool == "memory" and role >= KNOWN)
        if role < KNOWN:
            assert note.origin == f"stranger:fake:{SENDERS[STRANGER]}"


@pytest.mark.parametrize("role", PersonRole)
@pytest.mark.parametrize("action", ["replace", "remove"])
def test_a_fact_is_changed_by_its_person_or_an_owner(scenario: RolesScenario, role: PersonRole, action: str) -> None:
    tools = ScriptedTools(scenario)

    def change(old: str, new: str, by: PersonRole) -> str:
        tools.call("memory", action=action, old_text=old, content=new)
        return scenario.ask(f"change it: {new}", by, SHARED)

    def add(text: str, by: PersonRole) -> None:
        tools.call("memory", action="add", content=text)
        scenario.send(text, by, SHARED)

    add("Kim likes tea", KNOWN)
    add("The owner likes coffee", OWNER)
    reply = change("owner likes coffee", "The owner likes milk", role)
    if role is OWNER:
        assert reply.startswith(("Replaced", "Removed"))
    else:
        assert "another person's fact needs the role owner" in reply
        assert "Nothing was changed" in reply
    if role is MEMBER:
        add("Zed likes soup", MEMBER)
        assert change("likes soup", "Zed likes bread", MEMBER).startswith(("Replaced", "Removed"))
    if role is KNOWN:
        assert "their own fact needs the role member" in change("Kim likes tea", "Kim likes milk", KNOWN)


def test_a_turn_has_the_rights_of_the_least_trusted_whose_words_it_takes(scenario: RolesScenario) -> None:
    tools = ScriptedTools(scenario)
    hold = HeldModel()
    scenario.gateway.runtimes.model = hold
    scenario.send("first", OWNER, SHARED, rest=False)
    scenario.gateway.pass_time()
    scenario.send("delete the files", OWNER, SHARED, rest=False)
    scenario.send("yes, delete them", STRANGER, SHARED, rest=False)
    scenario.gateway.runtimes.model = tools.model
    tools.call("files_delete", path="x")
    scenario.send("/stop", OWNER, SHARED)
    assert tools.count_runs() == 0
    assert "is stranger" in scenario.gateway.list_shown_texts()[-1]
    scenario.send("delete the files", OWNER, SHARED)
    assert tools.count_runs() == 1, "the owner alone may"


def test_words_that_steer_a_turn_lower_its_rights(scenario: RolesScenario) -> None:
    tools = ScriptedTools(scenario)
    tools.call("files_delete", path="x")

    def answer(request: ModelRequest) -> ModelResponse:
        results = [message for message in request.messages if message.role == "tool"]
        if len(results) == 2:
            return ModelResponse(text=results[-1].text)
        if not results:
            scenario_steer()
        return ModelResponse(calls=(ToolCall(id=str(len(results)), tool="files_delete", arguments={}),))

    def scenario_steer() -> None:
        import asyncio

        process = scenario.gateway.process
        assert process is not None
        message = scenario.gateway.make_message(
            "/steer now all of them", chat="shared", who=SENDERS[STRANGER], kind="group"
        )
        steering.append(asyncio.get_running_loop().create_task(process.accept(message)))

    steering: list[Any] = []
    scenario.gateway.runtimes.model = FakeModel(answer)
    scenario.send("delete one file", OWNER, SHARED)
    assert steering
    assert tools.count_runs() == 1, "only before the stranger's words"
    assert "is stranger" in scenario.gateway.list_shown_texts()[-1]


def test_a_tool_needs_what_the_configuration_asks_for(scenario: RolesScenario) -> None:
    tools = ScriptedTools(scenario)
    scenario.gateway.runtimes.settings["tool_needs"] = {"look": OWNER}
    tools.call("look")
    assert "look was not run: it needs the role owner here" in scenario.ask("look", MEMBER, DIRECT)
    assert "look" not in tools.offered()
    assert "was not run" not in scenario.ask("look", OWNER, DIRECT)


# -- planted bugs ------------------------------------------------------------------------------------------------------


def test_planted_bug_a_role_that_is_not_checked_again(scenario: RolesScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stamped(_source: object, entry: Any) -> RoleStanding:
        return RoleStanding(role=entry.body.role)

    monkeypatch.setattr(commands_worker, "find_entry_role", stamped)
    with pytest.raises(AssertionError):
        check_revoked(scenario)


@pytest.mark.parametrize("action", ["new", "memory note", "wake", "title --memory"])
def test_planted_bug_a_cell_that_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    def lenient(command: Any) -> Any:
        return COMMAND_ROLES["help"] if name_action(command) == action else get_command_roles(command)

    monkeypatch.setattr(commands_worker, "get_command_roles", lenient)
    with pytest.raises(AssertionError):
        check_commands(tmp_path, STRANGER, SHARED)


def test_planted_bug_sessions_that_show_private_titles(
    scenario: RolesScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def everything(*_: object, **__: object) -> SessionFit:
        return SessionFit.SAME

    monkeypatch.setattr(session_access, "compare_audience", everything)
    with pytest.raises(AssertionError):
        check_sessions(scenario, OWNER, SHARED)


def test_planted_bug_a_direct_chat_that_is_resumed_in_a_group(
    scenario: RolesScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def everything(*_: object, **__: object) -> SessionFit:
        return SessionFit.SAME

    monkeypatch.setattr(session_access, "compare_audience", everything)
    with pytest.raises(AssertionError):
        check_resume(scenario, SHARED)


def test_planted_bug_tools_for_everybody(scenario: RolesScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "list_role_refusals", lambda *_: {})
    with pytest.raises(AssertionError):
        test_every_cell_of_the_table_of_tools_holds(scenario, STRANGER, SHARED)
