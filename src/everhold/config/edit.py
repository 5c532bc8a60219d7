"""Change one key of config.yaml or one line of `.env`, and keep everything else in the file.

The change is made in the text itself where possible, else by a YAML round trip. The result is parsed again and compared
with the wanted data, then validated as a whole. Only then does it replace the old file.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from everhold.config.display import show_settings
from everhold.config.errors import ConfigError, ConfigProblem, KeyPath, format_key_path, suggest_name
from everhold.config.literals import is_env_name, mask_secrets
from everhold.config.loader import load_settings
from everhold.config.secrets import SecretEnvironment, format_env_line, parse_env
from everhold.config.settings import OPERATOR_TOKEN_ENV, Settings, ValidatePlugin
from everhold.config.source import read_document
from everhold.config.values import thaw_value
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.infra.home import Home, read_file, write_file
from everhold.infra.secret import SecretString

OPERATOR_TOKEN_BYTES: Final = 32
_KEY_PART_PATTERN: Final = re.compile(r"""\[(\d+)\]|\.?"((?:[^"\\]|\\.)*)"|\.?'([^']*)'|\.?([^.\[\]"'\s]+)""")
_PLAIN_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]*")
_AMBIGUOUS_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


# -- keys --------------------------------------------------------------------------------------------------------------


def split_key(key: str) -> KeyPath:
    """Parse `a.b[0]."odd.key"` into a path. Raises InvalidRequest."""
    path: list[str | int] = []
    place = 0
    while place < len(key):
        found = _KEY_PART_PATTERN.match(key, place)
        if found is None:
            raise InvalidRequest(
                "this is not a key", remedy='for example agents.main.model, people[0].name or chats."-100"'
            )
        index, double, single, plain = found.groups()
        if index is not None:
            path.append(int(index))
        else:
            path.append(re.sub(r"\\(.)", r"\1", double) if double is not None else single or plain or "")
        place = found.end()
    if not path:
        raise InvalidRequest("which key?", remedy="for example agents.main.model")
    return tuple(path)


def get_key(settings: Settings, key: str) -> Any:
    """Return the value in force at a dotted key. For merged keys (`defaults`), return what was written."""
    path = split_key(key)
    try:
        return _look_up_value(show_settings(settings), path)
    except NotFound as error:
        try:
            return _look_up_value(thaw_value(settings.document), path)
        except NotFound:
            raise error from None


def _look_up_value(value: Any, path: KeyPath) -> Any:
    for length, part in enumerate(path, start=1):
        if isinstance(value, Mapping) and str(part) in value:
            value = value[str(part)]
        elif isinstance(value, list) and str(part).isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            known = value if isinstance(value, Mapping) else ()
            raise NotFound(f"{format_key_path(path[:length])} is not set", remedy=suggest_name(str(part), known))
    return value


def parse_value(text: str) -> Any:
    """Parse a value typed on the command line: `8080`, `true`, `[a, b]`, `{a: 1}`, or plain text."""
    found = read_document(f"value: {text}\n", file="the value")
    if found.problems or set(found.data) != {"value"}:
        return text
    return found.data["value"]


def set_key(
    home: Home,
    key: str,
    value: Any,
    *,
    environ: Mapping[str, str],
    validate_plugin: ValidatePlugin | None = None,
) -> Settings:
    """Write `value` at a dotted key of config.yaml, unless that makes the configuration invalid. None unsets the key.

    Raises ConfigError (nothing was written) or Conflict (the file was changed at the same time).
    """
    old = read_file(home.config)
    bom, text = _decode_text(old or b"")
    new = bom + edit_text(text, split_key(key), value).encode()
    settings = load_settings(home, environ=environ, validate_plugin=validate_plugin, text=new)
    if read_file(home.config) != old:
        raise Conflict("config.yaml was changed by another program", remedy="try again")
    write_file(home.config.resolve(), new, mode=None)
    return settings


def _decode_text(data: bytes) -> tuple[bytes, str]:
    bom = b"\xef\xbb\xbf"
    head = bom if data.startswith(bom) else b""
    try:
        return head, data[len(head) :].decode()
    except UnicodeDecodeError:
        raise ConfigError([ConfigProblem("is not UTF-8 text", "save the file as UTF-8", file="config.yaml")]) from None


# -- one change to a text ----------------------------------------------------------------------------------------------


