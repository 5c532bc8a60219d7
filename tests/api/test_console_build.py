"""The files of the console in the package are what `make console` makes from the locked packages."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from everhold.api.console import CONSOLE_DIRECTORY
from scripts.console_types import render_types
from tests.api.programs import NODE_PATH, install_locked_packages, run_program

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "console"
MOST_PACKAGES: Final = 8
REMEDY: Final = "run `make console` and commit src/everhold/console"


def read_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
async def workshop(pytestconfig: pytest.Config, tmp_path: Path) -> Path:
    """Return a copy of the console's source with its packages."""
    assert pytestconfig.cache is not None
    packages = await install_locked_packages(pytestconfig.cache.mkdir("console-node"), SOURCE)
    made = tmp_path / "console"
    shutil.copytree(SOURCE, made, ignore=shutil.ignore_patterns("node_modules", "generated.ts"))
    (made / "node_modules").symlink_to(packages / "node_modules")
    await run_program(sys.executable, str(ROOT / "scripts" / "console_types.py"), str(made / "src/api/generated.ts"))
    return made


async def build(workshop: Path) -> dict[str, bytes]:
    output = workshop.parent / "output"
    await run_program(
        "npm", "run", "build", env={"PATH": NODE_PATH, "CONSOLE_OUTPUT": str(output)}, cwd=workshop
    )  # fmt: skip
    return read_files(output)


@pytest.mark.slow
async def test_the_committed_files_are_what_the_source_makes(workshop: Path) -> None:
    assert await build(workshop) == read_files(CONSOLE_DIRECTORY), REMEDY


@pytest.mark.slow
async def test_a_route_that_is_called_wrongly_fails_the_build(workshop: Path) -> None:
    client = workshop / "src" / "login" / "login.ts"
    client.write_text(
        client.read_text()
        + "import { call } from '../api/client';\nvoid call('GET /api/sessions/{id}', { di: 'x' });\n"
    )
    with pytest.raises(AssertionError, match=r"TS2345|TS2353|TS2561"):
        await build(workshop)


def test_every_package_is_locked_to_a_version_and_a_digest_and_no_address() -> None:
    text = (SOURCE / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    assert "resolved" not in text
    assert [name for name, it in packages.items() if "://" in json.dumps({**it, "funding": ""})] == []
    assert [name for name, it in packages.items() if name and not it["integrity"].startswith("sha512-")] == []
    wanted = json.loads((SOURCE / "package.json").read_text())
    named = wanted["dependencies"] | wanted["devDependencies"]
    assert len(named) <= MOST_PACKAGES
    assert {name: packages[f"node_modules/{name}"]["version"] for name in named} == named


def test_types_are_made_for_every_form_of_a_schema() -> None:
    document = {
        "components": {
            "schemas": {
                "One": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                "Two": {"anyOf": [{"$ref": "#/components/schemas/One"}, {"type": "null"}]},
                "Three": {"type": "array", "prefixItems": [{"type": "string"}, {"type": ["number", "null"]}]},
            }
        },
        "paths": {},
    }
    text = render_types(document)
    assert 'export type One = {\n  "a": number;\n};' in text
    assert "export type Two = One | null;" in text
    assert "export type Three = [string, number | null];" in text
