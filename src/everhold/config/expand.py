"""What was written becomes what is meant: defaults merged, names followed, secrets and personas filled in.

Works on plain values before they are validated, so it takes everything it finds with a pinch of salt and leaves what it
does not understand for the validation to name. Every value it moves keeps its place in the file, for errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from everhold.config.fill import (
    Effective,
    Raw,
    ReadPersona,
    add_section,
    fill,
    secret_of,
    without_literals,
    without_nulls,
)
from everhold.config.problems import ConfigError, KeyPath, did_you_mean, dotted
from everhold.config.secrets import Environment
from everhold.config.settings import (
    BUILTIN,
    MAIN,
    OFFLINE,
    AccountSettings,
    McpSettings,
    MemorySettings,
    ModelSettings,
    TokenSettings,
    ToolSettings,
)
from everhold.config.source import Document
from everhold.config.values import freeze
from everhold.secret import Secret

_PERSONA_ENDS: Final = (".md", ".markdown", ".txt")


def expand(
    document: Document, environment: Environment, read_persona: ReadPersona, *, env_file: str = ".env"
) -> Effective:
    it = Effective(document, environment, read_persona, env_file)
    data = {key: value for key, value in document.data.items() if value is not None}
    data = without_literals(it, data, ())
    tables = {key: _table(data.get(key)) for key in ("models", "memories", "tools", "agents", "mcp")}
    defaults = data["defaults"] if isinstance(data.get("defaults"), dict) else {}
    agents = tables["agents"] or {MAIN: {}}

    it.data = without_nulls(data)
    it.data["=default_agent"] = MAIN if MAIN in agents else next(iter(agents))
    _models(it, tables["models"])
    _memories(it, tables["memories"])
    if "defaults" not in data or isinstance(data["defaults"], dict):
        it.data["defaults"] = _agent(it, {}, defaults, path=("defaults",), tables=tables)
    if tables["agents"] is not None:
        it.data["agents"] = {
            name: _agent(it, defaults, own, path=("agents", name), tables=tables) for name, own in agents.items()
        }
    if tables["tools"] is not None:
        it.data["tools"] = {name: _tool(it, name, raw) for name, raw in tables["tools"].items()}
    _platforms(it, data.get("platforms"), agents)
    _store(it, data.get("store"))
    _http(it, data.get("http"))
    if tables["mcp"] is not None:
        it.data["mcp"] = {name: _mcp(it, name, raw) for name, raw in tables["mcp"].items()}
    return it


def merge(below: Any, above: Any) -> Any:
    """`above` laid over `below`: mappings merge, everything else (lists, null) replaces."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: merge(below[key], value) if key in below else value for key, value in above.items()}}


def _table(value: Any) -> Raw | None:
    """A mapping of named things; a name with nothing behind it has nothing set. None if it is no mapping."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        return None
    return {name: {} if item is None else item for name, item in value.items()}


# -- models and memories -----------------------------------------------------------------------------------------------


def _models(it: Effective, table: Raw | None) -> None:
    if table is None:
        return
    it.data["models"] = {}
    for name in table:
        if "." in name:
            it.problem(("models", name), "is not a name", "use letters, digits, - and _ only")
    for name, raw in {OFFLINE: {"provider": OFFLINE}, **table}.items():
        _add_model(it, name, raw, ("models", name))


def _add_model(it: Effective, name: str, raw: Any, needs: KeyPath) -> None:
    models = it.data.get("models")
    if not isinstance(models, dict):
        return
    if not isinstance(raw, dict):
        models[name] = raw
        return
    filled = fill(it, raw, ModelSettings, ("models", name), needs=needs)
    models[name] = {**filled, "=key": name}
    add_section(it, "models", filled.get("provider"), ("models", name), filled)


def _follow_model(it: Effective, value: Any, agent: KeyPath, keys: KeyPath) -> Any:
    """A model's name. One that is written where it is used joins the others under the name of that place."""
    if not isinstance(value, dict):
        return value
    own, shared = (*agent, *keys), ("defaults", *keys)
    path = own if own in it.document.lines else shared
    name = dotted(path)
    models = it.data.get("models")
    if isinstance(models, dict) and name not in models:
        it.origins[("models", name)] = (path, shared)
        _add_model(it, name, value, path)
    return name


def _memories(it: Effective, table: Raw | None) -> None:
    if table is None:
        return
    it.data["memories"] = {}
    for name, raw in {BUILTIN: {}, **table}.items():
        it.data["memories"][name] = _memory(it, name, raw, ("memories", name), needs=None)


