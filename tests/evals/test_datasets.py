"""Conversations from other sources: exports of everhold, and public datasets in their own formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everhold.admin.sessions import render_entry
from everhold.core.entries import ToolCall
from everhold.errors import InvalidRequest, NotFound
from everhold.evals.datasets import read_conversations
from everhold.evals.runner import score_conversation
from everhold.models.offline import OfflineModel
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.tool import ToolEffect, ToolResult
from everhold.testing.fakes import FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway


def test_an_export_is_replayed_with_its_tools_and_asked_for_its_numbers(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role == "user" and last.text.startswith("book"):
            return ModelResponse(calls=(ToolCall(id="c", tool="book", arguments={"room": 12}),))
        return ModelResponse(text="all right, and so it goes on for a while")

    gateway = InProcessGateway(tmp_path)
    gateway.runtimes.model = FakeModel(answer)
    gateway.runtimes.tools = {
        "book": FakeTool("book", ToolEffect.ONCE, act=lambda *_: ToolResult(text="booked, slip 90210"))
    }
    with gateway.run_started():
        session = gateway.send_message("The code of the side door is 4711 since yesterday.").session
        gateway.send_message("book the room, please, for 16 people")
        for n in range(6):
            gateway.send_message(f"Somebody talked about the weather for a while, number {n + 100} of many such talks.")
        gateway.send_message("/title not a turn")
        lines = [json.dumps({"session": session, **render_entry(entry)}) for entry in gateway.read_log(session)]
    export = tmp_path / "session.jsonl"
    export.write_text("\n".join(lines) + "\n")
    (conversation,) = read_conversations(export)
    assert [turn.text[:8] for turn in conversation.turns[:2]] == ["The code", "book the"]
    assert conversation.turns[1].tool_calls[0].result == "booked, slip 90210"
    assert conversation.turns[1].tool_calls[0].changes
    assert len(conversation.turns) == 8
    asked = {question.answers[0]: question.ask for question in conversation.questions}
    assert asked["4711"] == "The code of the side door is since yesterday."
    score = score_conversation(conversation, OfflineModel(), compressions=1)
    assert score.is_sound
    assert score.count_outcomes("logged") == len(score.outcomes) == 8


def test_dialogues_with_literal_answers_are_parsed(tmp_path: Path) -> None:
    talk = {
        "speaker_a": "Kim",
        "speaker_b": "Lou",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Kim", "dia_id": "D1:1", "text": "I adopted a beagle."},
            {"speaker": "Lou", "dia_id": "D1:2", "text": "Lovely!"},
        ],
        "session_2": [{"speaker": "Lou", "dia_id": "D2:1", "text": "I moved to Oslo."}],
    }
    qa = [
        {"question": "What did Kim adopt?", "answer": "a beagle", "category": 4, "evidence": ["D1:1"]},
        {"question": "When?", "answer": "7 May 2023", "category": 2, "evidence": ["D1:1"]},
        {"question": "Nothing?", "category": 5, "evidence": []},
    ]
    (tmp_path / "talks.json").write_text(json.dumps([{"sample_id": "s1", "conversation": talk, "qa": qa}]))
    (conversation,) = read_conversations(tmp_path)
    assert [(turn.who, turn.text, turn.reply) for turn in conversation.turns] == [
        ("Kim", "I adopted a beagle.", "Lovely!"),
        ("Lou", "I moved to Oslo.", ""),
    ]
    assert [question.ask for question in conversation.questions] == ["What did Kim adopt?"]


def test_chats_with_separate_probes_are_parsed(tmp_path: Path) -> None:
    chat = [
        {
            "batch_number": 1,
            "turns": [
                [
                    {"role": "user", "id": 0, "content": "I use port 8080. ->-> 1,1"},
                    {"role": "assistant", "id": 1, "content": "Good."},
                ]
            ],
        }
    ]
    probes = {
        "information_extraction": [{"question": "Which port?", "answer": "8080"}, {"question": "Who?", "answer": "Zoe"}]
    }
    (tmp_path / "7" / "probing_questions").mkdir(parents=True)
    (tmp_path / "7" / "chat.json").write_text(json.dumps(chat))
    (tmp_path / "7" / "probing_questions" / "probing_questions.json").write_text(json.dumps(probes))
    (conversation,) = read_conversations(tmp_path)
    assert conversation.turns[0].text == "I use port 8080."
    assert [question.ask for question in conversation.questions] == ["Which port?"]


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("> nobody speaks", "line 1: expected a speaker"),
        ("< a reply to nothing", "line 1: there is no message before"),
        ("> Ada: hi\n! tool = nothing", "line 2: expected a tool"),
        ("> Ada: hi\n? what is it", "line 2: expected a kind"),
        ("> Ada: hi\ncolour: red", "line 2: 'colour' is not a known key"),
        ("", "holds no conversation"),
    ],
)
def test_an_error_in_a_file_names_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "mine.txt").write_text(text)
    with pytest.raises(InvalidRequest, match=complaint):
        read_conversations(tmp_path / "mine.txt")


def test_a_missing_or_empty_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no"):
        read_conversations(tmp_path / "gone")
    with pytest.raises(InvalidRequest, match="holds no conversations"):
        read_conversations(tmp_path)
