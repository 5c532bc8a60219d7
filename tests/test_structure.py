"""The rules of structure that a machine can check. Each check is shown to fail."""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

import everhold

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "everhold"

PUBLIC_NAMES = """
    AcceptMessage AcceptResult Attachment ChatLocation Clock Conflict DeliveryGuarantee EventLogger EverholdError
    ErasureState ErasureTarget Exchange InDoubt IncomingMessage InvalidRequest JobResult MemoryBatch MemoryCapability
    MemoryHit MemoryNote MemoryProvider MemoryQuery MemoryRetraction MemoryScope MemoryUtterance Model ModelMessage
    ModelRequest ModelResponse ModelUsage NotFound OutgoingMessage Overloaded PartiallyDone Platform PlatformOffset
    PluginContext ProviderDeletion ProviderHealth RandomSource Refused SendRequest SessionSwitch Stamp SupportsDrafts
    TextPiece TooLong Tool ToolAccess ToolCall ToolContext ToolEffect ToolFile ToolReach ToolResult ToolSpec Transient
    __version__
""".split()


def list_modules() -> dict[str, Path]:
    """The modules of the package, by their path inside of it."""
    return {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}


# -- public names ------------------------------------------------------------------------------------------------------


def test_the_public_names_are_these() -> None:
    assert sorted(everhold.__all__) == sorted(PUBLIC_NAMES)
    assert dir(everhold) == sorted(PUBLIC_NAMES)
    for name in PUBLIC_NAMES:
        assert getattr(everhold, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Gateway'"):
        everhold.Gateway  # noqa: B018


def test_type_checkers_see_the_same_public_names() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(PUBLIC_NAMES) - {"__version__"}


def test_importing_everhold_imports_no_dependency() -> None:
    script = "import sys; before = set(sys.modules); import everhold; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    third_party = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert third_party == {"everhold"}
    assert "asyncio" not in loaded


def test_the_wheel_contains_every_file_of_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    here = {f"everhold/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*") if path.is_file()}
    assert {name for name in here if "__pycache__" not in name} <= shipped
    assert "everhold/py.typed" in shipped


# -- vendors -----------------------------------------------------------------------------------------------------------

VENDOR = re.compile(
    r"honcho|hindsight|mem0|supermemory|telegram|discord|slack|\bmatrix\b|openai|anthropic", re.IGNORECASE
)


def test_the_vendor_check_finds_one() -> None:
    assert VENDOR.search("class TelegramWorker")
    assert VENDOR.search("the Matrix room")
    assert not VENDOR.search("matrixes")


def test_core_engine_and_ports_name_no_vendor() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for package in ("core", "engine", "ports")
        for path in sorted((SOURCE / package).rglob("*.py"))
        for number, line in enumerate([path.name, *path.read_text().splitlines()])
        if VENDOR.search(line)
    ]
    assert not found, "\n".join(["a vendor's name belongs in its adapter:", *found])


# -- broad excepts -----------------------------------------------------------------------------------------------------

MAY_CATCH_ALL = re.compile(
    r"^(?:engine/(?:supervisor|effects)\.py|stores/\w+/writer\.py"
    r"|hermes/memory/plugin_process/(?:__main__|conversations|discovery|examination)\.py)$"
)
BROAD_TYPES = {"Exception", "BaseException"}


def find_broad_excepts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each handler that catches every exception. A handler that raises it again is allowed."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
            if all(isinstance(child, ast.Pass | ast.Continue) or _is_constant(child) for child in node.body):
                yield node.lineno, "silent"
            elif not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None):
                yield node.lineno, "broad"
        elif isinstance(node, ast.Call) and _is_suppress(node):
            yield node.lineno, "silent"


def _is_suppress(call: ast.Call) -> bool:
    return ast.unparse(call.func).endswith("suppress") and any(_is_broad(argument) for argument in call.args)


