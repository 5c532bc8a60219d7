"""The container image, built by buildah and run with the rights of `compose.yaml`. It needs no container engine.

The base image is `EVERHOLD_IMAGE_BASE`, which buildah may pull. Without it, a base is made from Debian's packages by
debootstrap, which takes some minutes: `make prove ARGS=tests/service/test_image.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BASE_VARIABLE = "EVERHOLD_IMAGE_BASE"
CERTIFICATES = Path("/etc/ssl/certs")
"""Those of this machine are shown to the build, because a proxy may stand before the package index."""
DEBIAN_PACKAGES = "python3,python3-venv,ca-certificates"
BUILD_SECONDS = 1_800
RUN_SECONDS = 300
USER_ID = 10001
DRIVER = """\
import json, os, signal, subprocess, sys
given = json.load(sys.stdin)
gateway = subprocess.Popen(given["command"], stdout=subprocess.PIPE, text=True)
ready = gateway.stdout.readline()
check = subprocess.run(given["health"], capture_output=True, text=True)
import http.client
connection = http.client.HTTPConnection("127.0.0.1", 8765, timeout=60)
connection.request("GET", "/health")
health = connection.getresponse()
status = subprocess.run(["everhold", "--json", "status"], capture_output=True, text=True)
modes = {name: oct(os.stat("/data/" + name).st_mode & 0o777) for name in os.listdir("/data")}
gateway.send_signal(signal.SIGTERM)
print(json.dumps({"ready": ready, "check": check.returncode, "health": health.status, "body": health.read().decode(),
                  "status": status.returncode, "uid": os.getuid(), "left": gateway.wait(),
                  "rights": open("/proc/self/status").read(), "modes": modes}))
"""
WRITABLE = """\
import json, os
found = []
for at, folders, files in os.walk("/"):
    folders[:] = [it for it in folders if os.path.join(at, it) not in ("/proc", "/dev", "/sys")]
    for name in [at, *(os.path.join(at, it) for it in files)]:
        if not os.path.islink(name) and os.access(name, os.W_OK):
            found.append(name)
