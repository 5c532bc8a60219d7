"""Turns HTML into readable text. It is a program of its own, because a hostile page may need much time and memory, and
a process can be limited and ended. It imports nothing else of this package.

Standard input: HTML in UTF-8. Standard output: JSON `{"title": …, "text": …}`.
"""

import json
import os
import re
import sys
from html.parser import HTMLParser

MAX_MEMORY_BYTES = 1 << 30
MAX_CPU_SECONDS = 20
NICENESS = 10
"""The gateway goes first."""
MAX_TEXT_CHARS = 2_000_000
MAX_LINK_CHARS = 2_000

HIDDEN = frozenset("script style noscript template svg canvas iframe object head nav form button select".split())
VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
BLOCKS = frozenset(
    "address article aside blockquote dd div dl dt figcaption figure footer h1 h2 h3 h4 h5 h6 header hr li main ol p "
    "pre section table tr ul br title".split()
)
_SPACE = re.compile(r"[^\S\n]+")


class ReadableText(HTMLParser):
    """Collects the text that a reader sees, with the addresses of links."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title = ""
        self.hidden: list[str] = []
        self.links: list[str] = []
        self.size = 0
        self.in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self.in_title = True
        if tag in HIDDEN and tag not in VOID:
            self.hidden.append(tag)
        if self.hidden:
            return
        if tag in BLOCKS:
            self.add("\n")
        if re.fullmatch(r"h[1-6]", tag):
            self.add("#" * int(tag[1]) + " ")
        if tag == "li":
            self.add("- ")
        if tag == "a":
            self.links.append(next((value or "" for name, value in attrs if name == "href"), "")[:MAX_LINK_CHARS])

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self.in_title = False
        if tag in self.hidden:
            del self.hidden[self.hidden.index(tag) :]
            return
        if self.hidden:
            return
        if tag == "a" and self.links:
            link = self.links.pop()
            if link.startswith(("http://", "https://")):
                self.add(f" ({link})")
        if tag in BLOCKS:
            self.add("\n")

    def handle_data(self, data: str) -> None:
        if self.in_title and len(self.title) < 300:
            self.title += data
        elif not self.hidden:
            self.add(_SPACE.sub(" ", data.replace("\n", " ")))

    def add(self, text: str) -> None:
        if self.size < MAX_TEXT_CHARS:
            self.parts.append(text)
            self.size += len(text)


def extract_text(html: str) -> dict[str, str]:
    reader = ReadableText()
    reader.feed(html)
    reader.close()
    lines = (line.strip() for line in "".join(reader.parts).split("\n"))
    return {"title": " ".join(reader.title.split())[:300], "text": "\n".join(line for line in lines if line)}


def main() -> None:
    try:
        import resource

        os.nice(NICENESS)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    except (ImportError, ValueError, OSError):
        pass  # the time limit of the gateway still holds
    json.dump(extract_text(sys.stdin.buffer.read().decode("utf-8", "replace")), sys.stdout)


if __name__ == "__main__":
    main()