def _is_broad(caught: ast.expr | None) -> bool:
    match caught:
        case None:
            return True
        case ast.Tuple(elts=elements):
            return any(_is_broad(element) for element in elements)
        case _:
            return ast.unparse(caught).rpartition(".")[2] in BROAD_TYPES


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize(
    "source, verdict",
    [
        ("try: f()\nexcept Exception: pass", "silent"),
        ("try: f()\nexcept: ...", "silent"),
        ("try: f()\nexcept BaseException as e: log(e)", "broad"),
        ("try: f()\nexcept (ValueError, Exception): g()", "broad"),
        ("try: f()\nexcept builtins.Exception: raise Other from None", "broad"),
        ("with contextlib.suppress(Exception): f()", "silent"),
        ("try: f()\nexcept BaseException:\n    undo()\n    raise", None),
        ("try: f()\nexcept ValueError: pass", None),
    ],
)
def test_a_broad_except_is_found(source: str, verdict: str | None) -> None:
    assert next((kind for _, kind in find_broad_excepts(source)), None) == verdict


def test_only_modules_that_run_foreign_code_catch_everything_and_none_silently() -> None:
    found = [
        f"{name}:{line}: {kind}"
        for name, path in list_modules().items()
        for line, kind in find_broad_excepts(path.read_text())
        if kind == "silent" or not MAY_CATCH_ALL.match(name)
    ]
    assert not found, "\n".join(["catch the types you expect, or raise the exception again:", *found])


# -- import direction --------------------------------------------------------------------------------------------------

# zlib is among them because it only computes: the bytes that it returns follow from those that it is given.
PURE_MODULES = set(
    """
    __future__ abc base64 bisect collections contextlib copy dataclasses datetime decimal difflib enum fractions
    functools hashlib heapq hmac html itertools json math operator pathlib re statistics string struct textwrap
    types typing unicodedata urllib zlib msgspec
    """.split()
)


def find_imports(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_core_and_ports_import_only_pure_modules() -> None:
    found = {
        str(path.relative_to(SOURCE)): impure
        for package in ("core", "ports")
        for path in (SOURCE / package).rglob("*.py")
        if (impure := find_imports(path.read_text()) - PURE_MODULES - {"everhold"})
    }
    assert not found


def test_core_and_ports_have_no_import_cycle() -> None:
    graph = grimp.build_graph("everhold", cache_dir=None)
    pure = {module for module in graph.modules if module.startswith(("everhold.core.", "everhold.ports."))}
    order = graphlib.TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) & pure for module in pure}
    )
    order.prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize(
    "module, planted, contract",
    [
        ("core/entries.py", "import asyncio", "Core and ports are pure"),
        ("ports/memory.py", "from time import time", "Core and ports are pure"),
        ("core/entries.py", "import everhold.engine", "Imports point down"),
        ("engine/__init__.py", "import everhold.stores.sqlite", "Imports point down"),
        ("memories/__init__.py", "import everhold.platforms", "Imports point down"),
        ("models/__init__.py", "import everhold.api", "Imports point down"),
        ("engine/__init__.py", "import random", "The engine reaches the world through its gates only"),
        ("tools/__init__.py", "import everhold.telemetry.logs", "Adapters get loggers and plug-ins as arguments"),
    ],
)
def test_a_planted_import_breaks_its_contract(tmp_path: Path, module: str, planted: str, contract: str) -> None:
    copy = tmp_path / "everhold"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert _broken_contracts(tmp_path) & {contract} == set()
    with (copy / module).open("a") as file:
        file.write(f"\n{planted}\n")
    assert contract in _broken_contracts(tmp_path)


def _broken_contracts(directory: Path) -> set[str]:
    """The names of the contracts that lint-imports reports as broken in the copy at `directory`."""
    run = "from importlinter.cli import lint_imports_command as run; run()"
    result = subprocess.run(
        [sys.executable, "-c", run, "--no-logo", "--no-cache"],
        cwd=directory,
        env={"PYTHONPATH": str(directory), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts:" in result.stdout, result.stdout + result.stderr
    return set(re.findall(r"^(.+?) BROKEN$", result.stdout, re.MULTILINE))


# -- machine paths -----------------------------------------------------------------------------------------------------

MACHINE_PATH = re.compile(r"/(?:work|root|farm)/")


@pytest.mark.parametrize("directory", ["work", "root"])
def test_a_machine_path_is_found(directory: str) -> None:
    assert MACHINE_PATH.search(f"see /{directory}/notes.txt")


def test_no_tracked_file_contains_a_path_of_a_developer_s_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
        found += [
            f"{name}:{n}: {line.strip()[:120]}"
            for n, line in enumerate(text.splitlines(), 1)
            if MACHINE_PATH.search(line)
        ]
    assert not found, "\n".join(found)
