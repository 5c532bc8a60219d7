"""The address of the database is complete where it is used, and its password is shown nowhere."""

from __future__ import annotations

import pytest

from everhold.config import parse_settings, show_settings, to_yaml
from everhold.config.secrets import SecretEnvironment


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
