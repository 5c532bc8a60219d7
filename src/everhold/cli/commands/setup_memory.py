"""`everhold setup memory NAME`: asks for what a provider needs, tries it, then writes config.yaml and `.env`.

It knows no provider: what to ask stands in the provider's own Settings, or the provider asks itself.
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

from everhold.app import SystemClock, plugin_check, settings_of
from everhold.cli.checkup import checkup
from everhold.cli.commands.setup import Asking, environment
from everhold.cli.progress import waiting
from everhold.cli.reach import answering, home_of
from everhold.cli.render import Screen, safe
from everhold.config import Settings, plugin_problems, set_key, set_secret
from everhold.config.literals import env_name_for, is_env_name, is_secret_key
from everhold.config.secrets import Environment
from everhold.config.settings import BUILTIN, MemorySettings, given_fields
from everhold.errors import EverholdError, Misuse, Refused
from everhold.flow.memory import Attached
from everhold.home import Home
from everhold.plugins import MEMORIES
from everhold.ports.memory import Capability, Interviewing, Wanted
from everhold.ports.plugin import Context
from everhold.secret import Secret

TRIAL_SECONDS: Final = 60.0
SUFFIX: Final = "_env"


class Interview(Asking):
    """Questions that may go unanswered."""

    def optional(self, question: str, default: str = "") -> str:
        hint = f" [{safe(default)}]" if default else " (Enter for none)"
        self._prompt(f"{question}{hint}: ")
        return self._read() or default


@dataclass
class Draft:
    """An instance in the making."""

    name: str
    provider: str
    section: dict[str, Any]
    """As it is going to stand in `memories`, variables named."""
    secrets: dict[str, Secret] = field(default_factory=dict)
    """Variable -> a new secret."""
    called: str = ""
    """What it says it is, once it was tried."""


@dataclass(frozen=True)
class Desk:
    """Who asks, and what may be asked."""

    args: argparse.Namespace
    screen: Screen
    home: Home
    known: Environment
    asking: Interview

    def context(self, name: str) -> Context:
        from everhold.logs import open_log

        directory = self.home.path / "memories" / name
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = open_log(clock=SystemClock(), stream=io.StringIO())  # what is wrong is raised, and said
        return Context(agent="main", instance=name, directory=directory, log=log, clock=SystemClock())

    def reveal(self, draft: Draft, values: Mapping[str, Any]) -> dict[str, Any]:
        """A section with its secrets in place, as the provider gets it."""
        found: dict[str, Any] = {}
        for key, value in values.items():
            if isinstance(value, dict):
                found[key] = self.reveal(draft, value)
            elif key.endswith(SUFFIX) and isinstance(value, str):
                if secret := draft.secrets.get(value) or self.known.get(value):
                    found[key.removesuffix(SUFFIX)] = secret
            else:
                found[key] = value
        return found


def run(args: argparse.Namespace, screen: Screen) -> int:
    home = home_of(args).create()
    settings = settings_of(home, environ=os.environ)  # a broken configuration is mended before it is changed
    desk = Desk(args, screen, home, environment(home), Interview(screen, sys.stdin))
    if args.agent and args.agent not in settings.agents:
        raise Misuse(f"there is no agent {args.agent!r}", remedy="`everhold agents` lists them")
    written = settings.document.get("memories", {}).get(args.name)
    before = dict(written) if isinstance(written, Mapping) else {}
    while True:
        try:
            draft = asyncio.run(_draft(desk, before))
        except EverholdError as error:
            if args.no_input or isinstance(error, Misuse):
                raise
            screen.fail(error.message, error.remedy)
            if not desk.asking.yes("Change something and try again?"):
                raise Refused("nothing was written", remedy="--no-test writes it untried") from None
            desk.asking.again = True
            continue
        return _write(desk, settings, draft)


async def _draft(desk: Desk, before: dict[str, Any]) -> Draft:
    args = desk.args
    provider, given = _provider(desk, before), dict(_pair(text) for text in args.set)
    provider, _, rest = provider.partition(":")
    factory = MEMORIES.load(provider)
    if rest:
        argument = getattr(factory, "argument", "")
        if not argument:
            raise Misuse(f"{provider} takes nothing after a colon", remedy=f"--provider {provider}")
        given.setdefault(argument, rest)
    ours = set(given_fields(MemorySettings)) - {"provider", "name"}
    fields = factory.Settings.model_fields
    section = {key: value for key, value in before.items() if key != "provider"} | {
        key: value for key, value in given.items() if key in fields or key in ours
    }
    draft = Draft(name=args.name, provider=provider, section=section)
    for wanted in _settings_asked(factory.Settings, draft):
        _take(desk, draft, wanted, before, given=given.get(wanted.key))
    validated = _validated(desk, draft, factory.Settings, ours)
    if isinstance(factory, Interviewing):
        await _interview(desk, draft, factory, validated, {k: v for k, v in given.items() if k not in draft.section})
        validated = _validated(desk, draft, factory.Settings, ours)
    else:
        stray = [key for key in given if key not in draft.section]
        if stray:
            raise Misuse(f"{provider} has no setting {stray[0]!r}", remedy=f"it has {', '.join(sorted(fields))}")
    if not args.no_test:
        draft.called = await _tried(desk, draft, factory, validated)
    return draft


def _provider(desk: Desk, before: Mapping[str, Any]) -> str:
    args = desk.args
    if args.provider:
        return str(args.provider)
    if "provider" in before:
        return str(before["provider"])
    names = [plugin.name for plugin in MEMORIES.plugins() if plugin.name != BUILTIN]
    if args.name in names:
        return str(args.name)
    if args.no_input:
        raise Misuse(f"what is {args.name!r}?", remedy=f"--provider {', '.join(names)}")
    return desk.asking.choice("Which kind of memory?", tuple((name, "") for name in names), "1")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or is_secret_key(key):
        raise Misuse(
            f"{key[:40]!r} cannot be set like this", remedy="--set key=value; secrets are asked for, or --stdin"
        )
    return key, value


# -- asking ------------------------------------------------------------------------------------------------------------


def _settings_asked(model: type[BaseModel], draft: Draft) -> list[Wanted]:
    """Of a provider's own settings: what has no default, and what it marks as worth a question."""
    found = []
    for name, it in model.model_fields.items():
        extra = it.json_schema_extra if isinstance(it.json_schema_extra, dict) else {}
        if not it.is_required() and extra.get("everhold") != "asked":
            continue
        secret = is_secret_key(name)
        question = "its key" if secret and not it.is_required() else (it.description or name).rstrip(".")
        found.append(
            Wanted(
                key=name,
                question=question[:1].upper() + question[1:],
                secret=secret,
                needed=it.is_required(),
                default=it.default if isinstance(it.default, str) else "",
                variable=env_name_for(("memories", draft.name, name)) if secret else "",
            )
        )
    return found


