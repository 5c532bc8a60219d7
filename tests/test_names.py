"""The naming rules that a machine can check. Each check is shown to fail.

docs/reference/glossary.md defines the words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from everhold import errors
from everhold.core import entries
from everhold.telemetry.events import LogEvent
from everhold.telemetry.metrics import METRICS, MetricDefinition

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "everhold"
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def package_modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


# -- class names -------------------------------------------------------------------------------------------------------

GLOSSARY_NOUNS = set(
    """
    Address Change Claim Destination Entry Exchange Fact Gates Home Operation Platform Receipt Session Stamp Step Wakeup
    """.split()
)
ENTRY_BODIES = set(
    """
    Began Called Changed Compressed Ended Erased Heard Noted Notified Returned Said Thought Took
    """.split()
)
ERRORS = set("Conflict Overloaded Poisoned Refused Transient".split())
OTHER_ONE_WORD_CLASSES = {
    "Attachment": "a file of a message; part of the plug-in API",
    "Clock": "a port",
    "Model": "a port",
    "Schedule": "a port's record, and the noun of `everhold schedules`",
    "Settings": "the configuration; plug-ins call their own part so, too",
    "Store": "a port",
    "Tool": "a port",
    "Wakeups": "all wakeups of a process",
}
ONE_WORD_CLASSES = GLOSSARY_NOUNS | ENTRY_BODIES | ERRORS | OTHER_ONE_WORD_CLASSES.keys()
"""Every other class name has two words or more."""


def find_classes(source: str) -> Iterator[str]:
    """Every class defined in a module, nested and private ones included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name


def split_words(identifier: str) -> list[str]:
    """The words of a snake_case or CamelCase identifier, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def test_an_identifier_is_split_into_its_words() -> None:
    assert split_words("DeliveryWorker") == ["delivery", "worker"]
    assert split_words("_claim_cursors_2") == ["claim", "cursors"]
    assert split_words("HTTPServer") == ["http", "server"]
    assert split_words("MAX_BYTES") == ["max", "bytes"]


def test_a_nested_private_class_is_found() -> None:
    assert list(find_classes("class A:\n    class _B: ...\ndef f():\n    class C: ...")) == ["A", "_B", "C"]


def find_repeated_classes(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Class name -> the modules that define it, if there are several."""
    modules = defaultdict(list)
    for module, source in sources.items():
        for name in find_classes(source):
            modules[name].append(module)
    return {name: paths for name, paths in modules.items() if len(paths) > 1}


def find_one_word_classes(names: Iterable[str]) -> set[str]:
    return {name for name in names if len(split_words(name)) < 2}


def test_a_repeated_class_is_found() -> None:
    sources = {"a.py": "class Gone: ...\nclass A: ...", "b.py": "def f():\n    class Gone: ..."}
    assert find_repeated_classes(sources) == {"Gone": ["a.py", "b.py"]}


def test_a_one_word_class_is_found() -> None:
    assert find_one_word_classes(["Load", "_Gone", "DeliveryBatch", "HTTP", "_LogOutlet"]) == {"Load", "_Gone", "HTTP"}


def test_a_class_name_exists_once_in_the_package() -> None:
    repeated = find_repeated_classes({str(path.relative_to(SOURCE)): path.read_text() for path in package_modules()})
    assert not repeated, f"these class names are used more than once: {repeated}"


def test_one_word_class_names_are_the_listed_ones() -> None:
    names = [name for path in package_modules() for name in find_classes(path.read_text())]
    one_word = find_one_word_classes(names)
    assert one_word <= ONE_WORD_CLASSES, f"give these classes a second word: {sorted(one_word - ONE_WORD_CLASSES)}"
    assert one_word >= ONE_WORD_CLASSES, f"no longer in use: {sorted(ONE_WORD_CLASSES - one_word)}"
    assert len(one_word) <= len(names) / 10


def find_glossary_terms(text: str) -> set[str]:
    """The defined words of the glossary."""
    return set(re.findall(r"^- \*\*([^*]+)\*\*:", text, re.MULTILINE))


def test_a_glossary_term_is_found() -> None:
    assert find_glossary_terms("- **dead letter**: an item.\n- **seq**: a number. **Undo** is other.\n") == {
        "dead letter",
        "seq",
    }


def test_one_word_classes_are_glossary_nouns_entry_bodies_and_errors() -> None:
    terms = find_glossary_terms((ROOT / "docs" / "reference" / "glossary.md").read_text())
    assert {name.lower() for name in GLOSSARY_NOUNS} <= terms
    assert {body.__name__ for body in get_args(entries.EntryBody)} >= ENTRY_BODIES
    assert all(issubclass(getattr(errors, name), errors.EverholdError) for name in ERRORS)


