"""Run a memory plug-in of hermes-agent with hermes-agent's loader, manager and calls around a turn.

Runs in its own venv, without everhold: `peer_memory.py HOME NAME`. Each line on stdin is a turn. An empty line stops
the plug-in as the gateway does. The script reports each finished step on stdout.
"""

import logging
import os
import sys
from pathlib import Path

home, name = Path(sys.argv[1]), sys.argv[2]
REPLY = "Certainly. That is how it was done before, and how it should be done again."
SESSION, KEY = "20260101_120000_abcdef01", "agent:main:telegram:dm:42"
for variable in list(os.environ):
    if variable.startswith(("HERMES_", "HONCHO_", "HINDSIGHT_")):
        del os.environ[variable]
os.environ |= {"HOME": str(home), "HERMES_HOME": str(home), "HERMES_DISABLE_LAZY_DEPS": "1", "NO_PROXY": "*"}
os.chdir(home)
logging.disable(logging.CRITICAL)

import tools.lazy_deps  # noqa: E402
from agent.memory_manager import MemoryManager  # noqa: E402
from plugins.memory import load_memory_provider  # noqa: E402

tools.lazy_deps.ensure = lambda *_args, **_options: None
told, sys.stdout = sys.stdout, sys.stderr
provider = load_memory_provider(name)
assert provider is not None, f"there is no {name}"
assert provider.is_available(), f"{name} cannot be used"
manager = MemoryManager()
manager.add_provider(provider)
manager.initialize_all(
    SESSION,
    hermes_home=str(home),
    platform="telegram",
    agent_context="primary",
    user_id="ada",
    user_name="ada",
    chat_id="42",
    chat_type="dm",
    gateway_session_key=KEY,
    agent_identity="main",
    agent_workspace="hermes",
)
print("ready", file=told, flush=True)
messages: list[dict[str, str]] = []
for number, line in enumerate(sys.stdin, start=1):
    text = line.rstrip("\n")
    if not text:
        # as its gateway stops: the session ends, then the provider is shut down
        manager.on_session_end(messages)
        manager.shutdown_all()
        print("left", file=told, flush=True)
        break
    manager.on_turn_start(number, text)
    manager.prefetch_all(text)
    messages += [{"role": "user", "content": text}, {"role": "assistant", "content": REPLY}]
    manager.sync_all(text, REPLY, session_id=SESSION, messages=list(messages))
    manager.queue_prefetch_all(text, session_id=SESSION)
    print("turn", file=told, flush=True)
