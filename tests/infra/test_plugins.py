"""A plug-in is an installed package. It is found without an import, loaded on demand, and named if it is broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.errors import InvalidRequest, NotFound
from everhold.infra.extras import describe_install
from everhold.infra.plugins import MEMORY_PLUGINS, PluginCatalogue

Install = Callable[..., None]

GOOD = """
from pydantic import BaseModel

class Diary:
    class Settings(BaseModel):
        path: str = "diary.txt"

    def __init__(self, settings, context):
        self.settings = settings
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package as pip would: modules, and a dist-info beside them."""

    def put(package: str, entries: dict[str, str], *, group: str = "everhold.memories", **modules: str) -> None:
        site = tmp_path / package
        info = site / f"{package.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, source in modules.items():
            (site / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))

    return put


def test_another_author_s_package_is_found_and_loaded_without_changing_everhold(install: Install) -> None:
    install("everhold-diary", {"diary": "plug_good:Diary"}, plug_good=GOOD)
    factory: Any = MEMORY_PLUGINS.load("diary")
    assert factory(factory.Settings(path="x"), None).settings.path == "x"
    (plugin,) = [plugin for plugin in MEMORY_PLUGINS.list_plugins() if plugin.name == "diary"]
    assert (plugin.package, plugin.version, plugin.target) == ("everhold-diary", "1.2", "plug_good:Diary")


def test_listing_imports_nothing(install: Install) -> None:
    install("everhold-loud", {"loud": "plug_loud:X"}, plug_loud="raise SystemExit('imported')")
    assert "loud" in {plugin.name for plugin in MEMORY_PLUGINS.list_plugins()}
    assert "plug_loud" not in sys.modules


def test_a_group_contains_only_its_own_plugins(install: Install) -> None:
    install("everhold-tool", {"hammer": "plug_tool:X"}, group="everhold.tools")
    assert "hammer" not in {plugin.name for plugin in MEMORY_PLUGINS.list_plugins()}
    assert "hammer" in {plugin.name for plugin in PluginCatalogue[object]("tools").list_plugins()}


def test_an_unknown_name_is_answered_with_the_installed_plugins(install: Install) -> None:
    install("everhold-diary", {"diary": "plug_good:Diary"})
    with pytest.raises(NotFound, match=r"no memory provider 'dairy' \(there is: .*diary") as caught:
        MEMORY_PLUGINS.load("dairy")
    assert caught.value.remedy == "did you mean `diary`?"
    with pytest.raises(NotFound) as caught:
        MEMORY_PLUGINS.load("scrapbook")
    assert "correct the name" in caught.value.remedy


def test_the_name_of_an_extra_is_answered_with_the_install_command() -> None:
    with pytest.raises(NotFound) as caught:
        PluginCatalogue[object]("nothing-of-the-kind").load("embeddings")
    assert caught.value.remedy == describe_install("embeddings")


@pytest.mark.parametrize(
    "source, complaint",
    [
        ("import a_library_nobody_has", "ModuleNotFoundError: No module named 'a_library_nobody_has'"),
        ("def broken(:", "SyntaxError"),
        ("raise RuntimeError('wrong server version')", "RuntimeError: wrong server version"),
        ("", "AttributeError: module 'plug_broken' has no attribute 'Diary'"),
    ],
)
def test_a_broken_package_is_named_with_its_error_and_a_remedy(install: Install, source: str, complaint: str) -> None:
    sys.modules.pop("plug_broken", None)
    install("everhold-broken", {"broken": "plug_broken:Diary"}, plug_broken=source)
    with pytest.raises(InvalidRequest, match=r"'broken' of everhold-broken 1\.2 \(plug_broken:Diary\)") as caught:
        MEMORY_PLUGINS.load("broken")
    assert complaint in caught.value.message
    assert caught.value.remedy == "pip install --upgrade everhold-broken, or pip uninstall everhold-broken"
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "source", ["Diary = 7", "def Diary(settings, context): ...", "class Diary:\n    Settings = dict"]
)
def test_a_factory_without_a_settings_model_is_refused(install: Install, source: str) -> None:
    sys.modules.pop("plug_bare", None)
    install("everhold-bare", {"bare": "plug_bare:Diary"}, plug_bare=source)
    with pytest.raises(InvalidRequest, match="no factory with a pydantic model `Settings`"):
        MEMORY_PLUGINS.load("bare")


def test_two_packages_that_offer_one_name_are_both_named(install: Install) -> None:
    install("everhold-one", {"diary": "plug_good:Diary"}, plug_good=GOOD)
    install("everhold-two", {"diary": "plug_good:Diary"}, plug_good=GOOD)
    with pytest.raises(
        InvalidRequest, match=r"2 packages offer 'diary': everhold-one 1\.2 and everhold-two 1\.2"
    ) as caught:
        MEMORY_PLUGINS.load("diary")
    assert "pip uninstall everhold-two" in caught.value.remedy


def test_a_factory_can_be_named_by_module_and_attribute(install: Install) -> None:
    install("everhold-unlisted", {}, plug_unlisted=GOOD)
    assert MEMORY_PLUGINS.load("plug_unlisted:Diary").Settings.__name__ == "Settings"
    with pytest.raises(InvalidRequest, match="check the spelling"):
        MEMORY_PLUGINS.load("plug_unlisted:Dairy")


def test_listing_plug_ins_imports_no_heavy_package() -> None:
    script = (
        "import sys, everhold.infra.plugins as p; p.MEMORY_PLUGINS.list_plugins(); print('pydantic' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