def edit_text(text: str, path: KeyPath, value: Any) -> str:
    """Return `text` with `value` at `path` and nothing else changed. Raises ConfigError if that is impossible."""
    document = read_document(text)
    if document.problems:
        raise ConfigError(document.problems)
    wanted = _set_in_data(document.data, path, value)
    for attempt in (_splice_text, _edit_round_trip):
        candidate = attempt(text, document.root, path, value)
        if candidate is not None:
            found = read_document(candidate)
            if not found.problems and _is_equal_typed(found.data, wanted):
                return candidate
    raise ConfigError([ConfigProblem("cannot be changed here", "edit the file by hand", path=path, file="config.yaml")])


def _set_in_data(data: Any, path: KeyPath, value: Any) -> Any:
    """Return `data` with `value` at `path`. Missing mappings are created."""
    if not path:
        return _to_tuples(value)
    part, rest = path[0], path[1:]
    if isinstance(data, tuple):
        if not str(part).isdecimal() or int(part) > len(data):
            raise ConfigError([ConfigProblem(f"has {len(data)} items", "name one of them, or the next", path=path)])
        items = [*data, None] if int(part) == len(data) else [*data]
        items[int(part)] = _set_in_data(items[int(part)], rest, value)
        return tuple(items)
    if data is not None and not isinstance(data, dict):
        raise ConfigError(
            [ConfigProblem("is inside a value that is not a mapping", "set that value instead", path=path)]
        )
    return {**(data or {}), str(part): _set_in_data((data or {}).get(str(part)), rest, value)}


