"""`everhold eval compression`: what a model's summaries keep, on conversations whose answers are known."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from everhold.cli.reach import home_of
from everhold.cli.render import Screen, one_line
from everhold.errors import Misuse
from everhold.evals import report
from everhold.evals.conversation import bundled
from everhold.evals.foreign import read
from everhold.evals.score import Score
from everhold.evals.stage import Distant, play
from everhold.models.offline import OfflineModel
from everhold.ports.model import Model


def run(args: argparse.Namespace, screen: Screen) -> int:
    if args.plot and not args.plot.endswith(".svg"):
        raise Misuse(f"{args.plot} is no .svg", remedy="the picture is an SVG; a browser shows it")
    conversations = read(Path(args.conversations)) if args.conversations else bundled()
    scores: list[Score] = []
    with _model(args, screen) as model:
        for conversation in conversations:
            for folds in args.compressions:
                if screen.err.isatty():
                    screen.note(f"{conversation.name}, {folds or 'auto'}")
                scores.append(play(conversation, model, folds=folds, keep=args.keep))
    if args.plot:
        Path(args.plot).write_text(report.plot(scores), encoding="utf-8")
    behind = _compare(args, scores)
    if screen.json:
        screen.show({"scores": report.as_json(scores), "worse": behind})
    else:
        _show(screen, scores, behind)
    return 0 if all(score.sound for score in scores) and not behind else 1


def _compare(args: argparse.Namespace, scores: list[Score]) -> list[str]:
    if not args.baseline:
        return []
    file = Path(args.baseline)
    if args.renew:
        file.write_bytes(report.baseline(scores))
        return []
    return report.worse(scores, file.read_bytes())


def _show(screen: Screen, scores: list[Score], behind: list[str]) -> None:
    screen.table(report.HEADERS, report.rows(scores), styles=("bold",))
    screen.say()
    ways = list(dict.fromkeys(score.asked for score in scores))
    screen.table(
        ("kept, by kind", *(f"compressions: {asked}" for asked in ways)), report.by_kind(scores), styles=("bold",)
    )
    for score in scores:
        if score.invented:
            made_up = ", ".join(score.invented)
            screen.say(f"{screen.paint('made up', 'red')}  {score.conversation}: {one_line(made_up)}")
    for line in behind:
        screen.say(f"{screen.paint('worse', 'red', 'bold')}  {one_line(line)}")
    lost = sum(not outcome.logged for score in scores for outcome in score.outcomes)
    if lost:
        screen.say(f"{screen.paint('lost', 'red', 'bold')}  {lost} facts stand nowhere in the log any more")


@contextlib.contextmanager
def _model(args: argparse.Namespace, screen: Screen) -> Iterator[Model]:
    """The model under test: the offline one, unless an agent or a model of the configuration is named."""
    if not args.agent and not args.model:
        yield OfflineModel()
        return
    from everhold.agents import Agents
    from everhold.app import SystemChance, SystemClock, settings_of
    from everhold.logs import open_log
    from everhold.stores.sqlite import SqliteStore

    home = home_of(args)
    settings = settings_of(home, environ=os.environ)
    name = args.agent or settings.default_agent
    if name not in settings.agents:
        raise Misuse(f"there is no agent {name!r}", remedy=f"there is {', '.join(settings.agents)}")
    if args.model and args.model not in settings.models:
        raise Misuse(f"there is no model {args.model!r}", remedy=f"there is {', '.join(settings.models)}")
    with tempfile.TemporaryDirectory(prefix="everhold-eval-") as directory:
        clock = SystemClock()
        agents = Agents(
            settings,
            store=SqliteStore.open(Path(directory) / "log.db", chance=SystemChance()),
            log=open_log(clock=clock, home=None, form=args.log or "text", stream=screen.err),
            clock=clock,
            directory=home.path,
            platforms={},
        )
        runtime = agents.runtime(name, {"model": args.model} if args.model else {})
        distant = Distant(runtime.models[0] if args.model else runtime.summariser)
        try:
            yield distant
        finally:
            distant.close(last=agents.close)
