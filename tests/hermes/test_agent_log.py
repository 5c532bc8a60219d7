"""The doctor on hermes-agent's `agent.log`: it pairs compressions and reports irregularities with their place."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from everhold.hermes.doctor import checks
from everhold.hermes.reader import agent_log
from tests.hermes.built_home import NOW


def line(at: int, what: str, session: str, *, context: str = "", messages: str = "50") -> str:
    tag = f" [{context}]" if context else ""
    return (
        f"2026-08-01 10:00:{at:02d},123 INFO{tag} agent.conversation_compression: context compression {what}: "
        f"session={session} messages={messages} tokens=~1,000 model=m focus=None\n"
    )


@pytest.mark.parametrize(
    "lines, kinds",
    [
        ([line(1, "started", "s"), line(2, "done", "s", messages="50->9")], []),
        ([line(1, "started", "s", context="s"), line(2, "done", "s", messages="50->9", context="s")], []),
        ([line(1, "started", "s"), line(2, "done", "t", messages="50->9")], ["renamed"]),
        ([line(1, "started", "s", context="x"), line(2, "done", "s", messages="50->9")], ["foreign"]),
        ([line(1, "done", "s", messages="50->9")], ["unbegun"]),
        ([line(1, "started", "s"), line(2, "started", "s")], ["overlapping", "unended"]),
        ([line(1, "started", "s")], ["unended"]),
        ([line(1, "started", "s"), line(2, "started", "t", messages="7"), line(3, "done", "t", messages="7->3"),
          line(4, "done", "s", messages="50->9")], []),
    ],
)  # fmt: skip
def test_compressions_in_a_log_are_paired(tmp_path: Path, lines: list[str], kinds: list[str]) -> None:
    noise = "2026-08-01 10:00:00,000 INFO run_agent: hello\n"
    path = tmp_path / "agent.log"
    path.write_text(noise + "".join(lines) + noise)
    summary = agent_log.summarize_compressions(agent_log.read_compression_lines(path))
    assert list(dict.fromkeys(odd.kind for odd in summary.oddities)) == kinds
    (report,) = checks.examine_path(path, now=NOW)
    assert [finding.check for finding in report.findings] == [f"log-{kind}" for kind in kinds]
    for finding in report.findings:
        assert "10:00:0" in finding.text
        assert any("agent.log:" in where for where in finding.where)


FIRST, SECOND, THIRD = "20260528_155201_68dc5996", "20260528_093510_66bfaec7", "20260528_161635_bb86b1"
REPORTED = f"""\
2026-05-28 16:12:31 INFO [{FIRST}] agent.conversation_compression: context compression started: \
session={FIRST} messages=156 tokens=~145,003 model=claude-opus-4.7
2026-05-28 16:13:18 INFO [{FIRST}] agent.conversation_compression: context compression done:    \
session={FIRST} messages=156->8 tokens=~29,548
2026-05-28 16:14:01 INFO [{SECOND}] agent.conversation_compression: context compression started: \
session={FIRST} messages=39 tokens=~143,661 model=claude-opus-4.7
2026-05-28 16:14:29 INFO [{SECOND}] agent.conversation_compression: context compression done:    \
session={FIRST} messages=39->13 tokens=~9,501
2026-05-28 16:15:40 INFO [{SECOND}] agent.conversation_compression: context compression started: \
session={SECOND} messages=194 tokens=~145,948 model=claude-opus-4.7
2026-05-28 16:16:35 INFO [{SECOND}] agent.conversation_compression: context compression done:    \
session={THIRD} messages=194->26 tokens=~41,442
"""
"""Lines of a real log: a session compressed under another one's name, and a compression that changed its id."""


def _space_randomly(text: str, chance: random.Random) -> str:
    """Return the lines with other spaces between the words, and spaces where none need be."""

    def space(least: int) -> str:
        return "".join(chance.choice(" \t") for _ in range(chance.randint(least, 6)))

    lines = []
    for line in text.splitlines():
        words = line.split()
        spaced = words[0] + "".join(space(1) + word for word in words[1:])
        spaced = re.sub(r"=|->|: *(?=session|context|\s)", lambda mark: f"{space(0)}{mark[0]}{space(0)}", spaced)
        lines.append(f"{space(0)}{spaced}{space(0)}{chance.choice(['', chr(13)])}\n")
    return "".join(lines)


@pytest.mark.parametrize("seed", [None, *range(40)])
def test_both_anomalies_of_the_reported_lines_are_found_with_any_spacing(tmp_path: Path, seed: int | None) -> None:
    path = tmp_path / "agent.log"
    text = REPORTED if seed is None else _space_randomly(REPORTED, random.Random(seed))
    path.write_bytes(text.encode())
    summary = agent_log.summarize_compressions(agent_log.read_compression_lines(path))
    assert (summary.lines, summary.done) == (6, 3), text
    assert [(odd.kind, odd.sessions, odd.lines) for odd in summary.oddities] == [
        ("foreign", (FIRST, SECOND), ("agent.log:3",)),
        ("foreign", (FIRST, SECOND), ("agent.log:4",)),
        ("renamed", (SECOND, THIRD), ("agent.log:5", "agent.log:6")),
    ]
    (report,) = checks.examine_path(path, now=NOW)
    assert report.messages == 6
    assert [finding.check for finding in report.findings] == ["log-foreign", "log-renamed"]
    assert "2026-05-28 16:15:40 to 2026-05-28 16:16:35" in report.findings[1].text


def test_a_rotated_log_is_read_from_its_oldest_part(tmp_path: Path) -> None:
    for name, text in (
        ("agent.log.10", line(1, "started", "s")),
        ("agent.log.2", line(2, "done", "s", messages="50->9") + line(3, "started", "t", messages="7")),
        ("agent.log.1", line(4, "done", "u", messages="7->3")),
        ("agent.log.txt", line(4, "done", "nobody")),
        ("agent.log", line(5, "started", "v") + line(6, "done", "v", messages="50->9")),
    ):
        (tmp_path / name).write_text(text)
    (report,) = checks.examine_path(tmp_path / "agent.log", now=NOW)
    assert report.messages == 6
    (finding,) = report.findings
    assert (finding.check, finding.where) == ("log-renamed", ("t", "u", "agent.log.2:2", "agent.log.1:1"))
