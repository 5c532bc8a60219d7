"""Handlers for config.yaml: read it, check a change, write it, and write an earlier text again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from everhold.api import console_schemas
from everhold.api.errors import ApiError, build_json_response
from everhold.api.request import ApiCall
from everhold.config import show_settings
from everhold.config.display import render_problem
from everhold.config.whole_text import ConfigCheck


async def show_config(call: ApiCall) -> Response:
    """Return the text of config.yaml, and what is in force. Values of secrets are in neither."""
    gateway = call.context.gateway
    text, digest = await asyncio.to_thread(gateway.config.read)
    state = gateway.describe()
    return build_json_response(
        {
            "text": text,
            "digest": digest,
            "revision": state["revision"],
            "values": show_settings(await call.context.load_fresh_settings()),
            "problems": [*state["refused"], *state["problems"]],
            "in_force": not state["refused"],
            "restart": state["restart"],
        }
    )


async def check_config(call: ApiCall) -> Response:
    """Return what a change would do, without writing it."""
    return build_json_response(_render_check(await _check_given(call, call.decode_body(console_schemas.ConfigDraft))))


async def write_config(call: ApiCall) -> Response:
    """Write config.yaml, unless it was changed meanwhile or is not valid."""
    given = call.decode_body(console_schemas.ConfigWriteRequest)
    return await _write(call, await _check_given(call, given), base=given.base)


async def list_config_versions(call: ApiCall) -> Response:
    """Return the texts that were replaced, the last one first."""
    found = await asyncio.to_thread(call.context.gateway.config.list_versions)
    return build_json_response({"versions": [msgspec.to_builtins(it) for it in found]})


async def undo_config(call: ApiCall) -> Response:
    """Write an earlier text again."""
    given = call.decode_body(console_schemas.ConfigUndoRequest)
    config = call.context.gateway.config
    version = await asyncio.to_thread(config.get_version, given.id)
    return await _write(call, await asyncio.to_thread(config.check, version.text), base=given.base)


async def _check_given(
    call: ApiCall, given: console_schemas.ConfigDraft | console_schemas.ConfigWriteRequest
) -> ConfigCheck:
    config = call.context.gateway.config
    if (given.text is None) == (given.values is None):
        raise ApiError(
            400, "invalid_request", "a change is a whole text or some values", remedy="send either `text` or `values`"
        )
    text = given.text
    if text is None:
        text = await asyncio.to_thread(config.apply_values, given.values or {})
    return await asyncio.to_thread(config.check, text)


async def _write(call: ApiCall, check: ConfigCheck, *, base: str) -> Response:
    gateway = call.context.gateway
    digest = await asyncio.to_thread(gateway.config.replace, check.text, base=base, by=call.author)
    call.context.log.info("config.written", by=call.author, revision=check.revision)
    gateway.reload_config()
    return build_json_response({**_render_check(check), "digest": digest})


def _render_check(check: ConfigCheck) -> dict[str, Any]:
    return {
        "valid": check.is_valid,
        "text": check.text,
        "diff": check.diff,
        "problems": [render_problem(it) for it in check.problems],
        "restart": check.restart,
        "revision": check.revision,
    }
