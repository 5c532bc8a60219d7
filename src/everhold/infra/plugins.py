"""Find plug-ins by the entry points of installed packages. A plug-in is imported when it is loaded, never from a home.

A package offers a plug-in by an entry point in one of four groups: `everhold.memories`, `everhold.platforms`,
`everhold.models` or `everhold.tools`. The entry is a factory `(settings, context) -> instance` with an attribute
`Settings`, a pydantic model. A class with such an `__init__` is a factory, too. The adapters of everhold are found the
same way.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, metadata
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.errors import InvalidRequest, NotFound
from everhold.infra.extras import describe_install
from everhold.ports.memory import MemoryProvider
from everhold.ports.model import Model
from everhold.ports.platform import Platform
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import Tool

if TYPE_CHECKING:
    from pydantic import BaseModel

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_IMPORT_ERRORS: Final = (
    ImportError,
    AttributeError,
    SyntaxError,
    NameError,
    TypeError,
    ValueError,
    RuntimeError,
    OSError,
)
"""The errors that the import of a plug-in's module usually raises."""


class PluginFactory(Protocol[T_co]):
    """Makes an instance of a plug-in."""

    @property
    def Settings(self) -> type[BaseModel]:
        """Validates the plug-in's section. Keys that end in `_env` arrive resolved."""

    def __call__(self, settings: Any, context: PluginContext) -> T_co: ...


@dataclass(frozen=True, kw_only=True)
class InstalledPlugin:
    """A plug-in of an installed package. It has not been imported."""

    name: str
    package: str
    """Empty if the plug-in is named by its import path."""
    version: str
    target: str
    """module:attribute"""

    def __str__(self) -> str:
        if not self.package:
            return repr(self.target)
        return f"{self.name!r} of {self.package} {self.version} ({self.target})"


class PluginCatalogue(Generic[T]):
    """The plug-ins of one kind."""

    def __init__(self, kind: str, noun: str = "plug-in", *, builtin: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.noun = noun
        """The word for one plug-in in messages."""
        self.builtin = builtin
        """Built-in names that can be chosen like plug-ins."""
        self.group = f"everhold.{kind}"

    def list_plugins(self) -> list[InstalledPlugin]:
        """Return all installed plug-ins, by name. A name that two packages offer occurs twice."""
        found = {_build_plugin(entry) for entry in entry_points(group=self.group)}
        return sorted(found, key=lambda plugin: (plugin.name, plugin.package, plugin.version))

    def load(self, name: str) -> PluginFactory[T]:
        """Return the factory called `name`, or at `module:attribute`. Raises NotFound or InvalidRequest."""
        plugin = self._find_plugin(name)
        try:
            factory = EntryPoint(plugin.name, plugin.target, self.group).load()
        except _IMPORT_ERRORS as error:
            raise InvalidRequest(
                f"{self.kind}: {plugin} cannot be loaded: {type(error).__name__}: {error}",
                remedy=_render_import_remedy(plugin, error),
            ) from error
        return self._check_factory(plugin, factory)

    def _find_plugin(self, name: str) -> InstalledPlugin:
        if ":" in name:
            return InstalledPlugin(name=name, package="", version="", target=name)
        installed = self.list_plugins()
        fitting = [plugin for plugin in installed if plugin.name == name]
        match fitting:
            case [plugin]:
                return plugin
            case []:
                known = sorted({*self.builtin, *(plugin.name for plugin in installed)})
                raise NotFound(
                    f"there is no {self.noun} {name!r} (there is: {', '.join(known) or 'none'})",
                    remedy=_suggest_plugin(self.kind, name, known),
                )
            case _:
                raise InvalidRequest(
                    f"{self.kind}: {len(fitting)} packages offer {name!r}: {_join_plugins(fitting)}",
                    remedy=f"uninstall all but one, for example: pip uninstall {fitting[-1].package}",
                )

    def _check_factory(self, plugin: InstalledPlugin, factory: object) -> PluginFactory[T]:
        from pydantic import BaseModel  # plug-ins need it, listing them does not

        settings = getattr(factory, "Settings", None)
        if not callable(factory) or not isinstance(settings, type) or not issubclass(settings, BaseModel):
            raise InvalidRequest(
                f"{self.kind}: {plugin} is no factory with a pydantic model `Settings`",
                remedy="its author can compare it with what `everhold plugin new` generates",
            )
        return cast(PluginFactory[T], factory)


MEMORY_PLUGINS: Final = PluginCatalogue[MemoryProvider]("memories", "memory provider")
PLATFORM_PLUGINS: Final = PluginCatalogue[Platform]("platforms", "platform")
MODEL_PLUGINS: Final = PluginCatalogue[Model]("models", "model provider")
TOOL_PLUGINS: Final = PluginCatalogue[Tool]("tools", "tool", builtin=SELECTABLE_TOOLS)


def _build_plugin(entry: EntryPoint) -> InstalledPlugin:
    package, version = (entry.dist.name, entry.dist.version) if entry.dist else ("an unknown package", "")
    return InstalledPlugin(name=entry.name, package=package, version=version, target=entry.value)


def _render_import_remedy(plugin: InstalledPlugin, error: BaseException) -> str:
    if plugin.package == "everhold" and isinstance(error, ImportError):
        return _render_install_remedy(plugin.name)
    if not plugin.package:
        return "check the spelling, and that the module can be imported from here"
    return f"pip install --upgrade {plugin.package}, or pip uninstall {plugin.package}"


def _render_install_remedy(name: str) -> str:
    if name in _list_extras():
        return describe_install(name)
    return "install the package that offers it, or correct the name"


def _suggest_plugin(kind: str, name: str, known: list[str]) -> str:
    """Return a remedy for a name that no installed package offers."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    near = [plain] if plain in known else difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    if near:
        return f"did you mean `{near[0]}`?"
    if kind == "models":
        return "for a server that speaks OpenAI's API: provider: openai, and base_url: its address"
    if kind == "tools":
        return "correct the name, install its package, or name a server under `mcp` as mcp:NAME"
    return _render_install_remedy(name)


def _list_extras() -> list[str]:
    try:
        return metadata("everhold").get_all("Provides-Extra") or []
    except PackageNotFoundError:  # runs from a source tree that is not installed
        return []


def _join_plugins(plugins: Iterable[InstalledPlugin]) -> str:
    return " and ".join(f"{plugin.package} {plugin.version}" for plugin in plugins)
