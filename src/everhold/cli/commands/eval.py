"""`everhold eval compression`: scores what a model's summaries keep of conversations with known facts."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from everhold.cli.connect import find_home
from everhold.cli.render import CommandScreen, format_one_line
from everhold.errors import InvalidRequest
from everhold.evals import report
from everhold.evals.conversation import load_bundled_conversations
from everhold.evals.datasets import read_conversations
from everhold.evals.runner import ThreadedModel, score_conversation
from everhold.evals.score import CompressionScore
from everhold.models.offline import OfflineModel
from everhold.ports.model import Model


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if args.plot and not args.plot.endswith(".svg"):
        raise InvalidRequest(f"{args.plot} is not an .svg file", remedy="the plot is an SVG; name it FILE.svg")
    conversations = read_conversations(Path(args.conversations)) if args.conversations else load_bundled_conversations()
    scores: list[CompressionScore] = []
    with _open_model(args, screen) as model:
        for conversation in conversations:
            for compressions in args.compressions:
                if screen.err.isatty():
                    screen.print_note(f"{conversation.name}, {compressions or 'auto'}")
                scores.append(score_conversation(conversation, model, compressions=compressions, keep=args.keep))
    if args.plot:
        Path(args.plot).write_text(report.render_plot(scores), encoding="utf-8")
    behind = _compare_scores(args, scores)
    if screen.json:
        screen.print_json({"scores": report.convert_to_json(scores), "worse": behind})
    else:
        _print_scores(screen, scores, behind)
    return 0 if all(score.is_sound for score in scores) and not behind else 1


def _compare_scores(args: argparse.Namespace, scores: list[CompressionScore]) -> list[str]:
    if not args.baseline:
        return []
    file = Path(args.baseline)
    if args.renew:
        file.write_bytes(report.encode_baseline(scores))
        return []
    return report.find_regressions(scores, file.read_bytes())


def _print_scores(screen: CommandScreen, scores: list[CompressionScore], behind: list[str]) -> None:
    screen.print_table(report.HEADERS, report.format_score_rows(scores), styles=("bold",))
    screen.print_line()
    ways = list(dict.fromkeys(score.asked for score in scores))
    screen.print_table(
        ("kept, by kind", *(f"compressions: {asked}" for asked in ways)),
        report.format_kind_rows(scores),
        styles=("bold",),
    )
    for score in scores:
        if score.invented:
            made_up = ", ".join(score.invented)
            screen.print_line(f"{screen.paint('made up', 'red')}  {score.conversation}: {format_one_line(made_up)}")
    for line in behind:
        screen.print_line(f"{screen.paint('worse', 'red', 'bold')}  {format_one_line(line)}")
    lost = sum(not outcome.logged for score in scores for outcome in score.outcomes)
    if lost:
        screen.print_line(f"{screen.paint('lost', 'red', 'bold')}  {lost} facts are missing from the log")


@contextlib.contextmanager
def _open_model(args: argparse.Namespace, screen: CommandScreen) -> Iterator[Model]:
    """Return the model under test: the offline one, unless an agent or a model of the configuration is given."""
    if not args.agent and not args.model:
        yield OfflineModel()
        return
    from everhold.app import SystemClock, SystemRandomSource, load_home_settings
    from everhold.assembly.agents import ConfiguredAgents
    from everhold.assembly.stores import open_temporary_store
    from everhold.telemetry.logs import open_log

    home = find_home(args)
    settings = load_home_settings(home, environ=os.environ)
    name = args.agent or settings.default_agent
    if name not in settings.agents:
        raise InvalidRequest(f"there is no agent {name!r}", remedy=f"use one of: {', '.join(settings.agents)}")
    if args.model and args.model not in settings.models:
        raise InvalidRequest(f"there is no model {args.model!r}", remedy=f"use one of: {', '.join(settings.models)}")
    with tempfile.TemporaryDirectory(prefix="everhold-eval-") as directory:
        clock = SystemClock()
        agents = ConfiguredAgents(
            settings,
            store=open_temporary_store(Path(directory) / "log.db", chance=SystemRandomSource()),
            log=open_log(clock=clock, home=None, form=args.log or "text", stream=screen.err),
            clock=clock,
            directory=home.path,
            platforms={},
        )
        runtime = agents.get_runtime(name, {"model": args.model} if args.model else {})
        distant = ThreadedModel(runtime.models[0] if args.model else runtime.summariser)
        try:
            yield distant
        finally:
            distant.close(last=agents.close)
