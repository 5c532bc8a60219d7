"""What every `everhold setup` ends with: the doctor's short look at what was just written."""

from __future__ import annotations

import os
import time
from typing import Any

from everhold.cli.render import Screen, one_line
from everhold.doctor.finding import finding_json
from everhold.doctor.own import Look
from everhold.home import Home


def checkup(home: Home, screen: Screen, *keys: str) -> list[dict[str, Any]]:
    """Say what is wrong with the files, and with what stands under `keys`; for programs, give it back."""
    look = Look(home, os.environ, time.time(), alone=False, status={})  # whether it runs is not what was set up
    findings = [cure.finding for cure in look.concerning(keys)]
    if screen.json:
        return [finding_json(finding) for finding in findings]
    for finding in findings:
        mark = screen.paint("!", "red", "bold") if finding.level == "wrong" else screen.paint("·", "yellow")
        screen.say(f"{mark} {screen.paint(finding.check, 'bold')}: {one_line(finding.text)}")
        screen.say(f"    → {one_line(finding.remedy)}")
    if not findings:
        screen.say(f"{screen.paint('✓', 'green')} the doctor finds nothing wrong with it")
    return []
