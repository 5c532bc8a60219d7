"""Finds every regular expression of the package: by reading the source, and by importing the modules."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import everhold

ROOT: Final = Path(everhold.__file__).parent
_FUNCTIONS: Final = {"compile", "match", "search", "sub", "subn", "fullmatch", "findall", "finditer", "split"}
_ANCHORED: Final = {"match", "fullmatch"}


class FoundPattern(NamedTuple):
    place: str
    """The module and the name that holds the pattern, or the function that uses it."""
    pattern: re.Pattern[Any] | None
    """None if it is made of values that only a running function has."""
    is_anchored: bool
    """Whether it is only used from the first character on."""


def list_modules() -> list[str]:
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if parts[-1] != "__main__" and "__pycache__" not in parts:
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def find_patterns() -> list[FoundPattern]:
    """Return every pattern that the source makes."""
    trees = {}
    for path in sorted(ROOT.rglob("*.py")):
        trees[path] = ast.parse(path.read_text("utf-8"))
    uses = {path: _list_uses(tree) for path, tree in trees.items()}
    found: list[FoundPattern] = []
    for path, tree in trees.items():
        found += _PatternFinder(path, uses).find(tree)
    return found


def list_imported_patterns() -> dict[str, re.Pattern[Any]]:
    """Return the patterns that modules hold, also inside of tuples, lists and dictionaries, by place."""
    found: dict[str, re.Pattern[Any]] = {}
    for name in list_modules():
        for key, value in vars(importlib.import_module(name)).items():
            for pattern in _iter_inside(value):
                found[f"{name}.{key}"] = pattern
    return found


def _iter_inside(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from _iter_inside(item)
    elif isinstance(value, dict) and type(value) is dict:
        for item in list(value.values()):
            yield from _iter_inside(item)


def _list_uses(tree: ast.AST) -> dict[str, set[str]]:
    """Return for each name how it is used: the methods called on it, and "" for any other use."""
    uses: dict[str, set[str]] = {}
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else None
            if name is not None:
                uses.setdefault(name, set()).add(node.attr)
                inside.add(id(owner))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside:
            uses.setdefault(node.id, set()).add("")
    return uses


class _PatternFinder(ast.NodeVisitor):
    def __init__(self, path: Path, uses: dict[Path, dict[str, set[str]]]) -> None:
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        self._name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self._path = path
        self._uses = uses
        self._scope: list[str] = []
        self._module: ModuleType | None = None
        self.found: list[FoundPattern] = []

    def find(self, tree: ast.AST) -> list[FoundPattern]:
        self.visit(tree)
        return self.found

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_ClassDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        name = target.id if isinstance(target, ast.Name) else ""
        self._scope.append(name)
        self.generic_visit(node)
        self._scope.pop()

    visit_AnnAssign = visit_Assign

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = node.func
        if (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and (called.value.id, called.attr in _FUNCTIONS) == ("re", True)
        ):
            self._add(called.attr, node.args[0], self._find_flags(called.attr, node))
        for keyword in node.keywords:
            if keyword.arg == "pattern":  # a constraint of a field
                self._add("search", keyword.value, None)

    @staticmethod
    def _find_flags(function: str, node: ast.Call) -> ast.expr | None:
        for keyword in node.keywords:
            if keyword.arg == "flags":
                return keyword.value
        place = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(function, 2)
        return node.args[place] if len(node.args) > place else None

    def _add(self, function: str, source: ast.expr, flags: ast.expr | None) -> None:
        place = ".".join([self._name, *filter(None, self._scope)])
        if isinstance(source, ast.Name) and function != "compile":
            value = self._evaluate(source)
            if isinstance(value, re.Pattern):  # `re.sub(PATTERN, …)`: the pattern is found where it is made
                return
        text, wanted = self._evaluate(source), self._evaluate(flags) if flags is not None else 0
        pattern = None if text is None or wanted is None else re.compile(text, wanted)
        self.found.append(FoundPattern(place, pattern, self._is_anchored(function)))

    def _evaluate(self, node: ast.expr) -> Any:
        """Evaluate an expression of constants of the module; None if it needs more."""
        if self._module is None:
            self._module = importlib.import_module(self._name)
        code = compile(ast.Expression(node), str(self._path), "eval")
        try:
            return eval(code, dict(vars(self._module)))
        except (NameError, AttributeError):
            return None

    def _is_anchored(self, function: str) -> bool:
        if function != "compile":
            return function in _ANCHORED
        if len(self._scope) != 1 or not self._scope[0]:
            return False
        name = self._scope[0]
        used: set[str] = set()
        for path, uses in self._uses.items():
            if path == self._path or not name.startswith("_"):
                used |= uses.get(name, set())
        return bool(used) and used <= _ANCHORED
