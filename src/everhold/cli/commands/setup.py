"""`everhold setup model`: asks, tries it live, then writes config.yaml and `.env`. Shows no key, and writes nothing
that did not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import io
import ipaddress
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

from everhold.app import SystemClock, plugin_check, settings_of
from everhold.cli.checkup import checkup
from everhold.cli.progress import waiting
from everhold.cli.reach import answering, home_of
from everhold.cli.render import Screen, count, safe
from everhold.config import Settings, set_key, set_secret
from everhold.config.edit import split_key
from everhold.config.literals import is_env_name
from everhold.config.secrets import Environment, parse_env
from everhold.errors import EverholdError, Misuse, Refused
from everhold.home import Home, read_file
from everhold.ports.model import Answer, Closing, Message, Model, Request
from everhold.ports.plugin import Context
from everhold.secret import Secret

OFFLINE: Final = "offline"
URLS: Final = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
EXAMPLES: Final = {"openai": "gpt-5-mini", "anthropic": "claude-sonnet-5"}
CHOICES: Final = (
    ("openai", "an OpenAI-compatible endpoint: OpenAI, OpenRouter, Ollama, vLLM, llama.cpp, …"),
    ("anthropic", "Anthropic's messages API"),
    (OFFLINE, "no model: everhold's own, which needs no network and is not clever"),
)
TRIAL: Final = Request(
    system="", messages=(Message(role="user", text="Reply with the single word: ready"),), params={"max_tokens": 1024}
)
"""Small, but with room to think for a model that has to."""
TRIAL_SECONDS: Final = 90.0
NONE: Final = Secret("")


@dataclass(frozen=True)
class Wish:
    """What somebody wants to talk to. Empty: not said yet."""

    provider: str = ""
    url: str = ""
    name: str = ""
    variable: str = ""
    key: Secret = NONE
    """A new key, to be written to `.env`; empty if there is one already, or none is needed."""
    alias: str = ""

    def section(self) -> dict[str, Any]:
        """Its entry in `models`."""
        keys = {"provider": self.provider, "name": self.name, "base_url": self.url, "api_key_env": self.variable}
        return {key: value for key, value in keys.items() if value}


def run(args: argparse.Namespace, screen: Screen) -> int:
    if args.action == "service":
        from everhold.cli.commands import service

        return service.set_up(args, screen)
    if args.action == "memory":
        from everhold.cli.commands import setup_memory

        return setup_memory.run(args, screen)
    if args.action not in ("model", None):
        from everhold.cli.commands import setup_platform

        return setup_platform.run(args, screen)
    home = home_of(args).create()
    settings = settings_of(home, environ=os.environ)  # a broken configuration is mended before it is changed
    known = environment(home)
    given = args.action == "model"  # the bare word has no flags
    wish = Wish(
        provider=args.provider if given else "",
        url=args.url if given else "",
        name=args.name if given else "",
        variable=args.key_env if given else "",
        alias=args.alias if given else "",
    )
    silent = given and args.no_input
    if given and args.key_stdin:
        wish = replace(wish, key=Secret(sys.stdin.readline().strip()))
        if not wish.key:
            raise Misuse("there is no key on standard input", remedy="everhold setup model … --key-stdin < key.txt")
    asking = Asking(screen, sys.stdin)
    while True:
        wish = _complete(wish, known, settings) if silent else _asked(wish, known, settings, asking)
        _check(wish, known)
        if given and args.no_test:
            return _write(home, wish, screen, settings, told=None)
        try:
            told = asyncio.run(_try(wish, known, screen, home))
        except EverholdError as error:
            if silent:
                raise
            screen.fail(error.message, error.remedy)
            if not asking.yes("Change something and try again?"):
                raise Refused("nothing was written", remedy="--no-test writes it untried") from None
            asking.again = True
            continue
        return _write(home, wish, screen, settings, told=told)


# -- asking ------------------------------------------------------------------------------------------------------------


class Asking:
    """Questions on standard error, answers from standard input; keys are typed unseen."""

    def __init__(self, screen: Screen, source: TextIO) -> None:
        self.screen = screen
        self.source = source
        self.again = False
        """Something did not work: what was said becomes a suggestion."""

    def line(self, question: str, default: str = "") -> str:
        hint = f" [{safe(default)}]" if default else ""
        while True:
            self._prompt(f"{question}{hint}: ")
            if answer := self._read() or default:
                return answer

    def choice(self, question: str, choices: tuple[tuple[str, str], ...], default: str) -> str:
        for number, (name, what) in enumerate(choices, start=1):
            self.screen.note(f"  {number}  {self.screen.paint_err(name, 'bold')}  {what}")
        names = [name for name, _ in choices]
        while True:
            answer = self.line(question, default)
            if answer.isdecimal() and 1 <= int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer in names:
                return answer
            self.screen.note(f"  a number from 1 to {len(names)}, please")

    def secret(self, question: str) -> Secret:
        if self.source.isatty():
            try:
                return Secret(getpass.getpass(f"{question}: ").strip())
            except EOFError:
                raise _unanswered() from None
        self._prompt(f"{question}: ")
        return Secret(self._read())

    def yes(self, question: str) -> bool:
        return self.line(f"{question} yes or no", "yes").lower() in ("y", "yes")

    def _prompt(self, text: str) -> None:
        self.screen.err.write(text)
        self.screen.err.flush()

    def _read(self) -> str:
        line = self.source.readline()
        if not line:
            self.screen.note("")
            raise _unanswered()
        return line.strip()


def _unanswered() -> Misuse:
    return Misuse("the question was not answered", remedy="--no-input takes everything from flags; see --help")


def _asked(wish: Wish, known: Environment, before: Settings, asking: Asking) -> Wish:
    """Ask for what is not said yet; after a failure, for everything again."""
    again = asking.again
    if not wish.provider or again:
        wish = replace(wish, provider=asking.choice("Which kind of model?", CHOICES, wish.provider or "1"))
    if wish.provider == OFFLINE:
        return Wish(provider=OFFLINE, alias=OFFLINE)
    if not wish.url or again:
        usual = wish.url or URLS.get(wish.provider, "")
        wish = replace(wish, url=_url(asking.line("Where does it answer? Base URL", usual)))
    if not wish.name or again:
        example = f", such as {EXAMPLES[wish.provider]}" if wish.provider in EXAMPLES else ""
        wish = replace(wish, name=asking.line(f"The model's name there{example if not wish.name else ''}", wish.name))
    variable = wish.variable or _own_variable(wish.provider, wish.url, before)
    if not wish.key or again:
        kept = known.get(variable) is not None or bool(wish.key)
        hint = f"Enter keeps the one in {variable}" if kept else "Enter if it needs none"
        key = asking.secret(f"Its key (not shown; {hint})")
        wish = replace(wish, key=key or wish.key)
    needed = bool(wish.variable or wish.key or known.get(variable))
    return replace(wish, variable=variable if needed else "", alias=wish.alias or wish.provider)


def _complete(wish: Wish, known: Environment, before: Settings) -> Wish:
    """Everything from flags. Raises Misuse that names the flag."""
    if not wish.provider:
        raise Misuse("which kind of model?", remedy="--provider openai, anthropic or offline")
    if wish.provider == OFFLINE:
        return Wish(provider=OFFLINE, alias=OFFLINE)
    if not wish.name:
        raise Misuse("which model?", remedy=f"--name, for example --name {EXAMPLES.get(wish.provider, 'NAME')}")
    url = _url(wish.url or URLS.get(wish.provider, ""))
    variable = wish.variable or _own_variable(wish.provider, url, before)
    needed = bool(wish.variable or wish.key or known.get(variable))
    return replace(wish, url=url, variable=variable if needed else "", alias=wish.alias or wish.provider)


def _check(wish: Wish, known: Environment) -> None:
    if wish.provider == OFFLINE:
        return
    if not is_env_name(wish.variable or "X"):
        raise Misuse(
            "--key-env takes the name of a variable, not the key", remedy="--key-env OPENAI_API_KEY --key-stdin"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", wish.alias) or wish.alias == OFFLINE:
        raise Misuse("this name cannot stand in `models`", remedy="letters, digits, - and _, for example --as big")
    if wish.variable and not wish.key and known.get(wish.variable) is None:
        raise Misuse(f"{wish.variable} is not set", remedy="--key-stdin reads the key from standard input")


def _url(text: str) -> str:
    """An address as it can be written down. What else stands there may be a key pasted at the wrong question."""
    text = text.strip().rstrip("/")
    if "://" not in text and text:
        text = f"{'http' if _local(urlsplit(f'//{text}').hostname or '') else 'https'}://{text}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", text):
        raise Misuse("the base URL is no http(s) address", remedy="for example --url https://api.openai.com/v1")
    if parts.username or parts.password:
        raise Misuse("the base URL holds a password", remedy="leave it out; the key is asked for by itself")
    return text


def _local(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host == "localhost" or "." not in host


def variable_for(provider: str, url: str) -> str:
    """What the variable with the key for this endpoint is usually called."""
    host = (urlsplit(url).hostname or "").lower()
    if provider == "anthropic" and host.endswith("anthropic.com"):
        return "ANTHROPIC_API_KEY"
    labels = [] if _local(host) else host.split(".")
    word = re.sub(r"[^A-Z0-9]", "_", labels[-2].upper()) if len(labels) >= 2 else "LOCAL"
    return f"{word if word[:1].isalpha() else 'MODEL'}_API_KEY"


def _own_variable(provider: str, url: str, before: Settings) -> str:
    """The variable for its key. Machines nearby all have the same usual one, but not the same key."""
    usual, here = variable_for(provider, url), urlsplit(url)
    places = {urlsplit(model.base_url or "").netloc for model in before.models.values() if model.api_key_env == usual}
    if not _local(here.hostname or "") or not places or here.netloc in places:
        return usual
    return f"LOCAL_{re.sub(r'[^A-Z0-9]+', '_', here.netloc.upper()).strip('_')}_API_KEY"


def environment(home: Home) -> Environment:
    lines, _ = parse_env(read_file(home.env, private=True) or b"", file=str(home.env))
    return Environment(os.environ, lines)


# -- trying ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """What came of one small question."""

    answer: Answer
    seconds: float
    pieces: int


async def _try(wish: Wish, known: Environment, screen: Screen, home: Home) -> Trial:
    """One small question, streamed as every other will be. Raises what the model's adapter says is wrong."""
    model = _model(wish, known, home)
    pieces: list[str] = []
    began = time.monotonic()
    try:
        async with waiting(screen, f"asking {wish.name or OFFLINE}"):
            try:
                async with asyncio.timeout(TRIAL_SECONDS):
                    answer = await model.answer(TRIAL, on_text=pieces.append)
            except TimeoutError:
                raise Refused(
                    f"{wish.name} did not answer within {TRIAL_SECONDS:g} s", remedy="is this the right address?"
                ) from None
    finally:
        if isinstance(model, Closing):
            await model.aclose()
    return Trial(answer=answer, seconds=time.monotonic() - began, pieces=len(pieces))


