"""What no single section can see: names that lead nowhere, people who are two, budgets without a price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everhold.config.fill import Effective, Raw
from everhold.config.problems import KeyPath, did_you_mean, dotted
from everhold.config.settings import OFFLINE
from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.secret import Secret


def check(it: Effective) -> None:
    """Add a problem for everything that does not fit together. Takes the data as it is, valid or not."""
    data = it.data
    agents, models, mcp = _mapping(data.get("agents")), _mapping(data.get("models")), _mapping(data.get("mcp"))
    people = _people(it)
    for name, agent in agents.items():
        path: KeyPath = ("agents", name)
        _models(it, _mapping(agent), path, models)
        _tools(it, _mapping(agent), path, mcp)
        for place, target in _texts(_mapping(agent).get("send_to")):
            kind, _, other = target.partition(":")
            if kind == "agent":
                _known(it, (*path, "send_to", place), other, agents, "agent", "agents")
            elif not other:
                it.problem((*path, "send_to", place), "is neither agent:NAME nor an address", f'write "agent:{kind}"')
    for name in SELECTABLE_TOOLS:
        if name in _mapping(data.get("tools")):
            it.problem(("tools", name), "is built in and takes no settings", "choose another name, with provider: …")
    _tokens(it, people)
    for place, owner in _texts(_mapping(data.get("access")).get("owners")):
        _known(it, ("access", "owners", place), owner, people, "person", "people")
    for platform, accounts in _mapping(data.get("platforms")).items():
        for account, raw in _mapping(accounts).items():
            _account(it, _mapping(raw), ("platforms", platform, account), agents, people)


def _mapping(value: Any) -> Raw:
    return dict(value) if isinstance(value, Mapping) else {}


def _texts(value: Any) -> Iterator[tuple[int, str]]:
    for place, item in enumerate(value if isinstance(value, tuple) else ()):
        if isinstance(item, str):
            yield place, item


def _known(it: Effective, path: KeyPath, name: Any, known: Mapping[str, Any], what: str, section: str) -> None:
    if not isinstance(name, str) or name in known:
        return
    near = did_you_mean(name, known)
    it.problem(path, f"there is no {what} of this name", near or f"add it under {section}")


def _people(it: Effective) -> dict[str, KeyPath]:
    people: dict[str, KeyPath] = {}
    owners: dict[str, str] = {}
    value = it.data.get("people")
    for place, person in enumerate(value if isinstance(value, tuple) else ()):
        name = _mapping(person).get("name")
        if not isinstance(name, str):
            continue
        if name in people:
            it.problem(("people", place, "name"), "stands twice", f"see {dotted(people[name])}: merge the two")
        people.setdefault(name, ("people", place))
        for spot, identity in _texts(_mapping(person).get("identities")):
            if owners.setdefault(identity, name) != name:
                it.problem(
                    ("people", place, "identities", spot),
                    f"belongs to `{owners[identity]}` already",
                    "one identity is one person",
                )
    return people


def _models(it: Effective, agent: Raw, path: KeyPath, models: Raw) -> None:
    compression = _mapping(agent.get("compression"))
    uses: list[tuple[KeyPath, Any]] = [((*path, "model"), agent.get("model"))]
    uses += [((*path, "fallback", place), name) for place, name in _texts(agent.get("fallback"))]
    uses.append(((*path, "compression", "model"), compression.get("model")))
    for place, name in uses if models else ():  # without any, `models` itself was refused
        _known(it, place, name, models, "model", "models")
    budget = _mapping(agent.get("budget"))
    if not any("usd_per_day" in limit for limit in (budget, *map(_mapping, budget.values()))):
        return
    for name in dict.fromkeys(name for _, name in uses if isinstance(name, str) and name in models):
        model = _mapping(models[name])
        if model and "price" not in model and model.get("provider") != OFFLINE:
            it.problem(
                ("models", name),
                f"has no price, which the budget of {dotted(path)} needs",
                "price: {input: 2.5, output: 10}, in US dollars per million tokens; or tokens_per_day as budget",
            )


def _tools(it: Effective, agent: Raw, path: KeyPath, mcp: Raw) -> None:
    seen: set[str] = set()
    for place, tool in _texts(agent.get("tools")):
        if tool in seen:
            it.problem((*path, "tools", place), "stands twice", "remove one of them")
        seen.add(tool)
        if tool == "send" and not agent.get("send_to"):
            it.problem(
                (*path, "tools", place),
                "has nobody to write to",
                'send_to: ["agent:NAME"] says whom',
                fatal=False,
                disables=(*path, "tools", place),
            )
        kind, _, server = tool.partition(":")
        if kind == "mcp":
            _known(it, (*path, "tools", place), server, mcp, "server", "mcp")


def _tokens(it: Effective, people: Mapping[str, Any]) -> None:
    names: set[str] = set()
    secrets: set[Secret] = set()
    value = _mapping(it.data.get("http")).get("tokens")
    for place, raw in enumerate(value if isinstance(value, tuple) else ()):
        token, path = _mapping(raw), ("http", "tokens", place)
        if "person" in token:
            _known(it, (*path, "person"), token["person"], people, "person", "people")
        name, secret = token.get("name"), token.get("=token")
        if isinstance(name, str) and name in names:
            it.problem((*path, "name"), "stands twice", "give each token its own name")
        names |= {name} if isinstance(name, str) else set()
        if isinstance(secret, Secret):
            if secret in secrets:
                it.problem(
                    (*path, "token_env"), "is the same token as another", "a token names one speaker: make a new one"
                )
            secrets.add(secret)


def _account(it: Effective, raw: Raw, path: KeyPath, agents: Raw, people: Mapping[str, Any]) -> None:
    _known(it, (*path, "agent"), raw.get("agent"), agents, "agent", "agents")
    access = _mapping(raw.get("access"))
    lists = [((*path, "access", "direct"), access.get("direct"))]
    lists += [((*path, "access", "groups", group), who) for group, who in _mapping(access.get("groups")).items()]
    for at, who in lists:
        for place, person in _texts(who):
            if person != "*" and ":" not in person and person not in people:
                # Not fatal: a person may be known by pairing alone, and a name nobody has lets nobody in.
                it.problem(
                    (*at, place),
                    "there is no person of this name",
                    did_you_mean(person, people) or "add them under people",
                    fatal=False,
                    disables=(*at, place),
                )
    for chat, settings in _mapping(raw.get("chats")).items():
        _known(it, (*path, "chats", chat, "agent"), _mapping(settings).get("agent"), agents, "agent", "agents")
