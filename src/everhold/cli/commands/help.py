"""`everhold help [COMMAND …]`: shows the same as `everhold COMMAND --help`."""

from __future__ import annotations

import argparse

from everhold.cli.parser import build_parser, list_subcommands
from everhold.cli.render import CommandScreen
from everhold.config.errors import suggest_name
from everhold.errors import NotFound


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    parser: argparse.ArgumentParser = build_parser()
    for word in args.words:
        below = list_subcommands(parser)
        if word not in below:
            remedy = suggest_name(word, below) if below else f"`{parser.prog} --help` shows the arguments"
            raise NotFound(f"there is no command {word!r} in `{parser.prog}`", remedy=remedy)
        parser = below[word]
    screen.out.write(parser.format_help())
    return 0
