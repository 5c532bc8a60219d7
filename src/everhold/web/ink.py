"""A reply on its way out word by word, so that what was committed is always what the reader has at the end."""

from __future__ import annotations

from typing import Final

from everhold.web.reply import Growth, Reply, Turned, Words

GAP: Final = "\n\n"


class Ink:
    """Remembers what was written down. Words cannot be taken back: where they were wrong, the record follows."""

    def __init__(self) -> None:
        self.written = ""
        """Everything."""
        self._since = ""
        """Since the agent last turned to something else."""

    def of(self, growth: Growth) -> str:
        """What to write now."""
        match growth:
            case Words(text):
                return self._write(text)
            case Turned():
                self._since = ""
                return ""
            case Reply(text=text):
                if text.startswith(self._since):
                    return self._write(text[len(self._since) :])
                if self._since.strip() == text.strip():
                    return ""
                self._since = ""
                return self._write(text)

    def _write(self, text: str) -> str:
        if not text:
            return ""
        shown = GAP + text if self.written and not self._since else text
        self._since += text
        self.written += shown
        return shown
