"""`everhold plugin`: what is installed; a provider of one's own, and whether it keeps its promise."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import keyword
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from everhold.cli.render import Screen, count, one_line
from everhold.errors import Misuse, NotFound

if TYPE_CHECKING:
    from everhold.plugins import Factory
    from everhold.ports.memory import MemoryProvider
    from everhold.testing.conformance import Harness, Outcome

SKELETON: Final = Path(__file__).parents[1] / "skeleton"
SIGNS: Final = {"passed": ("✓", "green"), "failed": ("✗", "red"), "skipped": ("·", "dim")}


def run(args: argparse.Namespace, screen: Screen) -> int:
    match args.action:
        case "list":
            return _list(screen)
        case "new":
            return _new(args, screen)
        case _:
            return asyncio.run(_test(args, screen))


# -- what is installed -------------------------------------------------------------------------------------------------


def _list(screen: Screen) -> int:
    from everhold.plugins import MEMORIES, MODELS, PLATFORMS, TOOLS

    found = [(it.kind, plugin) for it in (MEMORIES, PLATFORMS, MODELS, TOOLS) for plugin in it.plugins()]
    if screen.json:
        names = ("name", "package", "version", "target")
        rows = [{"kind": kind, **{name: getattr(plugin, name) for name in names}} for kind, plugin in found]
        screen.show({"plugins": rows})
        return 0
    cells = [(kind, it.name, f"{it.package} {it.version}".strip(), it.target) for kind, it in found]
    screen.table(("kind", "name", "package", "at"), [[one_line(cell) for cell in row] for row in cells])
    return 0


# -- a new one ---------------------------------------------------------------------------------------------------------


def _new(args: argparse.Namespace, screen: Screen) -> int:
    name = args.name
    package = f"everhold_{name.replace('-', '_')}"
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or keyword.iskeyword(name):
        raise Misuse(f"{name!r} is not a name for a plug-in", remedy="small letters, digits and -, first a letter")
    directory = Path(args.directory or f"everhold-{name}")
    if directory.exists() and any(directory.iterdir()):
        raise Misuse(f"{directory} is not empty", remedy="name another place: --in DIR")
    words = {"@name@": name, "@package@": package, "@Class@": "".join(part.title() for part in name.split("-"))}
    files = {
        f"{package}/__init__.py": "provider.py",
        f"{package}/py.typed": "",
        "pyproject.toml": "pyproject.toml",
        "tests/test_contract.py": "test_contract.py",
        "README.md": "README.md",
    }
    for file, template in files.items():
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(template, words))
    if screen.json:
        screen.show({"directory": str(directory), "files": sorted(files)})
    else:
        screen.say(f"wrote {directory}: {', '.join(sorted(files))}")
        screen.note(f"next: cd {directory} && everhold plugin test {package}:{words['@Class@']}")
    return 0


def _filled(template: str, words: Mapping[str, str]) -> str:
    text = (SKELETON / f"{template}.txt").read_text() if template else ""
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


# -- a test ------------------------------------------------------------------------------------------------------------


def _named(name: str) -> tuple[Factory[MemoryProvider], dict[str, Any]]:
    """The factory a name stands for. `plug-in:text` sets what the plug-in is about, if it is about something."""
    from everhold.plugins import MEMORIES

    head, colon, rest = name.partition(":")
    if colon and head in {plugin.name for plugin in MEMORIES.plugins()}:
        factory = MEMORIES.load(head)
        if argument := getattr(factory, "argument", ""):
            return factory, {argument: rest}
    return MEMORIES.load(name), {}


async def _test(args: argparse.Namespace, screen: Screen) -> int:
    from everhold.testing.conformance import CHECKS, run as run_checks

    if unknown := [name for name in args.only if name not in CHECKS]:
        raise NotFound(f"there is no check {unknown[0]!r}", remedy=f"there is {', '.join(CHECKS)}")
    if ":" in args.name or ":" in args.harness:
        sys.path.insert(0, os.getcwd())  # what is being written stands here
    factory, about = _named(args.name)
    outcomes: list[Outcome] = []
    async with _broken_at_will(args.harness) as harness:
        given = {**about, **(harness.settings if harness is not None else {}), **_settings(args.set)}
        settings, make = _maker(factory, given, name=args.name.partition(":")[0])
        await _tried(factory, settings)
        checks = run_checks(make, harness=harness, only=args.only, seconds=args.seconds, patience=args.patience)
        async for outcome in checks:
            outcomes.append(outcome)
            if not screen.json:
                _show(screen, outcome)
    states = [outcome.state for outcome in outcomes]
    if screen.json:
        import msgspec

        screen.show({"provider": args.name, "checks": msgspec.to_builtins(outcomes)})
    else:
        parts = [f"{states.count(state)} {state}" for state in SIGNS if state in states]
        screen.say(f"{count(len(outcomes), 'check')}: {', '.join(parts)}")
    return 1 if "failed" in states else 0


def _show(screen: Screen, outcome: Outcome) -> None:
    sign, style = SIGNS[outcome.state]
    screen.say(f"{screen.paint(sign, style)} {outcome.check:<17} {outcome.promise}")
    if outcome.reason:
        screen.say(f"{'':>20}{screen.paint(one_line(outcome.reason), style)}")
    screen.out.flush()


def _settings(given: list[str]) -> dict[str, Any]:
    """`k=v` as config.yaml would have it; a secret is named by its variable."""
    from everhold.secret import Secret

    settings: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Misuse(f"{text!r} is not K=V", remedy="for example --set base_url=http://127.0.0.1:8000")
        if key.endswith("_env"):
            if not os.environ.get(value):
                raise Misuse(f"{value} is not set", remedy=f"export {value}=… first")
            settings[key.removesuffix("_env")] = Secret(os.environ[value])
            continue
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


def _maker(
    factory: Factory[MemoryProvider], given: Mapping[str, Any], *, name: str
) -> tuple[Any, Callable[[str, Path], MemoryProvider]]:
    from everhold.config import ConfigError, plugin_problems, plugin_settings
    from everhold.config.settings import MemorySettings
    from everhold.testing.plugin import context

    if problems := plugin_problems("memories", factory.Settings, given):
        raise ConfigError(problems)
    section = MemorySettings.model_validate({"provider": "it", "=extra": dict(given), "=name": name})
    settings = plugin_settings(section, factory.Settings)

    def make(agent: str, directory: Path) -> MemoryProvider:
        return factory(settings, context(agent=agent, instance=name, directory=directory))

    return settings, make


async def _tried(factory: Factory[MemoryProvider], settings: Any) -> None:
    """Whether it can be used at all, where it can be asked: that is said once, not by every check in its own words."""
    from everhold.ports.memory import Interviewing
    from everhold.testing.plugin import context

    if isinstance(factory, Interviewing):
        with tempfile.TemporaryDirectory(prefix="everhold-plugin-", ignore_cleanup_errors=True) as directory:
            await factory.tried(settings, context(agent="main", directory=Path(directory)))


@contextlib.asynccontextmanager
async def _broken_at_will(target: str) -> AsyncIterator[Harness | None]:
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
            yield cast("Harness", harness)
    else:
        yield cast("Harness", made)
