"""The doctor on hermes-agent's `agent.log`: compressions are paired, and what does not fit is told with its place."""

from __future__ import annotations

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
    told = agent_log.summarize_compressions(agent_log.read_compression_lines(path))
    assert list(dict.fromkeys(odd.kind for odd in told.oddities)) == kinds
    (report,) = checks.examine_path(path, now=NOW)
    assert [finding.check for finding in report.findings] == [f"log-{kind}" for kind in kinds]
    for finding in report.findings:
        assert "10:00:0" in finding.text
        assert any("agent.log:" in where for where in finding.where)


def test_a_log_that_was_moved_on_is_read_from_its_oldest_part(tmp_path: Path) -> None:
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
