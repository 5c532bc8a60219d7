"""Runs the doctor's checks on the configuration that `everhold setup` has just written."""

from __future__ import annotations

import os
import time
from typing import Any

from everhold.cli.render import CommandScreen, format_one_line
from everhold.doctor.finding import convert_finding_to_json
from everhold.doctor.home import HomeCheckup
from everhold.infra.home import Home


def run_checkup(home: Home, screen: CommandScreen, *keys: str) -> list[dict[str, Any]]:
    """Print what is wrong with the files and with the configuration of `keys`. With --json, return it instead."""
    # an empty status, because it does not matter here whether a gateway runs
    checkup = HomeCheckup(home, os.environ, time.time(), holds_home=False, status={})
    findings = [problem.finding for problem in checkup.check_keys(keys)]
    if screen.json:
        return [convert_finding_to_json(finding) for finding in findings]
    for finding in findings:
        mark = screen.paint("!", "red", "bold") if finding.level == "wrong" else screen.paint("·", "yellow")
        screen.print_line(f"{mark} {screen.paint(finding.check, 'bold')}: {format_one_line(finding.text)}")
        screen.print_line(f"    → {format_one_line(finding.remedy)}")
    if not findings:
        screen.print_line(f"{screen.paint('✓', 'green')} the doctor finds no problem")
    return []
