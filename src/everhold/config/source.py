"""Parse YAML text into plain values and their line numbers. Does not interpret the values.

Mappings become dicts with text keys, lists become tuples. There are only plain values: no tags, no dates, no objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from everhold.config.errors import ConfigProblem, KeyPath
from everhold.config.syntax_errors import explain_syntax_error

MAX_NODES: Final = 50_000
"""The largest number of values in one document. An alias counts each time it is used."""
MAX_DEPTH: Final = 64
_PROBE_BYTES: Final = 1024
"""How much of a file is searched for zero bytes, which no text contains."""

_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_YAML_FLAGS: Final = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


@dataclass(slots=True)
class YamlDocument:
    """The values of a file, their lines, and the problems found."""

    file: str
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)
    root: Node | None = None
    """The parsed tree, with the exact span of each node in the text."""

    def find_line(self, path: KeyPath) -> int:
        """Return the line of `path`, or of the nearest enclosing key."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def report_problem(self, path: KeyPath, message: str, remedy: str = "", *, line: int = 0) -> None:
        self.problems.append(
            ConfigProblem(message, remedy, path=path, file=self.file, line=line or self.find_line(path))
        )


def read_document(data: str | bytes, *, file: str = "config.yaml") -> YamlDocument:
    """Parse `data`. Never raises; problems are listed in the document."""
    document = YamlDocument(file)
    text = _decode_text(data, document)
    if text is None:
        return document
    try:
        document.root = compose_tree(text)
    except YAMLError as error:
        document.problems.append(replace(explain_syntax_error(error, text), file=file))
        return document
    except RecursionError:
        document.report_problem((), "is nested too deeply", f"use at most {MAX_DEPTH} levels")
        return document
    except (ValueError, AttributeError, LookupError, AssertionError, TypeError) as error:
        # The YAML library fails with these errors on some broken documents.
        document.report_problem(
            (), f"is not YAML ({type(error).__name__})", "check the quotes, brackets and directives"
        )
        return document
    if document.root is None:
        return document
    if not isinstance(document.root, MappingNode):
        if isinstance(document.root, ScalarNode) and document.root.tag == _TAG_PREFIX + "null":
            return document
        document.report_problem((), "must be a mapping", "write lines such as `timezone: Europe/Berlin`", line=1)
        return document
    value = _YamlBuilder(document).build(document.root, ())
    if isinstance(value, dict):
        document.data = value
    return document


def compose_tree(text: str) -> Node | None:
    """Return the tree of `text`. Raises YAMLError, RecursionError, and sometimes other errors of the library."""
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False
    node: Node | None = yaml.compose(text)
    return node


def _decode_text(data: str | bytes, document: YamlDocument) -> str | None:
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    if b"\0" in data[:_PROBE_BYTES]:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")) or (b"\0" in data[:2] and b"\0" in data[2:4]):
            document.report_problem((), "is UTF-16 text", "save the file as UTF-8", line=1)
        else:
            document.report_problem((), "is a binary file", "write the configuration as UTF-8 text", line=1)
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        document.report_problem((), "is not UTF-8 text", "save the file as UTF-8", line=line)
        return None


