"""The address of the database is complete where it is used, and its password is shown nowhere."""

from __future__ import annotations

import pytest

from everhold.config import ConfigError, parse_settings, show_settings, to_yaml
from everhold.config.secrets import SecretEnvironment
from everhold.errors import InvalidRequest


@pytest.mark.parametrize(
    "text, environ, dsn",
    [
        ("store: {url: 'postgresql://ada@db/x', password_env: PW}", {"PW": "a/b@c"}, "postgresql://ada:a%2Fb%40c@db/x"),
        (
            "store: {url: 'postgresql://ada@one,two:6432/x?sslmode=require', password_env: PW}",
            {"PW": "hunter22"},
            "postgresql://ada:hunter22@one,two:6432/x?sslmode=require",
        ),
        ("store: {url: 'postgresql://ada@db/x'}", {}, "postgresql://ada@db/x"),
        ("store: {url_env: URL}", {"URL": "postgresql://ada:hunter22@db/x\n"}, "postgresql://ada:hunter22@db/x"),
    ],
)
def test_the_address_gets_its_password_from_the_environment(text: str, environ: dict[str, str], dsn: str) -> None:
    settings = parse_settings(text, environment=SecretEnvironment(environ))
    assert settings.store.build_dsn().reveal() == dsn
    shown = to_yaml(show_settings(settings)) + repr(settings) + str(settings.document)
    assert "hunter22" not in shown
    assert "a/b@c" not in shown
    assert "a%2F" not in shown
    assert not environ or settings.list_secrets()
    again = parse_settings(to_yaml(show_settings(settings)), environment=SecretEnvironment(environ))
    assert again.store == settings.store


@pytest.mark.parametrize("password", ["100%sure-geheim", "geh/eim", "geh@eim", "geheim%2"])
def test_a_password_that_would_be_read_as_something_else_is_refused_and_not_shown(password: str) -> None:
    """The driver would take a part of it for the server's name or the database's, and write that into errors."""
    environment = SecretEnvironment({"URL": f"postgresql://ada:{password}@db/x"})
    with pytest.raises(ConfigError, match="%25") as refused:
        parse_settings("store: {url_env: URL}", environment=environment)
    assert not any(part in str(refused.value) for part in ("geh", "eim", "sure"))


def test_a_password_in_the_query_is_refused_however_it_is_written() -> None:
    with pytest.raises(ConfigError, match="holds a password"):
        parse_settings("store: {url: 'postgresql://ada@db/x?passw%6Frd=hunter22'}", environment=SecretEnvironment({}))


@pytest.mark.parametrize(
    "url", ["postgresql://ada:hunter%zz22@db/x", "postgresql://[::1/x:hunter22@db", "postgresql://db/x?hunter22"]
)
def test_the_driver_s_complaint_about_an_address_is_not_shown(url: str) -> None:
    psycopg = pytest.importorskip("psycopg", reason="pip install 'everhold[postgres]'")
    assert psycopg
    from everhold.stores.postgres.connections import build_conninfo
    from everhold.stores.postgres.shared_store import describe_address

    with pytest.raises(InvalidRequest) as refused:
        build_conninfo(url)
    assert "hunter" not in str(refused.value) + describe_address(url)
    assert refused.value.__cause__ is None
