"""Programs through which an attacker reaches the gateway: reverse proxies, a forwarded port, another unix user."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import block_until

NOBODY = 65534

NGINX = """\
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log;
user root;
events {{}}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  server {{
    listen 127.0.0.1:{port}{tls};
    location / {{
      proxy_pass http://127.0.0.1:{target};
      {lines}
    }}
  }}
}}
"""
NGINX_LINES = {
    "as it is by default": "",
    "with HTTP/1.1": 'proxy_http_version 1.1; proxy_set_header Connection "";',
    "with a local Host": 'proxy_http_version 1.1; proxy_set_header Host localhost; proxy_set_header Connection "";',
    "with the client's Host": "proxy_http_version 1.1; proxy_set_header Host $http_host;",
    "as documented": (
        "proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_buffering off; "
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme;"
    ),
}
CADDY = """\
{{
  admin off
  auto_https off
  storage file_system {directory}
}}
http://127.0.0.1:{port}, http://localhost:{port}, http://evil.example:{port} {{
  reverse_proxy 127.0.0.1:{target} {{
    {lines}
  }}
}}
"""
CADDY_LINES = {
    "as it is by default": "",
    "with a local Host and no forwarding headers": (
        "header_up Host 127.0.0.1\n    header_up -X-Forwarded-For\n    header_up -X-Forwarded-Proto\n"
        "    header_up -X-Forwarded-Host"
    ),
}


def find_program(name: str) -> str:
    """Return the path of a program. Skips the test if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"there is no {name} on this machine: apt-get install {name}")
    return found


def choose_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def run_listener(command: list[str], port: int, **environ: str) -> Iterator[int]:
    """Run a program until the end of the block, from the time it listens on."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={"PATH": "/usr/bin:/bin", **environ}
    )
    try:
        block_until(lambda: process.poll() is not None or _is_listening(port))
        if process.poll() is not None:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read().decode())
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def run_nginx(directory: Path, target: int, lines: str, *, certificate: Path | None = None) -> Iterator[int]:
    program, port = find_program("nginx"), choose_port()
    directory.mkdir(parents=True, exist_ok=True)
    tls = ""
    if certificate is not None:
        tls = f" ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate}"
    text = NGINX.format(directory=directory, port=port, target=target, lines=lines, tls=tls)
    (directory / "nginx.conf").write_text(text)
    command = [program, "-p", str(directory), "-e", str(directory / "early.log"), "-c", str(directory / "nginx.conf")]
    with run_listener(command, port):
        yield port


@contextlib.contextmanager
def run_caddy(directory: Path, target: int, lines: str) -> Iterator[int]:
    program, port = find_program("caddy"), choose_port()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "Caddyfile").write_text(CADDY.format(directory=directory, port=port, target=target, lines=lines))
    command = [program, "run", "--config", str(directory / "Caddyfile"), "--adapter", "caddyfile"]
    with run_listener(command, port, HOME=str(directory), XDG_DATA_HOME=str(directory)):
        yield port


@contextlib.contextmanager
def run_socat(target: int) -> Iterator[int]:
    """Forward a port: the gateway sees a plain connection from 127.0.0.1."""
    program, port = find_program("socat"), choose_port()
    listen = f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr"
    with run_listener([program, listen, f"TCP:127.0.0.1:{target}"], port):
        yield port


SSHD = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {directory}/host
AuthorizedKeysFile {directory}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""


@contextlib.contextmanager
def run_ssh(directory: Path, target: int) -> Iterator[int]:
    """Forward a port of an SSH server to the gateway, as `ssh -R` does. The port is on the server."""
    server, client, keygen = find_program("sshd"), find_program("ssh"), find_program("ssh-keygen")
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd needs it, and its service makes it
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    listening, forwarded = choose_port(), choose_port()
    (directory / "sshd_config").write_text(SSHD.format(directory=directory, port=listening))
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ExitOnForwardFailure=yes", "BatchMode=yes")
    command = [client, "-F", "none", "-N", "-i", str(directory / "user"), "-p", str(listening)]
    command += [word for option in options for word in ("-o", option)]
    command += ["-R", f"127.0.0.1:{forwarded}:127.0.0.1:{target}", f"{getpass.getuser()}@127.0.0.1"]
    with run_listener([server, "-D", "-e", "-f", str(directory / "sshd_config")], listening):
        with run_listener(command, forwarded):
            yield forwarded


def make_certificate(directory: Path) -> Path:
    """Return a file with a certificate of this machine and its key."""
    crt, key, both = directory / "crt", directory / "key", directory / "both.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    given = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", names)
    subprocess.run([find_program("openssl"), *given, "-keyout", key, "-out", crt], check=True, capture_output=True)
    both.write_bytes(crt.read_bytes() + key.read_bytes())
    return both


def run_as_nobody(code: str, *args: str) -> str:
    """Run Python code as another unix user and return what it prints. Skips the test if this user may not do that."""
    if os.geteuid() != 0:
        pytest.skip("only root can run a program as another user")
    # everything is imported before, because the other user may not read this interpreter
    imports = "import encodings.idna, http.client, json, os, socket, sys\n"
    prelude = f"os.setgroups([])\nos.setgid({NOBODY})\nos.setuid({NOBODY})\n"
    done = subprocess.run(
        [sys.executable, "-c", imports + prelude + code, *args], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
