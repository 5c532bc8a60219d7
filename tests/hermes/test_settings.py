"""What else an import brings: memory files, settings, secrets, access. Settings that are not understood are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Noted
from tests.hermes.built_home import BuiltHermesHome
from tests.hermes.test_doctor import DM, healthy
from tests.hermes.test_import import ImportTarget, place, settings_of

__all__ = ["place"]  # a fixture


def test_memory_files_become_facts_once(tmp_path: Path, place: ImportTarget) -> None:
    built = healthy(tmp_path / "there")
    built.close()
    folder = tmp_path / "there" / "memories"
    folder.mkdir()
    (folder / "MEMORY.md").write_text("The server is tin.\n§\nDeploys on Fridays.\n§\n" + "x" * 2000)
    (folder / "USER.md").write_text("Ada likes tea.")
    place.run_import(tmp_path / "there", owner="telegram:1001")
    (folder / "MEMORY.md").write_text("The server is tin.\n§\nDeploys on Mondays.")
    report = place.run_import(tmp_path / "there", owner="telegram:1001")
    assert report.facts == {"main: MEMORY.md": 1, "main: USER.md": 0}
    notes = [body for *_, body, _ in place.read_all_entries() if isinstance(body, Noted)]
    assert [note.text[:18] for note in notes] == [
        "The server is tin.",
        "Deploys on Fridays",
        "x" * 18,
        "Ada likes tea.",
        "Deploys on Mondays",
    ]
    assert [bool(note.fact) for note in notes] == [True, True, False, True, True]
    assert {tag for note in notes for tag in note.tags} >= {"memory", "user"}
    assert {note.stamp.audience for note in notes} == {("person:telegram:1001",)}


def test_settings_are_imported_with_accounts_disabled(tmp_path: Path, place: ImportTarget) -> None:
    home = tmp_path / "there"
    for name, token in (
        ("", "111:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ("coder", "222:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"),
    ):
        folder = home / "profiles" / name if name else home
        built = BuiltHermesHome(folder)
        built.add_exchanges(built.add_session(f"s-{name or 'main'}"), "a")
        built.add_exchanges(built.add_chat(f"c-{name or 'main'}", DM), "b")
        built.close()
        (folder / "SOUL.md").write_text(f"You are {name or 'calm'}.")
        (folder / ".env").write_text(
            f"TELEGRAM_BOT_TOKEN={token}\nTELEGRAM_ALLOWED_USERS=1001, 1002\n"
            f"HONCHO_API_KEY=hk-{name}12345678\nODD_ONE=1\n"
        )
        (folder / "config.yaml").write_text(
            "model: {default: big-1, provider: openrouter, context_length: 100000}\n"
            "memory: {provider: honcho}\nbusy_input_mode: steer\ngoals: {max: 3}\n"
        )
        (folder / "honcho.json").write_text(
            json.dumps(
                {
                    "baseUrl": "http://127.0.0.1:9",
                    "peerName": "ada",
                    "dialecticDepth": 2,
                    "hosts": {"hermes": {"workspace": "home", "aiPeer": "calm"}, "hermes_coder": {"workspace": "work"}},
                }
            )
        )
        pairing = folder / "platforms" / "pairing"
        pairing.mkdir(parents=True)
        (pairing / "telegram-approved.json").write_text(json.dumps({"1003": {"approved_at": 1}}))
    report = place.run_import(home)
    assert set(report.agents) == {"main", "coder"}
    assert report.settings.kept == []
    settings = settings_of(place)
    assert settings.agents["main"].persona == "You are calm."
    assert settings.agents["coder"].persona == "You are coder."
    assert settings.agents["coder"].busy == "steer"
    assert settings.models["big-1"].base_url == "https://openrouter.ai/api/v1"
    accounts = settings.platforms["telegram"]
    assert not any(account.enabled for account in accounts.values())
    assert accounts["main"].access.direct == ("telegram:1001", "telegram:1002", "telegram:1003")
    env = place.home.env.read_text()
    assert "TELEGRAM_BOT_TOKEN=111:" in env
    assert "CODER_TELEGRAM_BOT_TOKEN=222:" in env
    assert accounts["coder"].env["token"] == "CODER_TELEGRAM_BOT_TOKEN"
    assert place.home.env.stat().st_mode & 0o777 == 0o600
    honcho = settings.memories["honcho"]
    assert honcho.naming == "hermes"
    assert honcho.extra["workspace"] == "home"
    assert settings.memories["honcho-coder"].extra["workspace"] == "work"
    assert [memory.name for memory in settings.agents["coder"].memories] == ["builtin", "honcho-coder"]
    names = place.find_session("agent:coder:telegram:dm:1001").names
    assert names == {"honcho-coder": "agent-main-telegram-dm-1001"}, "the name it had in hermes-agent"
    unknown = " ".join(report.settings.unknown)
    for word in ("goals", "ODD_ONE", "dialecticDepth"):
        assert word in unknown
    assert "111:" not in str(report.settings)

    before = (place.home.config.read_bytes(), env)
    again = place.run_import(home)
    assert again.settings.written == []
    assert (place.home.config.read_bytes(), place.home.env.read_text()) == before


def test_a_setting_changed_here_is_not_imported_again(tmp_path: Path, place: ImportTarget) -> None:
    home = tmp_path / "there"
    for name in ("", "coder"):
        folder = home / "profiles" / name if name else home
        BuiltHermesHome(folder).close()
        (folder / "SOUL.md").write_text(f"You are {name or 'calm'}.")
        (folder / ".env").write_text(
            f"TELEGRAM_BOT_TOKEN={len(name)}11:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nOPENROUTER_API_KEY=or-{name}12345678\n"
            f"HONCHO_API_KEY=hk-{name}12345678\n"
        )
        (folder / "config.yaml").write_text(
            f"model: {{default: big-1, provider: openrouter, context_length: 1{len(name)}0000}}\n"
            "memory: {provider: honcho}\n"
        )
        (folder / "honcho.json").write_text(json.dumps({"peerName": "ada", "workspace": f"w{name}"}))
    assert place.run_import(home).settings.refused == []
    config, env = place.home.config, place.home.env
    for old, new in (("100000", "90000"), ("150000", "95000"), ("workspace: w", "workspace: x")):
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))
    env.write_text(env.read_text().replace("11:aaa", "22:bbb").replace("12345678", "87654321"))
    (place.home.path / "SOUL.md").write_text("You are mine.")
    before = (config.read_text(), env.read_text(), sorted(path.name for path in place.home.path.glob("SOUL*")))
    again = place.run_import(home)
    assert again.settings.written == []
    assert (config.read_text(), env.read_text(), sorted(path.name for path in place.home.path.glob("SOUL*"))) == before
    assert {"models.big-1 is kept as it is here", "memories.honcho-coder is kept as it is here"} <= set(
        again.settings.kept
    )


def test_settings_configured_here_stay(tmp_path: Path, place: ImportTarget) -> None:
    place.home.config.write_text("agents: {main: {persona: You are mine., busy: queue}}  # my own\n")
    home = tmp_path / "there"
    BuiltHermesHome(home).close()
    (home / "SOUL.md").write_text("You are theirs.")
    (home / "config.yaml").write_text("busy_input_mode: interrupt\n")
    report = place.run_import(home)
    settings = settings_of(place)
    assert settings.agents["main"].persona == "You are mine."
    assert settings.agents["main"].busy == "queue"
    assert len(report.settings.kept) == 2
    assert "# my own" in place.home.config.read_text()


def test_a_folder_of_markdown_becomes_facts_of_an_agent(tmp_path: Path, place: ImportTarget) -> None:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text("# Tea\n\n- Ada likes it green\n")
    (folder / "deep" / "b.md").write_text("Bob does not.\n")
    report = place.run_import(folder)
    assert report.facts == {"main: a.md": 1, "main: deep/b.md": 1}
    assert place.run_import(folder).facts_known == 2
    assert sorted(body.text for *_, body, _ in place.read_all_entries() if isinstance(body, Noted)) == [
        "Ada likes it green",
        "Bob does not.",
    ]


def test_agents_with_similar_names_have_their_own_keys(tmp_path: Path, place: ImportTarget) -> None:
    home = tmp_path / "there"
    BuiltHermesHome(home).close()
    for name in ("a-b", "a_b", "A_b"):
        given = {"baseUrl": "https://honcho.example", "apiKey": f"key-of-{name}", "workspace": name}
        home_with(home / "profiles" / name, "honcho", "honcho.json", given)
    place.run_import(home)
    env = dict(line.split("=", 1) for line in place.home.env.read_text().splitlines())
    memories = settings_of(place).memories.values()
    assert {it.extra["workspace"]: env[it.env["api_key"]] for it in memories if it.provider == "honcho"} == {
        name: f"key-of-{name}" for name in ("a-b", "a_b", "A_b")
    }


def test_a_key_whose_name_is_taken_is_reported_and_no_other_is_used(tmp_path: Path, place: ImportTarget) -> None:
    place.home.env.write_text("IMPORTED_MAIN_HONCHO_API_KEY=somebody-elses\n")
    place.home.env.chmod(0o600)
    given = {"baseUrl": "https://honcho.example", "apiKey": "key-of-main"}
    report = place.run_import(home_with(tmp_path / "there", "honcho", "honcho.json", given))
    assert "api_key" not in settings_of(place).memories["honcho"].env
    assert any("HONCHO_API_KEY of main was not imported" in line for line in report.settings.missing_keys)


# -- memory services ---------------------------------------------------------------------------------------------------


def home_with(path: Path, provider: str, file: str, given: dict[str, Any], env: str = "") -> Path:
    built = BuiltHermesHome(path)
    built.add_exchanges(built.add_session(f"s-{path.name}"), "a")
    built.close()
    (path / "config.yaml").write_text(f"memory: {{provider: {provider}}}\n")
    (path / ".env").write_text(env)
    if file:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_text(json.dumps(given))
    return path


@pytest.mark.parametrize(
    "provider, file, given, env, expected",
    [
        ("hindsight", "hindsight/config.json", {"mode": "cloud", "bank_id": "mine", "recall_budget": "high",
         "retain_tags": "a, b", "timeout": 45}, "HINDSIGHT_API_KEY=hs-0123456789\n",
         {"base_url": "https://api.hindsight.vectorize.io", "bank": "mine", "budget": "high", "tags": ("a", "b"),
          "deadline_seconds": 45}),
        ("hindsight", "hindsight/config.json", {"mode": "local_external", "api_url": "http://127.0.0.1:8888",
         "bank_id_template": "{workspace}-{profile}-{user}"}, "",
         {"base_url": "http://127.0.0.1:8888", "bank": "hermes-default-{person}"}),
        ("hindsight", "hindsight/config.json", {"mode": "local_external", "banks": {"hermes": {"bankId": "old"}}}, "",
         {"bank": "old"}),
        ("hindsight", "", {}, "HINDSIGHT_API_KEY=hs-0123456789\nHINDSIGHT_BANK_ID=env\n", {"bank": "env"}),
        ("mem0", "mem0.json", {"api_key": "m0-0123456789abcdef", "host": "http://127.0.0.1:9"}, "",
         {"base_url": "http://127.0.0.1:9", "user": "{person}"}),
        ("mem0", "mem0.json", {"user_id": "ada"}, "MEM0_API_KEY=m0-0123456789abcdef\n", {"user": "ada"}),
        ("supermemory", "supermemory.json", {"search_mode": "hybrid"}, "SUPERMEMORY_API_KEY=sm-0123456789\n",
         {"namespace": "hermes", "search_mode": "hybrid"}),
        ("supermemory", "supermemory.json", {"container_tag": "work.{identity}"}, "SUPERMEMORY_API_KEY=sm-0123456\n",
         {"namespace": "work_default"}),
    ],
)  # fmt: skip
def test_a_memory_service_is_imported_with_its_address(
    tmp_path: Path,
    place: ImportTarget,
    provider: str,
    file: str,
    given: dict[str, Any],
    env: str,
    expected: dict[str, Any],
) -> None:
    """The service's default in hermes-agent is written explicitly, because the default here differs."""
    report = place.run_import(home_with(tmp_path / "there", provider, file, given, env))
    assert report.settings.refused == []
    service = settings_of(place).memories[provider]
    assert service.naming == "hermes"
    assert {key: service.extra.get(key) for key in expected} == expected
    assert service.is_ready
    assert [memory.name for memory in settings_of(place).agents["main"].memories] == ["builtin", provider]
    keys = [value for value in (given.get("api_key"), env.partition("=")[2].split("\n")[0]) if value]
    assert all(str(key) in place.home.env.read_text() for key in keys if "KEY" in env or "api_key" in given)
    assert not any(str(key) in place.home.config.read_text() for key in keys)


