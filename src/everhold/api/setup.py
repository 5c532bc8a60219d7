"""Handlers that set up a home in the browser: models, accounts of platforms, and invitations.

A test that fails is an answer with the cause and its remedy. Nothing is written then.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from starlette.responses import Response

from everhold.api import console_schemas
from everhold.api.errors import build_json_response
from everhold.api.request import ApiCall
from everhold.assembly.model_setup import OFFLINE_PROVIDER, ModelTrial, ask_model
from everhold.config import Settings
from everhold.errors import EverholdError, InvalidRequest, NotFound


async def describe_setup(call: ApiCall) -> Response:
    """Return what can be set up, and what is."""
    settings = await call.context.load_fresh_settings()
    model = settings.models.get(settings.agents[settings.default_agent].model)
    offers = await asyncio.to_thread(call.context.gateway.setup.list_platforms)
    return build_json_response(
        {
            "is_offline": model is None or model.provider == OFFLINE_PROVIDER,
            "providers": call.context.gateway.setup.list_providers(),
            "platforms": [
                {**msgspec.to_builtins(offer), "accounts": sorted(settings.platforms.get(offer.name, {}))}
                for offer in offers
            ],
        }
    )


async def list_models(call: ApiCall) -> Response:
    """Return the configured models, and which agents use each."""
    settings = await call.context.load_fresh_settings()
    return build_json_response({"models": [_describe_model(name, settings) for name in sorted(settings.models)]})


def _describe_model(name: str, settings: Settings) -> dict[str, Any]:
    model = settings.models[name]
    return {
        "name": name,
        "provider": model.provider,
        "model": model.name,
        "url": model.base_url or "",
        "key_env": model.api_key_env or "",
        "missing": list(model.missing),
        "agents": [agent.name for agent in settings.agents.values() if name in agent.list_models()],
    }


async def test_model(call: ApiCall) -> Response:
    """Ask a configured model for one word."""
    name = call.path["name"]
    if name not in (await call.context.load_fresh_settings()).models:
        raise NotFound(f"there is no model {name!r}", remedy="GET /api/models lists the models")
    began = time.monotonic()
    try:
        trial = await ask_model(call.context.agents.get_model(name), name)
    except EverholdError as error:
        return build_json_response(_render_failure(error, time.monotonic() - began))
    return build_json_response(_render_trial(trial))


async def set_up_model(call: ApiCall) -> Response:
    """Test a model, and make it the agents' model if it works."""
    given = call.decode_body(console_schemas.ModelSetupRequest)
    gateway, settings = call.context.gateway, await call.context.load_fresh_settings()
    choice = gateway.setup.choose_model(
        settings, provider=given.provider, url=given.url, name=given.name, key=given.key, alias=given.alias
    )
    began = time.monotonic()
    try:
        trial = await gateway.setup.try_model(choice)
    except EverholdError as error:
        return build_json_response(_render_failure(error, time.monotonic() - began))
    if given.write:
        await gateway.setup.write_model(choice, settings, by=call.author)
        gateway.reload_config()
    return build_json_response({**_render_trial(trial), "written": given.write})


def _render_trial(trial: ModelTrial) -> dict[str, Any]:
    return {
        "works": True,
        "reply": trial.answer.text,
        "seconds": trial.seconds,
        "tokens": trial.answer.usage.input + trial.answer.usage.output,
        "message": "",
        "remedy": "",
        "written": False,
    }


def _render_failure(error: EverholdError, seconds: float) -> dict[str, Any]:
    return {
        "works": False,
        "reply": "",
        "seconds": seconds,
        "tokens": 0,
        "message": error.message,
        "remedy": error.remedy,
        "written": False,
    }


async def set_up_account(call: ApiCall) -> Response:
    """Test an account of a platform, and connect it if it works."""
    given = call.decode_body(console_schemas.AccountSetupRequest)
    gateway, settings = call.context.gateway, await call.context.load_fresh_settings()
    account = given.account or settings.default_agent
    if given.agent and given.agent not in settings.agents:
        raise InvalidRequest(f"there is no agent {given.agent!r}", remedy="GET /api/agents lists the agents")
    shown: dict[str, Any] = {"works": True, "account": account, "name": "", "hello": "", "message": "", "remedy": ""}
    try:
        found = await gateway.setup.try_account(given.platform, account, given.values, settings)
    except EverholdError as error:
        return build_json_response(
            {**shown, "works": False, "message": error.message, "remedy": error.remedy, "written": False}
        )
    if found is not None:
        shown.update(name=found.name, hello=found.hello)
    if given.write:
        await gateway.setup.write_account(
            given.platform, account, given.values, settings, agent=given.agent, by=call.author
        )
        gateway.reload_config()
    return build_json_response({**shown, "written": given.write})


async def create_invitation(call: ApiCall) -> Response:
    """Return a link that gives access to whoever opens it first."""
    given = call.decode_body(console_schemas.InvitationRequest)
    gateway, settings = call.context.gateway, await call.context.load_fresh_settings()
    found = await gateway.setup.introduce(given.platform, given.account, settings)
    if found is None or not found.invitation:
        raise InvalidRequest(
            f"{given.platform} has no links for invitations",
            remedy="the person writes to the agent and gets a code, which you approve",
        )
    await gateway.people.apply_settings()
    code, until = await gateway.pairing.create_invitation(given.platform, given.account, person=given.person)
    return build_json_response({"link": found.invitation.format(code=code), "name": found.name, "until": until})
