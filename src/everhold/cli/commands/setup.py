"""`everhold setup model`: asks for settings, tests the model, then writes config.yaml and `.env`.

It never shows a key, and writes nothing if the test fails.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import sys
from dataclasses import replace
from typing import Any, TextIO

from everhold.app import SystemClock, build_plugin_check, load_home_settings
from everhold.assembly.model_setup import (
    EXAMPLE_MODELS,
    OFFLINE_PROVIDER,
    PROVIDER_CHOICES,
    PROVIDER_URLS,
    ModelChoice,
    ModelTrial,
    choose_key_variable,
    is_alias,
    list_model_values,
    parse_url,
    try_model,
)
from everhold.cli.checkup import run_checkup
from everhold.cli.connect import find_home, find_running_gateway
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen, escape_control, format_count
from everhold.config import Settings, set_key, set_secret
from everhold.config.literals import is_env_name, is_secret_key
from everhold.config.secrets import SecretEnvironment, parse_env
from everhold.errors import EverholdError, InvalidRequest, Refused
from everhold.infra.home import Home, read_file
from everhold.infra.secret import SecretString


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if args.action == "service":
        from everhold.cli.commands import service

        return service.set_up_service(args, screen)
    if args.action == "memory":
        from everhold.cli.commands import setup_memory

        return setup_memory.run(args, screen)
    if args.action == "tools":
        from everhold.cli.commands import setup_tools

        return setup_tools.run(args, screen)
    if args.action not in ("model", None):
        from everhold.cli.commands import setup_platform

        return setup_platform.run(args, screen)
    home = find_home(args).create()
    settings = load_home_settings(home, environ=os.environ)  # raises if it is invalid
    known = load_environment(home)
    given = args.action == "model"  # `everhold setup` alone has no options
    wish = ModelChoice(
        provider=args.provider if given else "",
        url=args.url if given else "",
        name=args.name if given else "",
        variable=args.key_env if given else "",
        alias=args.alias if given else "",
    )
    silent = given and args.no_input
    if given and args.key_stdin:
        wish = replace(wish, key=SecretString(sys.stdin.readline().strip()))
        if not wish.key:
            raise InvalidRequest(
                "there is no key on standard input", remedy="everhold setup model … --key-stdin < key.txt"
            )
    asking = SetupPrompter(screen, sys.stdin)
    while True:
        wish = _complete_from_flags(wish, known, settings) if silent else _ask_missing(wish, known, settings, asking)
        _check_choice(wish, known)
        if given and args.no_test:
            return _write_settings(home, wish, screen, settings, told=None)
        try:
            reply = asyncio.run(_try_model(wish, known, screen, home))
        except EverholdError as error:
            if silent:
                raise
            screen.print_failure(error.message, error.remedy)
            if not asking.confirm("Change something and try again?"):
                raise Refused("nothing was written", remedy="--no-test writes it without a test") from None
            asking.again = True
            continue
        return _write_settings(home, wish, screen, settings, told=reply)


# -- asking ------------------------------------------------------------------------------------------------------------


class SetupPrompter:
    """Asks on standard error and reads answers from standard input. Typed keys are not shown."""

    def __init__(self, screen: CommandScreen, source: TextIO) -> None:
        self.screen = screen
        self.source = source
        self.again = False
        """The test failed, so the earlier answers become defaults."""

    def ask_line(self, question: str, default: str = "") -> str:
        hint = f" [{escape_control(default)}]" if default else ""
        while True:
            self._print_prompt(f"{question}{hint}: ")
            if answer := self._read_line() or default:
                return answer

    def ask_choice(self, question: str, choices: tuple[tuple[str, str], ...], default: str) -> str:
        for number, (name, what) in enumerate(choices, start=1):
            self.screen.print_note(f"  {number}  {self.screen.paint_err(name, 'bold')}  {what}")
        names = [name for name, _ in choices]
        while True:
            answer = self.ask_line(question, default)
            if answer.isdecimal() and 1 <= int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer in names:
                return answer
            self.screen.print_note(f"  a number from 1 to {len(names)}, please")

    def ask_secret(self, question: str) -> SecretString:
        if self.source.isatty():
            try:
                return SecretString(getpass.getpass(f"{question}: ").strip())
            except EOFError:
                raise _make_unanswered_error() from None
        self._print_prompt(f"{question}: ")
        return SecretString(self._read_line())

    def confirm(self, question: str) -> bool:
        return self.ask_line(f"{question} yes or no", "yes").lower() in ("y", "yes")

    def _print_prompt(self, text: str) -> None:
        self.screen.err.write(text)
        self.screen.err.flush()

    def _read_line(self) -> str:
        line = self.source.readline()
        if not line:
            self.screen.print_note("")
            raise _make_unanswered_error()
        return line.strip()


def _make_unanswered_error() -> InvalidRequest:
    return InvalidRequest("the question was not answered", remedy="--no-input takes everything from flags; see --help")


def _ask_missing(wish: ModelChoice, known: SecretEnvironment, before: Settings, asking: SetupPrompter) -> ModelChoice:
    """Ask for the missing settings; after a failure, for all settings again."""
    again = asking.again
    if not wish.provider or again:
        wish = replace(wish, provider=asking.ask_choice("Which kind of model?", PROVIDER_CHOICES, wish.provider or "1"))
    if wish.provider == OFFLINE_PROVIDER:
        return ModelChoice(provider=OFFLINE_PROVIDER, alias=OFFLINE_PROVIDER)
    if not wish.url or again:
        usual = wish.url or PROVIDER_URLS.get(wish.provider, "")
        wish = replace(wish, url=parse_url(asking.ask_line("Base URL", usual)))
    if not wish.name or again:
        example = f", such as {EXAMPLE_MODELS[wish.provider]}" if wish.provider in EXAMPLE_MODELS else ""
        wish = replace(
            wish, name=asking.ask_line(f"The model's name there{example if not wish.name else ''}", wish.name)
        )
    variable = wish.variable or choose_key_variable(wish.provider, wish.url, before)
    if not wish.key or again:
        kept = known.get(variable) is not None or bool(wish.key)
        hint = f"Enter keeps the one in {variable}" if kept else "Enter if it needs none"
        key = asking.ask_secret(f"Its key (not shown; {hint})")
        wish = replace(wish, key=key or wish.key)
    needed = bool(wish.variable or wish.key or known.get(variable))
    return replace(wish, variable=variable if needed else "", alias=wish.alias or wish.provider)


def _complete_from_flags(wish: ModelChoice, known: SecretEnvironment, before: Settings) -> ModelChoice:
    """Take all settings from options. Raises InvalidRequest that names the missing option."""
    if not wish.provider:
        raise InvalidRequest("the provider is missing", remedy="--provider openai, anthropic or offline")
    if wish.provider == OFFLINE_PROVIDER:
        return ModelChoice(provider=OFFLINE_PROVIDER, alias=OFFLINE_PROVIDER)
    if not wish.name:
        raise InvalidRequest(
            "the model's name is missing",
            remedy=f"--name, for example --name {EXAMPLE_MODELS.get(wish.provider, 'NAME')}",
        )
    url = parse_url(wish.url or PROVIDER_URLS.get(wish.provider, ""))
    variable = wish.variable or choose_key_variable(wish.provider, url, before)
    needed = bool(wish.variable or wish.key or known.get(variable))
    return replace(wish, url=url, variable=variable if needed else "", alias=wish.alias or wish.provider)


def _check_choice(wish: ModelChoice, known: SecretEnvironment) -> None:
    if wish.provider == OFFLINE_PROVIDER:
        return
    if not is_env_name(wish.variable or "X"):
        raise InvalidRequest(
            "--key-env takes the name of a variable, not the key", remedy="--key-env OPENAI_API_KEY --key-stdin"
        )
    if not is_alias(wish.alias):
        raise InvalidRequest(
            "this name is not valid in `models`", remedy="use letters, digits, - and _, for example --as big"
        )
    if wish.variable and not wish.key and known.get(wish.variable) is None:
        raise InvalidRequest(f"{wish.variable} is not set", remedy="--key-stdin reads the key from standard input")


def load_environment(home: Home) -> SecretEnvironment:
    lines, _ = parse_env(read_file(home.env, private=True) or b"", file=str(home.env))
    return SecretEnvironment(os.environ, lines)


# -- testing -----------------------------------------------------------------------------------------------------------


async def _try_model(wish: ModelChoice, known: SecretEnvironment, screen: CommandScreen, home: Home) -> ModelTrial:
    """Send one small request. Raises the adapter's error."""
    async with show_waiting(screen, f"asking {wish.name or OFFLINE_PROVIDER}"):
        return await try_model(wish, known, directory=home.path, clock=SystemClock())