# -- retired words -----------------------------------------------------------------------------------------------------

RETIRED = set(
    """
    mind voice desk tie fold lane seat purse courier flight leg parked papers ballast farside knock misuse
    minds voices desks ties folds lanes seats purses couriers flights legs folded folding
    """.split()
)

TEXT_TOKENS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""From Python 3.12 on, the text of an f-string is a token of its own."""

ALLOWED_IDENTIFIERS = {
    "in_flight": "the usual word for what was sent and not yet confirmed; `flight` alone is retired",
}
"""Identifiers that contain a retired word, each with its reason."""

ALLOWED_WORDS = {
    ("src/everhold/platforms/telegram/parsing.py", "voice"): "Telegram's name of a recording",
    ("src/everhold/core/schedule.py", "fold"): "an attribute of datetime",
    ("src/everhold/models/offline.py", "mind"): "a phrase that people write: keep in mind",
    ("src/everhold/models/sentence_selection.py", "mind"): "a phrase that people write: changed my mind",
    ("src/everhold/testing/platforms/discord.py", "voice"): "Discord's field `voice_states`",
    ("src/everhold/testing/platforms/telegram.py", "voice"): "Telegram's name of a recording",
    ("tests/core/test_schedule.py", "fold"): "an attribute of datetime",
}
"""Files and the retired words that they may contain, each with its reason."""


def find_identifiers(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string


def find_retired_identifiers(source: str) -> set[str]:
    """The identifiers of a module that contain a retired word."""
    return {identifier for identifier in set(find_identifiers(source)) if _is_retired(identifier)}


def _is_retired(identifier: str) -> bool:
    name = "_".join(split_words(identifier))
    for allowed in ALLOWED_IDENTIFIERS:
        name = name.replace(allowed, "")
    return bool(RETIRED & set(name.split("_")))


def find_retired_words(text: str) -> set[str]:
    """The retired words in prose, "in-flight" excepted."""
    return RETIRED & set(re.findall(r"[a-z]+", re.sub(r"in[ _-]flight", "", text.lower())))


@pytest.mark.parametrize(
    "source, found",
    [
        ("lane = 1", {"lane"}),
        ("def take_seat(): ...", {"take_seat"}),
        ("class VoiceReader: ...", {"VoiceReader"}),
        ("text.casefold()", set()),
        ("in_flight = batch.in_flight_items", set()),
        ("flight_of = in_flight", {"flight_of"}),
        ("class InFlightBatch: ...", set()),
        ("FLIGHT = InFlightLane", {"FLIGHT", "InFlightLane"}),
    ],
)
def test_a_retired_word_is_found_in_an_identifier(source: str, found: set[str]) -> None:
    assert find_retired_identifiers(source) == found


def test_a_retired_word_is_found_in_prose() -> None:
    assert find_retired_words("A lane hands over what is in flight.") == {"lane"}


@pytest.mark.parametrize("top", ["src", "tests", "bench"])
def test_no_identifier_contains_a_retired_word(top: str) -> None:
    found = {}
    for path in sorted((ROOT / top).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if "/.venv-" in name:  # what `make bench` and `make prove` install
            continue
        if names := {it for it in find_retired_identifiers(path.read_text()) if (name, it) not in ALLOWED_WORDS}:
            found[name] = names
    assert not found, f"use the glossary's words: {found}"


def find_text(source: str) -> str:
    """The strings, comments and docstrings of a module: what users read in messages, and developers in the code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return " ".join(token.string for token in tokens if token.type in TEXT_TOKENS)


def find_forbidden_words(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """File -> the retired words in its text that no exception allows."""
    found = {}
    for name, text in texts.items():
        if words := {word for word in find_retired_words(text) if (name, word) not in ALLOWED_WORDS}:
            found[name] = words
    return found


def read_texts() -> tuple[dict[str, str], dict[str, str]]:
    """The text of each module of the package, and of each page of the docs."""
    modules = {str(path.relative_to(ROOT)): find_text(path.read_text()) for path in package_modules()}
    return modules, {str(path.relative_to(ROOT)): path.read_text() for path in DOCS}


def test_text_is_found_in_strings_and_comments() -> None:
    text = find_text('lane = 1  # a desk\n"""A seat."""\nx = f"the purse of {mind}"\n')
    assert find_retired_words(text) >= {"desk", "seat", "purse"}
    assert "lane" not in find_retired_words(text)


def test_a_word_is_allowed_only_in_its_file() -> None:
    allowed = next(iter(ALLOWED_WORDS))[0]
    assert find_forbidden_words({allowed: "a voice on a lane", "other.py": "a voice"}) == {
        allowed: {"lane"},
        "other.py": {"voice"},
    }


def test_no_text_of_the_package_contains_a_retired_word() -> None:
    found = find_forbidden_words(read_texts()[0])
    assert not found, f"use the glossary's words: {found}"


def test_no_page_of_the_docs_contains_a_retired_word() -> None:
    found = find_forbidden_words(read_texts()[1])
    assert not found, f"use the glossary's words: {found}"


def list_resource_files() -> list[Path]:
    """The source of the console, the skeletons of plug-ins and the schema."""
    console = [ROOT / "console" / "index.html", *(ROOT / "console" / "src").rglob("*.ts*")]
    found = [*console, *(SOURCE / "cli" / "skeleton").rglob("*.txt"), *SOURCE.rglob("*.sql")]
    return sorted(path for path in found if path.name != "generated.ts")


def test_no_resource_file_contains_a_retired_word() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in list_resource_files()}
    assert {"index.html", "main.tsx", "en.ts", "adapter.py.txt", "provider.py.txt", "0001_schema.sql"} <= {
        name.rpartition("/")[2] for name in texts
    }
    found = find_forbidden_words(texts)
    assert not found, f"use the glossary's words: {found}"