@pytest.mark.parametrize(
    "env, direct, group, other",
    [
        ("TELEGRAM_ALLOWED_USERS=1, 2\n", ("telegram:1", "telegram:2"), ("telegram:1", "telegram:2"), None),
        ("TELEGRAM_ALLOWED_USERS=1\nGATEWAY_ALLOWED_USERS=9\nTELEGRAM_GROUP_ALLOWED_USERS=3\n",
         ("telegram:1", "telegram:9"), ("telegram:1", "telegram:9", "telegram:3"), None),
        ("TELEGRAM_ALLOWED_USERS=1\nTELEGRAM_GROUP_ALLOWED_CHATS=-100,-7\n", ("telegram:1",), ("*",), ("*",)),
        ("TELEGRAM_ALLOW_ALL_USERS=true\n", ("*",), ("*",), None),
        ("GATEWAY_ALLOW_ALL_USERS=false\n", (), None, None),
    ],
)  # fmt: skip
def test_people_with_access_there_have_access_here_in_the_same_chats(
    tmp_path: Path, place: ImportTarget, env: str, direct: tuple[str, ...], group: tuple[str, ...] | None, other: Any
) -> None:
    """In hermes-agent one list also covers groups. Here each group that it was in is named."""
    healthy(tmp_path / "there").close()  # it was in group -100
    token = "TELEGRAM_BOT_TOKEN=111:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"
    (tmp_path / "there" / ".env").write_text(token + env)
    report = place.run_import(tmp_path / "there")
    assert report.settings.unknown == []
    access = settings_of(place).platforms["telegram"]["main"].access
    assert access.direct == direct
    assert (access.groups.get("-100"), access.groups.get("-7")) == (group, other)