def _to_tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_tuples(item) for key, item in value.items()}
    return tuple(_to_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _is_equal_typed(one: Any, other: Any) -> bool:
    """Whether both are equal and of the same types. 1 does not equal true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_is_equal_typed(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_equal_typed, one, other))
    return type(one) is type(other) and bool(one == other)


def _splice_text(text: str, root: Node | None, path: KeyPath, value: Any) -> str | None:
    """Make the change in the text itself. None if the place to edit is ambiguous."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if root is None or not isinstance(root, MappingNode):
        before = text if not text or text.endswith("\n") else text + newline
        return before + _format_block(path, value, 0, newline) + newline
    key_node, node, depth = _find_node(root, path)
    if depth == len(path):
        return _replace_node(text, key_node, node, format_inline(value))
    rest = path[depth:]
    if isinstance(node, MappingNode) and node.value:
        last_key, last = node.value[-1]
        end = _find_node_end(text, last)
        if node.flow_style:
            return f"{text[:end]}, {format_inline(rest[0])}: {format_inline(_nest_value(rest[1:], value))}{text[end:]}"
        column = int(node.value[0][0].start_mark.column)
        line_end = text.find("\n", max(end, int(last_key.end_mark.index)))
        if line_end < 0:
            return text + newline + _format_block(rest, value, column, newline) + newline
        stop = line_end - 1 if text[line_end - 1 : line_end] == "\r" else line_end
        return text[:stop] + newline + _format_block(rest, value, column, newline) + text[stop:]
    if isinstance(node, SequenceNode) and node.flow_style and node.value:
        end = _find_node_end(text, node.value[-1])
        return f"{text[:end]}, {format_inline(_nest_value(rest[1:], value))}{text[end:]}"
    if isinstance(node, SequenceNode):
        new = format_inline([_nest_value(rest[1:], value)])
        return _replace_node(text, key_node, node, new) if node.flow_style else None
    return _replace_node(text, key_node, node, format_inline(_nest_value(rest, value)))


def _find_node(root: Node, path: KeyPath) -> tuple[Node | None, Node, int]:
    """Return the key and value of the deepest existing node of `path`, and its depth."""
    key_node: Node | None = None
    node = root
    for depth, part in enumerate(path):
        if isinstance(node, MappingNode):
            found = [(k, v) for k, v in node.value if isinstance(k, ScalarNode) and k.value == str(part)]
            if not found:
                return key_node, node, depth
            key_node, node = found[0]
        elif isinstance(node, SequenceNode) and str(part).isdecimal() and int(part) < len(node.value):
            key_node, node = None, node.value[int(part)]
        else:
            return key_node, node, depth
    return key_node, node, len(path)


def _replace_node(text: str, key_node: Node | None, node: Node, new: str) -> str:
    start, end = int(node.start_mark.index), _find_node_end(text, node)
    if key_node is None:
        return text[:start] + new + text[end:]
    between = text[int(key_node.end_mark.index) : start]
    colon = int(key_node.end_mark.index) + between.find(":") + 1
    if start == end:  # there was no value, so the mark may be after comments and empty lines
        return f"{text[:colon]} {new}{text[colon:]}"
    if not between.replace(":", "", 1).strip():
        return f"{text[:colon]} {new}{text[end:]}"
    return text[:start] + new + text[end:]


def _find_node_end(text: str, node: Node) -> int:
    """Return where a node's text ends, without the comments and empty lines that the parser adds to a block value."""
    if isinstance(node, MappingNode | SequenceNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _find_node_end(text, last[1] if isinstance(last, tuple) else last)
    end = int(node.end_mark.index)
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        return len(text[:end].rstrip())
    return end


def _nest_value(path: KeyPath, value: Any) -> Any:
    for part in reversed(path):
        value = {str(part): value}
    return value


def _format_block(path: KeyPath, value: Any, column: int, newline: str) -> str:
    """Return indented lines that set `value` at `path`."""
    lines = [f"{' ' * (column + 2 * depth)}{format_inline(str(part))}:" for depth, part in enumerate(path)]
    return newline.join(lines) + f" {format_inline(value)}"


def format_inline(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{format_inline(str(key))}: {format_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_inline, value)) + "]"
    if isinstance(value, str) and _PLAIN_PATTERN.fullmatch(value) and value.lower() not in _AMBIGUOUS_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _edit_round_trip(text: str, root: Node | None, path: KeyPath, value: Any) -> str | None:
    """Make the change with the YAML library, which keeps most comments."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.composer.warn_double_anchors = False
    stream = io.StringIO()
    try:
        data = yaml.load(text) or {}
        here: Any = data
        for part, following in pairwise(path):
            key = _find_container_key(here, part)
            inside = isinstance(here, list) and isinstance(key, int) and key < len(here)
            if not inside and (isinstance(here, list) or here.get(key) is None):
                _put_value(here, key, [] if isinstance(following, int) else {})
            here = here[key]
        _put_value(here, _find_container_key(here, path[-1]), thaw_value(value))
        yaml.dump(data, stream)
    except (YAMLError, KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None
    return stream.getvalue()


def _find_container_key(container: Any, part: str | int) -> Any:
    """Return the key as the container has it, because a YAML key may be a number."""
    if isinstance(container, list):
        return int(part)
    return next((key for key in container if str(key) == str(part)), str(part))


def _put_value(container: Any, key: Any, value: Any) -> None:
    if isinstance(container, list) and key == len(container):
        container.append(value)
    else:
        container[key] = value


# -- .env --------------------------------------------------------------------------------------------------------------


def set_secret(home: Home, name: str, value: SecretString) -> None:
    """Write `NAME=value` to `.env`. Replaces the line that sets NAME now and keeps all others."""
    if not is_env_name(name):
        raise InvalidRequest(
            f"{mask_secrets(name)} is not the name of a variable", remedy="letters, digits and _, first a letter"
        )
    if "\0" in value.reveal():
        raise InvalidRequest(f"the value for {name} holds a NUL character", remedy="copy it again")
    home.check_private()
    data = read_file(home.env, private=True) or b""
    lines, problems = parse_env(data, file=str(home.env))
    if problems:
        raise ConfigError(problems)
    texts = data.decode("utf-8-sig").split("\n")
    new = format_env_line(name, value)
    at = [line.line for line in lines if line.name == name]
    if at:
        texts[at[-1] - 1] = new
    elif texts[-1]:
        texts += [new, ""]
    else:
        texts[-1:] = [new, ""]
    result = "\n".join(texts).encode()
    assert {line.name: line.value for line in parse_env(result)[0]}[name] == value
    write_file(home.env, result)


def ensure_operator_token(home: Home, *, environ: Mapping[str, str], random_bytes: Callable[[int], bytes]) -> bool:
    """Write a new operator token to `.env`, unless one is set. Return whether one was written."""
    lines, problems = parse_env(read_file(home.env, private=True) or b"", file=str(home.env))
    if problems or SecretEnvironment(environ, lines).get(OPERATOR_TOKEN_ENV) is not None:
        return False  # problems are reported when the settings are loaded
    set_secret(home, OPERATOR_TOKEN_ENV, SecretString(random_bytes(OPERATOR_TOKEN_BYTES).hex()))
    return True
