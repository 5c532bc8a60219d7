"""A valid config.yaml becomes one frozen Settings. An invalid one is refused with all its problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from everhold.config import (
    ConfigError,
    ConfigProblem,
    Settings,
    build_plugin_settings,
    find_plugin_problems,
    load_settings,
    make_plugin_validator,
    parse_settings,
)
from everhold.config.secrets import SecretEnvironment
from everhold.errors import InvalidRequest, NotFound
from everhold.infra.home import Home
from everhold.infra.secret import SecretString


def read(text: str, **environ: str) -> Settings:
    return parse_settings(text, environment=SecretEnvironment(environ), read_persona=lambda name: f"I am {name}.")


def refused(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, **environ)
    assert caught.value.exit_code == 78
    assert all(problem.fatal for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


# -- valid configurations ----------------------------------------------------------------------------------------------


def test_no_configuration_is_needed(home: Home) -> None:
    settings = load_settings(home, environ={})
    assert list(settings.agents) == ["main"]
    agent = settings.get_agent()
    assert settings.models[agent.model].provider == "offline"
    assert [memory.provider for memory in agent.memories] == ["builtin"]
    assert (settings.http.host, settings.http.port) == ("127.0.0.1", 8765)
    assert not settings.store.is_server
    assert settings.problems == ()
    assert settings.revision


def test_a_file_of_comments_is_an_empty_configuration() -> None:
    assert read("# later\n\n---\n# still later\n").revision == read("").revision


def test_the_sample_configuration_is_loaded(sample: str) -> None:
    settings = read(sample, OPENAI_API_KEY="k", TELEGRAM_CODER_TOKEN="t", HONCHO_API_KEY="h")
    coder = settings.get_agent("coder")
    assert coder.persona == "You write code."
    assert settings.get_agent("main").persona == "I am SOUL.md."
    assert coder.budget.usd_per_day == 5
    assert coder.tools == ("memory", "session_search", "mcp:time")
    assert [memory.name for memory in coder.memories] == ["builtin", "honcho"]
    assert coder.memories[1].extra["ai_peer"] == "coder"
    assert coder.memories[1].extra["api_key"] == SecretString("h")
    assert settings.models["big"].api_key == SecretString("k")
    account = settings.platforms["telegram"]["coder"]
    assert account.extra == {"token": SecretString("t")}
    chat = account.chats["-100123"].sessions
    assert chat is not None
    assert (chat.group, chat.thread) == ("shared", "shared")
    assert settings.identities["discord:2002"] == "ada"
    assert str(settings.zone) == "Europe/Berlin"
    assert settings.mcp["time"].effects["get_current_time"] == "pure"


def test_built_in_parts_are_not_reported_as_missing_plug_ins(sample: str) -> None:
    asked: list[str] = []

    def validate(group: str, name: str, raw: Mapping[str, Any]) -> list[ConfigProblem]:
        asked.extend([name] if group == "tools" else [])
        return []

    parse_settings(sample, read_persona=str, validate_plugin=validate)
    assert asked == []
    parse_settings(
        "defaults: {tools: [memory, session_search, attach, dice, die]}\ntools: {die: {provider: dice, sides: 6}}",
        validate_plugin=validate,
    )
    assert asked == ["dice", "dice"]


def test_a_tool_without_recipients_is_reported() -> None:
    (problem,) = read("agents: {main: {tools: [send]}}").problems
    assert (problem.key, problem.fatal) == ("agents.main.tools[0]", False)
    assert read('agents: {main: {tools: [send], send_to: ["agent:main"]}}').problems == ()
    assert refused("tools: {memory: {size: 3}}") == [
        "config.yaml:1: tools.memory: is built in and takes no settings → choose another name, with provider: …"
    ]


def test_a_tool_s_settings_affect_only_agents_with_the_tool() -> None:
    text = "agents: {a: {tools: [die]}, b: {tools: [memory]}}\ntools: {die: {provider: dice, sides: %d, key_env: KEY}}"
    before, after = read(text % 6, KEY="k"), read(text % 20, KEY="k")
    assert before.tools["die"].extra == {"sides": 6, "key": SecretString("k")}
    assert before.signatures["a"] != after.signatures["a"]
    assert before.signatures["b"] == after.signatures["b"]
    (problem,) = read(text % 6).problems
    assert (problem.message, problem.disables) == ("KEY is not set", "tools.die")


def test_mappings_of_the_defaults_merge_and_lists_replace() -> None:
    settings = read("""
        defaults: {recall: {max_tokens: 10}, tools: [memory], compression: {soft: 0.5, hard: 0.7}}
        agents:
          a: {recall: {deadline_seconds: 5}, tools: [session_search]}
          b:
    """)
    assert (settings.agents["a"].recall.max_tokens, settings.agents["a"].recall.deadline_seconds) == (10, 5)
    assert settings.agents["a"].tools == ("session_search",)
    assert settings.agents["b"].tools == ("memory",)
    assert settings.agents["b"].compression.hard == 0.7
    assert settings.default_agent == "a"


def test_a_null_resets_a_default() -> None:
    settings = read("defaults: {recall: {max_tokens: 10}, busy: steer}\nagents: {a: {recall: null, busy: ~}}\n")
    assert settings.agents["a"].recall.max_tokens == 1700
    assert settings.agents["a"].busy == "queue"


def test_a_model_may_be_defined_inside_an_agent() -> None:
    settings = read("""
        models: {small: {provider: offline}}
        defaults: {model: {provider: openai, name: x, base_url: "http://h/v1"}}
        agents:
          a: {}
          b: {model: {name: y}, fallback: [small, {provider: anthropic, name: z}]}
          c: {model: small, compression: {model: {provider: offline, name: s}}}
    """)
    a, b, c = (settings.agents[name] for name in "abc")
    assert (settings.models[a.model].name, settings.models[a.model].key) == ("x", "defaults.model")
    assert (settings.models[b.model].name, settings.models[b.model].base_url) == ("y", "http://h/v1")
    assert [settings.models[name].provider for name in b.fallback] == ["offline", "anthropic"]
    assert c.model == "small"
    assert c.compression.model is not None
    assert settings.models[c.compression.model].name == "s"


def test_a_single_model_is_the_default_and_several_need_a_choice() -> None:
    assert read("models: {mine: {provider: openai, name: x}}").get_agent().model == "mine"
    (line,) = refused("models: {a: {provider: offline}, b: {provider: offline}}\nagents:\n  main: {}\n")
    assert "agents.main.model: does not say which model to use" in line


def test_an_account_uses_the_agent_of_its_name_or_the_main_agent() -> None:
    settings = read("agents: {main: {}, coder: {}}\nplatforms: {telegram: {coder: {}, other: {}}}")
    accounts = settings.platforms["telegram"]
    assert (accounts["coder"].agent, accounts["other"].agent) == ("coder", "main")
    assert [account.account for account in settings.list_accounts()] == ["coder", "other"]


def test_settings_of_a_chat_override_the_account() -> None:
    settings = read("""
        agents: {main: {sessions: {group: shared, thread: per-person}}}
        platforms:
          telegram:
            main: {groups: {observe: true}, chats: {-5: {sessions: {group: per-person}, groups: {answer: always}}}}
    """)
    chat = settings.platforms["telegram"]["main"].chats["-5"]
    assert chat.sessions is not None
    assert chat.groups is not None
    assert (chat.sessions.group, chat.sessions.thread) == ("per-person", "per-person")
    assert (chat.groups.answer, chat.groups.observe) == ("always", True)


def test_anchors_and_merge_keys_work() -> None:
    settings = read("""
        agents:
          a: &base {busy: steer, recall: {max_tokens: 7}}
          b: {<<: *base, busy: interrupt}
    """)
    assert (settings.agents["b"].busy, settings.agents["b"].recall.max_tokens) == ("interrupt", 7)


def test_a_persona_is_a_file_or_a_text() -> None:
    settings = read("""
        agents:
          a: {persona: soul.md}
          b: {persona: "You know soul.md\\nand more."}
          c: {persona: {text: notes.md}}
          d: {persona: {file: plain}}
    """)
    assert [settings.agents[name].persona for name in "abcd"] == [
        "I am soul.md.",
        "You know soul.md\nand more.",
        "notes.md",
        "I am plain.",
    ]
    assert [settings.agents[name].persona_file for name in "abcd"] == ["soul.md", "", "", "plain"]


def test_a_persona_file_is_read_once_from_the_home(home: Home) -> None:
    (home.path / "SOUL.md").write_text("\ufeffI am.\n", encoding="utf-8")
    home.config.write_text("agents: {a: {persona: SOUL.md}, b: {persona: SOUL.md}}")
    settings = load_settings(home, environ={})
    assert settings.agents["a"].persona == settings.agents["b"].persona == "I am."
    assert set(settings.seen) == {home.path, home.config, home.env, home.path / "SOUL.md"}


def test_settings_are_immutable(sample: str) -> None:
    settings = read(sample)
    with pytest.raises(ValidationError):
        settings.timezone = "UTC"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.get_agent("coder").recall.max_tokens = 1  # type: ignore[misc]
    for table in (settings.agents, settings.models, settings.get_agent("coder").memories[1].extra, settings.document):
        with pytest.raises(TypeError):
            table["x"] = 1  # type: ignore[index]
    assert isinstance(settings.agents["main"].tools, tuple)


def test_an_unknown_agent_is_refused_with_a_suggestion() -> None:
    with pytest.raises(NotFound, match="did you mean `coder`"):
        read("agents: {coder: {}}").get_agent("codr")


# -- refused configurations --------------------------------------------------------------------------------------------


def test_all_problems_are_reported_at_once_with_line_and_remedy() -> None:
    found = refused("""\
