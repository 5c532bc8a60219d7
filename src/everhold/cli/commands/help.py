"""`everhold help [COMMAND …]`: what `--help` shows, in the other order of words."""

from __future__ import annotations

import argparse

from everhold.cli.parser import build, subcommands
from everhold.cli.render import Screen
from everhold.config.problems import did_you_mean
from everhold.errors import NotFound


def run(args: argparse.Namespace, screen: Screen) -> int:
    parser: argparse.ArgumentParser = build()
    for word in args.words:
        below = subcommands(parser)
        if word not in below:
            remedy = did_you_mean(word, below) if below else f"`{parser.prog} --help` shows what it takes"
            raise NotFound(f"there is no command {word!r} in `{parser.prog}`", remedy=remedy)
        parser = below[word]
    screen.out.write(parser.format_help())
    return 0
