"""The routes cover the operations of the admin objects, and each handler has a route."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.admin.sessions import SessionAdmin
from everhold.api import (
    admin,
    approvals,
    chat_locations,
    context,
    events,
    handlers,
    hooks,
    inbox,
    inspection,
    mcp_server,
    memory,
    openai_chat,
    openai_responses,
    overview,
    people,
    request_files,
    setup,
)
from everhold.api.reference import build_route_table

HANDLER_MODULES = (
    admin,
    approvals,
    chat_locations,
    events,
    handlers,
    hooks,
    inbox,
    inspection,
    mcp_server,
    memory,
    openai_chat,
    openai_responses,
    overview,
    people,
    request_files,
    setup,
)
CALLED_BY_ANOTHER_HANDLER = {"list_active_sessions"}
WITHOUT_ROUTE = {
    "read_entries": "GET /api/sessions/{id}/entries reads the store page by page",
    "list_sessions": "GET /api/sessions lists the sessions that the caller may see",
    "read_erasures": "part of restoring a backup",
    "reapply_erasures": "part of restoring a backup",
    "record_erasure": "a host of a shared store records what other hosts erase",
    "resume_erasures": "the gateway does it at its start",
    "list_interrupted_erasures": "read by the background work that finishes them",
    "finish_interrupted_erasures": "the gateway does it in the background",
    "finish_unfinished": "the gateway does it in the background",
    "keep_finishing_unfinished": "the gateway does it in the background",
}
"""Operations of the admin objects that no handler calls, each with its reason."""


def find_used_attributes(module: ModuleType) -> set[str]:
    """The names of all attributes that a module uses."""
    return {node.attr for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Attribute)}


def find_operations(cls: type) -> set[str]:
    """The public methods of an admin class."""
    return {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


def find_handlers(module: ModuleType) -> Iterator[str]:
    """The public coroutine functions of a module that take an ApiCall."""
    for name, function in inspect.getmembers(module, inspect.iscoroutinefunction):
        is_own = function.__module__ == module.__name__ and not name.startswith("_")
        if is_own and list(inspect.signature(function).parameters) == ["call"]:
            yield name


@pytest.mark.parametrize("cls", [SessionAdmin, MemoryAdmin])
def test_every_operation_of_an_admin_object_has_a_route(cls: type) -> None:
    used = set().union(*(find_used_attributes(module) for module in (*HANDLER_MODULES, context)))
    missing = find_operations(cls) - used - set(WITHOUT_ROUTE)
    assert not missing, f"give these operations a route, or a reason in WITHOUT_ROUTE: {sorted(missing)}"


def test_every_exception_is_an_existing_operation() -> None:
    known = find_operations(SessionAdmin) | find_operations(MemoryAdmin)
    assert set(WITHOUT_ROUTE) <= known, f"no longer in use: {sorted(set(WITHOUT_ROUTE) - known)}"


@pytest.mark.parametrize("module", HANDLER_MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_handler_has_a_route(module: ModuleType) -> None:
    routed = {handler.__name__ for route in build_route_table() if inspect.isfunction(handler := route.handler)}
    assert set(find_handlers(module)) <= routed | CALLED_BY_ANOTHER_HANDLER
