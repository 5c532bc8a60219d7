"""Writes locks/*.txt: the exact versions and hashes of what an install fetches. Needs `uv` and a package index.

python scripts/lock.py [--upgrade]

default.txt   what `pip install everhold` fetches
image.txt     what the container image contains: the same, with the extras of the Dockerfile
build.txt     what builds the wheel
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "locks"
HEAD = "# Written by `make lock`. Install it with: pip install --require-hashes -r locks/{name}\n"


def read_image_extras() -> list[str]:
    found = re.search(r"^ARG EXTRAS=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split(",")


def write_lock(name: str, source: str, extras: list[str], *, text: str = "") -> None:
    target = LOCKS / name
    words = ["uv", "pip", "compile", source, "--universal", "--python-version", "3.11", "--generate-hashes"]
    words += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "-o", str(target)]
    words += [word for extra in extras for word in ("--extra", extra)]
    words += ["--upgrade"] if "--upgrade" in sys.argv else []
    subprocess.run(words, input=text, text=True, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    target.write_text(HEAD.format(name=name) + target.read_text())


def main() -> None:
    LOCKS.mkdir(exist_ok=True)
    write_lock("default.txt", "pyproject.toml", [])
    write_lock("image.txt", "pyproject.toml", read_image_extras())
    backend = re.search(r'^requires = \["([^"]+)"\]', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert backend is not None
    write_lock("build.txt", "-", [], text=backend[1] + "\n")


if __name__ == "__main__":
    main()
