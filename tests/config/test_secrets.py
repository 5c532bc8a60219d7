"""Secrets are in `.env` or the environment only. A missing secret disables only what needs it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from everhold.config import ConfigError, Settings, load_settings, parse_settings, set_secret, show_settings, to_yaml
from everhold.config.literals import is_env_name, is_secret_key, is_secret_like, suggest_env_name
from everhold.config.secrets import SecretEnvironment, format_env_line, parse_env
from everhold.errors import InvalidRequest
from everhold.infra.home import Home, read_file
from everhold.infra.secret import SecretString

TOKENS = {
    "telegram": "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1",
    "openai": "sk-proj-abcdefghijklmnop0123456789",
    "anthropic": "sk-ant-api03-abcdefghijklmnop0123456789",
    "slack bot": "xoxb-123456789012-abcdefghijklmnop",
    "slack app": "xapp-1-A0123456789-abcdefghijk",
    "discord": "MTE4NzY1NDMyMTA5ODc2NTQzMg.GabcdE.abcdefghijklmnopqrstuvwxyz012345678901",
    "matrix": "syt_YWRh_abcdefghijklmnopqrst_1a2b3c",
    "github": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.sig",
    "key": "-----BEGIN RSA PRIVATE KEY-----",
    "bearer": "Bearer abcdefghijklmnopqrstuvwx",
    "url": "postgresql://ada:hunter2@db/house",
}


def problems(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, environment=SecretEnvironment(environ))
    return str(caught.value)


# -- literals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize(
    "text",
    [
        "platforms: {telegram: {coder: {anything: '%s'}}}",
        "platforms: {telegram: {coder: {token_env: '%s'}}}",
        "platforms: {telegram: {'%s': {}}}",
        "mcp: {x: {command: [run, '%s']}}",
        "timezone: '%s'",
        "nonsense: '%s'",
        "http: {tokens: ['%s']}",
        "agents: {'%s': 5}",
        "store: '%s'",
        "a: '%s",
        "a: *%s",
    ],
)
def test_a_literal_token_is_refused_and_not_printed(kind: str, text: str) -> None:
    said = problems(text % TOKENS[kind])
    assert TOKENS[kind] not in said
    assert "hunter2" not in said


@pytest.mark.parametrize("key", ["token", "api_key", "apiKey", "password", "bot_token", "client_secret", "signing-key"])
def test_a_literal_secret_is_refused_by_its_key_with_a_replacement_line(key: str) -> None:
    said = problems(f"platforms:\n  telegram:\n    coder: {{{key}: hunter2}}\n")
    assert "hunter2" not in said
    name = suggest_env_name(("platforms", "telegram", "coder", key))
    assert name.startswith("TELEGRAM_CODER_")
    assert f"config.yaml:3: platforms.telegram.coder.{key}: holds a secret" in said
    assert f"write {key}_env: {name} here, and in .env the line {name}=…" in said


def test_the_suggested_variable_is_the_documented_one() -> None:
    assert suggest_env_name(("platforms", "telegram", "coder", "token")) == "TELEGRAM_CODER_TOKEN"
    assert suggest_env_name(("memories", "honcho", "api_key")) == "HONCHO_API_KEY"
    assert suggest_env_name(("http", "tokens", 0, "token")) == "EVERHOLD_TOKEN"


@pytest.mark.parametrize("value", ["$MY_TOKEN", "${MY_TOKEN}", "env:MY_TOKEN", "MY_TOKEN"])
def test_a_reference_to_a_variable_is_refused_with_the_right_key(value: str) -> None:
    assert "write token_env: MY_TOKEN" in problems(f"platforms: {{telegram: {{a: {{token: '{value}'}}}}}}")


def test_a_number_as_password_is_refused() -> None:
    assert "9876543" not in problems("platforms: {matrix: {a: {password: 9876543}}}")


@pytest.mark.parametrize(
    "text",
    [
        "defaults: {recall: {max_tokens: 1700}}",
        "models: {a: {provider: openai, name: x, context_tokens: 1000, max_tokens: 100}}",
        "mcp: {a: {command: [x], effects: {get_token: pure, set_password: once}}}",
        "platforms: {matrix: {a: {homeserver: 'https://m.example:8448', user: '@a:m.example'}}}",
        "people: [{name: a, identities: ['telegram:123456789', 'slack:U012ABCDEF', 'matrix:@a:m.example']}]",
        "agents: {token: {}, secret: {persona: 'Ask me for the password.'}}",
        "platforms: {x: {a: {token: null, password: ''}}}",
        "models: {a: {provider: openai, name: 'claude-sonnet-4-5-20250929', base_url: 'http://localhost:11434/v1'}}",
    ],
)
def test_a_text_that_only_resembles_a_secret_is_accepted(text: str) -> None:
    parse_settings(text)


def test_a_syntax_error_quotes_no_text() -> None:
    said = problems("platforms: {x: {a: {password: *hunter2}}}")
    assert "hunter2" not in said
    assert "config.yaml:1" in said


def test_secrets_are_recognised_by_key_and_by_shape() -> None:
    assert is_env_name("MY_TOKEN")
    assert not is_env_name(TOKENS["github"])
    assert not any(map(is_secret_key, ["tokens", "max_tokens", "token_env", "key", "secretary", "halt_word", "keep"]))
    assert not any(map(is_secret_like, ["sk-short", "a:b", "12:30", "https://host:80/x", "1001"]))


# -- where they come from ----------------------------------------------------------------------------------------------


ACCOUNT = "platforms: {telegram: {main: {token_env: T}}}\n"


def token(settings: Settings) -> object:
    return settings.platforms["telegram"]["main"].extra.get("token")


def put(home: Home, text: str, env: str = "") -> None:
    home.config.write_text(text)
    home.env.write_text(env)
    home.env.chmod(0o600)


def test_the_environment_overrides_the_file(home: Home) -> None:
    put(home, ACCOUNT, "T=file\n")
    assert token(load_settings(home, environ={})) == SecretString("file")
    assert token(load_settings(home, environ={"T": "process"})) == SecretString("process")
    assert token(load_settings(home, environ={"T": "  "})) == SecretString("file")


def test_a_missing_secret_disables_only_what_needs_it(home: Home) -> None:
    put(
        home,
        ACCOUNT
        + """\