def test_an_unusual_value_affects_only_itself(tmp_path: Path, place: ImportTarget) -> None:
    given = {"mode": "local_external", "bank_id": "mine", "recall_budget": "enormous", "idle_timeout": 3}
    report = place.run_import(home_with(tmp_path / "there", "hindsight", "hindsight/config.json", given))
    assert settings_of(place).memories["hindsight"].extra["bank"] == "mine"
    unknown = " ".join(report.settings.unknown)
    assert "budget" in unknown
    assert "idle_timeout" in unknown


def test_a_profile_uses_the_service_of_the_home_if_it_has_none(tmp_path: Path, place: ImportTarget) -> None:
    hosts = {"hermes_coder": {"workspace": "work"}, "hermes": {"workspace": "home"}}
    home = home_with(tmp_path / ".hermes", "honcho", "honcho.json", {"baseUrl": "http://127.0.0.1:9", "hosts": hosts})
    home_with(home / "profiles" / "coder", "honcho", "", {})
    place.run_import(home)
    memories = settings_of(place).memories
    assert memories["honcho"].extra["workspace"] == "home"
    assert (memories["honcho-coder"].provider, memories["honcho-coder"].extra["workspace"]) == ("honcho", "work")


@pytest.mark.parametrize(
    "provider, variable, file",
    [
        ("honcho", "HONCHO_BASE_URL", ".honcho/config.json"),
        ("hindsight", "HINDSIGHT_API_URL", ".hindsight/config.json"),
    ],
)
@pytest.mark.parametrize("has_address", [True, False])
def test_a_key_outside_the_imported_home_is_not_read(
    tmp_path: Path, place: ImportTarget, provider: str, variable: str, file: str, has_address: bool
) -> None:
    """The imported home could send it to an address of its own."""
    mine = tmp_path / file
    mine.parent.mkdir()
    mine.write_text(json.dumps({"apiKey": "mine-0123456789", "api_key": "mine-0123456789", "workspace": "w"}))
    env = f"{variable}=https://evil.example\n" if has_address else ""
    report = place.run_import(home_with(tmp_path / "theirs", provider, "", {}, env))
    assert not place.home.env.exists() or "mine-0123456789" not in place.home.env.read_text()
    assert any(str(mine) in line and "not read" in line for line in report.settings.unknown)
    memories = settings_of(place).memories
    assert (provider in memories) is has_address, "without its settings it would get another workspace"
    if has_address:
        assert memories[provider].extra["base_url"] == "https://evil.example"