store: mysql
timezone: Europe/Berln
http: {hst: x, port: "80"}
defaults:
  busy: quue
  memories: [builtn]
agents:
  main: {modle: big}
  main: {}
people: [{name: ada, identities: [telegram: 1]}, {name: ada}]
access: {owners: [adda]}
loops: {max_hops: 0}
backup: [1]
nonsense: 1
""")
    expected = [
        "config.yaml:1: store: is neither `sqlite` nor a section → ",
        "config.yaml:2: timezone: is not a time zone known here → did you mean `Europe/Berlin`?",
        "config.yaml:3: http.hst: unknown key → did you mean `host`?",
        "config.yaml:3: http.port: must be a whole number",
        "config.yaml:5: defaults.busy: must be `queue`, `steer` or `interrupt` → did you mean `queue`?",
        "config.yaml:6: defaults.memories[0]: there is no memory `builtn` → did you mean `builtin`?",
        "config.yaml:8: agents.main.modle: unknown key → did you mean `model`?",
        "config.yaml:9: agents.main: is given twice, first in line 8 → remove one of them",
        "config.yaml:10: people[0].identities[0]: must be text, not a mapping → ",
        "config.yaml:10: people[1].name: is listed twice → see people[0]",
        "config.yaml:11: access.owners[0]: there is no person of this name → did you mean `ada`?",
        "config.yaml:12: loops.max_hops: must be at least 1",
        "config.yaml:13: backup: must be a mapping → ",
        "config.yaml:14: nonsense: unknown key → ",
    ]
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(
    "text, said",
    [
        ("agents: {a: {model: bg}}\nmodels: {big: {provider: offline}}", "no model of this name → did you mean `big`"),
        ("agents: {a: {fallback: [x]}}", "agents.a.fallback[0]: there is no model"),
        ("agents: {a: {compression: {model: x}}}", "agents.a.compression.model: there is no model"),
        ("agents: {a: {memories: [honcho]}}", "add `honcho: {…}` under memories"),
        ("agents: {a: {memories: [builtin, {name: builtin}]}}", "agents.a.memories[1]: `builtin` is listed twice"),
        ("agents: {a: {memories: [{ai_peer: x}]}}", "agents.a.memories[0]: must be a name"),
        ("agents: {a: {tools: ['mcp:tim']}}\nmcp: {time: {command: [x]}}", "did you mean `time`"),
        ("agents: {a: {tools: [memory, memory]}}", "agents.a.tools[1]: is listed twice"),
        ("agents: {a: {send_to: ['agent:b']}}", "agents.a.send_to[0]: there is no agent"),
        ("agents: {a: {send_to: [b]}}", 'write "agent:b"'),
        ("agents: {a: {compression: {soft: 0.9, hard: 0.5}}}", "soft is greater than hard"),
        ("agents: {'a b': {}}", "agents.\"a b\": is not a name"),
        ("agents: {a: 5}", "agents.a: must be a mapping"),
        ("agents: 5", "agents: must be a mapping"),
        ("agents: {a: {persona: [x]}}", "agents.a.persona: must be text"),
        ("agents: {a: {persona: {fil: x}}}", "agents.a.persona: must be text, {file: …} or {text: …}"),
        ("agents: {a: {memory_notices: yes}}", "must be true or false → write true or false, without quotes"),
        ("defaults: {memories: {a: 1}}", "defaults.memories: must be a list"),
        ("models: {a: {name: x}}", "models.a.provider: is missing"),
        ("models: {a.b: {provider: offline}}", 'models."a.b": is not a name'),
        ("models: {a: {provider: openai, base_url: 'ftp://x'}}", "must be a URL"),
        ("platforms: {telegram: {a: {agent: b}}}", "platforms.telegram.a.agent: there is no agent"),
        ("platforms: {telegram: {a: {chats: {x: {agent: b}}}}}", "telegram.a.chats.x.agent: there is no agent"),
        ("platforms: {telegram: [a]}", "platforms.telegram: must be a mapping"),
        ("people: [{name: a, identities: ['x:1']}, {name: b, identities: ['x:1']}]", "belongs to `a` already"),
        ("people: [{name: a, identities: ['x']}]", "must be platform:id"),
        ("http: {tokens: [{name: a, token_env: A, person: b}]}", "http.tokens[0].person: there is no person"),
        ("http: {tokens: [{name: a, token_env: A}, {name: a, token_env: B}]}", "http.tokens[1].name: is listed twice"),
        ("http: {host: 0.0.0.0}", "accepts connections from other machines without a token"),
        ("mcp: {a: {}}", "needs either a command or a url"),
        ("mcp: {a: {command: [x], effects: {t: twice}}}", "must be `pure`, `keyed`, `probe` or `once`"),
        ("store: {url: 'sqlite://h/d'}", "store.url: is not the address of a PostgreSQL database"),
        ("store: {url: 'postgresql://h/d?password=x'}", "store.url: holds a password"),
        ("store: {url: 'postgresql://h/d', url_env: PATH_TO}", "PATH_TO is not set"),
        ("store: {password_env: PW}", "PW is not set"),
        ("store: {path: x}", "store.path: unknown key"),
        ("timezone: ../etc/passwd", "is not a time zone"),
        ("models: {a: {provider: openai, name: x}}\ndefaults: {budget: {usd_per_day: 1}}", "models.a: has no price"),
        ("agents: {a: {memories: [{name: builtin, write: 0}]}}", "agents.a.memories[0].write: must be `turn`"),
        ("agents: {a: !!python/object:x {}}", "has a YAML tag"),
        ("agents: &a {b: *a}", "agents.b: contains itself"),
        ("agents: {? [1] : 2}", "has a key that is not text"),
        ("agents: {=name: {}}", "has a key that starts with ="),
        ("backup: {keep: .nan}", "is not a number everhold can use"),
        ('timezone: "\\ud800"', "holds an escape that is no character"),
        ("[1, 2]", "must be a mapping"),
        ("a: {", "config.yaml:1"),
        ("a: 1\n b: 2", "config.yaml:2"),
        ("a: 1\n---\nb: 1", "config.yaml:2"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_message(text: str, said: str) -> None:
    assert any(said in line for line in refused(text)), refused(text)


def test_a_mistake_in_the_defaults_is_reported_once_at_its_line() -> None:
    (line,) = refused("defaults:\n  recall: {max_tokens: -1}\nagents: {a: {}, b: {}, c: {}}\n")
    assert line.startswith("config.yaml:2: defaults.recall.max_tokens: must be at least 0")


def test_a_mistake_of_an_agent_is_reported_at_its_line() -> None:
    (line,) = refused("defaults: {recall: {max_tokens: 1}}\nagents:\n  a:\n    recall: {max_tokens: no}\n")
    assert line.startswith("config.yaml:4: agents.a.recall.max_tokens: must be a whole number")


def test_the_expansion_of_aliases_is_limited() -> None:
    text = "a: &a [x, x, x, x, x, x, x, x]\n"
    for one, two in zip("abcdefgh", "bcdefghi", strict=True):
        text += f"{two}: &{two} [{', '.join([f'*{one}'] * 8)}]\n"
    assert any("holds more than" in line for line in refused(text))


def test_deep_nesting_is_refused() -> None:
    assert any("deep" in line for line in refused("a: " + "[" * 5000))
    assert any("deep" in line for line in refused("a: " + "{a: " * 100 + "1" + "}" * 100))


def test_a_config_that_is_not_text_is_refused(home: Home) -> None:
    home.config.write_bytes(b"timezone: UTC\n\xff\xfe")
    with pytest.raises(ConfigError, match=r"config\.yaml:2: is not UTF-8 text"):
        load_settings(home, environ={})


def test_a_missing_persona_file_is_named(home: Home) -> None:
    home.config.write_text("agents: {main: {persona: gone.md}}")
    with pytest.raises(ConfigError, match=r"agents\.main\.persona: gone\.md: there is no such file") as caught:
        load_settings(home, environ={})
    assert home.path / "gone.md" in caught.value.seen


def test_a_named_pipe_as_persona_does_not_hang(home: Home) -> None:
    import os

    os.mkfifo(home.path / "SOUL.md")
    home.config.write_text("agents: {main: {persona: SOUL.md}}")
    with pytest.raises(ConfigError, match="is not a file"):
        load_settings(home, environ={})


def test_a_config_error_is_an_invalid_request() -> None:
    assert issubclass(ConfigError, InvalidRequest)


# -- revisions ---------------------------------------------------------------------------------------------------------


def test_a_revision_changes_only_with_the_effective_settings(sample: str) -> None:
    first = read(sample, OPENAI_API_KEY="one")
    again = read(
        "\n# a comment\n" + sample.replace("timezone: Europe/Berlin", "timezone: 'Europe/Berlin'   # zone"),
        OPENAI_API_KEY="one",
    )
    assert first.revision == again.revision
    assert read(sample, OPENAI_API_KEY="two").revision != first.revision
    assert read(sample).revision != first.revision
    assert read(sample.replace("OPENAI_API_KEY", "OTHER_KEY"), OTHER_KEY="one").revision != first.revision
    assert read(sample.replace("max_hops: 8", "max_hops: 9"), OPENAI_API_KEY="one").revision != first.revision
    assert read(sample.replace("keep: 7", ""), OPENAI_API_KEY="one").revision == first.revision
    assert read(sample.replace("workspace: work", "workspace: play"), OPENAI_API_KEY="one").revision == first.revision


def test_the_text_of_a_persona_is_part_of_the_revision() -> None:
    def revision(text: str, said: str) -> str:
        return parse_settings(text, read_persona=lambda name: said).revision

    in_file = revision("agents: {main: {persona: a.md}}", "I am.")
    assert in_file == revision("agents: {main: {persona: b.md}}", "I am.")
    assert in_file == revision("agents: {main: {persona: I am.}}", "")
    assert in_file != revision("agents: {main: {persona: a.md}}", "I was.")


def test_a_revision_depends_on_the_home_s_salt(sample: str) -> None:
    def revision(salt: bytes) -> str:
        return parse_settings(
            sample, environment=SecretEnvironment({"OPENAI_API_KEY": "k"}), read_persona=lambda _: "", salt=salt
        ).revision

    assert revision(b"a" * 32) != revision(b"b" * 32)


def test_a_homes_salt_is_created_once_and_private(home: Home) -> None:
    first = load_settings(home, environ={})
    assert home.salt.stat().st_mode & 0o777 == 0o600
    assert load_settings(home, environ={}).revision == first.revision
    home.salt.write_bytes(b"")
    assert load_settings(home, environ={}).revision != first.revision


def test_an_agents_signature_changes_with_its_settings() -> None:
    text = """
        models: {a: {provider: offline, name: one}, b: {provider: offline, name: two}}
        mcp: {time: {command: [x]}}
        agents: {one: {model: a}, two: {model: b, tools: ["mcp:time"]}}
        loops: {max_hops: 3}
    """
    before = read(text).signatures
    model = read(text.replace("name: two", "name: drei")).signatures
    server = read(text.replace("command: [x]", "command: [y]")).signatures
    loops = read(text.replace("max_hops: 3", "max_hops: 4")).signatures
    assert before["one"] == model["one"] == server["one"]
    assert len({before["two"], model["two"], server["two"]}) == 3
    assert loops == before


# -- plug-ins ----------------------------------------------------------------------------------------------------------


class TelegramLike(BaseModel, extra="forbid"):
    token: SecretString
    base_url: str = "https://api.example"
    in_doubt: str = ""


class OldStyle(BaseModel, extra="forbid"):
    api_key_env: SecretString
    workspace: str


def settings_of(group: str, name: str) -> type[BaseModel]:
    known: dict[tuple[str, str], type[BaseModel]] = {
        ("platforms", "telegram"): TelegramLike,
        ("memories", "honcho"): OldStyle,
    }
    if (group, name) not in known:
        raise NotFound(f"there is no plug-in {name!r}", remedy="install it")
    return known[group, name]


def ask(text: str, **environ: str) -> Settings:
    return parse_settings(
        text, environment=SecretEnvironment(environ), validate_plugin=make_plugin_validator(settings_of)
    )


def test_a_plugins_own_keys_are_checked_by_the_plugin() -> None:
    text = "platforms:\n  telegram:\n    main: {token_env: T, base_ulr: x}\n    two: {token_env: T, agnet: main}\n"
    with pytest.raises(ConfigError) as caught:
        ask(text, T="x")
    assert [str(problem) for problem in caught.value.problems] == [
        "config.yaml:3: platforms.telegram.main.base_ulr: unknown key → did you mean `base_url`?",
        "config.yaml:4: platforms.telegram.two.agnet: unknown key → did you mean `agent`?",
    ]


def test_a_missing_secret_does_not_make_a_plugin_section_invalid() -> None:
    settings = ask("platforms: {telegram: {main: {token_env: T}}}\nagents: {main: {tools: []}}")
    (problem,) = [problem for problem in settings.problems if problem.path[:1] == ("platforms",)]
    assert (problem.message, problem.disables, problem.fatal) == ("T is not set", "platforms.telegram.main", False)


def test_a_plugin_that_is_not_installed_disables_only_its_section() -> None:
    settings = ask("platforms: {icq: {main: {uin: 5}}}")
    assert {problem.disables for problem in settings.problems} >= {"platforms.icq"}
    assert all(not problem.fatal for problem in settings.problems)


def test_an_agent_s_memory_keys_are_reported_at_their_line() -> None:
    text = """\
