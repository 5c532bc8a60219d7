"""Runs in hermes-agent's own venv: its compressor over conversations from standard input, as it ships.

In: {"url", "home", "conversations": [{"segments": [[message, ...], ...], "tail_tokens", "tail_messages"}]}
Out: one JSON list of final message lists. Its summary calls go to `url` and nowhere else.
"""

import json
import logging
import os
import sys
from pathlib import Path

given = json.load(sys.stdin)
home = Path(given["home"])
home.mkdir(parents=True, exist_ok=True)
(home / "config.yaml").write_text(
    f"""model: {{default: stub, provider: custom, base_url: "{given["url"]}", api_key: stub, context_length: 131072}}
auxiliary:
  compression: {{provider: custom, model: stub, base_url: "{given["url"]}", api_key: stub, context_length: 131072}}
"""
)
os.environ.update(HERMES_HOME=str(home), HOME=str(home), HERMES_DISABLE_LAZY_DEPS="1", NO_PROXY="*")
os.chdir(home)
logging.disable(logging.CRITICAL)

from agent.context_compressor import ContextCompressor  # noqa: E402  # its settings are read on import

results = []
for conversation in given["conversations"]:
    compressor = ContextCompressor(
        model="stub",
        base_url=given["url"],
        api_key="stub",
        provider="custom",
        config_context_length=131072,
        quiet_mode=True,
        protect_last_n=conversation["tail_messages"],
    )
    compressor.tail_token_budget = conversation["tail_tokens"]
    messages = []
    for segment in conversation["segments"]:
        messages = compressor.compress([*messages, *segment], current_tokens=100_000, force=True)
    results.append(messages)
sys.stdout.write("\n" + json.dumps(results) + "\n")