def test_a_profile_imported_alone_gets_no_key_of_the_home_around_it(tmp_path: Path, place: ImportTarget) -> None:
    home = home_with(tmp_path / ".hermes", "honcho", "honcho.json", {"apiKey": "mine-0123456789"})
    theirs = home_with(home / "profiles" / "coder", "honcho", "", {}, "HONCHO_BASE_URL=https://evil.example\n")
    report = place.run_import(theirs)
    assert not place.home.env.exists() or "mine-0123456789" not in place.home.env.read_text()
    assert any(str(home / "honcho.json") in line for line in report.settings.unknown)


@pytest.mark.parametrize(
    "given, near, pinned",
    [
        ({"pinUserPeer": True, "pinPeerName": False}, {}, True),
        ({"pinPeerName": True, "pinUserPeer": False}, {}, False),
        ({"pinUserPeer": True}, {"pinPeerName": False}, False),
        ({"pinUserPeer": False}, {"pinPeerName": False, "pinUserPeer": True}, True),
        ({"pinPeerName": True, "pinUserPeer": None}, {}, True),
    ],
)
def test_the_same_pinning_key_has_precedence_as_in_hermes_agent(
    tmp_path: Path, place: ImportTarget, given: dict[str, Any], near: dict[str, Any], pinned: bool
) -> None:
    honcho = {"baseUrl": "http://127.0.0.1:9", **given, "hosts": {"hermes": near}}
    place.run_import(home_with(tmp_path / ".hermes", "honcho", "honcho.json", honcho))
    assert settings_of(place).memories["honcho"].extra["pin_peer_name"] is pinned


