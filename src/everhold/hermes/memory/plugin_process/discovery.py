"""Finds a plug-in by its path or entry point and returns a factory of memory providers. Plug-ins have several forms."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .hermes_modules import get_hermes_home

ENTRY_POINT_GROUPS = ("hermes_agent.memory_providers", "hermes_agent.plugins")
MakeProvider = Callable[[], Any]


class ProviderCollector:
    """The argument of a plug-in's `register`. It keeps the memory provider and ignores everything else."""

    def __init__(self) -> None:
        self.providers: list[Any] = []
        self.llm = None

    def register_memory_provider(self, provider: Any, *_: Any, **__: Any) -> None:
        self.providers.append(provider)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def find_plugin(what: str) -> MakeProvider:
    """Return a provider factory. `what` is a directory or file, the name of one in the home's `plugins`, or an entry
    point.

    Raises LookupError with the reason.
    """
    path, folder = Path(what).expanduser(), get_hermes_home() / "plugins"
    for place in (path, folder / what):
        if (
            place.is_file() or (place / "__init__.py").exists()
        ):  # some plug-ins keep settings in a directory of that name
            return _build_maker(_import_path(place), what)
    for group in ENTRY_POINT_GROUPS:
        for entry in _list_entry_points(group):
            if entry.name == what:
                return _build_maker(entry.load(), what)
    if path.exists():
        raise LookupError(f"{path} has no __init__.py")
    known = {entry.name for group in ENTRY_POINT_GROUPS for entry in _list_entry_points(group)}
    known |= {place.parent.name for place in folder.glob("*/__init__.py")}
    named = ", ".join(sorted(known)) or "none"
    raise LookupError(f"{what} is neither a path nor an installed plug-in (installed: {named})")


def _list_entry_points(group: str) -> list[Any]:
    return list(importlib.metadata.entry_points().select(group=group))


def _import_path(path: Path) -> types.ModuleType:
    """Import a directory or file under a unique name, so that its relative imports work."""
    path = path.resolve()
    file = path / "__init__.py" if path.is_dir() else path
    folder = file.parent
    # bundled plug-ins are imported as part of their package, because it has helper modules
    family = "plugins.memory" if file.name == "__init__.py" else "plugins"
    sys.modules[family].__path__.append(str(folder.parent))  # type: ignore[union-attr, unused-ignore]
    name = f"{family}.{folder.name if file.name == '__init__.py' else file.stem}".replace("-", "_")
    where = [str(folder)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=where)
    if spec is None or spec.loader is None:
        raise LookupError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _build_maker(thing: Any, what: str) -> MakeProvider:
    """Return a function that creates a provider on each call, because hermes-agent has one per conversation."""
    register = thing if inspect.isfunction(thing) else getattr(thing, "register", None)
    if callable(register) and not inspect.isclass(thing):

        def registered() -> Any:
            collector = ProviderCollector()
            register(collector)
            if not collector.providers:
                raise LookupError(f"{what} registers no memory provider")
            return collector.providers[-1]

        return registered
    if inspect.isclass(thing):
        return thing
    if isinstance(thing, types.ModuleType):
        classes = [
            member
            for member in vars(thing).values()
            if inspect.isclass(member) and member.__module__ == thing.__name__ and _is_provider(member)
        ]
        if len(classes) == 1:
            return classes[0]
        if classes:
            named = ", ".join(member.__name__ for member in classes)
            raise LookupError(f"{what} has several memory providers ({named}) and no `register`")
    raise LookupError(f"{what} has neither `register` nor a memory provider")


def _is_provider(member: type) -> bool:
    """Whether an object looks like a memory provider. Not all of them are subclasses."""
    made = all(callable(getattr(member, name, None)) for name in ("initialize", "sync_turn"))
    return made and not member.__name__.startswith("_")
