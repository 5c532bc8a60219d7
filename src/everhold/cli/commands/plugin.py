"""`everhold plugin`: list the installed plug-ins, generate a new one, test a memory provider."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from everhold.cli.render import CommandScreen, format_count, format_one_line
from everhold.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from everhold.infra.plugins import PluginCatalogue, PluginFactory
    from everhold.ports.memory import MemoryProvider
    from everhold.testing.conformance import CheckOutcome, ServiceHarness

SKELETON_DIRECTORY: Final = Path(__file__).parents[1] / "skeleton"
STATE_SIGNS: Final = {"passed": ("✓", "green"), "failed": ("✗", "red"), "skipped": ("·", "dim")}


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    match args.action:
        case "list":
            return _list_plugins(screen)
        case "new":
            return _create_plugin(args, screen)
        case _:
            return asyncio.run(_test_plugin(args, screen))


# -- what is installed -------------------------------------------------------------------------------------------------


def _list_plugins(screen: CommandScreen) -> int:
    from everhold.infra.plugins import MEMORY_PLUGINS, MODEL_PLUGINS, PLATFORM_PLUGINS, TOOL_PLUGINS

    found = [
        (it.kind, plugin)
        for it in (MEMORY_PLUGINS, PLATFORM_PLUGINS, MODEL_PLUGINS, TOOL_PLUGINS)
        for plugin in it.list_plugins()
    ]
    if screen.json:
        names = ("name", "package", "version", "target")
        rows = [{"kind": kind, **{name: getattr(plugin, name) for name in names}} for kind, plugin in found]
        screen.print_json({"plugins": rows})
        return 0
    cells = [(kind, it.name, f"{it.package} {it.version}".strip(), it.target) for kind, it in found]
    screen.print_table(("kind", "name", "package", "at"), [[format_one_line(cell) for cell in row] for row in cells])
    return 0


# -- generate a new one ------------------------------------------------------------------------------------------------

SKELETON_FILES: Final = {
    "memory": {
        "@package@/__init__.py": "provider.py",
        "@package@/py.typed": "",
        "pyproject.toml": "pyproject.toml",
        "tests/test_contract.py": "test_contract.py",
        "README.md": "README.md",
    },
    "platform": {
        "@package@/__init__.py": "adapter.py",
        "@package@/py.typed": "",
        "pyproject.toml": "pyproject.toml",
        "tests/remote_@module@.py": "remote.py",
        "tests/test_contract.py": "test_contract.py",
        "README.md": "README.md",
    },
}
"""Kind of plug-in -> file -> its template in `skeleton/KIND`. An empty template name makes an empty file."""


def _create_plugin(args: argparse.Namespace, screen: CommandScreen) -> int:
    name = args.name
    _require_free_name(args.kind, name)
    directory = Path(args.directory or f"everhold-{name}")
    if directory.exists() and any(directory.iterdir()):
        raise InvalidRequest(f"{directory} is not empty", remedy="name another directory: --in DIR")
    module = name.replace("-", "_")
    words = {
        "@name@": name,
        "@module@": module,
        "@package@": f"everhold_{module}",
        "@Class@": "".join(part.title() for part in name.split("-")),
        "@VARIABLE@": module.upper(),
    }
    files = {_replace_words(file, words): template for file, template in SKELETON_FILES[args.kind].items()}
    for file, template in files.items():
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_fill_template(args.kind, template, words))
    if screen.json:
        screen.print_json({"directory": str(directory), "files": sorted(files)})
    else:
        screen.print_line(f"wrote {directory}: {', '.join(sorted(files))}")
        if args.kind == "memory":
            test = f"everhold plugin test {words['@package@']}:{words['@Class@']}"
        else:
            test = "pip install -e '.[testing]' && pytest"
        screen.print_note(f"next: cd {directory} && {test}")
    return 0


def _require_free_name(kind: str, name: str) -> None:
    """Refuse a name that is invalid or taken, because two packages with one name disable each other."""
    from everhold.infra.plugins import MEMORY_PLUGINS, PLATFORM_PLUGINS

    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise InvalidRequest(
            f"{name!r} is not a name for a plug-in",
            remedy="use small letters, digits and single hyphens, beginning with a letter",
        )
    catalogue: PluginCatalogue[Any] = MEMORY_PLUGINS if kind == "memory" else PLATFORM_PLUGINS
    for plugin in catalogue.list_plugins():
        if plugin.name == name:
            raise InvalidRequest(
                f"{plugin.package} already offers a {catalogue.noun} {name!r}",
                remedy="choose another name; `everhold plugin list` lists those in use",
            )


def _fill_template(kind: str, template: str, words: Mapping[str, str]) -> str:
    return _replace_words((SKELETON_DIRECTORY / kind / f"{template}.txt").read_text(), words) if template else ""


def _replace_words(text: str, words: Mapping[str, str]) -> str:
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


# -- a test ------------------------------------------------------------------------------------------------------------


def _find_factory(name: str) -> tuple[PluginFactory[MemoryProvider], dict[str, Any]]:
    """The factory a name stands for. `plug-in:text` sets what the plug-in is about, if it is about something."""
    from everhold.infra.plugins import MEMORY_PLUGINS

    head, colon, rest = name.partition(":")
    if colon and head in {plugin.name for plugin in MEMORY_PLUGINS.list_plugins()}:
        factory = MEMORY_PLUGINS.load(head)
        if argument := getattr(factory, "argument", ""):
            return factory, {argument: rest}
    return MEMORY_PLUGINS.load(name), {}


async def _test_plugin(args: argparse.Namespace, screen: CommandScreen) -> int:
    from everhold.testing.conformance import CHECKS, run_checks

    if unknown := [name for name in args.only if name not in CHECKS]:
        raise NotFound(f"there is no check {unknown[0]!r}", remedy=f"use one of: {', '.join(CHECKS)}")
    if ":" in args.name or ":" in args.harness:
        sys.path.insert(0, os.getcwd())  # what is being written stands here
    factory, about = _find_factory(args.name)
    outcomes: list[CheckOutcome] = []
    async with _load_harness(args.harness) as harness:
        given = {**about, **(harness.settings if harness is not None else {}), **_parse_settings(args.set)}
        settings, make = _make_provider_factory(factory, given, name=args.name.partition(":")[0])
        await _try_factory(factory, settings)
        checks = run_checks(make, harness=harness, only=args.only, seconds=args.seconds, patience=args.patience)
        async for outcome in checks:
            outcomes.append(outcome)
            if not screen.json:
                _print_outcome(screen, outcome)
    states = [outcome.state for outcome in outcomes]
    if screen.json:
        import msgspec

        screen.print_json({"provider": args.name, "checks": msgspec.to_builtins(outcomes)})
    else:
        parts = [f"{states.count(state)} {state}" for state in STATE_SIGNS if state in states]
        screen.print_line(f"{format_count(len(outcomes), 'check')}: {', '.join(parts)}")
    return 1 if "failed" in states else 0


def _print_outcome(screen: CommandScreen, outcome: CheckOutcome) -> None:
    sign, style = STATE_SIGNS[outcome.state]
    screen.print_line(f"{screen.paint(sign, style)} {outcome.check:<17} {outcome.promise}")
    if outcome.reason:
        screen.print_line(f"{'':>20}{screen.paint(format_one_line(outcome.reason), style)}")
    screen.out.flush()


def _parse_settings(given: list[str]) -> dict[str, Any]:
    """`k=v` as config.yaml would have it; a secret is named by its variable."""
    from everhold.infra.secret import SecretString

    settings: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"{text!r} is not K=V", remedy="for example --set base_url=http://127.0.0.1:8000")
        if key.endswith("_env"):
            if not os.environ.get(value):
                raise InvalidRequest(f"{value} is not set", remedy=f"export {value}=… first")
            settings[key.removesuffix("_env")] = SecretString(os.environ[value])
            continue
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


def _make_provider_factory(
    factory: PluginFactory[MemoryProvider], given: Mapping[str, Any], *, name: str
) -> tuple[Any, Callable[[str, Path], MemoryProvider]]:
    from everhold.config import ConfigError, build_plugin_settings, find_plugin_problems
    from everhold.config.settings import MemorySettings
    from everhold.testing.plugin_context import make_plugin_context

    if problems := find_plugin_problems("memories", factory.Settings, given):
        raise ConfigError(problems)
    section = MemorySettings.model_validate({"provider": "it", "=extra": dict(given), "=name": name})
    settings = build_plugin_settings(section, factory.Settings)

    def make_provider(agent: str, directory: Path) -> MemoryProvider:
        return factory(settings, make_plugin_context(agent=agent, instance=name, directory=directory))

    return settings, make_provider


async def _try_factory(factory: PluginFactory[MemoryProvider], settings: Any) -> None:
    """Whether it can be used at all, where it can be asked: that is said once, not by every check in its own words."""
    from everhold.ports.memory import SupportsSetup
    from everhold.testing.plugin_context import make_plugin_context

    if isinstance(factory, SupportsSetup):
        with tempfile.TemporaryDirectory(prefix="everhold-plugin-", ignore_cleanup_errors=True) as directory:
            await factory.test_setup(settings, make_plugin_context(agent="main", directory=Path(directory)))


@contextlib.asynccontextmanager
async def _load_harness(target: str) -> AsyncIterator[ServiceHarness | None]:
    """The harness at `module:name`: an object, something that makes one, or an async context that gives one."""
    if not target:
        yield None
        return
    from importlib.metadata import EntryPoint

    try:
        made: Any = EntryPoint(target, target, "").load()
    except (ImportError, AttributeError, ValueError) as error:
        raise NotFound(f"no harness at {target}: {error}", remedy="MODULE:NAME, importable from here") from error
    made = made() if callable(made) else made
    if hasattr(made, "__aenter__"):
        async with made as harness:
            yield cast("ServiceHarness", harness)
    else:
        yield cast("ServiceHarness", made)
