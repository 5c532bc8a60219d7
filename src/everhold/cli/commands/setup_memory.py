"""`everhold setup memory NAME`: asks for a provider's settings, tests it, then writes config.yaml and `.env`.

It has no code for single providers: the questions come from the provider's Settings class, or from the provider.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from everhold.app import SystemClock, load_home_settings
from everhold.cli.checkup import run_checkup
from everhold.cli.commands.setup import SetupPrompter, load_environment, parse_setting, set_value
from everhold.cli.connect import find_home, find_running_gateway
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen, escape_control
from everhold.config import Settings, find_plugin_problems, set_secret
from everhold.config.literals import is_env_name, is_secret_key, suggest_env_name
from everhold.config.secrets import SecretEnvironment
from everhold.config.settings import BUILTIN_MEMORY, MemorySettings, list_given_fields
from everhold.engine.memory_client import MemoryClient
from everhold.errors import EverholdError, InvalidRequest, Refused
from everhold.infra.home import Home
from everhold.infra.plugins import MEMORY_PLUGINS
from everhold.infra.secret import SecretString
from everhold.ports.memory import MemoryCapability, SetupQuestion, SupportsSetup
from everhold.ports.plugin import PluginContext

TRIAL_SECONDS: Final = 60.0
SUFFIX: Final = "_env"


class OptionalPrompter(SetupPrompter):
    """Asks questions that may be left unanswered."""

    def ask_optional(self, question: str, default: str = "") -> str:
        hint = f" [{escape_control(default)}]" if default else " (Enter for none)"
        self._print_prompt(f"{question}{hint}: ")
        return self._read_line() or default


@dataclass
class MemoryDraft:
    """The configuration of a memory, before it is written."""

    name: str
    provider: str
    section: dict[str, Any]
    """Its section in `memories`, with the names of variables instead of secrets."""
    secrets: dict[str, SecretString] = field(default_factory=dict)
    """New secrets by variable."""
    display_name: str = ""
    """The provider's own name, known after the test."""