def _model(wish: Wish, known: Environment, home: Home) -> Model:
    from everhold.logs import open_log
    from everhold.plugins import MODELS

    factory = MODELS.load(wish.provider)
    given: dict[str, Any] = {
        key: value for key, value in wish.section().items() if key not in ("provider", "api_key_env")
    }
    key = wish.key or (known.get(wish.variable) if wish.variable else None)
    if key:
        given["api_key"] = key
    log = open_log(clock=SystemClock(), stream=io.StringIO())  # what is wrong is raised, and said
    context = Context(agent="", instance=wish.alias, directory=home.path, log=log, clock=SystemClock())
    return factory(factory.Settings.model_validate(given), context)


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(home: Home, wish: Wish, screen: Screen, before: Settings, *, told: Trial | None) -> int:
    if wish.key:
        set_secret(home, wish.variable, wish.key)
    if wish.provider == OFFLINE:
        settings = _set(home, "defaults.model", OFFLINE)
    else:
        _write_model(home, wish, before)
        settings = _set(home, "defaults.model", wish.alias)
    running = asyncio.run(_runs(home))
    if screen.json:
        screen.show({**_report(home, wish, told, settings), "doctor": checkup(home, screen, *_keys(wish))})
        return 0
    if told is not None:
        how = "streaming" if told.pieces > 1 else "in one piece"
        spent = count(told.answer.usage.input + told.answer.usage.output, "token")
        who = f"{screen.paint('ok', 'green')} · {safe(wish.name or OFFLINE)}"
        screen.say(f"{who} answered in {told.seconds:.1f} s, {how}, {spent}")
    where = [str(home.config), *([f"{wish.variable} in {home.env}"] if wish.key else [])]
    screen.say(f"written: {' and '.join(where)}")
    checkup(home, screen, *_keys(wish))
    _remarks(wish, settings, screen)
    screen.say("next: everhold chat" + ("  (the gateway takes it from the next message on)" if running else ""))
    return 0