def test_other_memory_files_are_imported(tmp_path: Path, place: ImportTarget) -> None:
    healthy(tmp_path / "there").close()
    folder = tmp_path / "there" / "memories"
    folder.mkdir()
    (folder / "PROJECTS.md").write_text("The parser is in Rust.")
    (folder / "MEMORY.md.bak.1").write_text("Long replaced.")
    report = place.run_import(tmp_path / "there", owner="telegram:1001")
    assert report.facts["main: PROJECTS.md"] == 1
    assert [body.text for *_, body, _ in place.read_all_entries() if isinstance(body, Noted)] == [
        "The parser is in Rust."
    ]


# -- the persona -------------------------------------------------------------------------------------------------------


def test_a_persona_is_no_memory_wherever_it_is(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.close()
    (tmp_path / "there" / "memories").mkdir()
    (tmp_path / "there" / "memories" / "SOUL.md").write_text("You are calm.")
    (tmp_path / "there" / "memories" / "USER.md").write_text("Ada likes tea.")
    place.run_import(tmp_path / "there")
    assert settings_of(place).agents["main"].persona == "You are calm."
    assert [body.text for *_, body, _ in place.read_all_entries() if isinstance(body, Noted)] == ["Ada likes tea."]


@pytest.mark.parametrize("other", [{}, {"notes.md": "Ada likes tea."}])
def test_a_folder_with_a_persona_is_no_home(tmp_path: Path, place: ImportTarget, other: dict[str, str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "SOUL.md").write_text("You are calm.")
    for name, text in other.items():
        (tmp_path / "there" / name).write_text(text)
    report = place.run_import(tmp_path / "there")
    assert report.kind == "markdown"
    assert settings_of(place).agents["main"].persona == "You are calm."
    assert report.facts == {f"main: {name}": 1 for name in other}


# -- what stays behind -------------------------------------------------------------------------------------------------


def test_everything_that_stays_behind_is_named_with_its_reason(tmp_path: Path, place: ImportTarget) -> None:
    home = tmp_path / "there"
    built = BuiltHermesHome(home)
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.close()
    for name, text in {
        "skills/cooking/SKILL.md": "boil",
        "cron/jobs.json": json.dumps({"jobs": [{"id": "j1", "name": "morning news"}]}),
        "config.yaml": "mcp_servers: {files: {command: npx}}\ngoals: {max: 3}\nmodel: {default: x, provider: odd}\n",
        "memories/MEMORY.md.bak.17": "old",
        "sessions/dump.json": "{}",
        "hooks/on_start.py": "print()",
        "logs/agent.log": "x",
        "kanban.db": "x",
        ".env": "ODD_ONE=1\n",
        "mem0.json": "{not json",
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    (home / "empty").mkdir()
    dry = place.run_import(home, dry=True)
    report = place.run_import(home)
    lines = [*report.settings.unknown, *report.left_behind, *report.troubles]
    assert lines == [*dry.settings.unknown, *dry.left_behind, *dry.troubles]
    for name in (
        "skills/cooking", "cron/jobs.json: morning news", "config.yaml: mcp_servers.files", "config.yaml: goals",
        "config.yaml: model", "memories/MEMORY.md.bak.17", "sessions/", "hooks", "logs", "kanban.db", ".env: ODD_ONE",
        "mem0.json",
    ):  # fmt: skip
        (line,) = [line for line in lines if line.startswith(f"main: {name}")]
        assert len(line.removeprefix(f"main: {name}").lstrip(": ")) > 5, f"no reason: {line}"
    assert not any("empty" in line for line in lines)
    assert settings_of(place).mcp["files"].command == ("npx",)
    assert not any("mcp" in tool for tool in settings_of(place).agents["main"].tools), "no program is started unasked"


def test_settings_of_sections_that_are_imported_are_named_too(tmp_path: Path, place: ImportTarget) -> None:
    """Nothing in config.yaml or .env disappears silently, not even what hermes-agent notes for itself."""
    home = tmp_path / "there"
    built = BuiltHermesHome(home)
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.close()
    config = {
        "model": {"default": "big", "provider": "custom", "base_url": "http://127.0.0.1:9/v1", "temperature": 0.3},
        "memory": {"provider": "builtin", "user_char_limit": 4000},
        "auxiliary": {"compression": {"provider": "openrouter", "model": "small"}},
        "onboarding": {"seen": {}},
        "display_name": "Bo",
        "_config_version": 7,
    }
    (home / "config.yaml").write_text(json.dumps(config))
    (home / ".env").write_text("OPENROUTER_API_KEY=sk-or-0123456789\nHONCHO_API_KEY=hch-0123456789\n")
    report = place.run_import(home)
    named = {
        "config.yaml: model.temperature", "config.yaml: memory.user_char_limit", "config.yaml: auxiliary",
        "config.yaml: onboarding", "config.yaml: display_name", "config.yaml: _config_version",
        ".env: OPENROUTER_API_KEY", ".env: HONCHO_API_KEY",
    }  # fmt: skip
    for name in named:
        (line,) = [it for it in report.settings.unknown if it.startswith(f"main: {name}: ")]
        assert len(line.removeprefix(f"main: {name}: ")) > 5
    assert not any("sk-or" in line for line in report.settings.unknown)


def test_a_dry_run_finds_the_settings_that_the_import_cannot_write(tmp_path: Path, place: ImportTarget) -> None:
    home = tmp_path / "there"
    built = BuiltHermesHome(home)
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.close()
    url = "http://somebody:secret@127.0.0.1:9/v1"
    model = {"default": "big", "provider": "custom", "base_url": url}
    (home / "config.yaml").write_text(json.dumps({"model": model, "busy_input_mode": "queue"}))
    (home / "SOUL.md").write_text("You are calm.")
    dry, report = place.run_import(home, dry=True), place.run_import(home)
    assert dry.settings == report.settings
    (line,) = report.settings.refused
    assert line.startswith("models.big: ")
    assert "secret" not in line
    assert "agents.main.busy" in report.settings.written
    assert not report.is_complete, "the agent has no model, so the exit code is 1"
