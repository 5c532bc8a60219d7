"""What an import makes of skills, cron jobs and tool servers of hermes-agent, and what it names instead."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.core.schedule import CronRule, DateRule, IntervalRule, Schedule
from everhold.hermes.importer.mcp_servers import convert_server
from everhold.hermes.importer.run import ImportReport
from everhold.infra.secret import SecretString
from everhold.ports.store import StateNamespace
from tests.hermes.built_home import BuiltHermesHome
from tests.hermes.test_doctor import DM
from tests.hermes.test_import import ImportTarget, place, settings_of

__all__ = ["place"]  # a fixture

SKILL = "---\nname: {0}\ndescription: How to {0}.\n---\nDo it.\n"
ORIGIN = {"platform": "telegram", "chat_id": "1001", "thread_id": None}


def build_home(home: Path, files: dict[str, str]) -> Path:
    built = BuiltHermesHome(home)
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.close()
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def run_twice(place: ImportTarget, home: Path) -> ImportReport:
    """Import dry, for real, and again. All three say the same of what stays behind, and the third makes nothing."""
    dry = place.run_import(home, dry=True)
    report = place.run_import(home)
    again = place.run_import(home)
    assert (dry.skills, dry.schedules) == (report.skills, report.schedules)
    assert dry.left_behind == report.left_behind == again.left_behind
    assert dry.settings.unknown == report.settings.unknown
    assert (again.skills, again.schedules, again.settings.written) == ([], [], [])
    lines = [*report.settings.unknown, *report.left_behind, *report.troubles]
    assert len(lines) == len(set(lines)), "everything is named once"
    return report


def read_schedules(place: ImportTarget) -> dict[str, Schedule]:
    records = place.query_store(lambda store: store.list_state_records(StateNamespace.SCHEDULE))
    found = [msgspec.json.decode(record.value, type=Schedule) for record in records]
    return {schedule.text: schedule for schedule in found}


# -- skills ------------------------------------------------------------------------------------------------------------


def test_own_and_changed_skills_are_copied_and_bundled_ones_are_named(tmp_path: Path, place: ImportTarget) -> None:
    home = build_home(
        tmp_path / "there",
        {
            "skills/cooking/SKILL.md": SKILL.format("cook"),
            "skills/cooking/scripts/boil.py": "print('boil')",
            "skills/media/DESCRIPTION.md": "about media",
            "skills/media/gif/SKILL.md": SKILL.format("gif"),
            "skills/media/video/SKILL.md": SKILL.format("video") + "and what I learnt\n",
            "skills/odd/SKILL.md": "no front matter",
            "skills/.hub/lock.json": "{}",
            "profiles/coder/memories/MEMORY.md": "",
            "profiles/coder/skills/review/SKILL.md": SKILL.format("review"),
        },
    )
    shipped = {name: hashlib.md5(b"SKILL.md" + SKILL.format(name).encode()).hexdigest() for name in ("gif", "video")}
    (home / "skills" / ".bundled_manifest").write_text("".join(f"{name}:{it}\n" for name, it in shipped.items()))
    report = run_twice(place, home)
    assert sorted(report.skills) == ["coder: review", "main: cook", "main: video"]
    assert (place.home.path / "skills/cook/scripts/boil.py").read_text() == "print('boil')"
    assert (place.home.path / "agents/coder/skills/review/SKILL.md").exists()
    named = sorted(line.split(": ")[1] for line in report.left_behind if "skills/" in line)
    assert named == [
        "skills/ (gif)",
        "skills/media/DESCRIPTION.md",
        "skills/odd",
    ]


def test_a_skill_that_is_here_is_kept_and_a_second_of_that_name_is_named(tmp_path: Path, place: ImportTarget) -> None:
    home = build_home(
        tmp_path / "there",
        {
            "skills/a/SKILL.md": SKILL.format("cook"),
            "skills/b/SKILL.md": SKILL.format("cook") + "otherwise\n",
            "skills/c/SKILL.md": SKILL.format("sing"),
        },
    )
    mine = place.home.path / "skills" / "sing" / "SKILL.md"
    mine.parent.mkdir(parents=True)
    mine.write_text(SKILL.format("sing") + "my way\n")
    report = run_twice(place, home)
    assert report.skills == ["main: cook"]
    assert [line.split(": ")[1] for line in report.left_behind] == ["skills/b", "skills/c"]
    assert mine.read_text().endswith("my way\n")


def test_links_in_skills_are_not_followed_and_are_named(tmp_path: Path, place: ImportTarget) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "SKILL.md").write_text(SKILL.format("secret"))
    home = build_home(tmp_path / "there", {"skills/cooking/SKILL.md": SKILL.format("cook")})
    (home / "skills" / "linked").symlink_to(tmp_path / "secret")
    (home / "skills" / "cooking" / "key").symlink_to(tmp_path / "secret" / "SKILL.md")
    report = place.run_import(home)
    assert report.skills == []
    assert not (place.home.path / "skills").exists()
    assert [line for line in report.troubles if line.startswith("main: skills/linked: a symbolic link")]
    assert [line for line in report.left_behind if line.startswith("main: skills/cooking: key is a symbolic link")]


# -- cron jobs ---------------------------------------------------------------------------------------------------------


def job(name: str, schedule: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"id": f"id-{name}", "name": name, "prompt": name, "schedule": schedule, "origin": ORIGIN, **keys}


def test_jobs_become_paused_schedules_of_their_chat(tmp_path: Path, place: ImportTarget) -> None:
    daily = {"kind": "cron", "expr": "30 8 * * 1-5"}
    jobs = [
        job("daily", daily),
        job("weekly", {"kind": "interval", "minutes": 10080}, deliver="telegram:1001"),
        job("once", {"kind": "once", "run_at": "2099-01-02T03:04:00+00:00"}, deliver="origin"),
        job("past", {"kind": "once", "run_at": "2001-01-02T03:04:00+00:00"}),
        job("elsewhere", daily, deliver="telegram:77"),
        job("program", daily, prompt="", no_agent=True),
        job("poor", daily, script="poll.py", workdir="/srv", repeat={"times": 3, "completed": 1}),
        job("odd", {"kind": "moon"}),
    ]
    home = build_home(
        tmp_path / "there", {"cron/jobs.json": json.dumps({"jobs": jobs}), "cron/output/x/1.md": "what it said"}
    )
    report = run_twice(place, home)
    made = read_schedules(place)
    assert {name: type(it.rule) for name, it in made.items()} == {
        "daily": CronRule, "weekly": IntervalRule, "once": DateRule, "poor": CronRule
    }  # fmt: skip
    assert made["weekly"].words == "every 7d"
    assert all(
        it.off and it.agent == "main" and it.sender == "1001" and it.place.chat == "1001" for it in made.values()
    )
    assert len(report.schedules) == 4
    named = {line.split(": ")[2]: line for line in report.left_behind if "cron/jobs.json" in line}
    assert set(named) == {"past", "elsewhere", "program", "poor", "odd"}
    assert "its script, its folder, the number of its runs" in named["poor"]
    assert any("cron/ (output)" in line for line in report.left_behind)


def test_a_schedule_that_was_resumed_here_stays_so(tmp_path: Path, place: ImportTarget) -> None:
    jobs = {"jobs": [job("daily", {"kind": "cron", "expr": "0 9 * * *"})]}
    home = build_home(tmp_path / "there", {"cron/jobs.json": json.dumps(jobs)})
    place.run_import(home)
    (before,) = read_schedules(place).values()
    jobs["jobs"][0]["prompt"] = "something else"
    (home / "cron/jobs.json").write_text(json.dumps(jobs))
    assert place.run_import(home).schedules == []
    assert list(read_schedules(place).values()) == [before]


def test_a_hostile_job_or_server_keeps_nothing_else_away(tmp_path: Path, place: ImportTarget) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    daily = {"kind": "cron", "expr": "0 9 * * *"}
    jobs = [
        job("far", {"kind": "once", "run_at": "9999-12-31T23:59:59-23:00"}),
        job("early", {"kind": "once", "run_at": "0001-01-01T00:00:00+23:00"}),
        job("long", {"kind": "interval", "minutes": 10**600}),
        job("half \ud800", daily),
        {**job("deep", daily), "name": deep},
        job("good", daily),
    ]
    config = (
        '{"mcp_servers": {"odd": {"command": "x", "env": {"A": "\\ud800", "\\ud800": "b"}}, "notes": {"command": "y"}}}'
    )
    home = build_home(tmp_path / "there", {"cron/jobs.json": json.dumps({"jobs": jobs}), "config.yaml": config})
    run_twice(place, home)
    assert set(read_schedules(place)) == {"half \ufffd", "deep", "good"}
    assert set(settings_of(place).mcp) >= {"odd", "notes"}


# -- tool servers ------------------------------------------------------------------------------------------------------


def test_servers_come_with_their_secrets_in_env_and_no_agent_uses_them(tmp_path: Path, place: ImportTarget) -> None:
    config = {
        "mcp_servers": {
            "notes": {
                "command": "npx", "args": ["-y", "notes"],
                "env": {"NOTES_KEY": "${OLD_KEY}", "PLAIN": "1", "GONE": "${NOT_SET}"},
                "timeout": 30, "tools": {"exclude": ["drop"]},
            },
            "far": {
                "url": "https://far.example/mcp", "headers": {"Authorization": "Bearer far-0123456789", "X-Team": "a"},
            },
            "broken": {"enabled": True},
        }
    }  # fmt: skip
    home = build_home(tmp_path / "there", {"config.yaml": json.dumps(config), ".env": "OLD_KEY=notes-0123456789\n"})
    report = run_twice(place, home)
    settings = settings_of(place)
    assert settings.mcp["notes"].command == ("npx", "-y", "notes")
    assert settings.mcp["notes"].deadline_seconds == 30
    assert settings.mcp["notes"].env == ("NOTES_KEY", "PLAIN")
    assert str(settings.mcp["far"].url) == "https://far.example/mcp"
    env = place.home.env.read_text()
    assert "NOTES_KEY=notes-0123456789" in env
    assert f"{settings.mcp['far'].token_env}=far-0123456789" in env
    for text in (str(report.settings), place.home.config.read_text()):
        assert "0123456789" not in text
    unknown = [line.removeprefix("main: config.yaml: mcp_servers.").split(": ")[0] for line in report.settings.unknown]
    assert sorted(unknown) == [
        "broken", "far", "far.headers.X-Team", "notes", "notes.env.GONE", "notes.tools"
    ]  # fmt: skip
    assert not any("mcp" in tool for agent in settings.agents.values() for tool in agent.tools)


@pytest.mark.parametrize(
    "given", [None, [], "x", {"command": 3}, {"url": "", "env": []}, {"command": "x", "env": {"a b": 1}}]
)
def test_odd_servers_are_named(given: Any) -> None:
    found = convert_server("odd one!", given, {"A": SecretString("a")})
    assert found.unknown
    assert found.name == "odd-one"