class _YamlBuilder:
    """Converts nodes into values. Use one builder per document."""

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.open: set[int] = set()
        self.count = 0

    def build(self, node: Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            if self.count == MAX_NODES + 1:
                self.document.report_problem((), f"holds more than {MAX_NODES} values", "use fewer aliases")
            return None
        if isinstance(node, ScalarNode):
            return self.build_scalar(node, path)
        if id(node) in self.open or len(path) >= MAX_DEPTH:
            self.document.report_problem(path, "contains itself or is nested too deeply", "remove the alias (*name)")
            return None
        self.open.add(id(node))
        try:
            if isinstance(node, MappingNode) and node.tag == _TAG_PREFIX + "map":
                return dict(self.build_mapping(node, path))
            if isinstance(node, SequenceNode) and node.tag == _TAG_PREFIX + "seq":
                return tuple(self.build_sequence(node, path))
        finally:
            self.open.discard(id(node))
        self.document.report_problem(
            path, "has a YAML tag (!…), which everhold does not support", "remove the tag", line=_get_line(node)
        )
        return None

    def build_sequence(self, node: SequenceNode, path: KeyPath) -> Iterator[Any]:
        for place, item in enumerate(node.value):
            self.document.lines[(*path, place)] = _get_line(item)
            yield self.build(item, (*path, place))

    def build_mapping(self, node: MappingNode, path: KeyPath) -> Iterator[tuple[str, Any]]:
        seen: dict[str, int] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _TAG_PREFIX + "merge":
                merged.append(value_node)
                continue
            key = self.build_key(key_node, path)
            if key is None:
                continue
            line = _get_line(key_node)
            if key in seen:
                self.document.report_problem(
                    (*path, key), f"is given twice, first in line {seen[key]}", "remove one of them", line=line
                )
                continue
            seen[key] = line
            self.document.lines[(*path, key)] = line
            yield key, self.build(value_node, (*path, key))
        for value_node in merged:
            yield from self.build_merged(value_node, path, seen)

    def build_merged(self, node: Node, path: KeyPath, seen: dict[str, int]) -> Iterator[tuple[str, Any]]:
        """Yield the keys of `<<: *other` that this mapping does not have itself."""
        sources = node.value if isinstance(node, SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, MappingNode):
                self.document.report_problem(path, "`<<` needs a mapping", "write `<<: *name`", line=_get_line(node))
                continue
            if id(source) in self.open:
                self.document.report_problem(path, "merges itself", "remove the `<<`", line=_get_line(node))
                continue
            self.open.add(id(source))
            fresh = MappingNode(
                source.tag,
                [(k, v) for k, v in source.value if k.tag == _TAG_PREFIX + "merge" or k.value not in seen],
                start_mark=source.start_mark,
                end_mark=source.end_mark,
            )
            for key, value in self.build_mapping(fresh, path):
                if key not in seen:
                    seen[key] = self.document.find_line((*path, key))
                    yield key, value
            self.open.discard(id(source))

    def build_key(self, node: Node, path: KeyPath) -> str | None:
        line = _get_line(node)
        if not isinstance(node, ScalarNode) or node.tag == _TAG_PREFIX + "null" or not node.value:
            self.document.report_problem(path, "has a key that is not text", "put the key in quotes", line=line)
            return None
        key: str = node.value
        if not self.check_readable(key, path, line):
            return None
        if key.startswith("="):
            self.document.report_problem(path, "has a key that starts with =", "remove the =", line=line)
            return None
        return key

    def build_scalar(self, node: ScalarNode, path: KeyPath) -> str | int | float | bool | None:
        kind, text = (node.tag or "").removeprefix(_TAG_PREFIX), str(node.value)
        if kind == "null":
            return None
        if kind == "bool":
            return _YAML_FLAGS.get(text.lower(), text.lower()) == "true"
        if kind in ("str", "timestamp"):
            return text if self.check_readable(text, path, _get_line(node)) else None
        try:
            if kind == "int":
                return _parse_integer(text)
            if kind == "float":
                number = float(text.replace("_", ""))
                if number - number == 0:
                    return number
        except ValueError:
            pass
        if kind in ("int", "float"):
            self.document.report_problem(
                path, "is not a number everhold can use", "write one such as 24", line=_get_line(node)
            )
        else:
            self.document.report_problem(
                path, "has a YAML tag (!…), which everhold does not support", "remove it", line=_get_line(node)
            )
        return None

    def check_readable(self, text: str, path: KeyPath, line: int) -> bool:
        try:
            text.encode()
        except UnicodeEncodeError:
            ok = False
        else:
            ok = "\0" not in text
        if not ok:
            self.document.report_problem(
                path, "holds an escape that is no character", "remove the \\u… or \\0", line=line
            )
        return ok


def _parse_integer(text: str) -> int:
    plain = text.replace("_", "")
    try:
        return int(plain)
    except ValueError:
        return int(plain, 0)


def _get_line(node: Node) -> int:
    return int(node.start_mark.line) + 1 if node.start_mark else 0
