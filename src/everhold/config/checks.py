"""Checks across sections: unknown names, duplicate people and identities, budgets without a price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from everhold.config.errors import KeyPath, format_key_path, suggest_name
from everhold.config.secret_resolution import RawSection, ResolvedConfig
from everhold.config.settings import OFFLINE_MODEL, OPERATOR_TOKEN_ENV, OPERATOR_TOKEN_NAME
from everhold.core.address import parse_address
from everhold.core.approvals import APPROVER_OWNER, APPROVER_SELF
from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.core.callers import find_token_weakness
from everhold.core.tool_pins import RESERVED_TOOL_NAMES
from everhold.errors import InvalidRequest
from everhold.infra.secret import SecretString

WORKSPACE_TOOLS: Final = frozenset({"files", "shell"})
MIN_HOOK_SECRET_CHARS: Final = 16
_STRONG_TOKEN_REMEDY: Final = "create one with `openssl rand -hex 32` and write it to .env"


def check_consistency(it: ResolvedConfig) -> None:
    """Report a problem for each inconsistency. The data may be invalid."""
    data = it.data
    agents, models, mcp = _as_mapping(data.get("agents")), _as_mapping(data.get("models")), _as_mapping(data.get("mcp"))
    people = _check_people(it)
    for name, agent in agents.items():
        path: KeyPath = ("agents", name)
        _check_models(it, _as_mapping(agent), path, models)
        _check_tools(it, _as_mapping(agent), path, mcp)
        _check_owners(it, _as_mapping(agent), path, people)
        _check_workspace(it, _as_mapping(agent), path)
        for place, target in _iterate_texts(_as_mapping(agent).get("send_to")):
            kind, _, other = target.partition(":")
            if kind == "agent":
                _check_known_name(it, (*path, "send_to", place), other, agents, "agent", "agents")
            elif not other:
                it.report_problem(
                    (*path, "send_to", place), "is neither agent:NAME nor an address", f'write "agent:{kind}"'
                )
    for name in SELECTABLE_TOOLS:
        if name in _as_mapping(data.get("tools")):
            it.report_problem(
                ("tools", name), "is built in and takes no settings", "choose another name, with provider: …"
            )
    _check_hooks(it, agents)
    _check_policy(it, agents, people)
    _check_tokens(it, people, agents)
    _check_owners(it, _as_mapping(data.get("access")), ("access",), people)
    for platform, accounts in _as_mapping(data.get("platforms")).items():
        for account, raw in _as_mapping(accounts).items():
            _check_account(it, _as_mapping(raw), ("platforms", platform, account), agents, people)


def _as_mapping(value: Any) -> RawSection:
    return dict(value) if isinstance(value, Mapping) else {}


def _iterate_texts(value: Any) -> Iterator[tuple[int, str]]:
    for place, item in enumerate(value if isinstance(value, tuple) else ()):
        if isinstance(item, str):
            yield place, item


def _check_known_name(
    it: ResolvedConfig, path: KeyPath, name: Any, known: Mapping[str, Any], what: str, section: str
) -> None:
    if not isinstance(name, str) or name in known:
        return
    near = suggest_name(name, known)
    it.report_problem(path, f"there is no {what} of this name", near or f"add it under {section}")


def _check_owners(it: ResolvedConfig, section: RawSection, path: KeyPath, people: Mapping[str, Any]) -> None:
    for place, owner in _iterate_texts(section.get("owners")):
        _check_known_name(it, (*path, "owners", place), owner, people, "person", "people")


def _check_people(it: ResolvedConfig) -> dict[str, KeyPath]:
    people: dict[str, KeyPath] = {}
    owners: dict[str, str] = {}
    value = it.data.get("people")
    for place, person in enumerate(value if isinstance(value, tuple) else ()):
        name = _as_mapping(person).get("name")
        if not isinstance(name, str):
            continue
        if name in people:
            it.report_problem(
                ("people", place, "name"), "is listed twice", f"see {format_key_path(people[name])}: merge the two"
            )
        people.setdefault(name, ("people", place))
        for spot, identity in _iterate_texts(_as_mapping(person).get("identities")):
            if owners.setdefault(identity, name) != name:
                it.report_problem(
                    ("people", place, "identities", spot),
                    f"belongs to `{owners[identity]}` already",
                    "an identity belongs to one person: remove it from the other",
                )
    return people


def _check_models(it: ResolvedConfig, agent: RawSection, path: KeyPath, models: RawSection) -> None:
    compression = _as_mapping(agent.get("compression"))
    uses: list[tuple[KeyPath, Any]] = [((*path, "model"), agent.get("model"))]
    uses += [((*path, "fallback", place), name) for place, name in _iterate_texts(agent.get("fallback"))]
    uses.append(((*path, "compression", "model"), compression.get("model")))
    for place, name in uses if models else ():  # without any, `models` itself is invalid
        _check_known_name(it, place, name, models, "model", "models")
    budget = _as_mapping(agent.get("budget"))
    if not any("usd_per_day" in limit for limit in (budget, *map(_as_mapping, budget.values()))):
        return
    for name in dict.fromkeys(name for _, name in uses if isinstance(name, str) and name in models):
        model = _as_mapping(models[name])
        if model and "price" not in model and model.get("provider") != OFFLINE_MODEL:
            it.report_problem(
                ("models", name),
                f"has no price, which the budget of {format_key_path(path)} needs",
                "price: {input: 2.5, output: 10}, in US dollars per million tokens; or tokens_per_day as budget",
            )


def _check_tools(it: ResolvedConfig, agent: RawSection, path: KeyPath, mcp: RawSection) -> None:
    seen: set[str] = set()
    for place, tool in _iterate_texts(agent.get("tools")):
        if tool in seen:
            it.report_problem((*path, "tools", place), "is listed twice", "remove one of them")
        seen.add(tool)
        if tool == "send" and not agent.get("send_to"):
            it.report_problem(
                (*path, "tools", place),
                "has no recipients",
                'list them: send_to: ["agent:NAME"]',
                fatal=False,
                disables=(*path, "tools", place),
            )
        kind, _, server = tool.partition(":")
        if kind == "mcp":
            _check_known_name(it, (*path, "tools", place), server, mcp, "server", "mcp")
            _check_server_name(it, (*path, "tools", place), server, seen)


def _check_workspace(it: ResolvedConfig, agent: RawSection, path: KeyPath) -> None:
    """Report a workspace that would be another folder on each host of a shared store."""
    store, workspace = _as_mapping(it.data.get("store")), _as_mapping(agent.get("workspace"))
    tools = {tool for _, tool in _iterate_texts(agent.get("tools"))} & WORKSPACE_TOOLS
    if not tools or not (store.get("url") or store.get("url_env")) or workspace.get("host"):
        return
    given = workspace.get("path")
    place = Path(given).expanduser() if isinstance(given, str) else None
    if place is not None and any(
        place.is_relative_to(Path(it_).expanduser()) for _, it_ in _iterate_texts(store.get("shared_paths"))
    ):
        return
    it.report_problem(
        (*path, "workspace"),
        f"does not say which host has the folder of {' and '.join(sorted(tools))}, and hosts share this store",
        "workspace: {host: NAME}, or a path in store.shared_paths",
    )


def _check_server_name(it: ResolvedConfig, path: KeyPath, server: str, seen: Iterable[str]) -> None:
    """Report a server whose tools may get the names of others: a tool is called SERVER_TOOL."""
    before = [tool.partition(":")[2] for tool in seen if tool.startswith("mcp:")]
    names = [*((name, f"the built-in tool {name}") for name in sorted(RESERVED_TOOL_NAMES))]
    names += [(other, f"a tool of {other}") for other in before]
    for name, owner in names:
        first, second = sorted((server, name), key=len)
        if second.startswith(f"{first}_") and (name not in RESERVED_TOOL_NAMES or first == server):
            it.report_problem(
                path,
                f"a tool of this server may get the name of {owner}; such a tool is not offered",
                "give the server another name under mcp, if `everhold status` reports such a tool",
                fatal=False,
            )


def _check_policy(it: ResolvedConfig, agents: Mapping[str, Any], people: Mapping[str, Any]) -> None:
    policy = _as_mapping(it.data.get("policy"))
    approvers = _as_mapping(policy.get("approvals")).get("by")
    for place, target in _iterate_texts(_as_mapping(policy.get("approvals")).get("to")):
        _check_chat_address(it, ("policy", "approvals", "to", place), target, agents)
    for place, name in enumerate(approvers if isinstance(approvers, tuple) else ()):
        if name not in (APPROVER_OWNER, APPROVER_SELF):
            _check_known_name(it, ("policy", "approvals", "by", place), name, people, "person", "people")
    rules = policy.get("rules")
    for place, rule in enumerate(rules if isinstance(rules, tuple) else ()):
        _check_known_name(
            it, ("policy", "rules", place, "agent"), _as_mapping(rule).get("agent"), agents, "agent", "agents"
        )


def _check_hooks(it: ResolvedConfig, agents: Mapping[str, Any]) -> None:
    for name, raw in _as_mapping(it.data.get("hooks")).items():
        hook, path = _as_mapping(raw), ("hooks", name)
        _check_known_name(it, (*path, "agent"), hook.get("agent"), agents, "agent", "agents")
        secret, to = hook.get("=secret"), hook.get("to")
        if isinstance(secret, SecretString) and len(secret.reveal().strip()) < MIN_HOOK_SECRET_CHARS:
            it.report_problem(
                (*path, "secret_env"),
                f"{hook.get('secret_env')} has fewer than {MIN_HOOK_SECRET_CHARS} characters",
                "create one with `openssl rand -hex 32`, and give it to the sender",
            )
        if isinstance(to, str):
            _check_chat_address(it, (*path, "to"), to, agents)


def _check_chat_address(it: ResolvedConfig, path: KeyPath, to: str, agents: Mapping[str, Any]) -> None:
    try:
        address = parse_address(to)
    except InvalidRequest as error:
        it.report_problem(path, "is not an address", error.remedy)
        return
    _check_known_name(it, path, address.agent, agents, "agent", "agents")
    accounts = _as_mapping(_as_mapping(it.data.get("platforms")).get(address.platform))
    account = address.account or address.agent
    if account not in accounts:
        it.report_problem(
            path,
            f"there is no account {address.platform}/{account}",
            "use the address of a chat of one of `platforms`, or remove it",
        )


def _check_tokens(it: ResolvedConfig, people: Mapping[str, Any], agents: Mapping[str, Any]) -> None:
    http = _as_mapping(it.data.get("http"))
    own = http.get("=operator_token")
    names: set[str] = {OPERATOR_TOKEN_NAME} if own else set()
    secrets: set[SecretString] = set()
    if isinstance(own, SecretString):
        secrets.add(own)
        if weakness := find_token_weakness(own.reveal()):
            it.report_problem(("http",), f"{OPERATOR_TOKEN_ENV} {weakness}", _STRONG_TOKEN_REMEDY)
    value = http.get("tokens")
    for place, raw in enumerate(value if isinstance(value, tuple) else ()):
        token, path = _as_mapping(raw), ("http", "tokens", place)
        _check_token_scope(it, token, path, people, agents)
        name, secret = token.get("name"), token.get("=token")
        if isinstance(name, str) and name in names:
            taken = "is the name of the token that `up` makes" if name == OPERATOR_TOKEN_NAME else "is listed twice"
            it.report_problem((*path, "name"), taken, "give each token its own name")
        names |= {name} if isinstance(name, str) else set()
        if isinstance(secret, SecretString):
            if weakness := find_token_weakness(secret.reveal()):
                variable = token.get("token_env")
                it.report_problem((*path, "token_env"), f"{variable} {weakness}", _STRONG_TOKEN_REMEDY)
            if secret in secrets:
                it.report_problem(
                    (*path, "token_env"),
                    "is the same token as another",
                    "create a new one, because a token identifies one caller",
                )
            secrets.add(secret)


def _check_token_scope(
    it: ResolvedConfig, token: RawSection, path: KeyPath, people: Mapping[str, Any], agents: Mapping[str, Any]
) -> None:
    if "person" in token:
        _check_known_name(it, (*path, "person"), token["person"], people, "person", "people")
        if token.get("role") in ("service", "metrics"):
            it.report_problem(
                (*path, "person"),
                f"has no meaning for the role {token['role']}",
                "remove it; a service names its users in each request",
            )
    for number, agent in _iterate_texts(token.get("agents")):
        _check_known_name(it, (*path, "agents", number), agent, agents, "agent", "agents")


def _check_account(
    it: ResolvedConfig, raw: RawSection, path: KeyPath, agents: RawSection, people: Mapping[str, Any]
) -> None:
    _check_known_name(it, (*path, "agent"), raw.get("agent"), agents, "agent", "agents")
    access = _as_mapping(raw.get("access"))
    lists = [((*path, "access", "direct"), access.get("direct"))]
    lists += [((*path, "access", "groups", group), who) for group, who in _as_mapping(access.get("groups")).items()]
    for at, who in lists:
        for place, person in _iterate_texts(who):
            if person != "*" and ":" not in person and person not in people:
                # Not fatal, because a person may be known by pairing alone, and an unknown name admits no one.
                it.report_problem(
                    (*at, place),
                    "there is no person of this name",
                    suggest_name(person, people) or "add them under people",
                    fatal=False,
                    disables=(*at, place),
                )
    _check_owners(it, raw, path, people)
    for chat, settings in _as_mapping(raw.get("chats")).items():
        _check_owners(it, _as_mapping(settings), (*path, "chats", chat), people)
        _check_known_name(
            it, (*path, "chats", chat, "agent"), _as_mapping(settings).get("agent"), agents, "agent", "agents"
        )
