"""Finds what the configuration needs and this machine lacks: models that cannot be asked, programs and packages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from everhold.assembly.builtin_toolbox import WEB_SEARCH
from everhold.config import ConfigProblem, Settings
from everhold.config.errors import ProblemCause
from everhold.infra.extras import describe_install
from everhold.infra.plugins import MODEL_PLUGINS
from everhold.tools.mcp import list_server_names

MCP_PACKAGE = "mcp"


def list_missing_programs(settings: Settings, environ: Mapping[str, str]) -> list[ConfigProblem]:
    """Return the tool servers that agents use and that cannot start, because their program or a package is missing, and
    the tools that need a service which is not configured.
    """
    used = {name for agent in settings.agents.values() for name in list_server_names(agent)}
    return [
        *_list_missing_services(settings),
        *(
            problem
            for name in sorted(used & set(settings.mcp))
            if (problem := _find_server_problem(settings, name, environ)) is not None
        ),
    ]


def _list_missing_services(settings: Settings) -> list[ConfigProblem]:
    if settings.search.provider is not None:
        return []
    remedy = "search: {provider: searxng, url: …}; `everhold setup tools web_search` explains and tests the choices"
    return [
        ConfigProblem(
            "web_search is not offered: no search service is configured",
            remedy,
            path=("agents", agent.name, "tools"),
            fatal=False,
            disables=f"agents.{agent.name}.web_search",
            cause=ProblemCause.MISSING_SERVICE,
        )
        for agent in settings.agents.values()
        if WEB_SEARCH in agent.tools
    ]


def _find_server_problem(settings: Settings, name: str, environ: Mapping[str, str]) -> ConfigProblem | None:
    path, off = ("mcp", name), f"mcp.{name}"
    if find_spec(MCP_PACKAGE) is None:
        cause = ProblemCause.MISSING_PACKAGE
        text = "the package for MCP servers is not installed"
        return ConfigProblem(text, describe_install("mcp"), path=path, fatal=False, disables=off, cause=cause)
    command = settings.mcp[name].command
    if not command or shutil.which(command[0], path=environ.get("PATH")) is not None:
        return None
    return ConfigProblem(
        f"there is no program {command[0]!r}",
        "install it, or write its whole path into command",
        path=path,
        fatal=False,
        disables=off,
        cause=ProblemCause.MISSING_PROGRAM,
    )


def list_unusable_agents(settings: Settings) -> dict[str, str]:
    """Return the agents that have no model that can be asked -> why, in one sentence."""
    found: dict[str, str] = {}
    for agent in settings.agents.values():
        reasons = [_explain_unusable(settings, name) for name in (agent.model, *agent.fallback)]
        if all(reasons):
            found[agent.name] = "; ".join(dict.fromkeys(reasons))
    return found


def _explain_unusable(settings: Settings, name: str) -> str:
    model = settings.models[name]
    if model.missing:
        return f"model {name} needs {', '.join(model.missing)} in .env"
    if ":" not in model.provider and model.provider not in set(_iterate_providers()):
        return f"model {name} has the unknown provider {model.provider}"
    return ""


def _iterate_providers() -> Iterator[str]:
    for plugin in MODEL_PLUGINS.list_plugins():
        yield plugin.name