def test_every_exception_is_needed() -> None:
    unused = [(name, word) for name, word in ALLOWED_WORDS if word not in find_retired_words((ROOT / name).read_text())]
    assert not unused


# -- log events --------------------------------------------------------------------------------------------------------

LEVELS = {"debug", "info", "warning", "error"}


class EventFinder:
    """Finds the names of logged events, in a log call or in a value that a log call uses.

    An event name reaches a logger as a literal, in a variable, in an attribute of an object (`delivered_event`), as an
    argument of a function that logs its parameter, or through a variable that holds the method of a logger.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self.trees = [ast.parse(source) for source in sources]
        self.helpers: dict[str, tuple[str, int]] = {}
        """Function that logs one of its parameters -> the parameter and its place, `self` not counted."""
        self.attributes: set[str] = set()
        """Attributes that are passed to a log call."""
        self.events: set[str] = set()
        self.unresolved: set[str] = set()
        """Expressions that this finder does not understand."""
        for tree in self.trees:
            for scope in ast.walk(tree):
                if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._read_log_calls(scope)
        for tree in self.trees:
            for node in ast.walk(tree):
                self._read_helper_call(node)
                self._read_attribute(node)

    def _read_log_calls(self, scope: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        parameters = [argument.arg for argument in (*scope.args.posonlyargs, *scope.args.args)]
        parameters = parameters[1:] if parameters[:1] in (["self"], ["cls"]) else parameters
        aliases = find_aliases(scope)
        for node in ast.walk(scope):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name == "LogLine" and isinstance(node.args[2], ast.Constant):
                self._read_value(node.args[2], scope, parameters)
            elif node.args and (is_level(node.func) or name in aliases):
                self._read_value(node.args[0], scope, parameters)

    def _read_value(self, value: ast.expr, scope: ast.AST, parameters: list[str]) -> None:
        match value:
            case ast.Constant(value=str(event)):
                self.events.add(event)
            case ast.IfExp(body=body, orelse=otherwise):
                self._read_value(body, scope, parameters)
                self._read_value(otherwise, scope, parameters)
            case ast.Attribute(attr=name):
                self.attributes.add(name)
            case ast.Name(id=name) if name in parameters:
                self.helpers[getattr(scope, "name", "")] = name, parameters.index(name)
            case ast.Name(id=name) if assigned := find_assigned(scope, name):
                for each in assigned:
                    self._read_value(each, scope, parameters)
            case _:
                self.unresolved.add(ast.unparse(value))

    def _read_helper_call(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call) and (name := get_last_name(node.func)) in self.helpers and name not in LEVELS:
            parameter, place = self.helpers[name]
            given = [word.value for word in node.keywords if word.arg == parameter] or node.args[place : place + 1]
            for value in given:
                self._read_value(value, node, [])

    def _read_attribute(self, node: ast.AST) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and any(get_last_name(target) in self.attributes for target in targets):
            self._read_value(value, node, [])


def get_last_name(node: ast.AST | None) -> str:
    """`c` of `a.b.c`, and of `c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_level(node: ast.AST) -> bool:
    """Whether this is the method of a logger, such as `self.log.info`."""
    if not isinstance(node, ast.Attribute) or node.attr not in LEVELS:
        return False
    receiver = node.value.func if isinstance(node.value, ast.Call) else node.value
    return get_last_name(receiver).strip("_") in ("log", "logger", "bind")


def find_assigned(scope: ast.AST, name: str) -> list[ast.expr]:
    """The values that a local variable gets."""
    return [
        node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and any(isinstance(it, ast.Name) and it.id == name for it in node.targets)
    ]


def find_aliases(scope: ast.AST) -> set[str]:
    """The local variables that hold the method of a logger."""
    return {
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and any(is_level(part) for part in _get_choices(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _get_choices(value: ast.expr) -> list[ast.expr]:
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]


@pytest.mark.parametrize(
    "source",
    [
        """def f(self): self.log.info("turn.done" if order == "halt" else "turn.failed", op=1)""",
        """def f(self): self.log.bind(op=1).warning("turn.done"); log.error("turn.failed")""",
        """def f(log):\n event = "turn.done"\n log.info(event)\n log.info("turn.failed")""",
        """def f(log):\n emit = log.info if good else log.error\n emit("turn.done")\n emit("turn.failed")""",
        """def note(self, slot, event): self.log.info(event)\nx.note(1, "turn.done")\nx.note(1, event="turn.failed")""",
        """class A:\n done: str = "turn.done"\n failed = "turn.failed"
def f(log, a): log.info(a.done); log.error(a.failed)""",
        """def f(sink): sink(LogLine(at, "warning", "turn.done", {})); sink(LogLine(at, "error", "turn.failed", {}))""",
    ],
)
def test_a_logged_event_is_found(source: str) -> None:
    found = EventFinder([source])
    assert found.events == {"turn.done", "turn.failed"}
    assert not found.unresolved


def test_a_composed_event_name_is_reported() -> None:
    found = EventFinder(['def f(log, what): log.info(f"turn.{what}")'])
    assert found.unresolved == {"f'turn.{what}'"}


def test_every_logged_event_is_declared_and_every_declared_one_is_used() -> None:
    declared = {event.value for event in LogEvent}
    found = EventFinder(path.read_text() for path in package_modules())
    assert not found.unresolved, "log the name of an event as a literal"
    assert found.events <= declared, f"declare these in telemetry/events.py: {sorted(found.events - declared)}"
    assert declared <= found.events, f"no longer logged: {sorted(declared - found.events)}"


def test_a_declared_event_is_named_after_its_value() -> None:
    assert [event.name for event in LogEvent] == [event.value.replace(".", "_").upper() for event in LogEvent]
    assert [event.value for event in LogEvent] == sorted(event.value for event in LogEvent)


def test_a_log_event_is_a_noun_and_a_participle() -> None:
    odd = [event.value for event in LogEvent if not re.fullmatch(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*", event.value)]
    assert not odd


# -- metrics -----------------------------------------------------------------------------------------------------------

UNITS = {"seconds", "bytes", "tokens", "usd", "total", "ratio", "items", "chars"}
"""How the name of a metric may end. A metric without a unit counts the noun that it names."""
COUNTED = set(
    "accounts_held agents cursors_due cursors_failing dead_letters dead_letters_in_doubt hosts http_streams "
    "leases_held messages_held messages_pending receipts_in_doubt".split()
)
FLAGS = {"draining", "info", "memory_failing", "platform_connected", "promise_broken", "ready"}
"""1 or 0, or how many findings say so."""


def find_metric_problem(metric: MetricDefinition) -> str:
    """What is wrong with a metric's name by prometheus.io/docs/practices/naming; empty if nothing is."""
    if not re.fullmatch(r"everhold_[a-z]+(_[a-z]+)*", metric.full_name):
        return "is not everhold_<noun>_<unit>"
    if (metric.kind == "counter") != metric.full_name.endswith("_total"):
        return "a counter, and nothing else, ends in _total"
    if metric.name.rpartition("_")[2] not in UNITS and metric.name not in COUNTED | FLAGS:
        return "ends in no known unit"
    return ""


@pytest.mark.parametrize(
    "metric, problem",
    [
        (MetricDefinition("turns_total", "counter", "Turns."), ""),
        (MetricDefinition("turns", "counter", "Turns."), "_total"),
        (MetricDefinition("turns_total", "gauge", "Turns."), "_total"),
        (MetricDefinition("memory_lag", "gauge", "Lag."), "no known unit"),
        (MetricDefinition("memoryLag_seconds", "gauge", "Lag."), "<noun>"),
    ],
)
def test_a_badly_named_metric_is_found(metric: MetricDefinition, problem: str) -> None:
    assert problem in find_metric_problem(metric)
    assert bool(find_metric_problem(metric)) == bool(problem)


def test_metrics_are_named_after_a_noun_and_a_unit() -> None:
    found = {metric.full_name: problem for metric in METRICS if (problem := find_metric_problem(metric))}
    assert not found
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert set(names) >= COUNTED | FLAGS
    assert all(metric.help.endswith(".") for metric in METRICS)


# -- the glossary ------------------------------------------------------------------------------------------------------


def test_the_glossary_is_linked_where_newcomers_begin() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md"):
        assert "glossary.md" in (ROOT / page).read_text(), f"{page} should link the glossary"
