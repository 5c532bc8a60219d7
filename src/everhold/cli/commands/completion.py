"""`everhold completion`: prints a script that completes commands and options, made from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from everhold.cli.parser import build_parser, list_options, list_positionals, list_subcommands
from everhold.cli.render import CommandScreen


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    screen.print_line({"bash": render_bash, "zsh": render_zsh, "fish": render_fish}[args.shell]())
    return 0


def iter_completions(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the tree with the words that may follow it."""
    inner = list_subcommands(parser)
    given = [option for action in list_options(parser) for option in action.option_strings if option.startswith("--")]
    choices = [choice for action in list_positionals(parser) for choice in _list_values(action)]
    yield path, [*inner, *choices, *given]
    for name, below in inner.items():
        yield from iter_completions(below, f"{path} {name}".strip())


def _list_values(action: argparse.Action) -> list[str]:
    """Return the known values of an argument, without asking the gateway. An ID can always be `last`."""
    return ["last"] if action.metavar == "ID" else [str(choice) for choice in action.choices or ()]


def _get_generator(action: argparse.Action) -> str:
    """Return the `compgen` option that lists an argument's values; "" if only the gateway knows them."""
    if action.choices:
        return f'-W "{" ".join(map(str, action.choices))}"'
    return {"DIR": "-d", "FILE": "-f", "PATH": "-f", "JOURNAL": "-f"}.get(str(action.metavar), "")


def _render_file_cases(parser: argparse.ArgumentParser, path: str = "") -> Iterator[str]:
    """Yield a case for every command that takes a file or a directory."""
    for action in list_positionals(parser):
        what = _get_generator(action)
        if what in ("-d", "-f"):
            yield f'    "{path}") COMPREPLY+=($(compgen {what} -- "$cur")) ;;'
    for name, below in list_subcommands(parser).items():
        yield from _render_file_cases(below, f"{path} {name}".strip())


def render_bash() -> str:
    cases = "\n".join(f'    "{path}") words="{" ".join(found)}" ;;' for path, found in iter_completions(build_parser()))
    return f"""\
_everhold() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" path="" word words
  case "$prev" in
{_render_value_cases(build_parser())}
  esac
  local known=" {" ".join(path for path, _ in iter_completions(build_parser()) if path and " " not in path)} "
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) continue ;; esac
    if [ -z "$path" ]; then case "$known" in *" $word "*) path="$word" ;; esac
    elif [ "${{path#* }}" = "$path" ]; then path="$path $word"; fi
  done
  case "$path" in
{cases}
    *) words="" ;;
  esac
  if [ -z "$words" ]; then case "${{path%% *}}" in
{_render_own_words(build_parser())}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case "$path" in
{chr(10).join(_render_file_cases(build_parser()))}
  esac
}}
complete -F _everhold everhold"""


def _render_value_cases(parser: argparse.ArgumentParser) -> str:
    """Return the cases for options with a value, which no command or option can follow. Files are offered only for
    arguments that name a file."""
    found: dict[str, str] = {}
    flags: set[str] = set()
    for action in _iter_options(parser):
        what = _get_generator(action)
        offer = f'$(compgen {what} -- "$cur")' if what else ""
        for option in action.option_strings:
            if action.nargs in (0, "?", "*"):
                flags.add(option)
            else:
                found[option] = found.get(option) or offer
    return "\n".join(
        f"    {option}) COMPREPLY=({offer}); return ;;"
        for option, offer in found.items()
        if option not in flags  # a flag has no value, so anything may follow
    )


def _iter_options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options of all commands."""
    yield from list_options(parser)
    for below in list_subcommands(parser).values():
        yield from _iter_options(below)


def _render_own_words(parser: argparse.ArgumentParser) -> str:
    """Return the cases for commands that are followed by a value instead of a subcommand."""
    return "\n".join(
        f'    "{path}") words="{" ".join(found)}" ;;'
        for path, found in iter_completions(parser)
        if path and " " not in path
    )


def render_zsh() -> str:
    return "autoload -Uz bashcompinit && bashcompinit\n" + render_bash()


def render_fish() -> str:
    parser = build_parser()
    lines = ["complete -c everhold -f"]
    for name, below in list_subcommands(parser).items():
        summary = _find_command_help(parser, name)
        lines.append(f"complete -c everhold -n __fish_use_subcommand -a {name} -d {_quote_text(summary)}")
        inner = list_subcommands(below)
        if inner:
            missing = f"'__fish_seen_subcommand_from {name}; and not __fish_seen_subcommand_from {' '.join(inner)}'"
            for deeper in inner:
                lines.append(
                    f"complete -c everhold -n {missing} -a {deeper} -d {_quote_text(_find_command_help(below, deeper))}"
                )
        for leaf, seen in [(below, name)] + [
            (leaf, f"{name}; and __fish_seen_subcommand_from {deeper}") for deeper, leaf in inner.items()
        ]:
            condition = _quote_text(f"__fish_seen_subcommand_from {seen}")
            for action in list_options(leaf):
                for option in action.option_strings:
                    if option.startswith("--"):
                        what = _quote_text(action.help or "")
                        lines.append(f"complete -c everhold -n {condition} -l {option[2:]} -d {what}")
            for action in list_positionals(leaf):
                for choice in _list_values(action):
                    lines.append(f"complete -c everhold -n {condition} -a {choice}")
                if _get_generator(action) in ("-d", "-f"):
                    lines.append(f"complete -c everhold -n {condition} -F")
    return "\n".join(lines)


def _find_command_help(parser: argparse.ArgumentParser, name: str) -> str:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return next((choice.help or "" for choice in action._choices_actions if choice.dest == name), "")
    return ""


def _quote_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
