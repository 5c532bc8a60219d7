"""`everhold open`: makes a login link through the gateway's socket and opens it in a browser."""

from __future__ import annotations

import argparse
import asyncio
import html
import os
import sys
import webbrowser
from collections.abc import Mapping
from typing import Final

from everhold.cli.connect import find_home, find_running_gateway
from everhold.cli.render import CommandScreen
from everhold.errors import NotFound
from everhold.infra.home import Home, write_file

PAGE: Final = """\
<!doctype html>
<meta charset="utf-8" />
<meta name="referrer" content="no-referrer" />
<meta http-equiv="refresh" content="0; url={link}" />
<title>everhold</title>
<a href="{link}">Open the console</a>
"""


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_open_console(args, screen))


async def _open_console(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args)
    gateway = await find_running_gateway(home)
    if gateway is None or gateway.role != "gateway":
        raise NotFound(f"no gateway runs in {home.path}", remedy="`everhold up` runs one")
    made = await gateway.calls.create_login_code(token=args.token)
    if not made["url"]:
        raise NotFound("the gateway does not serve HTTP yet", remedy="try again when it is ready")
    link = f"{made['url']}/#code={made['code']}"
    if screen.json:
        screen.print_json({"link": link, "until": made["until"]})
        return 0
    screen.print_line(link)
    if not args.no_browser and has_browser(os.environ, sys.platform) and _open_link(home, link):
        screen.print_note("opened in your browser; the link works once, within ten minutes")
    else:
        screen.print_note("open this link in a browser; it works once, within ten minutes")
    return 0


def has_browser(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can show a window to this user."""
    if environ.get("SSH_CONNECTION"):
        return False
    return platform in ("darwin", "win32") or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def _open_link(home: Home, link: str) -> bool:
    """Open a page that leads to the link. Other users can read the arguments of a process, but not this file."""
    page = home.login_page
    write_file(page, PAGE.format(link=html.escape(link)).encode())
    try:
        return webbrowser.open(page.as_uri())
    except webbrowser.Error:
        return False
