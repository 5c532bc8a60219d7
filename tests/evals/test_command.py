"""`everhold eval compression`: what it prints, draws and writes, and its exit codes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

from everhold.cli.main import run_command

TALK = """# A small talk
> Ada: The key to the archive hangs behind the second door, and its number is 5519.
< Understood, behind the second door, and 5519 is what is written on it.
> Ada: It rains, and it will go on raining for as long as anybody cares to look at the sky today.
< That is a lot of rain, and I hope that you have an umbrella with you wherever you go.
> Ada: From now on, always call the archive the attic.
< The attic it is.
> Ada: What else did I want to say? I do not know, something about the weather and the garden, I believe.
< We can come back to that whenever you like.
> Ada: One more thing, and then I am off.
< Go ahead.
? number: Which number has the key? = 5519
? rule: What must the archive be called? = the attic
"""


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.txt"
    path.write_text(TALK)
    return path


def test_the_command_prints_a_table_and_draws_a_plot(talk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = talk.with_suffix(".svg")
    assert (
        run_command(
            ["eval", "compression", "--conversations", str(talk), "--compressions", "1", "--plot", str(picture)]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].startswith("CONVERSATION  COMPRESSIONS")
    assert "2/2 100%" in shown
    drawn = Xml.parse(picture).getroot()
    assert drawn.tag.endswith("svg")
    assert "talk" in "".join(drawn.itertext())


def test_the_command_prints_json(talk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_command(
            ["eval", "compression", "--conversations", str(talk), "--compressions", "1", "--keep", "1", "--json"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    (score,) = found["scores"]
    assert score["same_session"]
    assert score["kept"] == 2
    assert [outcome["kind"] for outcome in score["outcomes"]] == ["number", "rule"]
    assert score["tokens_after"] < score["tokens_before"]


def test_a_score_below_the_baseline_is_an_error(talk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = talk.with_suffix(".json")
    asked = ["eval", "compression", "--conversations", str(talk), "--compressions", "1", "--baseline", str(baseline)]
    assert run_command([*asked, "--renew"]) == 0
    assert run_command(asked) == 0
    known = json.loads(baseline.read_text())
    known["scores"]["talk/1"]["kept"] = 3
    baseline.write_text(json.dumps(known))
    capsys.readouterr()
    assert run_command(asked) == 1
    assert "talk/1: kept 2 facts, it was 3" in capsys.readouterr().out


def test_a_configured_model_can_be_scored(
    talk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = talk.parent / "home"
    home.mkdir()
    (home / "config.yaml").write_text(
        "models: {mine: {provider: offline, name: quite-mine}}\ndefaults: {model: mine}\n"
    )
    monkeypatch.setenv("EVERHOLD_HOME", str(home))
    asked = ["eval", "compression", "--conversations", str(talk), "--compressions", "1", "--json"]
    for more in (["--model", "mine"], ["--agent", "main"]):
        assert run_command([*asked, *more]) == 0
        assert json.loads(capsys.readouterr().out)["scores"][0]["model"] == "quite-mine"
    assert run_command([*asked, "--model", "other"]) == 2
    assert not (home / "log.db").exists()


@pytest.mark.parametrize(
    "more", [["--plot", "x.png"], ["--compressions", "0"], ["--compressions", "often"], ["--conversations", "nowhere"]]
)
def test_an_invalid_option_is_refused_with_a_remedy(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["eval", "compression", *more]) != 0
    assert "→" in capsys.readouterr().err