# -- writing -----------------------------------------------------------------------------------------------------------


def _write_settings(
    home: Home, wish: ModelChoice, screen: CommandScreen, before: Settings, *, told: ModelTrial | None
) -> int:
    if wish.key:
        set_secret(home, wish.variable, wish.key)
    settings = before
    for key, value in list_model_values(wish, before).items():
        settings = set_value(home, key, value)
    running = asyncio.run(find_running_gateway(home)) is not None
    if screen.json:
        screen.print_json(
            {**_make_report(home, wish, told, settings), "doctor": run_checkup(home, screen, *_list_config_keys(wish))}
        )
        return 0
    if told is not None:
        how = "streaming" if told.pieces > 1 else "in one piece"
        spent = format_count(told.answer.usage.input + told.answer.usage.output, "token")
        who = f"{screen.paint('ok', 'green')} · {escape_control(wish.name or OFFLINE_PROVIDER)}"
        screen.print_line(f"{who} answered in {told.seconds:.1f} s, {how}, {spent}")
    where = [str(home.config), *([f"{wish.variable} in {home.env}"] if wish.key else [])]
    screen.print_line(f"written: {' and '.join(where)}")
    run_checkup(home, screen, *_list_config_keys(wish))
    _print_remarks(wish, settings, screen)
    screen.print_line("next: everhold chat" + ("  (the gateway uses it from the next message on)" if running else ""))
    return 0


