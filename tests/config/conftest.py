"""A home, a sample configuration with every section, and a logger that records events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everhold.infra.home import Home

SAMPLE = """\
# The sample
store: sqlite                            # a file in the home
timezone: Europe/Berlin
http: {host: 127.0.0.1, port: 8765, tokens: [{name: me, token_env: EVERHOLD_TOKEN, person: ada, role: operator}]}
models:
  big: {provider: openai, base_url: https://models.example/v1, name: large, api_key_env: OPENAI_API_KEY,
        context_tokens: 128000,
        price: {input: 2.5, cached: 1.25, output: 10}}     # USD per million
defaults:                                # merged under every agent; lists replace
  model: big
  fallback: []
  memories: [builtin]
  recall: {deadline_seconds: 0.8, max_tokens: 1700}
  busy: queue                            # queue | steer | interrupt
  compression: {soft: 0.6, hard: 0.85, keep_exchanges: 6, in_background: true, model: big}
  sessions: {group: per-person, thread: shared}
  budget: {usd_per_day: 5, per_person: {usd_per_day: 1}, background: {usd_per_day: 1}}
  tools: [memory, session_search, "mcp:time"]
agents:
  main: {persona: SOUL.md}               # a file, or text
  coder:
    persona: You write code.
    memories: [builtin, {name: honcho, ai_peer: coder}]    # inline keys override the instance
    send_to: ["agent:main"]
memories:
  honcho: {base_url: "https://memory.example", api_key_env: HONCHO_API_KEY, workspace: home, ai_peer: "{agent}",
           peer_name: ada, pin_peer_name: false, user_peer_aliases: {}, session_strategy: per-directory,
           naming: everhold, write: turn, in_doubt: resend}  # naming: everhold | hermes
  work: {provider: honcho, workspace: work}
  hindsight: {base_url: "https://bank.example", bank: "{agent}", retain_every_n_turns: 1}
platforms:                               # platform -> account -> settings
  telegram:
    coder: {token_env: TELEGRAM_CODER_TOKEN, agent: coder, enabled: true, in_doubt: resend,   # resend | hold
            access: {direct: [ada], groups: {"-100123": [ada, bob]}}, groups: {answer: mentioned, observe: false},
            chats: {"-100123": {agent: main, sessions: {group: shared}}}, base_url: null}
  slack: {work: {bot_token_env: SLACK_BOT, app_token_env: SLACK_APP, agent: main}}
  matrix: {home: {homeserver: "https://m.example", user: "@e:m.example", token_env: MATRIX_TOKEN, agent: main}}
people:
  - {name: ada, identities: ["telegram:1001", "discord:2002"]}
access: {owners: [ada], pairing: true}
mcp: {time: {command: [mcp-server-time], effects: {get_current_time: pure}}}
loops: {max_hops: 8, halt_word: "!halt"}
backup: {every_hours: 24, keep: 7}
# the end
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


@pytest.fixture
def sample() -> str:
    return SAMPLE


class RecordingLogger:
    """Records the events that it gets."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def debug(self, event: str, /, **fields: object) -> None:
        self.lines.append((event, fields))

    info = warning = error = debug

    def bind(self, **fields: object) -> RecordingLogger:
        return self

    @property
    def event_names(self) -> list[str]:
        return [event for event, _ in self.lines]


@pytest.fixture
def logger() -> RecordingLogger:
    return RecordingLogger()
