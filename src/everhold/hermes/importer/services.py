"""Converts a memory service's settings from hermes-agent, so that the service keeps its existing data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.hermes.reader.files import MAIN_AGENT, PROVIDER_FILES, HermesProfile
from everhold.infra.secret import SecretString

SETTING_KEYS: Final[dict[str, dict[str, str]]] = {
    "honcho": {
        "baseUrl": "base_url", "workspace": "workspace", "aiPeer": "ai_peer", "peerName": "peer_name",
        "pinPeerName": "pin_peer_name", "pinUserPeer": "pin_peer_name", "userPeerAliases": "user_peer_aliases",
        "runtimePeerPrefix": "runtime_peer_prefix", "sessionStrategy": "session_strategy",
        "sessionPeerPrefix": "session_peer_prefix", "timeout": "deadline_seconds",
    },
    "hindsight": {
        "api_url": "base_url", "bank_id": "bank", "bank_mission": "mission", "retain_tags": "tags",
        "retain_context": "context", "recall_budget": "budget", "recall_max_tokens": "recall_tokens",
        "recall_types": "recall_types", "retain_every_n_turns": "retain_every_n_turns", "timeout": "deadline_seconds",
    },
    "mem0": {"base_url": "base_url", "host": "base_url", "user_id": "user"},
    "supermemory": {"base_url": "base_url", "container_tag": "namespace", "search_mode": "search_mode"},
}  # fmt: skip
"""The service's keys in hermes-agent -> ours."""
SETTING_VARIABLES: Final[dict[str, dict[str, str]]] = {
    "honcho": {"HONCHO_BASE_URL": "baseUrl"},
    "hindsight": {"HINDSIGHT_API_URL": "api_url", "HINDSIGHT_BANK_ID": "bank_id", "HINDSIGHT_MODE": "mode"},
    "mem0": {"MEM0_HOST": "host", "MEM0_USER_ID": "user_id", "MEM0_MODE": "mode"},
    "supermemory": {"SUPERMEMORY_BASE_URL": "base_url", "SUPERMEMORY_CONTAINER_TAG": "container_tag"},
}
"""Variables that supply settings missing in the file."""
SECRET_VARIABLES: Final = {name: f"{name.upper()}_API_KEY" for name in SETTING_KEYS}
SERVICES_NAMED_BY_CHAT: Final = frozenset({"honcho"})
"""Services that named a session after the chat's key in hermes-agent."""
HINDSIGHT_CLOUD: Final = "https://api.hindsight.vectorize.io"
PUBLIC_ADDRESSES: Final = {"honcho": "https://api.honcho.dev", "hindsight": HINDSIGHT_CLOUD}
UNSET_USER: Final = "hermes-user"
_IGNORED_KEYS: Final = frozenset(
    {"apiKey", "api_key", "enabled", "hosts", "mode", "environment", "saveMessages", "sessions"}
)
_HANDLED_KEYS: Final = {"hindsight": {"bank_id_template", "banks"}}


@dataclass
class ImportedService:
    """One converted service."""

    section: dict[str, Any]
    variable: str
    """The usual name of the variable that holds its key."""
    key: SecretString | None
    """Its key, from the imported home alone."""
    given: dict[str, Any]
    """Its settings in hermes-agent, from all levels."""
    is_own_address: bool = False
    """The imported settings say where it is served, so no key of this machine may be sent there."""
    unknown: list[str] = field(default_factory=list)