def _write_model(home: Home, wish: Wish, before: Settings) -> None:
    """The entry in `models`: one of the same kind keeps what else was written there, and its comments."""
    old = before.models.get(wish.alias)
    written = before.document.get("models", {})
    if old is None or old.provider != wish.provider or not isinstance(written.get(wish.alias), Mapping):
        _set(home, f"models.{_quoted(wish.alias)}", wish.section())
        return
    for key in ("name", "base_url", "api_key_env"):
        value = wish.section().get(key)
        if value is not None or key in written[wish.alias]:
            _set(home, f"models.{_quoted(wish.alias)}.{key}", value)


def _keys(wish: Wish) -> tuple[str, ...]:
    """Where the configuration speaks of it."""
    return (f"models.{wish.alias}", "defaults.model")


def _quoted(name: str) -> str:
    return f'"{name}"' if split_key(name) != (name,) else name


def _set(home: Home, key: str, value: Any) -> Settings:
    return set_key(home, key, value, environ=os.environ, validate_plugin=plugin_check())


async def _runs(home: Home) -> bool:
    return await answering(home) is not None


def _remarks(wish: Wish, settings: Settings, screen: Screen) -> None:
    """What somebody would wonder about later."""
    others = [agent.name for agent in settings.agents.values() if agent.model != wish.alias]
    if others:
        screen.say(f"  {', '.join(map(safe, others))}: another model is configured for it and stays")
        screen.say(f"  → everhold config set agents.{safe(others[0])}.model {safe(wish.alias)}")
    if wish.key and os.environ.get(wish.variable) not in (None, "", wish.key.reveal()):
        screen.say(f"  {wish.variable} is set to something else in this environment, which wins over .env")
        screen.say(f"  → unset {wish.variable}")


def _report(home: Home, wish: Wish, told: Trial | None, settings: Settings) -> dict[str, Any]:
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
        **{key: value for key, value in wish.section().items() if key != "model"},
        "tried": tried,
        "file": str(home.config),
        "revision": settings.revision,
        "agents": [agent.name for agent in settings.agents.values() if agent.model == wish.alias],
    }
