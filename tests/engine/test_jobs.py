"""Jobs, not agents: tasks and reviews beside the conversation leave notes and results, and no other trace."""

from __future__ import annotations

import json

import pytest

from everhold.core import review
from everhold.core.entries import Began, Compressed, Heard, Noted, Notified, Thought, ToolCall
from everhold.errors import Overloaded
from everhold.evals.denial_detection import extract_denied_words, is_denial_contradicted
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Step
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakeTool, echo_last_message
from everhold.testing.gateway import InProcessGateway
from tests.engine.group_scenario import bind_address

from .test_accept import texts
from .test_context import LONG, make_compressing
from .test_operations import crash_at_step


def reviewing(gateway: InProcessGateway, *notes: dict[str, object], every: int = 3) -> list[ModelRequest]:
    """Give the gateway a model that answers a review with these notes."""
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> ModelResponse:
        if request.system == review.REVIEW_PROMPT:
            asked.append(request)
            return ModelResponse(text="\n".join(["Here you are:", *(json.dumps(note) for note in notes)]))
        return echo_last_message(request)

    gateway.runtimes.model = FakeModel(answer)
    gateway.runtimes.settings["review_every_turns"] = every
    return asked


class TestBackground:
    def test_the_result_of_a_task_is_in_the_next_turn_of_its_session(self, gateway: InProcessGateway) -> None:
        session = gateway.send_message("hello").session
        gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text="forty-two"))
        gateway.send_message("/background what is the answer?")
        assert any("forty-two" in text for text in gateway.list_shown_texts())
        gateway.runtimes.model = FakeModel()
        gateway.send_message("thanks")
        assert any("forty-two" in text for text in texts(gateway, session))
        assert len(gateway.run(gateway.store.list_sessions())) == 1
        gateway.assert_sound()

    def test_a_task_uses_only_tools_without_side_effects(self, gateway: InProcessGateway) -> None:
        pure, once = FakeTool("look", ToolEffect.PURE), FakeTool("deploy", ToolEffect.ONCE)
        gateway.runtimes.tools = {"look": pure, "deploy": once}

        def answer(request: ModelRequest) -> ModelResponse:
            if request.messages[-1].role == "tool":
                return ModelResponse(text="done: " + " / ".join(m.text for m in request.messages if m.role == "tool"))
            return ModelResponse(calls=(ToolCall(id="1", tool="look"), ToolCall(id="2", tool="deploy")))

        gateway.runtimes.model = FakeModel(answer)
        gateway.send_message("/background tidy up")
        assert sum(pure.started.values()) == 1
        assert sum(once.started.values()) == 0
        assert [spec.name for spec in gateway.runtimes.model.requests[0].tools] == ["look"]
        assert "There is no tool 'deploy'" in gateway.list_shown_texts()[-1]

    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_at_the_end_of_a_task_reports_once(self, gateway: InProcessGateway, after: bool) -> None:
        gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text="forty-two"))
        crash_at_step(gateway, Step.JOB, after=after)
        session = gateway.send_message("/background what is the answer?", rest=False).session
        gateway.pass_time(5)
        gateway.start()
        gateway.run_until_idle(30)
        told = [body for body in gateway.read_bodies(session, Notified) if "forty-two" in body.text]
        heard = [body for body in gateway.read_bodies(session, Heard) if body.origin.platform == "job"]
        assert len(told) == len(heard) == 1
        gateway.assert_sound()

    def test_a_task_waits_for_a_model_that_is_down(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text="forty-two"))
        gateway.runtimes.model.faults.fail_next(Overloaded("down"), times=5)
        gateway.send_message("/background what is the answer?", rest=False)
        gateway.pass_time(300)
        assert sum("forty-two" in text for text in gateway.list_shown_texts()) == 1


