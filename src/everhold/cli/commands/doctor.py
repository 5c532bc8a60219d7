"""`everhold doctor`: what is wrong with a home, ours or hermes-agent's, and what helps. Exits 1 if something is."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Any, Final

from everhold.cli.progress import waiting, working
from everhold.cli.reach import answering, home_of
from everhold.cli.render import Screen, count, one_line, safe
from everhold.doctor import bundle, foreign, mend
from everhold.doctor.finding import Finding, finding_json, told as changes
from everhold.doctor.own import Cure, Look
from everhold.errors import EverholdError, HomeBusy, Misuse
from everhold.home import Home
from everhold.stores.sqlite.lock import HomeLock

SHOWN: Final = 12
"""Places that are named for one finding; --json has them all."""


def run(args: argparse.Namespace, screen: Screen) -> int:
    if args.path:
        return _foreign(args, screen)
    if args.undo or args.dry_run:
        raise Misuse("that works on a store of hermes-agent's", remedy="everhold doctor PATH --fix --dry-run")
    return asyncio.run(_own(args, screen))


# -- our own home ------------------------------------------------------------------------------------------------------


async def _own(args: argparse.Namespace, screen: Screen) -> int:
    home = home_of(args)
    async with waiting(screen, "looking at everything"):
        look, cures = await _looked(home, live=not args.offline)
    done: list[str] = []
    if args.fix:
        done = [cure.act() for cure in cures if cure.act is not None]
        if done:
            look, cures = await _looked(home, live=False)
    findings = [cure.finding for cure in cures]
    told: dict[str, Any] = {
        "home": str(home.path),
        "wrong": any(finding.level == "wrong" for finding in findings),
        "findings": [{**finding_json(cure.finding), "fixable": cure.act is not None} for cure in cures],
        "fixed": done,
    }
    if args.bundle is not None:
        known = [secret.reveal() for secret in look.settings.secrets()] if look.settings else []
        logs = sorted(home.logs.glob("*.log*"))[:3]
        told["bundle"] = str(_bundle(args.bundle, told, logs, [home.store], known))
    if screen.json:
        screen.show(told)
    else:
        _show(screen, str(home.path), findings)
        for line in done:
            screen.say(f"{screen.paint('mended', 'green')} {one_line(line)}")
        if not args.fix and any(cure.act for cure in cures):
            screen.say("`everhold doctor --fix` mends what is safe to mend")
        _say_bundle(screen, told)
    return 1 if told["wrong"] else 0


async def _looked(home: Home, *, live: bool) -> tuple[Look, list[Cure]]:
    reached = await answering(home)
    status = await reached.calls.show_status() if reached and reached.role == "gateway" else None
    look = Look(home, os.environ, time.time(), alone=reached is None and _free(home), status=status)
    cures = list(look.cures())
    if live and look.alone and look.settings is not None and not any(c.finding.check == "store" for c in cures):
        from everhold.doctor.live import trials

        try:
            cures += [Cure(finding) async for finding in trials(home, look.settings, environ=os.environ)]
        except EverholdError as error:
            cures.append(Cure(Finding("store", error.message, remedy=error.remedy)))
    return look, cures


def _free(home: Home) -> bool:
    if not home.path.is_dir():
        return False
    try:
        HomeLock(home.lock).take().release()
    except (HomeBusy, OSError):
        return False
    return True


# -- somebody else's ---------------------------------------------------------------------------------------------------


def _foreign(args: argparse.Namespace, screen: Screen) -> int:
    path = Path(args.path).expanduser()
    now = time.time()
    if args.undo:
        count_ = mend.undo(_database(path), Path(args.undo).expanduser())
        screen.show({"undone": count_}) if screen.json else screen.say(f"{count(count_, 'change')} taken back")
        return 0
    with working(screen, f"looking at {safe(str(path))}"):
        reports = foreign.examine(path, now=now)
    told: dict[str, Any] = {"reports": [foreign.report_json(report) for report in reports]}
    mended: list[mend.Mended] = []
    if args.fix:
        _show_all(args, screen, reports)
        if not args.dry_run:
            with working(screen, f"copying and mending {safe(str(path))}"):
                mended = [mend.fix(Path(report.path), now=now) for report in reports if report.kind == "store"]
            told["mended"] = [
                {"backup": str(it.backup or ""), "journal": str(it.journal or ""), "changes": it.edits} for it in mended
            ]
            with working(screen, f"looking again at {safe(str(path))}"):
                reports = foreign.examine(path, now=now)
            told["reports"] = [foreign.report_json(report) for report in reports]
    told["wrong"] = any(report.wrong for report in reports)
    if args.bundle is not None:
        logs = [Path(report.path) for report in reports if report.kind == "log"]
        stores = [Path(report.path) for report in reports if report.kind == "store"]
        told["bundle"] = str(_bundle(args.bundle, told, logs, stores, []))
    if screen.json:
        screen.show(told)
        return 1 if told["wrong"] else 0
    for it in mended:
        _show_mended(screen, it)
    if not args.fix or not args.dry_run:
        _show_all(args, screen, reports)
    _say_bundle(screen, told)
    return 1 if told["wrong"] else 0


def _database(path: Path) -> Path:
    return path / "state.db" if path.is_dir() else path


def _show_all(args: argparse.Namespace, screen: Screen, reports: list[foreign.Report]) -> None:
    if screen.json:
        return
    for report in reports:
        what = (
            f"{count(report.sessions, 'session')}, {count(report.messages, 'message')}, schema {report.version}"
            if report.kind == "store"
            else f"{count(report.messages, 'line')} about compressions"
        )
        _show(screen, f"{report.path} · {what}", report.findings, edits=args.dry_run)
    wrong = sum(finding.level == "wrong" for report in reports for finding in report.findings)
    fixable = sum(finding.fixable for report in reports for finding in report.findings)
    if wrong:
        screen.say(f"in all: {count(wrong, 'thing')} wrong" + (f", {fixable} of them can be mended" if fixable else ""))
    if fixable and not args.fix:
        screen.say("--fix mends what can be, after a checked copy; --fix --dry-run shows every change")
    if args.fix and args.dry_run:
        screen.say("nothing was changed; without --dry-run it is done" if fixable else "there is nothing to mend")


def _show_mended(screen: Screen, it: mend.Mended) -> None:
    if it.backup is None:
        screen.say("there was nothing to mend")
        return
    screen.say(f"{screen.paint('mended', 'green')} {count(len(it.edits), 'change')}; as it was: {safe(str(it.backup))}")
    screen.say(f"  → everhold doctor PATH --undo {safe(str(it.journal))} takes them back")


# -- showing -----------------------------------------------------------------------------------------------------------


def _show(screen: Screen, head: str, findings: list[Finding], *, edits: bool = False) -> None:
    screen.say(screen.paint(safe(head), "bold"))
    for finding in findings:
        mark = screen.paint("!", "red", "bold") if finding.level == "wrong" else screen.paint("·", "yellow")
        screen.say(f"{mark} {screen.paint(finding.check, 'bold')}: {one_line(finding.text)}")
        if finding.where:
            more = f" and {len(finding.where) - SHOWN} more" if len(finding.where) > SHOWN else ""
            screen.say(screen.paint(f"    where: {one_line(', '.join(finding.where[:SHOWN]))}{more}", "dim"))
        if finding.lost:
            screen.say(f"    lost: {one_line(finding.lost)}")
        if finding.remedy:
            screen.say(f"    → {one_line(finding.remedy)}")
        for line in changes(finding.edits) if edits else ():
            screen.say(screen.paint(f"      {one_line(line)}", "dim"))
    if not findings:
        screen.say(f"{screen.paint('✓', 'green')} nothing is wrong")


def _bundle(wanted: str, told: Any, logs: list[Path], stores: list[Path], known: list[str]) -> Path:
    target = Path(wanted or f"everhold-bundle-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz").expanduser()
    return bundle.write(target, bundle.parts(told, logs, stores, bundle.Scrubber(known)))


def _say_bundle(screen: Screen, told: dict[str, Any]) -> None:
    if "bundle" in told:
        screen.say(f"bundle: {safe(told['bundle'])}; look into it before you give it away")