print(json.dumps(found))
"""


class BuiltImage:
    """A container of the image, whose files are at `files`."""

    def __init__(self, buildah: Callable[..., str], container: str) -> None:
        self.config: dict[str, Any] = json.loads(buildah("inspect", container))["Docker"]["config"]
        self.files = Path(buildah("mount", container))

    def run(self, *words: str, given: str = "", is_root_writable: bool = False) -> str:
        """Run a command as the image's user, with the rights of compose.yaml, and return what it prints."""
        rights = "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"  # to become the user, who then has none
        bind = "--bind" if is_root_writable else "--ro-bind"
        environ = dict(entry.split("=", 1) for entry in self.config["Env"])
        command = ["bwrap", bind, str(self.files), "/", "--bind", str(self.files / "data"), "/data"]
        command += ["--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--tmpfs", "/tmp"]
        command += ["--unshare-net", "--unshare-pid", "--die-with-parent", "--chdir", "/", "--clearenv"]
        command += [word for name, value in environ.items() for word in ("--setenv", name, value)]
        command += ["--cap-drop", "ALL", *(word for right in rights for word in ("--cap-add", right)), "--"]
        command += ["setpriv", "--reuid", str(USER_ID), "--regid", str(USER_ID), "--clear-groups", "--no-new-privs"]
        command += ["--inh-caps=-all", "--bounding-set=-all", *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltImage]:
    for program, package in (("buildah", "buildah"), ("bwrap", "bubblewrap"), ("setpriv", "util-linux")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing, so the image cannot be built and run: apt-get install {package}")
    if os.geteuid() != 0:
        pytest.skip("only root can build the image without a container engine")
    folder = tmp_path_factory.mktemp("image")

    def buildah(*words: str) -> str:
        where = ["--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
        done = subprocess.run(
            ["buildah", *where, *words], cwd=ROOT, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
        assert done.returncode == 0, f"buildah {words[0]}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout.strip()

    base = os.environ.get(BASE_VARIABLE) or _make_base(buildah, folder / "debian")
    chosen = ["--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={base}"]
    if CERTIFICATES.is_dir():
        chosen += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    buildah("build", *chosen, "--tag", "everhold", ".")
    container = buildah("from", "everhold")
    try:
        yield BuiltImage(buildah, container)
    finally:
        buildah("umount", container)
        buildah("rmi", "--all", "--force")
        shutil.rmtree(folder, ignore_errors=True)


def _make_base(buildah: Callable[..., str], folder: Path) -> str:
    """Make an image with Python from the packages of the Debian that runs here."""
    if shutil.which("debootstrap") is None:
        pytest.skip(f"debootstrap is missing and {BASE_VARIABLE} names no base image: apt-get install debootstrap")
    rows = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    mirror, _, release = next(row for row in rows if row and "-" not in row.rpartition(" ")[2]).partition(" ")
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={DEBIAN_PACKAGES}", release, str(folder), mirror],
        capture_output=True,
        timeout=BUILD_SECONDS,
        check=True,
    )
    (folder / "usr/bin/python").symlink_to("python3")
    container = buildah("from", "scratch")
    buildah("add", container, str(folder), "/")
    buildah("commit", container, "base-of-everhold")
    buildah("rm", container)
    shutil.rmtree(folder)
    return "localhost/base-of-everhold"


@pytest.mark.prove
def test_the_image_answers_with_a_read_only_root_and_no_rights(image: BuiltImage) -> None:
    assert image.config["User"] == "everhold"
    kind, *health = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    given = {"command": [*image.config["Entrypoint"], *image.config["Cmd"]], "health": health}
    found = json.loads(image.run("python", "-c", DRIVER, given=json.dumps(given)))
    assert found["ready"].startswith("ready")
    assert (found["check"], found["health"], json.loads(found["body"])) == (0, 200, {"status": "ok"})
    assert (found["status"], found["left"]) == (0, 0)
    assert found["uid"] == USER_ID
    assert re.search(r"^CapEff:\t0+$", found["rights"], re.MULTILINE)
    assert re.search(r"^CapBnd:\t0+$", found["rights"], re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", found["rights"], re.MULTILINE)
    assert {".env", "everhold.db", "api.sock"} <= set(found["modes"])
    assert set(found["modes"].values()) <= {"0o600", "0o700"}


@pytest.mark.prove
def test_the_image_prints_its_version_and_has_the_locked_packages(image: BuiltImage) -> None:
    assert re.fullmatch(r"everhold \d+\.\d+\S*\n", image.run("everhold", "--version"))
    names = re.compile(r"[-_.]+")
    locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "locks" / "image.txt").read_text(), re.MULTILINE)
    rows = json.loads(image.run("/opt/everhold/bin/pip", "list", "--format", "json", "--disable-pip-version-check"))
    installed = {(names.sub("-", row["name"]).lower(), row["version"]) for row in rows}
    foreign = {name for name, _ in installed - set(locked)}
    assert foreign == {"everhold", "pip", "setuptools"} - ({"setuptools"} - {name for name, _ in installed})


@pytest.mark.prove
def test_the_user_can_change_nothing_of_the_image_but_its_own_folders(image: BuiltImage) -> None:
    """Even if the container's root is writable, as without `read_only`."""
    found = json.loads(image.run("python", "-c", WRITABLE, is_root_writable=True))
    own = re.compile(r"/data(/.*)?|/home/everhold(/.*)?|/tmp|/var/tmp|/run/lock|/var/lock")
    assert [name for name in found if not own.fullmatch(name)] == []
    assert "/data" in found


@pytest.mark.prove
def test_the_image_contains_no_sources_and_no_secrets(image: BuiltImage) -> None:
    assert not (image.files / "src").exists()
    assert not (image.files / "dist").exists()
    assert not list((image.files / "opt").rglob(".env"))
    assert not list((image.files / "root").rglob("pip"))
    assert not re.search(r"(?i)token|secret|password|api_?key", json.dumps(image.config["Env"]))