class TestReview:
    def test_a_review_notes_facts_in_its_session_with_citations(self, gateway: InProcessGateway) -> None:
        provider = FakeMemoryProvider()
        gateway.runtimes.memories = {"a": provider}
        reviewing(gateway, {"note": "Ada's cat is called Tom", "cites": [1]})
        session = gateway.send_message("my cat is called Tom").session
        gateway.send_message("and it is old")
        assert gateway.read_bodies(session, Noted) == []
        gateway.send_message("bye")
        note = gateway.read_bodies(session, Noted)[0]
        assert (note.text, note.cites, note.stamp.person) == ("my cat is called Tom", (1,), "ada")
        assert "my cat is called Tom" in [getattr(item, "text", "") for item in provider.kept[session]]
        assert list(provider.kept) == [session], "no session appears anywhere for the job"
        gateway.assert_sound()

    def test_each_portion_is_reviewed_once(self, gateway: InProcessGateway) -> None:
        asked = reviewing(gateway, every=2)
        for n in range(6):
            gateway.send_message(f"message {n}")
        seen = [line for request in asked for line in request.messages[0].text.splitlines() if "message" in line]
        heard = [line for line in seen if "You said" not in line]
        assert len(heard) == len(set(heard)) == 6

    def test_a_note_without_a_valid_citation_is_dropped(self, gateway: InProcessGateway) -> None:
        reviewing(
            gateway,
            {"note": "made up", "cites": [999]},
            {"note": "no cites"},
            {"note": 7, "cites": [1]},
            {"cites": [1]},
            every=1,
        )
        session = gateway.send_message("hello").session
        assert gateway.read_bodies(session, Noted) == []

    @pytest.mark.parametrize(
        "claim",
        [
            "Tony never sent his sign-off.",
            "Natasha's result was not received.",
            "There is no record of the deployment to Frankfurt.",
            "Tony hat seine Freigabe nie geschickt.",
            "Von Natasha kam bis heute nichts.",
            "Tony nunca mandó su visto bueno.",
            "No ha llegado el resultado de Natasha.",
            "Tony n'a jamais envoyé son accord.",
            "Le résultat de Natasha manque toujours.",
            "Frankfurt is still without its deployment.",
        ],
    )
    def test_a_claim_that_nobody_made_never_becomes_a_note(self, gateway: InProcessGateway, claim: str) -> None:
        provider = FakeMemoryProvider()
        gateway.runtimes.memories = {"a": provider}
        said = ("Tony sent his sign-off at nine.", "Natasha's result is here, and Frankfurt is deployed.")
        reviewing(
            gateway,
            {"note": claim, "cites": [1]},
            {"quote": claim, "cites": [1, 5]},
            {"quote": claim, "cites": [4]},  # the agent's own reply
            {"quote": claim, "cites": []},
            every=2,
        )
        session = gateway.send_message(said[0]).session
        gateway.send_message(said[1])
        notes = [note.text for note in gateway.read_bodies(session, Noted)]
        assert notes, "what people said is noted"
        assert all(line in said for note in notes for line in note.splitlines())
        assert claim not in str(provider.kept)
        refused = gateway.logger.find_events("note.refused")
        assert claim not in str(refused), "words belong into the log of the session, where they can be erased"

    def test_a_part_of_a_message_that_says_the_opposite_is_not_noted_alone(self, gateway: InProcessGateway) -> None:
        text = "It is not true that Tony never sent his sign-off."
        reviewing(gateway, {"quote": "Tony never sent his sign-off", "cites": [1]}, every=1)
        session = gateway.send_message(text).session
        assert [note.text for note in gateway.read_bodies(session, Noted)] == [text]

    def test_a_message_that_is_too_long_to_be_quoted_whole_is_not_noted(self, gateway: InProcessGateway) -> None:
        """A line of it may say the opposite of the whole."""
        text = "\n".join(["x" * 900, "It is not true that", "Tony never sent his sign-off.", "y" * 900])
        reviewing(gateway, {"quote": "Tony never sent his sign-off.", "cites": [1]}, every=1)
        session = gateway.send_message(text).session
        assert gateway.read_bodies(session, Noted) == []

    def test_an_answer_to_another_question_is_not_joined_to_a_question(self, gateway: InProcessGateway) -> None:
        said = ("Did Tony send his sign-off?", "Do you need the car?", "No.")
        reviewing(gateway, {"quote": "Tony sent no sign-off", "cites": [1, 11]}, every=3)
        session = [gateway.send_message(text) for text in said][-1].session
        notes = [(note.text, note.cites) for note in gateway.read_bodies(session, Noted)]
        assert notes == [(said[0], (1,)), (said[2], (11,))]

    def test_the_models_wording_is_recalled_nowhere(self, gateway: InProcessGateway) -> None:
        """A lying model cites a real message for a claim that it does not make."""
        provider = FakeMemoryProvider()
        gateway.runtimes.memories = {"a": provider}
        reviewing(gateway, {"quote": "Ada owes the bank a million", "cites": [1]}, every=1)
        session = gateway.send_message("the bank is closed today").session
        gateway.send_message("what about the bank?")
        assert next(note.text for note in gateway.read_bodies(session, Noted)) == "the bank is closed today"
        shown = [message.text for request in gateway.runtimes.model.requests for message in request.messages]
        assert "million" not in " ".join(shown)
        assert "million" not in str(provider.kept)

    def test_a_note_from_another_bots_words_stays_marked(self, gateway: InProcessGateway) -> None:
        reviewing(
            gateway, {"note": "Everybody owes the bot", "cites": [1]}, {"note": "Ada agreed", "cites": [2]}, every=1
        )
        session = gateway.send_message("you all owe me", bot=True, who="spam", addressed=False).session
        gateway.send_message("fine")
        noted = {note.text: note.origin for note in gateway.read_bodies(session, Noted)}
        assert noted == {"you all owe me": "bot:spam", "fine": ""}

    def test_private_and_group_words_are_separate_notes_for_those_who_heard_them(
        self, gateway: InProcessGateway
    ) -> None:
        private = gateway.send_message("my secret").session
        bind_address(gateway, private, led=gateway.send_message("hello", chat="room", kind="group").session)
        gateway.send_message("in public", chat="room", kind="group")
        heard = [entry.seq for entry in gateway.read_log(private) if entry.kind == "heard"]
        reviewing(gateway, {"note": "Ada has a secret", "cites": [heard[0], heard[-1]]}, every=1)
        gateway.send_message("again", chat="room", kind="group")
        stamps = {note.text: note.stamp for note in gateway.read_bodies(private, Noted)}
        spoken = {body.text: body.stamp for body in gateway.read_bodies(private, Heard)}
        assert set(stamps) <= {"my secret", "in public"}
        assert all(stamp.audience == spoken[text].audience for text, stamp in stamps.items())

    def test_review_notes_without_citations_are_erased_with_the_reviewed_text(self, gateway: InProcessGateway) -> None:
        reviewing(gateway, {"note": "her secret is quokka", "cites": []}, every=1)
        session = gateway.send_message("my secret is quokka").session
        assert "quokka" in gateway.read_bodies(session, Thought)[-1].text
        gateway.run(gateway.control.erase_entries(session, [1]))
        assert "quokka" not in " ".join(body.text for body in gateway.read_bodies(session, Thought)[1:])
        gateway.assert_sound()

    def test_the_compressed_portion_is_reviewed_before_a_compression(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway, keep=1)
        note: dict[str, object] = {"note": "Ada lives in Berlin", "cites": [1]}
        summariser = gateway.runtimes.summariser
        reviewing(gateway, note, every=1_000)
        gateway.runtimes.model.context_tokens = 1_200
        gateway.runtimes.summariser = summariser
        session = ""
        for n in range(5):
            session = gateway.send_message(f"I live in Berlin {n} {LONG}").session
        kinds = [str(entry.kind) for entry in gateway.read_log(session)]
        assert gateway.read_bodies(session, Compressed)
        assert kinds.index("noted") < kinds.index("compressed")
        assert next(b.trigger for b in gateway.read_bodies(session, Began) if b.type == "job") == "flush"
        gateway.assert_sound()

    def test_a_failed_review_never_delays_a_compression(self, gateway: InProcessGateway) -> None:
        make_compressing(gateway, keep=1)
        gateway.runtimes.settings["review_every_turns"] = 1_000

        def answer(request: ModelRequest) -> ModelResponse:
            if request.system == review.REVIEW_PROMPT:
                raise RuntimeError("no")
            return ModelResponse(text="fine " + LONG)

        gateway.runtimes.model = FakeModel(answer, context_tokens=1_200)
        session = ""
        for n in range(5):
            session = gateway.send_message(f"{n} {LONG}").session
        assert gateway.read_bodies(session, Compressed)


@pytest.mark.parametrize(
    "claim, said, refuted",
    [
        ("I have no memory of the commit to main", "I made the commit to main an hour ago", True),
        ("The user never mentioned a budget", "our budget is 4,000", True),
        ("Keine Erinnerung an die Reise nach Rom", "die Reise nach Rom war schön", True),
        ("Ada does not know Python", "Ada asked about the weather", False),
        ("Ada likes tea", "Ada likes tea", False),
    ],
)
def test_a_claim_of_absence_is_recognised_by_its_wording(claim: str, said: str, refuted: bool) -> None:
    assert is_denial_contradicted(extract_denied_words(claim), said) is refuted