def _take(desk: Desk, draft: Draft, wanted: Wanted, before: Mapping[str, Any], *, given: str | None) -> None:
    """Ask for one of the settings in its section, unless it is known."""
    if wanted.secret:
        if variable := _secret(desk, draft, wanted, str(before.get(f"{wanted.key}{SUFFIX}", "")) or wanted.variable):
            draft.section[f"{wanted.key}{SUFFIX}"] = variable
        return
    if given is not None:
        return
    text = _text(desk, wanted, str(before.get(wanted.key, "")))
    if text and (text != wanted.default or wanted.key in before):
        draft.section[wanted.key] = text


async def _interview(desk: Desk, draft: Draft, factory: Interviewing, settings: Any, given: dict[str, str]) -> None:
    """Let the provider ask for itself."""
    context = desk.context(draft.name)
    async with waiting(desk.screen, f"asking {draft.provider} what it needs"):
        questions = await factory.questions(settings, context)
    keys = {it.key for it in questions}
    if stray := [key for key in given if key not in keys]:
        raise Misuse(f"nobody asks for {stray[0]!r}", remedy=f"it wants {', '.join(sorted(keys)) or 'nothing'}")
    answers: dict[str, str] = {}
    for wanted in questions:
        if any(answers.get(key, "") != value for key, value in wanted.when.items()):
            continue
        if wanted.secret:
            text = _secret(desk, draft, wanted, wanted.variable)
        else:
            text = given.get(wanted.key) or _text(
                desk, wanted, wanted.defaults.get(answers.get(wanted.defaults_by, ""))
            )
            if text and wanted.choices and text not in wanted.choices:
                raise Misuse(f"{wanted.key} cannot be {text!r}", remedy=f"one of {', '.join(wanted.choices)}")
        if text:
            answers[wanted.key] = text
    draft.section |= await factory.answered(settings, context, answers)


def _text(desk: Desk, wanted: Wanted, suggestion: str | None) -> str:
    default = suggestion or wanted.default
    if desk.args.no_input:
        if wanted.needed and not default:
            raise Misuse(f"{wanted.key} is not given", remedy=f"--set {wanted.key}=…")
        return default
    if wanted.choices:
        return desk.asking.choice(wanted.question, tuple((it, "") for it in wanted.choices), default or "1")
    if wanted.needed:
        return desk.asking.line(wanted.question, default)
    return desk.asking.optional(wanted.question, default)


