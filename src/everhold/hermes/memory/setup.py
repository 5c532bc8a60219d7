"""Asks a plug-in's own setup questions. The plug-in saves the answers; secrets go to variables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everhold.errors import Refused
from everhold.hermes.memory.host import HermesHostProcess
from everhold.hermes.memory.provider import create_host, find_configured_home, resolve_path
from everhold.ports.memory import SetupQuestion
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from everhold.hermes.memory.settings import HermesSettings


async def list_questions(settings: HermesSettings, context: PluginContext) -> Sequence[SetupQuestion]:
    async with _open_host(settings, context) as host:
        card = await host.describe_plugin()
    return parse_questions(card.get("settings"), str(card.get("name", "")))


async def apply_answers(settings: HermesSettings, context: PluginContext, answers: Mapping[str, str]) -> dict[str, Any]:
    async with _open_host(settings, context) as host:
        card = await host.describe_plugin()
        asked = {it.key: it for it in parse_questions(card.get("settings"), str(card.get("name", "")))}
        own = {key: text for key, text in answers.items() if not asked[key].secret}
        kept = await host.save_settings(own) if own else True
    environ: dict[str, str] = {}
    for key, text in answers.items():
        it = asked[key]
        if it.secret:
            environ[f"{it.variable}_env"] = text
        elif it.variable:
            environ[it.variable] = text
    homeless = [key for key in own if not asked[key].variable]
    if homeless and not kept:
        raise Refused(
            f"the plug-in cannot save {', '.join(homeless)}",
            remedy="leave it out and set it as the plug-in's own documentation says",
        )
    found: dict[str, Any] = {"environ": environ} if environ else {}
    if (path := resolve_path(settings.path)) != settings.path and not settings.path.startswith("~"):
        found["path"] = path
    if not settings.hermes_home:
        found["hermes_home"] = str(host.home)  # so that every agent's instance finds the settings that were just saved
    return found


async def try_plugin(settings: HermesSettings, context: PluginContext) -> str:
    """Check that the plug-in loads and reports that it is available. It starts no conversation."""
    async with _open_host(settings, context) as host:
        await host.start()
        return str(host.description.get("name", ""))


def parse_questions(schema: Any, name: str) -> list[SetupQuestion]:
    """Convert a plug-in's schema to setup questions; invalid fields are left out."""
    found = []
    for field in schema if isinstance(schema, list) else ():
        key = field.get("key") if isinstance(field, dict) else None
        if not isinstance(key, str) or not key:
            continue
        secret = bool(field.get("secret"))
        by = field.get("default_from") or {}
        where = f" ({field['url']})" if field.get("url") else ""
        found.append(
            SetupQuestion(
                key=key,
                question=f"{field.get('description') or key}{where}",
                secret=secret,
                needed=bool(field.get("required")),
                default=_format_default(field.get("default")),
                choices=tuple(map(_format_default, field.get("choices") or ())),
                variable=str(field.get("env_var") or (f"{name}_{key}".upper().replace("-", "_") if secret else "")),
                when={str(other): _format_default(value) for other, value in (field.get("when") or {}).items()},
                defaults={str(value): _format_default(text) for value, text in (by.get("map") or {}).items()},
                defaults_by=str(by.get("field") or ""),
            )
        )
    return found


def _format_default(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@asynccontextmanager
async def _open_host(settings: HermesSettings, context: PluginContext) -> AsyncIterator[HermesHostProcess]:
    home = find_configured_home(settings) or Path(context.directory) / "hermes"
    host = create_host(settings, context, home=home, changed=lambda files: None)
    try:
        yield host
    finally:
        await host.close()