models: {a: {provider: openai, name: x, api_key_env: A}}
http: {tokens: [{name: me, token_env: H}]}
mcp: {m: {command: [x], env: [M]}}
memories: {used: {api_key_env: U}, unused: {api_key_env: N}}
agents: {main: {memories: [used]}, second: {memories: [used]}}
""",
        "T=t\nU=\n",
    )
    settings = load_settings(home, environ={})
    assert [(problem.message, problem.disables) for problem in settings.problems] == [
        ("A is not set", "models.a"),
        ("H is not set", "http.tokens[0]"),
        ("M is not set", "mcp.m"),
        ("U is not set", "memories.used"),
    ]
    assert all(f"to {home.env}" in problem.remedy and problem.line for problem in settings.problems)
    assert settings.models["a"].missing == ("A",)
    assert not settings.models["a"].is_ready
    assert not settings.mcp["m"].is_ready
    assert settings.http.tokens[0].token is None
    assert settings.platforms["telegram"]["main"].is_ready


def test_a_disabled_account_needs_no_secret() -> None:
    assert parse_settings("platforms: {telegram: {main: {token_env: T, enabled: false}}}").problems == ()


def test_tool_servers_get_the_variables_they_name() -> None:
    settings = parse_settings(
        "mcp: {m: {command: [x], env: [A, B]}}", environment=SecretEnvironment({"A": "1", "B": "2", "C": "3"})
    )
    assert settings.mcp["m"].variables == {"A": SecretString("1"), "B": SecretString("2")}


def test_two_tokens_with_the_same_value_are_refused() -> None:
    text = "http: {tokens: [{name: a, token_env: A}, {name: b, token_env: B}]}"
    assert "is the same token as another" in problems(text, A="same", B="same")


def test_secrets_can_be_listed_for_redaction(sample: str) -> None:
    names = {
        "OPENAI_API_KEY": "k",
        "EVERHOLD_TOKEN": "e-0123456789abcdef0123456789abcdef",
        "TELEGRAM_CODER_TOKEN": "t",
        "HONCHO_API_KEY": "h",
    }
    settings = parse_settings(sample, environment=SecretEnvironment(names), read_persona=lambda _: "")
    assert {secret.reveal() for secret in settings.list_secrets()} == set(names.values())


def test_no_representation_shows_a_secret(sample: str, home: Home) -> None:
    canary = "canary-0123456789"
    put(
        home,
        sample,
        "".join(
            f"{name}={canary}-{name}\n"
            for name in (
                "OPENAI_API_KEY",
                "EVERHOLD_TOKEN",
                "TELEGRAM_CODER_TOKEN",
                "HONCHO_API_KEY",
                "SLACK_BOT",
                "MATRIX_TOKEN",
            )
        ),
    )
    (home.path / "SOUL.md").write_text("I am.")
    settings = load_settings(home, environ={})
    shown = (
        to_yaml(show_settings(settings))
        + repr(settings)
        + str(settings)
        + str(settings.problems)
        + repr(settings.document)
    )
    shown += str(settings.model_dump(exclude={"seen"}, warnings=False))
    assert canary not in shown
    assert "token_env: TELEGRAM_CODER_TOKEN" in shown


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_dotenv_file_is_parsed_in_its_usual_forms() -> None:
    lines, wrong = parse_env(
        b"\xef\xbb\xbf# secrets\r\n"
        b"A=plain\r\n"
        b"export B = 'single # quoted' # comment\n"
        b'C="a \\"b\\" \\n\\\\n $HOME"\n'
        b"D=with#hash   # comment\n"
        b"E=\n"
        b"F=a=b==\n"
        b"\n"
        b"A=later\n"
    )
    assert not wrong
    assert [(line.name, line.value.reveal(), line.line) for line in lines] == [
        ("A", "plain", 2),
        ("B", "single # quoted", 3),
        ("C", 'a "b" \n\\n $HOME', 4),
        ("D", "with#hash", 5),
        ("E", "", 6),
        ("F", "a=b==", 7),
        ("A", "later", 9),
    ]
    assert SecretEnvironment({}, lines).get("A") == SecretString("later")


@pytest.mark.parametrize(
    "text",
    ["hunter2", "=hunter2", "A B=hunter2", "1A=hunter2", 'A="hunter2', "A='hunter2' x", "A=hunter2\0", "sk-hunter2\n"],
)
def test_an_invalid_line_is_named_by_its_number_only(text: str, home: Home) -> None:
    put(home, "", f"OK=1\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(home, environ={})
    assert f"{home.env}:2" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_every_value_survives_a_write_and_a_read(value: str) -> None:
    lines, wrong = parse_env(f"A=1\n{format_env_line('X', SecretString(value))}\n".encode())
    assert not wrong
    assert [line.value.reveal() for line in lines] == ["1", value]


@given(st.binary())
def test_no_bytes_break_the_parser(data: bytes) -> None:
    parse_env(data)


def test_setting_a_secret_replaces_its_line_and_keeps_the_others(home: Home) -> None:
    put(home, "", "# mine\nA=1\nB=2 # two\n")
    set_secret(home, "A", SecretString('new "value"\n# here'))
    set_secret(home, "C", SecretString("three"))
    assert home.env.read_text() == '# mine\nA="new \\"value\\"\\n# here"\nB=2 # two\nC=three\n'
    assert home.env.stat().st_mode & 0o777 == 0o600


def test_the_first_secret_creates_the_file(home: Home) -> None:
    set_secret(home, "A", SecretString("1"))
    assert home.env.read_text() == "A=1\n"
    assert home.env.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidRequest, match="not the name of a variable"):
        set_secret(home, "no name", SecretString("1"))


def test_a_file_others_can_read_is_refused_with_the_remedy(home: Home) -> None:
    put(home, "", "A=1\n")
    home.env.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {home.env}"):
        load_settings(home, environ={})


def test_a_symlinked_secrets_file_is_refused(home: Home) -> None:
    other = home.path.parent / "other"
    other.write_text("A=1\n")
    other.chmod(0o600)
    home.env.symlink_to(other)
    with pytest.raises(ConfigError, match="symbolic link"):
        load_settings(home, environ={})
    with pytest.raises(ConfigError, match="symbolic link"):
        set_secret(home, "A", SecretString("2"))
    with pytest.raises(ConfigError, match="symbolic link"):
        read_file(home.env, private=True)
    assert other.read_text() == "A=1\n"