def _secret(desk: Desk, draft: Draft, wanted: Wanted, variable: str) -> str:
    """The variable that holds a secret; nothing if there is none."""
    if not is_env_name(variable):
        raise Misuse(f"{wanted.key} cannot be kept in a variable called {variable[:40]!r}")
    kept = desk.known.get(variable) is not None or variable in draft.secrets
    if desk.args.stdin:
        secret = Secret(sys.stdin.readline().strip())
    elif desk.args.no_input:
        secret = Secret("")
    else:
        hint = f"Enter keeps the one in {variable}" if kept else "Enter if it needs none"
        secret = desk.asking.secret(f"{wanted.question} (not shown; {hint})")
    if secret:
        draft.secrets[variable] = secret
    elif wanted.needed and not kept:
        raise Misuse(f"{wanted.key} is not given", remedy="--stdin reads it from standard input, a line each")
    return variable if secret or kept else ""


# -- trying ------------------------------------------------------------------------------------------------------------


def _validated(desk: Desk, draft: Draft, model: type[BaseModel], ours: set[str]) -> BaseModel:
    values = {key: value for key, value in desk.reveal(draft, draft.section).items() if key not in ours}
    for problem in plugin_problems("memories", model, values):
        raise Misuse(f"{problem.key}: {problem.message}", remedy=problem.remedy)
    made = model.model_validate(values)
    for key in draft.section:  # numbers are written as numbers
        if isinstance(value := getattr(made, key, None), bool | int | float):
            draft.section[key] = value
    return made


async def _tried(desk: Desk, draft: Draft, factory: Any, settings: BaseModel) -> str:
    """Ask it how it is. Raises what is wrong."""
    context = desk.context(draft.name)
    try:
        async with waiting(desk.screen, f"asking {draft.name}"):
            async with asyncio.timeout(TRIAL_SECONDS):
                if isinstance(factory, Interviewing):
                    return await factory.tried(settings, context)
                attached = Attached(factory(settings, context), instance=draft.name, agent=context.agent)
                try:
                    if attached.can(Capability.HEALTH):
                        health = await attached.health()
                        if not health.well:
                            raise Refused(
                                f"{draft.name} is not well: {health.text}", remedy="is this the right address?"
                            )
                finally:
                    await attached.close()
    except TimeoutError:
        raise Refused(f"{draft.name} did not answer within {TRIAL_SECONDS:g} s", remedy="is it running?") from None
    return draft.provider


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(desk: Desk, before: Settings, draft: Draft) -> int:
    home, screen = desk.home, desk.screen
    for variable, secret in draft.secrets.items():
        set_secret(home, variable, secret)
    section: dict[str, Any] = {} if draft.provider == draft.name else {"provider": draft.provider}
    section |= draft.section
    path = f'memories."{draft.name}"' if "." in draft.name else f"memories.{draft.name}"
    if isinstance(before.document.get("memories", {}).get(draft.name), Mapping):
        after = before  # what else stands there stays, with its comments
        for key, value in section.items():
            after = _set(home, f"{path}.{key}", value)
    else:
        after = _set(home, path, section)
    if not desk.args.no_attach:
        after = _attach(home, after, draft.name, desk.args.agent)
    whose = [agent.name for agent in after.agents.values() if draft.name in {it.name for it in agent.memories}]
    running = asyncio.run(_runs(home))
    if screen.json:
        report = {"memory": draft.name, "provider": draft.provider, "called": draft.called or None, "agents": whose}
        found = checkup(home, screen, path)
        screen.show({**report, "file": str(home.config), "variables": sorted(draft.secrets), "doctor": found})
        return 0
    if draft.called:
        screen.say(f"{screen.paint('ok', 'green')} · {safe(draft.name)} answers ({safe(draft.called)})")
    where = [str(home.config), *(f"{variable} in {home.env}" for variable in draft.secrets)]
    screen.say(f"written: {' and '.join(where)}")
    checkup(home, screen, path)
    screen.say(f"remembers for: {', '.join(map(safe, whose)) or 'nobody yet; --agent NAME attaches it'}")
    step = "everhold memory status" if running else "everhold up; then everhold memory status"
    screen.say(f"next: {step}; everhold memory backfill {safe(draft.name)} hands over what was said before")
    return 0


def _attach(home: Home, settings: Settings, name: str, agent: str) -> Settings:
    """Put it in the list of one agent, or of all that have none of their own."""
    path: Sequence[str] = ("agents", agent) if agent else ("defaults",)
    at: Any = settings.document
    for part in path:
        at = at.get(part) if isinstance(at, Mapping) else None
    listed = at.get("memories") if isinstance(at, Mapping) else None
    if listed is None:
        inherited = settings.document.get("defaults") if agent else None
        listed = inherited.get("memories") if isinstance(inherited, Mapping) else None
    listed = [BUILTIN] if listed is None else list(listed)
    if any(name in (it, it.get("name") if isinstance(it, Mapping) else None) for it in listed):
        return settings
    return _set(home, ".".join((*path, "memories")), [*listed, name])


def _set(home: Home, key: str, value: Any) -> Settings:
    return set_key(home, key, value, environ=os.environ, validate_plugin=plugin_check())


async def _runs(home: Home) -> bool:
    return await answering(home) is not None
