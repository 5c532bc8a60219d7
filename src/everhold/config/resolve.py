"""Resolve a document: merge defaults, resolve names, and fill in secrets and personas.

This works on plain values before validation, so it accepts any type and leaves invalid values for the validation to
report. It records the origin in the file of each value that it moves, for error messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from everhold.config.errors import ConfigError, KeyPath, format_key_path, suggest_name
from everhold.config.secret_resolution import (
    RawSection,
    ReadPersona,
    ResolvedConfig,
    add_section,
    reject_secret_literals,
    remove_nulls,
    resolve_secret,
    resolve_section,
)
from everhold.config.secrets import SecretEnvironment
from everhold.config.settings import (
    BUILTIN_MEMORY,
    DEFAULT_AGENT,
    OFFLINE_MODEL,
    OPERATOR_TOKEN_ENV,
    AccountSettings,
    HookSettings,
    McpSettings,
    MemorySettings,
    ModelSettings,
    SearchSettings,
    StoreSettings,
    TokenSettings,
    ToolSettings,
)
from everhold.config.source import YamlDocument
from everhold.config.values import freeze_value
from everhold.core.roles import ROLE_NAMES
from everhold.infra.secret import SecretString

TOOL_NEEDS_EXAMPLE: Final = 'for example [memory, {name: "mcp:files", needs: owner}]'
_PERSONA_SUFFIXES: Final = (".md", ".markdown", ".txt")


def resolve_document(
    document: YamlDocument, environment: SecretEnvironment, read_persona: ReadPersona, *, env_file: str = ".env"
) -> ResolvedConfig:
    it = ResolvedConfig(document, environment, read_persona, env_file)
    data = {key: value for key, value in document.data.items() if value is not None}
    data = reject_secret_literals(it, data, ())
    tables = {key: _as_table(data.get(key)) for key in ("models", "memories", "tools", "agents", "mcp", "hooks")}
    defaults = data["defaults"] if isinstance(data.get("defaults"), dict) else {}
    agents = tables["agents"] or {DEFAULT_AGENT: {}}

    it.data = remove_nulls(data)
    it.data["=default_agent"] = DEFAULT_AGENT if DEFAULT_AGENT in agents else next(iter(agents))
    _resolve_models(it, tables["models"])
    _resolve_memories(it, tables["memories"])
    if "defaults" not in data or isinstance(data["defaults"], dict):
        it.data["defaults"] = _resolve_agent(it, {}, defaults, path=("defaults",), tables=tables)
    if tables["agents"] is not None:
        it.data["agents"] = {
            name: _resolve_agent(it, defaults, own, path=("agents", name), tables=tables)
            for name, own in agents.items()
        }
    if tables["tools"] is not None:
        it.data["tools"] = {name: _resolve_tool(it, name, raw) for name, raw in tables["tools"].items()}
    _resolve_platforms(it, data.get("platforms"), agents)
    _resolve_store(it, data.get("store"))
    _resolve_http(it, data.get("http"))
    if tables["mcp"] is not None:
        it.data["mcp"] = {name: _resolve_mcp_server(it, name, raw) for name, raw in tables["mcp"].items()}
    if isinstance(data.get("search"), dict):
        it.data["search"] = resolve_section(it, data["search"], SearchSettings, ("search",), needs=("search",))
    if tables["hooks"] is not None:
        it.data["hooks"] = {name: _resolve_hook(it, name, raw) for name, raw in tables["hooks"].items()}
    return it


def merge_values(below: Any, above: Any) -> Any:
    """Return `above` merged over `below`. Mappings merge, all other values (lists, null) replace."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {
        **below,
        **{key: merge_values(below[key], value) if key in below else value for key, value in above.items()},
    }