def _memory(it: Effective, name: str, raw: Any, path: KeyPath, *, needs: KeyPath | None) -> Any:
    if not isinstance(raw, dict):
        return raw
    filled = fill(it, {"provider": name, **without_nulls(raw)}, MemorySettings, path, needs=needs)
    filled["=name"] = name
    add_section(it, "memories", filled["provider"], path, filled)
    return filled


def _tool(it: Effective, name: str, raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    path = ("tools", name)
    filled = fill(it, {"provider": name, **without_nulls(raw)}, ToolSettings, path, needs=path)
    add_section(it, "tools", filled["provider"], path, filled)
    return {**filled, "=name": name}


# -- agents ------------------------------------------------------------------------------------------------------------


def _agent(it: Effective, defaults: Raw, own: Any, *, path: KeyPath, tables: dict[str, Raw | None]) -> Any:
    """One agent as it is meant; `path` is ("agents", name) or ("defaults",)."""
    if not isinstance(own, dict):
        return own
    is_agent = path[0] == "agents"
    it.origins[path] = (path, ("defaults",)) if is_agent else (path,)
    written = merge(defaults, own)
    raw: Raw = without_nulls(written)
    if "model" not in raw:
        raw["model"] = _only_model(it, tables["models"], path if is_agent else None)

    def follow(value: Any, *keys: str | int) -> Any:
        return _follow_model(it, value, path, keys)

    raw["model"] = follow(raw["model"], "model")
    if isinstance(raw.get("fallback"), tuple):
        raw["fallback"] = tuple(follow(value, "fallback", place) for place, value in enumerate(raw["fallback"]))
    if isinstance(raw.get("compression"), dict) and "model" in raw["compression"]:
        raw["compression"] = {
            **raw["compression"],
            "model": follow(raw["compression"]["model"], "compression", "model"),
        }
    _uses(it, raw, path, tables["memories"], from_defaults=own.get("memories") is None)
    _persona(it, raw, path)
    if is_agent:
        raw["=name"] = path[1]
    return raw


def _only_model(it: Effective, models: Raw | None, path: KeyPath | None) -> str:
    """What an agent gets that names no model."""
    names = list(models or ())
    if len(names) == 1:
        return names[0]
    if names and path is not None:
        it.problem((*path, "model"), "does not say which model to use", f"defaults: {{model: {names[0]}}}, for example")
    return OFFLINE


def _uses(it: Effective, raw: Raw, path: KeyPath, table: Raw | None, *, from_defaults: bool) -> None:
    """The memories of an agent: each use is the instance with what was written beside its name laid over it."""
    uses = raw.get("memories", (BUILTIN,))
    if not isinstance(uses, tuple) or table is None:
        return
    known = {BUILTIN: {}, **table}
    kept: list[Any] = []
    seen: set[str] = set()
    for place, use in enumerate(uses):
        at = (*path, "memories", place)
        name = use.get("name") if isinstance(use, dict) else use
        if not isinstance(name, str):
            it.problem(at, "must be a name, or a mapping with a name", "for example [builtin, {name: honcho}]")
            continue
        if name not in known:
            it.problem(at, f"there is no memory `{name}`", _undefined(name, known, "memories"))
            continue
        if name in seen:
            it.problem(at, f"`{name}` stands twice", "remove one of them")
            continue
        seen.add(name)
        if not isinstance(known[name], dict):
            continue
        new = (*path, "memories", len(kept))
        written = ("defaults", "memories", place) if from_defaults else at
        it.origins[new] = (written, ("memories", name))
        above = {key: value for key, value in use.items() if key != "name"} if isinstance(use, dict) else {}
        agent = path[1] if path[0] == "agents" else None
        full = merge(known[name], above)
        if agent is not None:
            full = _named(full, str(agent))
        kept.append(_memory(it, name, full, new, needs=("memories", name) if agent is not None else None))
    raw["memories"] = tuple(kept)


def _named(value: Any, agent: str) -> Any:
    """`{agent}` in a memory's settings is the agent's name."""
    if isinstance(value, dict):
        return {key: _named(item, agent) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_named(item, agent) for item in value)
    return value.replace("{agent}", agent) if isinstance(value, str) else value


def _undefined(name: str, known: Mapping[str, Any], section: str) -> str:
    near = did_you_mean(name, known)
    return near if near.startswith("did") else f"add `{name}: {{…}}` under {section}"


def _persona(it: Effective, raw: Raw, path: KeyPath) -> None:
    """The text of a persona, read here once so that no message has to."""
    value = raw.get("persona")
    file = _persona_file(value)
    if isinstance(value, dict):
        if set(value) == {"text"} and isinstance(value["text"], str):
            raw["persona"] = value["text"]
        elif file is None:
            it.problem((*path, "persona"), "must be text, {file: …} or {text: …}", "persona: SOUL.md")
            del raw["persona"]
    if file is None:
        return
    if file not in it.personas:
        try:
            it.personas[file] = it.read_persona(file)
        except ConfigError as error:
            for problem in error.problems:
                it.problem(
                    (*path, "persona"),
                    f"{file}: {problem.message}",
                    problem.remedy or "write the file, or {text: …} if this is the persona itself",
                )
            it.personas[file] = ""
    raw["persona"], raw["=persona_file"] = it.personas[file], file


def _persona_file(value: Any) -> str | None:
    if isinstance(value, dict):
        return value["file"] if set(value) == {"file"} and isinstance(value["file"], str) and value["file"] else None
    if isinstance(value, str) and "\n" not in value and len(value) < 256 and value.lower().endswith(_PERSONA_ENDS):
        return value
    return None


def written(it: Effective) -> Mapping[str, Any]:
    """The document with persona files replaced by what they held: what `--last-good` starts from."""

    def inline(raw: Any) -> Any:
        file = _persona_file(raw.get("persona")) if isinstance(raw, dict) else None
        return {**raw, "persona": {"text": it.personas.get(file, "")}} if file is not None else raw

    data = dict(it.document.data)
    if isinstance(data.get("agents"), dict):
        data["agents"] = {name: inline(raw) for name, raw in data["agents"].items()}
    if "defaults" in data:
        data["defaults"] = inline(data["defaults"])
    frozen: Mapping[str, Any] = freeze(data)
    return frozen


# -- platforms and the rest --------------------------------------------------------------------------------------------


def _platforms(it: Effective, platforms: Any, agents: Raw) -> None:
    if not isinstance(platforms, dict):
        return
    it.data["platforms"] = {}
    for platform, value in platforms.items():
        accounts = _table(value)
        it.data["platforms"][platform] = value
        if accounts is not None:
            it.data["platforms"][platform] = {
                account: _account(it, platform, account, raw, agents) for account, raw in accounts.items()
            }


def _account(it: Effective, platform: str, account: str, raw: Any, agents: Raw) -> Any:
    if not isinstance(raw, dict):
        return raw
    path = ("platforms", platform, account)
    raw = {"agent": account if account in agents else it.data["=default_agent"], **without_nulls(raw)}
    if isinstance(raw.get("chats"), dict):
        raw["chats"] = {id: _chat(it, chat, raw) for id, chat in raw["chats"].items()}
    filled = fill(it, raw, AccountSettings, path, needs=path if raw.get("enabled", True) else None)
    add_section(it, "platforms", platform, path, filled)
    return {**filled, "=platform": platform, "=account": account}


def _chat(it: Effective, chat: Any, account: Raw) -> Any:
    """An exception for one chat, laid over what holds elsewhere."""
    if not isinstance(chat, dict):
        return chat
    agents, name = it.data.get("agents"), chat.get("agent", account["agent"])
    agent = agents.get(name) if isinstance(agents, dict) and isinstance(name, str) else None
    below = {"sessions": agent.get("sessions") if isinstance(agent, dict) else None, "groups": account.get("groups")}
    return {**chat, **{key: merge(value, chat[key]) for key, value in below.items() if key in chat}}


def _store(it: Effective, raw: Any) -> None:
    """Refuse a database server. Nothing would be stored there, so ignoring the key would mislead the reader."""
    if not isinstance(raw, dict) or "url" not in raw:
        return
    it.data["store"] = "sqlite"
    it.problem(
        ("store", "url"),
        "is not supported yet: everhold stores everything in SQLite, in the home",
        "remove `store`, or write store: sqlite",
    )


def _http(it: Effective, raw: Any) -> None:
    if not isinstance(raw, dict):
        return
    raw = without_nulls(raw)
    if isinstance(raw.get("tokens"), tuple):
        raw["tokens"] = tuple(
            fill(it, token, TokenSettings, ("http", "tokens", place), needs=("http", "tokens", place))
            if isinstance(token, dict)
            else token
            for place, token in enumerate(raw["tokens"])
        )
    it.data["http"] = raw


def _mcp(it: Effective, name: str, raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    path = ("mcp", name)
    filled = fill(it, raw, McpSettings, path, needs=path)
    variables: dict[str, Secret] = {}
    missing = list(filled["=missing"])
    for place, variable in enumerate(filled["env"] if isinstance(filled.get("env"), tuple) else ()):
        secret, variable_name = secret_of(it, variable, (*path, "env", place), path)
        if secret is not None:
            variables[variable_name] = secret
        elif variable_name:
            missing.append(variable_name)
    return {**filled, "=variables": freeze(variables), "=missing": tuple(missing), "=name": name}