memories:
  honcho: {api_key_env: K, workspace: home}
agents:
  a: {memories: [{name: honcho, workspce: x}]}
"""
    with pytest.raises(ConfigError) as caught:
        ask(text, K="x")
    assert [str(problem) for problem in caught.value.problems] == [
        "config.yaml:4: agents.a.memories[0].workspce: unknown key → did you mean `workspace`?"
    ]


def test_a_mistake_in_inherited_keys_is_reported_once_at_its_line() -> None:
    text = """\
memories: {honcho: {api_key_env: K, workspace: home}}
defaults:
  memories: [builtin, {name: honcho, workspce: x}]
agents: {a: {}, b: {}}
"""
    with pytest.raises(ConfigError) as caught:
        ask(text, K="x")
    assert [str(problem) for problem in caught.value.problems] == [
        "config.yaml:3: defaults.memories[1].workspce: unknown key → did you mean `workspace`?"
    ]


def test_a_missing_secret_causes_no_validation_problem() -> None:
    class Picky(BaseModel, extra="forbid"):
        token: SecretString

        @field_validator("token")
        @classmethod
        def _shape(cls, token: SecretString) -> SecretString:
            if not token.reveal().startswith("right-"):
                raise ValueError("wrong shape")
            return token

    def ask(**environ: str) -> Settings:
        return parse_settings(
            "platforms: {picky: {main: {token_env: T}}}",
            environment=SecretEnvironment(environ),
            validate_plugin=lambda group, name, raw: find_plugin_problems(group, Picky, raw) if name == "picky" else [],
        )

    assert [problem.message for problem in ask().problems] == ["T is not set"]
    assert ask(T="right-1").problems == ()
    with pytest.raises(ConfigError, match=r"platforms\.picky\.main\.token: wrong shape"):
        ask(T="wrong-1")


def test_a_missing_secret_below_the_top_of_a_section_disables_only_that_section() -> None:
    class Backend(BaseModel, extra="forbid"):
        api_key: SecretString
        region: str = ""

        @field_validator("api_key")
        @classmethod
        def _shape(cls, key: SecretString) -> SecretString:
            if not key.reveal().startswith("right-"):
                raise ValueError("wrong shape")
            return key

    class Deep(BaseModel, extra="forbid"):
        llm: Backend
        others: tuple[Backend, ...] = ()

    def ask(text: str, **environ: str) -> Settings:
        return parse_settings(
            f"memories: {{deep: {text}}}\nagents: {{main: {{memories: [builtin, deep]}}}}",
            environment=SecretEnvironment(environ),
            validate_plugin=lambda group, name, raw: (
                find_plugin_problems(group, Deep, {k: v for k, v in raw.items() if k != "provider"})
                if name == "deep"
                else []
            ),
        )

    written = "{llm: {api_key_env: A}, others: [{api_key_env: B}, {api_key_env: C, region: x}]}"
    settings = ask(written, C="right-3")
    assert [(problem.message, problem.disables) for problem in settings.problems] == [
        ("A is not set", "memories.deep"),
        ("B is not set", "memories.deep"),
    ]
    assert settings.memories["deep"].missing == ("A", "B")
    assert "api_key" not in settings.memories["deep"].extra["llm"], "nothing stands in for it when it is used"
    assert ask(written, A="right-1", B="right-2", C="right-3").problems == ()
    with pytest.raises(ConfigError, match=r"memories\.deep\.llm\.api_key: .*wrong shape"):
        ask(written, A="wrong-1", B="right-2", C="right-3")
    with pytest.raises(ConfigError, match=r"memories\.deep\.llm\.regoin: unknown key"):
        ask("{llm: {api_key_env: A, regoin: x}}")


def test_a_plugin_gets_its_settings_with_secrets_resolved() -> None:
    settings = ask(
        "platforms: {telegram: {main: {token_env: T, in_doubt: hold}}}\n"
        "memories: {honcho: {api_key_env: K, workspace: home, write: 3}}\n"
        "agents: {main: {memories: [{name: honcho, workspace: '{agent}s'}]}}",
        T="t",
        K="k",
    )
    telegram = build_plugin_settings(settings.platforms["telegram"]["main"], TelegramLike)
    assert telegram == TelegramLike(token=SecretString("t"), in_doubt="hold")
    honcho = build_plugin_settings(settings.get_agent().memories[0], OldStyle)
    assert honcho == OldStyle(api_key_env=SecretString("k"), workspace="mains")
    assert settings.get_agent().memories[0].write == 3


def test_a_plugin_gets_its_complete_model_section() -> None:
    class Remote(BaseModel, extra="forbid"):
        name: str
        api_key: SecretString | None = None
        price: dict[str, float] | None = None
        params: dict[str, Any] = {}
        headers: dict[str, SecretString] = {}

    settings = read(
        "models: {a: {provider: x, name: y, api_key_env: K, price: {input: 1, output: 2}, params: {stop: [a]}, "
        "headers: {X-Team: blue, X-Auth_env: H}}}",
        K="k",
        H="h",
    )
    assert build_plugin_settings(settings.models["a"], Remote) == Remote(
        name="y",
        api_key=SecretString("k"),
        price={"input": 1, "output": 2},
        params={"stop": ["a"]},
        headers={"X-Team": SecretString("blue"), "X-Auth": SecretString("h")},
    )


def test_the_callback_sees_every_plugin_section() -> None:
    seen: list[tuple[str, str, Mapping[str, Any]]] = []

    def validate(group: str, name: str, raw: Mapping[str, Any]) -> list[ConfigProblem]:
        seen.append((group, name, raw))
        return []

    text = """
        platforms: {x: {main: {a: {b_env: B}, c: 1}}}
        agents: {main: {tools: [memory, 'mcp:m', dice]}}
        mcp: {m: {command: [x]}}
    """
    parse_settings(text, validate_plugin=validate, environment=SecretEnvironment({"B": "b"}))
    assert [(group, name) for group, name, _ in seen] == [
        ("models", "offline"),
        ("memories", "builtin"),
        ("memories", "builtin"),
        ("memories", "builtin"),
        ("platforms", "x"),
        ("tools", "dice"),
    ]
    (raw,) = [raw for group, _, raw in seen if group == "platforms"]
    assert raw == {"a": {"b": SecretString("b")}, "c": 1, "agent": "main"}