def _as_table(value: Any) -> RawSection | None:
    """Return a mapping by name, with an empty section for a null. None if `value` is not a mapping."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        return None
    return {name: {} if item is None else item for name, item in value.items()}


# -- models and memories -----------------------------------------------------------------------------------------------


def _resolve_models(it: ResolvedConfig, table: RawSection | None) -> None:
    if table is None:
        return
    it.data["models"] = {}
    for name in table:
        if "." in name:
            it.report_problem(("models", name), "is not a name", "use letters, digits, - and _ only")
    for name, raw in {OFFLINE_MODEL: {"provider": OFFLINE_MODEL}, **table}.items():
        _add_model(it, name, raw, ("models", name))


def _add_model(it: ResolvedConfig, name: str, raw: Any, needs: KeyPath) -> None:
    models = it.data.get("models")
    if not isinstance(models, dict):
        return
    if not isinstance(raw, dict):
        models[name] = raw
        return
    filled = resolve_section(it, raw, ModelSettings, ("models", name), needs=needs)
    models[name] = {**filled, "=key": name}
    add_section(it, "models", filled.get("provider"), ("models", name), filled)


def _resolve_model_name(it: ResolvedConfig, value: Any, agent: KeyPath, keys: KeyPath) -> Any:
    """Return a model's name. An inline model is added to `models` under its key path."""
    if not isinstance(value, dict):
        return value
    own, shared = (*agent, *keys), ("defaults", *keys)
    path = own if own in it.document.lines else shared
    name = format_key_path(path)
    models = it.data.get("models")
    if isinstance(models, dict) and name not in models:
        it.origins[("models", name)] = (path, shared)
        _add_model(it, name, value, path)
    return name


def _resolve_memories(it: ResolvedConfig, table: RawSection | None) -> None:
    if table is None:
        return
    it.data["memories"] = {}
    for name, raw in {BUILTIN_MEMORY: {}, **table}.items():
        it.data["memories"][name] = _resolve_memory(it, name, raw, ("memories", name), needs=None)


def _resolve_memory(it: ResolvedConfig, name: str, raw: Any, path: KeyPath, *, needs: KeyPath | None) -> Any:
    if not isinstance(raw, dict):
        return raw
    filled = resolve_section(it, {"provider": name, **remove_nulls(raw)}, MemorySettings, path, needs=needs)
    filled["=name"] = name
    add_section(it, "memories", filled["provider"], path, filled)
    return filled