def _list_config_keys(wish: ModelChoice) -> tuple[str, ...]:
    """Return the configuration keys that concern the model."""
    return (f"models.{wish.alias}", "defaults.model")


def parse_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or is_secret_key(key):
        raise InvalidRequest(
            f"{key[:40]!r} cannot be set like this", remedy="--set key=value; secrets are asked for, or --stdin"
        )
    return key, value


def set_value(home: Home, key: str, value: Any) -> Settings:
    """Change one value in config.yaml."""
    return set_key(home, key, value, environ=os.environ, validate_plugin=build_plugin_check())


def _print_remarks(wish: ModelChoice, settings: Settings, screen: CommandScreen) -> None:
    """Print settings that override the new model or key."""
    others = [agent.name for agent in settings.agents.values() if agent.model != wish.alias]
    if others:
        screen.print_line(
            f"  {', '.join(map(escape_control, others))}: configured with another model, which is not changed"
        )
        screen.print_line(
            f"  → everhold config set agents.{escape_control(others[0])}.model {escape_control(wish.alias)}"
        )
    if wish.key and os.environ.get(wish.variable) not in (None, "", wish.key.reveal()):
        screen.print_line(f"  {wish.variable} has another value in this environment, which overrides .env")
        screen.print_line(f"  → unset {wish.variable}")


def _make_report(home: Home, wish: ModelChoice, told: ModelTrial | None, settings: Settings) -> dict[str, Any]:
    tried = None
    if told is not None:
        usage = told.answer.usage
        tried = {
            "seconds": round(told.seconds, 3),
            "streamed": told.pieces > 1,
            "model": told.answer.model,
            "tokens": usage.input + usage.output,
        }
    return {
        "model": wish.alias,
        **{key: value for key, value in wish.make_config_section().items() if key != "model"},
        "tried": tried,
        "file": str(home.config),
        "revision": settings.revision,
        "agents": [agent.name for agent in settings.agents.values() if agent.model == wish.alias],
    }
