"""Facts kept by compression, compared with hermes-agent's compressor; the same model writes both summaries."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.gateway import hermes_python
from bench.in_process import temporary_directory
from bench.table import Row, at_least
from everhold.core.compression import SUMMARY_PROMPT, estimate_message_tokens
from everhold.evals.conversation import EvalConversation, load_bundled_conversations
from everhold.evals.runner import KEPT_EXCHANGES, score_conversation
from everhold.evals.score import CompressionScore, has_answer, normalize_text
from everhold.models.offline import OfflineModel
from everhold.ports.model import ModelMessage, ModelRequest

ROOT = Path(__file__).parent.parent
COMPRESSIONS = (1, 3)
_PARTS = re.compile(
    r"(?:PREVIOUS SUMMARY:\n(?P<before>.*?)\n\nNEW TURNS TO INCORPORATE:\n|TURNS TO SUMMARIZE:\n)"
    r"(?P<turns>.*?)\n\n(?:Use this exact structure|Update the summary using)",
    re.DOTALL,
)
_ROLES = {"[USER]:": "user:", "[ASSISTANT]:": "assistant:"}


def summary_rows(rounds: int) -> list[Row]:
    """The result is deterministic, so one round is enough."""
    conversations = load_bundled_conversations()
    theirs = peer(conversations)
    rows = []
    for count in COMPRESSIONS:
        ours = [score_conversation(one, OfflineModel(), compressions=count) for one in conversations]
        assert all(score.is_sound for score in ours)
        facts = sum(len(score.outcomes) for score in ours)
        kept = sum(score.count_outcomes("kept") for score in ours) / facts
        other = sum(found for found, _ in theirs[count]) / facts
        rows.append(
            at_least(
                f"facts kept after {count} compression{'s' if count > 1 else ''}, {facts} asked for",
                kept * 100,
                "%",
                1.0,
                beside=f"hermes-agent 0.19.0 {other:.0%}",
                ratio=kept / other,
            )
        )
        rows.append(_size(ours, theirs[count], count))
    return rows


def _size(ours: list[CompressionScore], theirs: list[tuple[int, int]], count: int) -> Row:
    before = sum(score.tokens_before for score in ours)
    left, other = sum(score.tokens_after for score in ours) / before, sum(size for _, size in theirs) / before
    return Row(
        what=f"size left after {count} compression{'s' if count > 1 else ''}",
        value=left * 100,
        unit="%",
        beside=f"hermes-agent 0.19.0 {other:.0%}",
        ratio=left / other,
    )


# -- the peer ----------------------------------------------------------------------------------------------------------


def peer(conversations: list[EvalConversation]) -> dict[int, list[tuple[int, int]]]:
    """For each number of count, what its compressor leaves of each conversation: facts, and tokens."""
    python = hermes_python()
    jobs = [_job(one, count) for count in COMPRESSIONS for one in conversations]
    with temporary_directory() as directory, _stub() as url:
        asked = {"url": url, "home": str(directory / "home"), "conversations": jobs}
        done = subprocess.run(
            [python, ROOT / "bench" / "peer_compressor.py"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"hermes-agent fell: {done.stderr[-2000:]}")
    left: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    found = [_judge(one, kept) for one, kept in zip([*conversations] * len(COMPRESSIONS), left, strict=True)]
    size = len(conversations)
    return {count: found[n * size : (n + 1) * size] for n, count in enumerate(COMPRESSIONS)}


def _job(conversation: EvalConversation, count: int) -> dict[str, Any]:
    """Split the conversation into segments that are compressed one after another, with everhold's tail."""
    turns = [_messages(turn, n) for n, turn in enumerate(conversation.turns)]
    cuts = [0, *(KEPT_EXCHANGES + round((len(turns) - KEPT_EXCHANGES) * n / count) for n in range(1, count + 1))]
    segments = [[m for turn in turns[a:b] for m in turn] for a, b in itertools.pairwise(cuts)]
    tail = [m for turn in turns[-KEPT_EXCHANGES:] for m in turn]
    return {
        "segments": segments,
        "tail_messages": len(tail),
        "tail_tokens": estimate_message_tokens(
            tuple(ModelMessage(role="user", text=str(m.get("content", ""))) for m in tail)
        ),
    }


def _messages(turn: Any, number: int) -> list[dict[str, Any]]:
    """Return a turn in hermes-agent's message format."""
    out: list[dict[str, Any]] = [{"role": "user", "content": f"{turn.who}: {turn.text}"}]
    if turn.acts:
        calls = [
            {
                "id": f"c{number}-{n}",
                "type": "function",
                "function": {"name": act.tool, "arguments": json.dumps(act.arguments, ensure_ascii=False)},
            }
            for n, act in enumerate(turn.acts)
        ]
        out.append({"role": "assistant", "content": "", "tool_calls": calls})
        out += [
            {"role": "tool", "tool_call_id": f"c{number}-{n}", "content": act.result} for n, act in enumerate(turn.acts)
        ]
    out.append({"role": "assistant", "content": turn.reply})
    return out


def _judge(conversation: EvalConversation, left: list[dict[str, Any]]) -> tuple[int, int]:
    texts = [f"{m.get('content') or ''} {json.dumps(m.get('tool_calls', ''), ensure_ascii=False)}" for m in left]
    shown = normalize_text("\n".join(texts))
    kept = sum(has_answer(shown, question.answers) for question in conversation.questions)
    return kept, estimate_message_tokens(
        tuple(ModelMessage(role="user", text=str(m.get("content") or "")) for m in left)
    )


# -- the model for both ------------------------------------------------------------------------------------------------


@contextmanager
def _stub() -> Iterator[str]:
    """Serve the offline model with a vendor's protocol. It receives only the turns to be summarised."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._say({"object": "list", "data": [{"id": "stub", "object": "model", "context_length": 131072}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = summed(str(body["messages"][-1]["content"]))
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self._say(
                {
                    "id": "c",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "stub",
                    "choices": [choice],
                    "usage": usage,
                }
            )

        def _say(self, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def summed(prompt: str) -> str:
    """Convert the turns of hermes-agent's prompt to everhold's format, and return the offline model's summary."""
    match = _PARTS.search(prompt)
    if match is None:
        raise ValueError(f"the prompt has an unknown format: {prompt[:200]!r}")
    turns = match["turns"]
    for theirs, ours in _ROLES.items():
        turns = turns.replace(theirs, ours)
    turns = re.sub(r"\[TOOL RESULT [^\]]*\]:", "tool:", turns)
    # a user's line names the speaker, so `user: Mara: …` becomes `Mara: …`
    turns = re.sub(r"^user: (?=[^:\n]{1,40}: )", "", turns, flags=re.MULTILINE)
    before = f"everhold: [Summary of the conversation so far]\n{match['before']}\n" if match["before"] else ""
    request = ModelRequest(system=SUMMARY_PROMPT, messages=(ModelMessage(role="user", text=before + turns),))
    return asyncio.run(OfflineModel().answer(request)).text


if __name__ == "__main__":
    from bench.table import render

    print(render(summary_rows(1)))
