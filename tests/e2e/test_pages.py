"""The configurations in the docs are valid, and the commands they show exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from everhold.app import load_home_settings
from everhold.cli.main import parse_arguments
from everhold.infra.home import Home

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / name
    for name in (
        "how-to/use-your-model.md",
        "how-to/many-agents.md",
        "how-to/telegram.md",
        "explanation/whose-memory-is-it.md",
        "how-to/access-and-pairing.md",
        "how-to/forget-a-person.md",
        "how-to/move-from-hermes-agent.md",
        "how-to/groups.md",
        "how-to/send-files.md",
        "tutorial/your-first-agent.md",
    )
]


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_configuration_on_a_page_is_valid(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "yaml"):
        home = Home(tmp_path / "home").create()
        home.config.write_text(text)
        (home.path / "SOUL.md").write_text("You are kind.\n")
        settings = load_home_settings(home, environ={})
        assert settings.agents
        others = [
            it for it in settings.problems if not it.message.endswith(" is not set") and "pip install" not in it.remedy
        ]
        assert not others, "only keys and extras may be missing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_on_a_page_exist(page: Path) -> None:
    lines = [line.removeprefix("$ ") for text in blocks(page, "") for line in text.splitlines()]
    commands = [line for line in lines if line.startswith("everhold ")]
    for line in commands:
        words = shlex.split(re.sub(r"\s(<|&)( .*)?$", "", line), comments=True)
        parse_arguments(words[1:])