def _resolve_tool(it: ResolvedConfig, name: str, raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    path = ("tools", name)
    filled = resolve_section(it, {"provider": name, **remove_nulls(raw)}, ToolSettings, path, needs=path)
    add_section(it, "tools", filled["provider"], path, filled)
    return {**filled, "=name": name}


# -- agents ------------------------------------------------------------------------------------------------------------


def _resolve_agent(
    it: ResolvedConfig, defaults: RawSection, own: Any, *, path: KeyPath, tables: dict[str, RawSection | None]
) -> Any:
    """Resolve one agent. `path` is ("agents", name) or ("defaults",)."""
    if not isinstance(own, dict):
        return own
    is_agent = path[0] == "agents"
    it.origins[path] = (path, ("defaults",)) if is_agent else (path,)
    written = merge_values(defaults, own)
    raw: RawSection = remove_nulls(written)
    if "model" not in raw:
        raw["model"] = _choose_default_model(it, tables["models"], path if is_agent else None)

    def follow(value: Any, *keys: str | int) -> Any:
        return _resolve_model_name(it, value, path, keys)

    raw["model"] = follow(raw["model"], "model")
    if isinstance(raw.get("fallback"), tuple):
        raw["fallback"] = tuple(follow(value, "fallback", place) for place, value in enumerate(raw["fallback"]))
    if isinstance(raw.get("compression"), dict) and "model" in raw["compression"]:
        raw["compression"] = {
            **raw["compression"],
            "model": follow(raw["compression"]["model"], "compression", "model"),
        }
    _resolve_memory_uses(it, raw, path, tables["memories"], from_defaults=own.get("memories") is None)
    _resolve_persona(it, raw, path)
    _resolve_tool_needs(it, raw, path)
    if is_agent:
        raw["=name"] = path[1]
    return raw


def _choose_default_model(it: ResolvedConfig, models: RawSection | None, path: KeyPath | None) -> str:
    """Return the model of an agent that names none."""
    names = list(models or ())
    if len(names) == 1:
        return names[0]
    if names and path is not None:
        it.report_problem(
            (*path, "model"), "does not say which model to use", f"defaults: {{model: {names[0]}}}, for example"
        )
    return OFFLINE_MODEL


def _resolve_memory_uses(
    it: ResolvedConfig, raw: RawSection, path: KeyPath, table: RawSection | None, *, from_defaults: bool
) -> None:
    """Resolve the memories of an agent: the keys beside a name override those of the memory's section."""
    uses = raw.get("memories", (BUILTIN_MEMORY,))
    if not isinstance(uses, tuple) or table is None:
        return
    known = {BUILTIN_MEMORY: {}, **table}
    kept: list[Any] = []
    seen: set[str] = set()
    for place, use in enumerate(uses):
        at = (*path, "memories", place)
        name = use.get("name") if isinstance(use, dict) else use
        if not isinstance(name, str):
            it.report_problem(at, "must be a name, or a mapping with a name", "for example [builtin, {name: honcho}]")
            continue
        if name not in known:
            it.report_problem(at, f"there is no memory `{name}`", _suggest_definition(name, known, "memories"))
            continue
        if name in seen:
            it.report_problem(at, f"`{name}` is listed twice", "remove one of them")
            continue
        seen.add(name)
        if not isinstance(known[name], dict):
            continue
        new = (*path, "memories", len(kept))
        written = ("defaults", "memories", place) if from_defaults else at
        it.origins[new] = (written, ("memories", name))
        above = {key: value for key, value in use.items() if key != "name"} if isinstance(use, dict) else {}
        agent = path[1] if path[0] == "agents" else None
        full = merge_values(known[name], above)
        if agent is not None:
            full = _fill_agent_name(full, str(agent))
        kept.append(_resolve_memory(it, name, full, new, needs=("memories", name) if agent is not None else None))
    raw["memories"] = tuple(kept)


def _resolve_tool_needs(it: ResolvedConfig, raw: RawSection, path: KeyPath) -> None:
    """Split the tools of an agent into their names, and the roles that they need in addition."""
    if not isinstance(raw.get("tools"), tuple):
        return
    names: list[Any] = []
    needs: dict[str, str] = {}
    for place, tool in enumerate(raw["tools"]):
        if not isinstance(tool, dict):
            names.append(tool)
            continue
        at, name, role = (*path, "tools", place), tool.get("name"), tool.get("needs", ROLE_NAMES[0])
        if not isinstance(name, str) or not set(tool) <= {"name", "needs"}:
            it.report_problem(at, "must be a name, or a mapping with name and needs", TOOL_NEEDS_EXAMPLE)
            continue
        if role not in ROLE_NAMES:
            near = suggest_name(str(role), ROLE_NAMES)
            it.report_problem((*at, "needs"), f"there is no role `{role}`", near or f"use {', '.join(ROLE_NAMES)}")
            continue
        names.append(name)
        needs[name] = role
    raw["tools"] = tuple(names)
    raw["=tool_needs"] = freeze_value(needs)


def _fill_agent_name(value: Any, agent: str) -> Any:
    """Replace `{agent}` in a memory's settings with the agent's name."""
    if isinstance(value, dict):
        return {key: _fill_agent_name(item, agent) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_fill_agent_name(item, agent) for item in value)
    return value.replace("{agent}", agent) if isinstance(value, str) else value


def _suggest_definition(name: str, known: Mapping[str, Any], section: str) -> str:
    near = suggest_name(name, known)
    return near if near.startswith("did") else f"add `{name}: {{…}}` under {section}"


def _resolve_persona(it: ResolvedConfig, raw: RawSection, path: KeyPath) -> None:
    """Read the text of a persona here once, so that no message needs a file read."""
    value = raw.get("persona")
    file = _get_persona_file(value)
    if isinstance(value, dict):
        if set(value) == {"text"} and isinstance(value["text"], str):
            raw["persona"] = value["text"]
        elif file is None:
            it.report_problem((*path, "persona"), "must be text, {file: …} or {text: …}", "persona: SOUL.md")
            del raw["persona"]
    if file is None:
        return
    if file not in it.personas:
        try:
            it.personas[file] = it.read_persona(file)
        except ConfigError as error:
            for problem in error.problems:
                it.report_problem(
                    (*path, "persona"),
                    f"{file}: {problem.message}",
                    problem.remedy or "write the file, or {text: …} if this is the persona itself",
                )
            it.personas[file] = ""
    raw["persona"], raw["=persona_file"] = it.personas[file], file


def _get_persona_file(value: Any) -> str | None:
    if isinstance(value, dict):
        return value["file"] if set(value) == {"file"} and isinstance(value["file"], str) and value["file"] else None
    if isinstance(value, str) and "\n" not in value and len(value) < 256 and value.lower().endswith(_PERSONA_SUFFIXES):
        return value
    return None


def build_last_good_document(it: ResolvedConfig) -> Mapping[str, Any]:
    """Return the document with persona files replaced by their text, for `--last-good`."""

    def inline(raw: Any) -> Any:
        file = _get_persona_file(raw.get("persona")) if isinstance(raw, dict) else None
        return {**raw, "persona": {"text": it.personas.get(file, "")}} if file is not None else raw

    data = dict(it.document.data)
    if isinstance(data.get("agents"), dict):
        data["agents"] = {name: inline(raw) for name, raw in data["agents"].items()}
    if "defaults" in data:
        data["defaults"] = inline(data["defaults"])
    frozen: Mapping[str, Any] = freeze_value(data)
    return frozen


# -- platforms and the rest --------------------------------------------------------------------------------------------


def _resolve_platforms(it: ResolvedConfig, platforms: Any, agents: RawSection) -> None:
    if not isinstance(platforms, dict):
        return
    it.data["platforms"] = {}
    for platform, value in platforms.items():
        accounts = _as_table(value)
        it.data["platforms"][platform] = value
        if accounts is not None:
            it.data["platforms"][platform] = {
                account: _resolve_account(it, platform, account, raw, agents) for account, raw in accounts.items()
            }


def _resolve_account(it: ResolvedConfig, platform: str, account: str, raw: Any, agents: RawSection) -> Any:
    if not isinstance(raw, dict):
        return raw
    path = ("platforms", platform, account)
    raw = {"agent": account if account in agents else it.data["=default_agent"], **remove_nulls(raw)}
    if isinstance(raw.get("chats"), dict):
        raw["chats"] = {id: _resolve_chat(it, chat, raw) for id, chat in raw["chats"].items()}
    filled = resolve_section(it, raw, AccountSettings, path, needs=path if raw.get("enabled", True) else None)
    add_section(it, "platforms", platform, path, filled)
    return {**filled, "=platform": platform, "=account": account}


def _resolve_chat(it: ResolvedConfig, chat: Any, account: RawSection) -> Any:
    """Merge the settings of one chat over those of the account and its agent."""
    if not isinstance(chat, dict):
        return chat
    agents, name = it.data.get("agents"), chat.get("agent", account["agent"])
    agent = agents.get(name) if isinstance(agents, dict) and isinstance(name, str) else None
    below = {"sessions": agent.get("sessions") if isinstance(agent, dict) else None, "groups": account.get("groups")}
    return {**chat, **{key: merge_values(value, chat[key]) for key, value in below.items() if key in chat}}


def _resolve_store(it: ResolvedConfig, raw: Any) -> None:
    """Resolve the address of the database. A missing one is fatal, because a message would go into another store."""
    if raw == "sqlite":
        it.data["store"] = {}
    elif isinstance(raw, str):
        it.report_problem(
            ("store",), "is neither `sqlite` nor a section", "store: {url: postgresql://everhold@db.example/everhold}"
        )
        it.data["store"] = {}
    elif isinstance(raw, dict):
        filled = resolve_section(it, raw, StoreSettings, ("store",), needs=None)
        for name in filled["=missing"]:
            it.report_problem(("store",), f"{name} is not set", f"add the line {name}=… to {it.env_file}")
        it.data["store"] = filled


def _resolve_http(it: ResolvedConfig, raw: Any) -> None:
    raw = {} if raw is None else raw
    if not isinstance(raw, dict):
        return
    raw = {**remove_nulls(raw), "=operator_token": it.environment.get(OPERATOR_TOKEN_ENV)}
    if isinstance(raw.get("tokens"), tuple):
        raw["tokens"] = tuple(
            resolve_section(it, token, TokenSettings, ("http", "tokens", place), needs=("http", "tokens", place))
            if isinstance(token, dict)
            else token
            for place, token in enumerate(raw["tokens"])
        )
    it.data["http"] = raw


def _resolve_mcp_server(it: ResolvedConfig, name: str, raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    path = ("mcp", name)
    filled = resolve_section(it, raw, McpSettings, path, needs=path)
    variables: dict[str, SecretString] = {}
    missing = list(filled["=missing"])
    for place, variable in enumerate(filled["env"] if isinstance(filled.get("env"), tuple) else ()):
        secret, variable_name = resolve_secret(it, variable, (*path, "env", place), path)
        if secret is not None:
            variables[variable_name] = secret
        elif variable_name:
            missing.append(variable_name)
    return {**filled, "=variables": freeze_value(variables), "=missing": tuple(missing), "=name": name}


def _resolve_hook(it: ResolvedConfig, name: str, raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    raw = {"agent": it.data["=default_agent"], **remove_nulls(raw)}
    filled = resolve_section(it, raw, HookSettings, ("hooks", name), needs=("hooks", name))
    return {**filled, "=name": name}
