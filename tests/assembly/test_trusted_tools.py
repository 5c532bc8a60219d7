"""Tools that run as code in the gateway are shown as what they are: trusted code."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command_home import CONFIG, CommandHome, make_plugin


def test_a_plug_in_tool_is_shown_as_trusted_code(tmp_path: Path) -> None:
    home = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    given = {
        "tools": {"big": {"provider": "dice"}},
        "agents": {"main": {"tools": ["attach", "big"]}, "other": {"tools": ["dice", "big"]}},
    }
    (home.path / "config.yaml").write_text(CONFIG + "\n".join(f"{k}: {json.dumps(v)}" for k, v in given.items()))
    try:
        home.start_gateway()
        shown = home.run_in_process("tools", "--json").ok().json["plugins"]
        assert shown == [
            {"name": "big", "package": "dice", "agents": ["main", "other"]},
            {"name": "dice", "package": "dice", "agents": ["other"]},
        ]
        lines = home.run_in_process("tools").ok().out
        assert "big: trusted code of the package dice" in lines
        assert "attach" not in lines, "a built-in tool is no plug-in"
        findings = home.run("doctor", "--json", "--offline").json["findings"]
        assert {(it["level"], it["text"].partition(":")[0]) for it in findings if it["check"] == "tools"} == {
            ("note", "big is trusted code of the package dice"),
            ("note", "dice is trusted code of the package dice"),
        }
    finally:
        home.close()
