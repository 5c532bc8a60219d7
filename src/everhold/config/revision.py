"""Digests of the configuration in force. Equal configurations have equal digests. A digest reveals no secret."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from everhold.config.settings import AgentSettings, ModelSettings, Settings
from everhold.config.values import ConfigSection
from everhold.infra.secret import SecretString

REVISION_CHARS: Final = 12
_IGNORED_FIELDS: Final = frozenset(
    {
        "revision",
        "signatures",
        "model_signatures",
        "problems",
        "seen",
        "document",
        "persona_file",
        "defaults",
        "memories",
    }
)
"""Fields of Settings that record an origin, or that have an effect only through the agents."""


def compute_revision(settings: Settings, *, salt: bytes) -> str:
    """Return the digest of everything in force. `defaults` and `memories` count through the agents that use them."""
    return _compute_digest(_to_canonical(settings, salt), salt)


def compute_agent_signature(settings: Settings, agent: AgentSettings, *, salt: bytes) -> str:
    """Return the digest of what one agent depends on: its settings, its models, its tools and their servers."""
    servers = (tool.removeprefix("mcp:") for tool in agent.tools if tool.startswith("mcp:"))
    parts: list[Any] = [agent]
    parts += [settings.models[name] for name in sorted(set(agent.list_models()))]
    parts += [settings.tools[name] for name in sorted(set(agent.tools) & set(settings.tools))]
    parts += [settings.mcp[name] for name in sorted(set(servers))]
    parts += [settings.search] if "web_search" in agent.tools else []
    return _compute_digest([settings.timezone, *(_to_canonical(part, salt) for part in parts)], salt)


def compute_model_signature(model: ModelSettings, *, salt: bytes) -> str:
    """Return the digest of what a model's name stands for: provider, address, model and key."""
    asked = (model.provider, model.name, str(model.base_url or ""), model.api_key, model.extra)
    return _compute_digest(_to_canonical(asked, salt), salt)


def _compute_digest(value: Any, salt: bytes) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=32, key=salt[:64]).hexdigest()[:REVISION_CHARS]


def _to_canonical(value: Any, salt: bytes) -> Any:
    if isinstance(value, SecretString):
        data = value.reveal().encode("utf-8", "surrogatepass")
        return {"secret": hashlib.blake2b(data, digest_size=32, key=salt[:64], person=b"everhold-secret").hexdigest()}
    if isinstance(value, ConfigSection):
        skipped = _list_skipped_fields(value)
        return {
            name: _to_canonical(getattr(value, name), salt) for name in type(value).model_fields if name not in skipped
        }
    if isinstance(value, Mapping):
        return {key: _to_canonical(item, salt) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_to_canonical(item, salt) for item in value]
    return value


def _list_skipped_fields(part: ConfigSection) -> frozenset[str]:
    if isinstance(part, Settings):
        return _IGNORED_FIELDS
    return frozenset({"persona_file"}) if isinstance(part, AgentSettings) else frozenset()