@dataclass(frozen=True)
class MemorySetup:
    """The objects that the steps of a setup share."""

    args: argparse.Namespace
    screen: CommandScreen
    home: Home
    environment: SecretEnvironment
    prompter: OptionalPrompter

    def make_context(self, name: str) -> PluginContext:
        from everhold.telemetry.logs import open_log

        directory = self.home.path / "memories" / name
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = open_log(clock=SystemClock(), stream=io.StringIO())  # errors are raised, so log lines are not needed
        return PluginContext(
            agent="main", instance=name, directory=directory, home=self.home.path, log=log, clock=SystemClock()
        )

    def reveal_secrets(self, draft: MemoryDraft, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a section with its secrets, as the provider receives it."""
        found: dict[str, Any] = {}
        for key, value in values.items():
            if isinstance(value, dict):
                found[key] = self.reveal_secrets(draft, value)
            elif key.endswith(SUFFIX) and isinstance(value, str):
                if secret := draft.secrets.get(value) or self.environment.get(value):
                    found[key.removesuffix(SUFFIX)] = secret
            else:
                found[key] = value
        return found


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args).create()
    settings = load_home_settings(home, environ=os.environ)  # raises if it is invalid
    setup = MemorySetup(args, screen, home, load_environment(home), OptionalPrompter(screen, sys.stdin))
    if args.agent and args.agent not in settings.agents:
        raise InvalidRequest(f"there is no agent {args.agent!r}", remedy="`everhold agents` lists them")
    written = settings.document.get("memories", {}).get(args.name)
    before = dict(written) if isinstance(written, Mapping) else {}
    while True:
        try:
            draft = asyncio.run(_make_draft(setup, before))
        except EverholdError as error:
            if args.no_input or isinstance(error, InvalidRequest):
                raise
            screen.print_failure(error.message, error.remedy)
            if not setup.prompter.confirm("Change something and try again?"):
                raise Refused("nothing was written", remedy="--no-test writes it without a test") from None
            setup.prompter.again = True
            continue
        return _write_settings(setup, settings, draft)


async def _make_draft(setup: MemorySetup, before: dict[str, Any]) -> MemoryDraft:
    args = setup.args
    provider, given = _choose_provider(setup, before), dict(parse_setting(text) for text in args.set)
    provider, _, rest = provider.partition(":")
    factory = MEMORY_PLUGINS.load(provider)
    if rest:
        argument = getattr(factory, "argument", "")
        if not argument:
            raise InvalidRequest(f"{provider} takes nothing after a colon", remedy=f"--provider {provider}")
        given.setdefault(argument, rest)
    own_fields = set(list_given_fields(MemorySettings)) - {"provider", "name"}
    fields = factory.Settings.model_fields
    section = {key: value for key, value in before.items() if key != "provider"} | {
        key: value for key, value in given.items() if key in fields or key in own_fields
    }
    draft = MemoryDraft(name=args.name, provider=provider, section=section)
    for wanted in _list_asked_settings(factory.Settings, draft):
        _ask_setting(setup, draft, wanted, before, given=given.get(wanted.key))
    validated = _validate_draft(setup, draft, factory.Settings, own_fields)
    if isinstance(factory, SupportsSetup):
        await _run_provider_interview(
            setup, draft, factory, validated, {k: v for k, v in given.items() if k not in draft.section}
        )
        validated = _validate_draft(setup, draft, factory.Settings, own_fields)
    else:
        stray = [key for key in given if key not in draft.section]
        if stray:
            raise InvalidRequest(
                f"{provider} has no setting {stray[0]!r}", remedy=f"it has {', '.join(sorted(fields))}"
            )
    if not args.no_test:
        draft.display_name = await _try_provider(setup, draft, factory, validated)
    return draft


def _choose_provider(setup: MemorySetup, before: Mapping[str, Any]) -> str:
    args = setup.args
    if args.provider:
        return str(args.provider)
    if "provider" in before:
        return str(before["provider"])
    names = [plugin.name for plugin in MEMORY_PLUGINS.list_plugins() if plugin.name != BUILTIN_MEMORY]
    if args.name in names:
        return str(args.name)
    if args.no_input:
        raise InvalidRequest(f"the provider of {args.name!r} is missing", remedy=f"--provider {', '.join(names)}")
    return setup.prompter.ask_choice("Which kind of memory?", tuple((name, "") for name in names), "1")


# -- asking ------------------------------------------------------------------------------------------------------------


def _list_asked_settings(model: type[BaseModel], draft: MemoryDraft) -> list[SetupQuestion]:
    """Return the questions for a provider's settings: those without a default, and those it marks as asked."""
    found = []
    for name, it in model.model_fields.items():
        extra = it.json_schema_extra if isinstance(it.json_schema_extra, dict) else {}
        if not it.is_required() and extra.get("everhold") != "asked":
            continue
        secret = is_secret_key(name)
        question = "its key" if secret and not it.is_required() else (it.description or name).rstrip(".")
        found.append(
            SetupQuestion(
                key=name,
                question=question[:1].upper() + question[1:],
                secret=secret,
                needed=it.is_required(),
                default=it.default if isinstance(it.default, str) else "",
                variable=suggest_env_name(("memories", draft.name, name)) if secret else "",
            )
        )
    return found


def _ask_setting(
    setup: MemorySetup, draft: MemoryDraft, wanted: SetupQuestion, before: Mapping[str, Any], *, given: str | None
) -> None:
    """Ask for one setting, unless it is known."""
    if wanted.secret:
        if variable := _ask_secret(
            setup, draft, wanted, str(before.get(f"{wanted.key}{SUFFIX}", "")) or wanted.variable
        ):
            draft.section[f"{wanted.key}{SUFFIX}"] = variable
        return
    if given is not None:
        return
    text = _ask_text(setup, wanted, str(before.get(wanted.key, "")))
    if text and (text != wanted.default or wanted.key in before):
        draft.section[wanted.key] = text


async def _run_provider_interview(
    setup: MemorySetup, draft: MemoryDraft, factory: SupportsSetup, settings: Any, given: dict[str, str]
) -> None:
    """Ask the provider's own questions."""
    context = setup.make_context(draft.name)
    async with show_waiting(setup.screen, f"asking {draft.provider} what it needs"):
        questions = await factory.list_setup_questions(settings, context)
    keys = {it.key for it in questions}
    if stray := [key for key in given if key not in keys]:
        remedy = f"it has {', '.join(sorted(keys)) or 'no settings'}"
        raise InvalidRequest(f"{draft.provider} has no setting {stray[0]!r}", remedy=remedy)
    answers: dict[str, str] = {}
    for wanted in questions:
        if any(answers.get(key, "") != value for key, value in wanted.when.items()):
            continue
        if wanted.secret:
            text = _ask_secret(setup, draft, wanted, wanted.variable)
        else:
            text = given.get(wanted.key) or _ask_text(
                setup, wanted, wanted.defaults.get(answers.get(wanted.defaults_by, ""))
            )
            if text and wanted.choices and text not in wanted.choices:
                raise InvalidRequest(f"{wanted.key} cannot be {text!r}", remedy=f"one of {', '.join(wanted.choices)}")
        if text:
            answers[wanted.key] = text
    draft.section |= await factory.save_setup_answers(settings, context, answers)


def _ask_text(setup: MemorySetup, wanted: SetupQuestion, suggestion: str | None) -> str:
    default = suggestion or wanted.default
    if setup.args.no_input:
        if wanted.needed and not default:
            raise InvalidRequest(f"{wanted.key} is not given", remedy=f"--set {wanted.key}=…")
        return default
    if wanted.choices:
        return setup.prompter.ask_choice(wanted.question, tuple((it, "") for it in wanted.choices), default or "1")
    if wanted.needed:
        return setup.prompter.ask_line(wanted.question, default)
    return setup.prompter.ask_optional(wanted.question, default)


def _ask_secret(setup: MemorySetup, draft: MemoryDraft, wanted: SetupQuestion, variable: str) -> str:
    """Ask for a secret and return its variable; "" if there is none."""
    if not is_env_name(variable):
        raise InvalidRequest(f"{wanted.key} cannot be kept in a variable called {variable[:40]!r}")
    kept = setup.environment.get(variable) is not None or variable in draft.secrets
    if setup.args.stdin:
        secret = SecretString(sys.stdin.readline().strip())
    elif setup.args.no_input:
        secret = SecretString("")
    else:
        hint = f"Enter keeps the one in {variable}" if kept else "Enter if it needs none"
        secret = setup.prompter.ask_secret(f"{wanted.question} (not shown; {hint})")
    if secret:
        draft.secrets[variable] = secret
    elif wanted.needed and not kept:
        raise InvalidRequest(f"{wanted.key} is not given", remedy="--stdin reads it from standard input, one per line")
    return variable if secret or kept else ""


# -- testing -----------------------------------------------------------------------------------------------------------


def _validate_draft(setup: MemorySetup, draft: MemoryDraft, model: type[BaseModel], ours: set[str]) -> BaseModel:
    values = {key: value for key, value in setup.reveal_secrets(draft, draft.section).items() if key not in ours}
    for problem in find_plugin_problems("memories", model, values):
        raise InvalidRequest(f"{problem.key}: {problem.message}", remedy=problem.remedy)
    made = model.model_validate(values)
    for key in draft.section:  # write numbers as numbers, not as text
        if isinstance(value := getattr(made, key, None), bool | int | float):
            draft.section[key] = value
    return made


async def _try_provider(setup: MemorySetup, draft: MemoryDraft, factory: Any, settings: BaseModel) -> str:
    """Test the provider and return its name. Raises its error."""
    context = setup.make_context(draft.name)
    try:
        async with show_waiting(setup.screen, f"asking {draft.name}"):
            async with asyncio.timeout(TRIAL_SECONDS):
                if isinstance(factory, SupportsSetup):
                    return await factory.test_setup(settings, context)
                attached = MemoryClient(factory(settings, context), instance=draft.name, agent=context.agent)
                try:
                    if attached.has_capability(MemoryCapability.HEALTH):
                        health = await attached.health()
                        if not health.healthy:
                            raise Refused(f"{draft.name} reports a problem: {health.text}", remedy="check its address")
                finally:
                    await attached.close()
    except TimeoutError:
        raise Refused(f"{draft.name} did not answer within {TRIAL_SECONDS:g} s", remedy="is it running?") from None
    return draft.provider


# -- writing -----------------------------------------------------------------------------------------------------------


def _write_settings(setup: MemorySetup, before: Settings, draft: MemoryDraft) -> int:
    home, screen = setup.home, setup.screen
    for variable, secret in draft.secrets.items():
        set_secret(home, variable, secret)
    section: dict[str, Any] = {} if draft.provider == draft.name else {"provider": draft.provider}
    section |= draft.section
    path = f'memories."{draft.name}"' if "." in draft.name else f"memories.{draft.name}"
    if isinstance(before.document.get("memories", {}).get(draft.name), Mapping):
        after = before  # other keys of the section stay, with their comments
        for key, value in section.items():
            after = set_value(home, f"{path}.{key}", value)
    else:
        after = set_value(home, path, section)
    if not setup.args.no_attach:
        after = _attach_to_agents(home, after, draft.name, setup.args.agent)
    agent_names = [agent.name for agent in after.agents.values() if draft.name in {it.name for it in agent.memories}]
    running = asyncio.run(find_running_gateway(home)) is not None
    if screen.json:
        report = {
            "memory": draft.name,
            "provider": draft.provider,
            "called": draft.display_name or None,
            "agents": agent_names,
        }
        found = run_checkup(home, screen, path)
        screen.print_json({**report, "file": str(home.config), "variables": sorted(draft.secrets), "doctor": found})
        return 0
    if draft.display_name:
        screen.print_line(
            f"{screen.paint('ok', 'green')} · {escape_control(draft.name)} answers "
            f"({escape_control(draft.display_name)})"
        )
    where = [str(home.config), *(f"{variable} in {home.env}" for variable in draft.secrets)]
    screen.print_line(f"written: {' and '.join(where)}")
    run_checkup(home, screen, path)
    screen.print_line(
        f"attached to: {', '.join(map(escape_control, agent_names)) or 'no agent; --agent NAME attaches it'}"
    )
    step = "everhold memory status" if running else "everhold up; then everhold memory status"
    screen.print_line(f"next: {step}; everhold memory backfill {escape_control(draft.name)} sends it the older history")
    return 0


def _attach_to_agents(home: Home, settings: Settings, name: str, agent: str) -> Settings:
    """Add it to the memories of one agent, or of all agents without their own list."""
    path: Sequence[str] = ("agents", agent) if agent else ("defaults",)
    at: Any = settings.document
    for part in path:
        at = at.get(part) if isinstance(at, Mapping) else None
    listed = at.get("memories") if isinstance(at, Mapping) else None
    if listed is None:
        inherited = settings.document.get("defaults") if agent else None
        listed = inherited.get("memories") if isinstance(inherited, Mapping) else None
    listed = [BUILTIN_MEMORY] if listed is None else list(listed)
    if any(name in (it, it.get("name") if isinstance(it, Mapping) else None) for it in listed):
        return settings
    return set_value(home, ".".join((*path, "memories")), [*listed, name])