def convert_service(profile: HermesProfile, name: str, given: dict[str, Any]) -> ImportedService:
    """Convert the settings `given` of the service `name`, with the defaults that hermes-agent applies."""
    host = f"hermes_{profile.name}" if profile.name != MAIN_AGENT else "hermes"
    hosts = given.get("hosts")
    blocks: dict[str, Any] = hosts if isinstance(hosts, dict) else {}
    from_variables = {
        key: profile.env[variable].reveal()
        for variable, key in SETTING_VARIABLES[name].items()
        if variable in profile.env
    }
    found = blocks.get(host) or blocks.get(host.replace("_", ".")) or {}
    block: dict[str, Any] = found if isinstance(found, dict) else {}
    merged = {**from_variables, **given, **block}
    section: dict[str, Any] = {"naming": "hermes"}
    unknown = [] if found == block else [f"{PROVIDER_FILES[name]}: hosts: {host} is not a section"]
    for key, value in merged.items():
        own_key = SETTING_KEYS[name].get(key)
        if own_key is not None and value not in (None, ""):
            section[own_key] = value
        elif own_key is None and key not in _IGNORED_KEYS | _HANDLED_KEYS.get(name, set()):
            unknown.append(f"{PROVIDER_FILES[name]}: {key}: the service has no such setting here")
    match name:
        case "honcho":
            section.setdefault("workspace", host)
            section.setdefault("ai_peer", host)
            section |= _read_pinned(block, given)
        case "hindsight":
            unknown += _convert_hindsight(section, merged, get_hermes_name(profile))
        case "mem0":
            unknown += _convert_mem0(section, merged)
        case "supermemory":
            tag = str(section.get("namespace") or "hermes").replace("{identity}", get_hermes_name(profile))
            section["namespace"] = re.sub(r"[^A-Za-z0-9]+", "_", tag).strip("_") or "hermes"
    written = str(merged.get("apiKey") or merged.get("api_key") or "")
    variable = SECRET_VARIABLES[name]
    return ImportedService(
        section=section,
        variable=variable,
        key=SecretString(written) if written else profile.env.get(variable),
        given=merged,
        is_own_address=str(section.get("base_url") or PUBLIC_ADDRESSES.get(name)) != PUBLIC_ADDRESSES.get(name),
        unknown=unknown,
    )


def _read_pinned(*levels: dict[str, Any]) -> dict[str, bool]:
    """Whether all people are one peer. The setting has two names: the more specific level wins, and on one level the
    newer name.
    """
    said = [level[key] for level in levels for key in ("pinUserPeer", "pinPeerName") if level.get(key) is not None]
    return {"pin_peer_name": bool(said[0])} if said else {}


def _convert_hindsight(section: dict[str, Any], given: dict[str, Any], identity: str) -> list[str]:
    unknown = []
    mode = str(given.get("mode") or "cloud")
    if mode == "cloud":
        section.setdefault("base_url", HINDSIGHT_CLOUD)
    elif mode == "local_embedded":
        unknown.append(
            "hindsight: it ran inside hermes-agent; start a server for it and set memories.hindsight.base_url"
        )
    if isinstance(section.get("tags"), str):
        section["tags"] = [tag.strip() for tag in section["tags"].split(",") if tag.strip()]
    if isinstance(section.get("recall_types"), str):
        section["recall_types"] = [kind.strip() for kind in section["recall_types"].split(",") if kind.strip()]
    banks = given.get("banks")
    older = banks.get("hermes") if isinstance(banks, dict) else None
    section.setdefault("bank", str((older or {}).get("bankId") or "hermes") if isinstance(older, dict) else "hermes")
    template = str(given.get("bank_id_template") or "")
    if template and "{platform}" in template:
        unknown.append(f"hindsight: bank_id_template: a bank for each platform; here all are in {section['bank']}")
    elif template:
        for theirs, ours in (
            ("{profile}", identity),
            ("{workspace}", "hermes"),
            ("{user}", "{person}"),
            ("{session}", "{session}"),
        ):
            template = template.replace(theirs, ours)
        section["bank"] = template
    return unknown


def _convert_mem0(section: dict[str, Any], given: dict[str, Any]) -> list[str]:
    if section.get("user") in (None, UNSET_USER):
        section["user"] = "{person}"  # in hermes-agent each person has their own unless one is named
    if str(given.get("mode") or "platform") in ("oss", "local"):
        return [
            "mem0.json: it ran inside hermes-agent; set `mode: local` and `config:` in memories.mem0 to do that here"
        ]
    return []


def get_hermes_name(profile: HermesProfile) -> str:
    """Return the agent's name in hermes-agent."""
    return "default" if profile.name == MAIN_AGENT else profile.path.name
