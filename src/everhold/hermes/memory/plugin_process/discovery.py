"""Finds a plug-in by its path or entry point and returns a factory of memory providers. Plug-ins have several forms."""

from __future__ import annotations

import hashlib
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

from .hermes_modules import HermesMemoryProvider, get_hermes_home

ENTRY_POINT_GROUPS = ("hermes_agent.memory_providers", "hermes_agent.plugins")
MakeProvider = Callable[[], Any]
CODE_PATTERNS = ("*.py", "*.so", "*.pyd", "plugin.yaml")
"""The files that make up a plug-in."""
MAX_CODE_FILES = 5_000


class FoundPlugin:
    """A plug-in that was imported: how to make its provider, and where its code is."""

    def __init__(self, make: MakeProvider, root: Path | None) -> None:
        self.make = make
        self.root = root

    def compute_code_digest(self) -> str:
        """Return a digest that changes with every file of the plug-in."""
        digest = hashlib.sha256()
        for file in self._list_code_files():
            digest.update(f"{file}\0".encode("utf-8", "surrogateescape"))
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]

    def _list_code_files(self) -> list[Path]:
        if self.root is None or self.root.is_file():
            return [self.root] if self.root is not None else []
        found = {file for pattern in CODE_PATTERNS for file in self.root.rglob(pattern) if file.is_file()}
        return sorted(found)[:MAX_CODE_FILES]


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


def find_plugin(what: str) -> FoundPlugin:
    """Find and import a plug-in. `what` is a directory or file, the name of one in the home's `plugins`, or an entry
    point.

    Raises LookupError with the reason.
    """
    path, folder = Path(what).expanduser(), get_hermes_home() / "plugins"
    for place in (path, folder / what):
        if (
            place.is_file() or (place / "__init__.py").exists()
        ):  # some plug-ins keep settings in a directory of that name
            return FoundPlugin(_build_maker(_import_path(place), what), place.resolve())
    for group in ENTRY_POINT_GROUPS:
        for entry in _list_entry_points(group):
            if entry.name == what:
                return FoundPlugin(_build_maker(entry.load(), what), _find_module_root(entry.value.partition(":")[0]))
    if path.exists():
        raise LookupError(f"{path} has no __init__.py")
    known = {entry.name for group in ENTRY_POINT_GROUPS for entry in _list_entry_points(group)}
    known |= {place.parent.name for place in folder.glob("*/__init__.py")}
    named = ", ".join(sorted(known)) or "none"
    raise LookupError(f"{what} is neither a path nor an installed plug-in (installed: {named})")


def _find_module_root(name: str) -> Path | None:
    """Return the directory of an imported package, or the file of an imported module."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return None
    return Path(file).parent if Path(file).name == "__init__.py" else Path(file)


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
    """Return a function that creates a provider on each call, because hermes-agent has one per conversation.

    As in hermes-agent, a module whose `register` registers nothing may still contain a provider class.
    """
    if inspect.isclass(thing):
        return thing
    register = thing if inspect.isfunction(thing) else getattr(thing, "register", None)
    classes = _list_provider_classes(thing) if isinstance(thing, types.ModuleType) else []
    if callable(register):

        def registered() -> Any:
            collector = ProviderCollector()
            register(collector)
            if not collector.providers:
                raise LookupError(f"{what} registers no memory provider")
            return collector.providers[-1]

        if not classes:
            return registered
        try:
            registered()
        # foreign code: whatever it raises, the class is still there
        except Exception as error:
            sys.stderr.write(f"`register` of {what} failed, so its class is used: {type(error).__name__}: {error}\n")
        else:
            return registered
    return _choose_class(classes, what)


def _list_provider_classes(module: types.ModuleType) -> list[type]:
    """Return the provider classes that a module shows, by name: its own, re-exported ones and lazy attributes.

    hermes-agent takes only subclasses of its base class. Of the other classes, those of the module itself are taken,
    because a class from elsewhere that happens to have these methods is rarely meant.
    """
    shown = [getattr(module, name, None) for name in sorted({*dir(module), *_list_exported_names(module)})]
    classes = list(dict.fromkeys(member for member in shown if inspect.isclass(member)))
    derived = [it for it in classes if issubclass(it, HermesMemoryProvider) and it is not HermesMemoryProvider]
    return derived or [it for it in classes if it.__module__ == module.__name__ and _is_provider(it)]


def _list_exported_names(module: types.ModuleType) -> list[str]:
    """Return `__all__`, which may name lazy attributes that `dir` does not list."""
    exported = getattr(module, "__all__", ())
    return [name for name in exported if isinstance(name, str)] if isinstance(exported, list | tuple) else []


def _choose_class(classes: list[type], what: str) -> MakeProvider:
    """Return the first class that can be instantiated, as hermes-agent does. Base classes often cannot."""
    reasons = []
    for member in classes:
        try:
            member()
        # foreign code: any error means that another class is tried
        except Exception as error:
            reasons.append(f"{member.__name__}: {type(error).__name__}: {error}")
        else:
            return member
    if reasons:
        raise LookupError(f"{what} has no memory provider that can be made ({'; '.join(reasons)})")
    raise LookupError(f"{what} has neither `register` nor a memory provider")


def _is_provider(member: type) -> bool:
    """Whether an object looks like a memory provider. Not all of them are subclasses."""
    made = all(callable(getattr(member, name, None)) for name in ("initialize", "sync_turn"))
    return made and not member.__name__.startswith("_")
