"""`everhold doctor`: finds problems of everhold's or hermes-agent's home, with remedies. Exits 1 if there are any."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Any, Final

from everhold.cli.connect import GatewayConnection, find_home, find_running_gateway
from everhold.cli.progress import show_waiting, show_working
from everhold.cli.render import CommandScreen, escape_control, format_count, format_one_line
from everhold.config import Settings
from everhold.doctor import bundle
from everhold.doctor.finding import DoctorFinding, convert_finding_to_json, describe_edits
from everhold.doctor.home import FixableFinding, HomeCheckup
from everhold.errors import EverholdError, HomeBusy, InvalidRequest
from everhold.hermes.doctor import checks, repair
from everhold.infra.home import Home
from everhold.infra.home_lock import HomeLock

MAX_SHOWN_LOCATIONS: Final = 12
"""The number of places that are printed for one finding; --json has them all."""


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if args.path:
        return _check_hermes_home(args, screen)
    if args.undo or args.dry_run:
        raise InvalidRequest(
            "--undo and --dry-run need the path of a hermes-agent home", remedy="everhold doctor PATH --fix --dry-run"
        )
    return asyncio.run(_check_own_home(args, screen))


# -- our own home ------------------------------------------------------------------------------------------------------


async def _check_own_home(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args)
    async with show_waiting(screen, "checking the home"):
        checkup, problems = await _examine_home(home, live=not args.offline)
    done: list[str] = []
    if args.fix:
        done = [problem.fix() for problem in problems if problem.fix is not None]
        if done:
            checkup, problems = await _examine_home(home, live=False)
    findings = [problem.finding for problem in problems]
    result: dict[str, Any] = {
        "home": str(home.path),
        "wrong": any(finding.level == "wrong" for finding in findings),
        "findings": [
            {**convert_finding_to_json(problem.finding), "fixable": problem.fix is not None} for problem in problems
        ],
        "fixed": done,
    }
    if args.bundle is not None:
        known = [secret.reveal() for secret in checkup.settings.list_secrets()] if checkup.settings else []
        logs = sorted(home.logs.glob("*.log*"))[:3]
        result["bundle"] = str(_write_bundle(args.bundle, result, logs, [home.store], known))
    if screen.json:
        screen.print_json(result)
    else:
        _print_findings(screen, str(home.path), findings)
        for line in done:
            screen.print_line(f"{screen.paint('fixed', 'green')} {format_one_line(line)}")
        if not args.fix and any(problem.fix for problem in problems):
            screen.print_line("`everhold doctor --fix` fixes what can be fixed safely")
        _print_bundle(screen, result)
    return 1 if result["wrong"] else 0


async def _examine_home(home: Home, *, live: bool) -> tuple[HomeCheckup, list[FixableFinding]]:
    reached = await find_running_gateway(home)
    status = await reached.calls.show_status() if reached and reached.role == "gateway" else None
    checkup = HomeCheckup(
        home, os.environ, time.time(), holds_home=reached is None and _is_home_free(home), status=status
    )
    problems = list(checkup.find_problems())
    if checkup.settings is not None and checkup.settings.store.is_server:
        problems += await _check_shared_store(checkup.settings, reached)
    if (
        live
        and checkup.holds_home
        and checkup.settings is not None
        and not any(c.finding.check == "store" for c in problems)
    ):
        from everhold.doctor.live_checks import try_configuration

        try:
            problems += [
                FixableFinding(finding)
                async for finding in try_configuration(home, checkup.settings, environ=os.environ)
            ]
        except EverholdError as error:
            problems.append(FixableFinding(DoctorFinding("store", error.message, remedy=error.remedy)))
    return checkup, problems


async def _check_shared_store(settings: Settings, reached: GatewayConnection | None) -> list[FixableFinding]:
    """Check the database server, the folders of plug-ins, and the other hosts as a running gateway knows them."""
    from everhold.cli.commands.hosts import list_host_problems
    from everhold.doctor.server import check_server, list_local_paths

    _, found = await check_server(settings.store)
    for problem in list_local_paths(settings):
        found.append(DoctorFinding("config", f"{problem.key}: {problem.message}", remedy=problem.remedy))
    if reached is not None:
        for what, remedy in list_host_problems(await reached.calls.list_hosts()):
            found.append(DoctorFinding("hosts", what, remedy=remedy))
    return [FixableFinding(finding) for finding in found]


def _is_home_free(home: Home) -> bool:
    if not home.path.is_dir():
        return False
    try:
        HomeLock(home.lock).acquire().release()
    except (HomeBusy, OSError):
        return False
    return True


# -- a hermes-agent home -----------------------------------------------------------------------------------------------


def _check_hermes_home(args: argparse.Namespace, screen: CommandScreen) -> int:
    path = Path(args.path).expanduser()
    now = time.time()
    if args.undo:
        count = repair.undo_repair(_find_database(path), Path(args.undo).expanduser())
        screen.print_json({"undone": count}) if screen.json else screen.print_line(
            f"{format_count(count, 'change')} undone"
        )
        return 0
    with show_working(screen, f"checking {escape_control(str(path))}"):
        reports = checks.examine_path(path, now=now)
    result: dict[str, Any] = {"reports": [checks.convert_report_to_json(report) for report in reports]}
    repairs: list[repair.RepairResult] = []
    if args.fix:
        _print_reports(args, screen, reports)
        if not args.dry_run:
            with show_working(screen, f"copying and fixing {escape_control(str(path))}"):
                repairs = [
                    repair.repair_store(Path(report.path), now=now) for report in reports if report.kind == "store"
                ]
            result["repairs"] = [
                {"backup": str(it.backup or ""), "journal": str(it.journal or ""), "changes": it.edits}
                for it in repairs
            ]
            with show_working(screen, f"checking {escape_control(str(path))} again"):
                reports = checks.examine_path(path, now=now)
            result["reports"] = [checks.convert_report_to_json(report) for report in reports]
    result["wrong"] = any(report.has_problems for report in reports)
    if args.bundle is not None:
        logs = [Path(report.path) for report in reports if report.kind == "log"]
        stores = [Path(report.path) for report in reports if report.kind == "store"]
        result["bundle"] = str(_write_bundle(args.bundle, result, logs, stores, []))
    if screen.json:
        screen.print_json(result)
        return 1 if result["wrong"] else 0
    for it in repairs:
        _print_repair(screen, it)
    if not args.fix or not args.dry_run:
        _print_reports(args, screen, reports)
    _print_bundle(screen, result)
    return 1 if result["wrong"] else 0


def _find_database(path: Path) -> Path:
    return path / "state.db" if path.is_dir() else path


def _print_reports(args: argparse.Namespace, screen: CommandScreen, reports: list[checks.HermesReport]) -> None:
    if screen.json:
        return
    for report in reports:
        what = (
            f"{format_count(report.sessions, 'session')}, {format_count(report.messages, 'message')}, "
            f"schema {report.version}"
            if report.kind == "store"
            else f"{format_count(report.messages, 'line')} about compressions"
        )
        _print_findings(screen, f"{report.path} · {what}", report.findings, edits=args.dry_run)
    wrong = sum(finding.level == "wrong" for report in reports for finding in report.findings)
    fixable = sum(finding.is_fixable for report in reports for finding in report.findings)
    if wrong:
        screen.print_line(
            f"total: {format_count(wrong, 'problem')}" + (f", {fixable} of them can be fixed" if fixable else "")
        )
    if fixable and not args.fix:
        screen.print_line("--fix makes a checked copy and fixes what it can; --fix --dry-run shows every change")
    if args.fix and args.dry_run:
        screen.print_line("nothing was changed; repeat it without --dry-run" if fixable else "there is nothing to fix")


def _print_repair(screen: CommandScreen, it: repair.RepairResult) -> None:
    if it.backup is None:
        screen.print_line("there was nothing to fix")
        return
    screen.print_line(
        f"{screen.paint('fixed', 'green')} {format_count(len(it.edits), 'change')}; "
        f"backup: {escape_control(str(it.backup))}"
    )
    screen.print_line(f"  → everhold doctor PATH --undo {escape_control(str(it.journal))} undoes them")


# -- output ------------------------------------------------------------------------------------------------------------


def _print_findings(screen: CommandScreen, head: str, findings: list[DoctorFinding], *, edits: bool = False) -> None:
    screen.print_line(screen.paint(escape_control(head), "bold"))
    for finding in findings:
        mark = screen.paint("!", "red", "bold") if finding.level == "wrong" else screen.paint("·", "yellow")
        screen.print_line(f"{mark} {screen.paint(finding.check, 'bold')}: {format_one_line(finding.text)}")
        if finding.where:
            more = (
                f" and {len(finding.where) - MAX_SHOWN_LOCATIONS} more"
                if len(finding.where) > MAX_SHOWN_LOCATIONS
                else ""
            )
            screen.print_line(
                screen.paint(
                    f"    where: {format_one_line(', '.join(finding.where[:MAX_SHOWN_LOCATIONS]))}{more}", "dim"
                )
            )
        if finding.lost:
            screen.print_line(f"    lost: {format_one_line(finding.lost)}")
        if finding.remedy:
            screen.print_line(f"    → {format_one_line(finding.remedy)}")
        for line in describe_edits(finding.edits) if edits else ():
            screen.print_line(screen.paint(f"      {format_one_line(line)}", "dim"))
    if not findings:
        screen.print_line(f"{screen.paint('✓', 'green')} no problems found")


def _write_bundle(wanted: str, result: Any, logs: list[Path], stores: list[Path], known: list[str]) -> Path:
    target = Path(wanted or f"everhold-bundle-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz").expanduser()
    return bundle.write_bundle(target, bundle.collect_bundle_parts(result, logs, stores, bundle.BundleScrubber(known)))


def _print_bundle(screen: CommandScreen, result: dict[str, Any]) -> None:
    if "bundle" in result:
        screen.print_line(f"bundle: {escape_control(result['bundle'])}; check its content before you share it")
