"""A reply on its way out word by word, so that what was committed is always what the reader has at the end."""

from __future__ import annotations

from typing import Final

from everhold.api.reply_wait import FinalReply, ReplyGrowth, ReplyRestarted, ReplyText

PARAGRAPH_GAP: Final = "\n\n"


class ReplyWriter:
    """Remembers what was written down. Words cannot be taken back: where they were wrong, the record follows."""

    def __init__(self) -> None:
        self.written_text = ""
        """Everything."""
        self._text_since_restart = ""
        """Since the agent last turned to something else."""

    def write_growth(self, growth: ReplyGrowth) -> str:
        """What to write now."""
        match growth:
            case ReplyText(text):
                return self._append_text(text)
            case ReplyRestarted():
                self._text_since_restart = ""
                return ""
            case FinalReply(text=text):
                if text.startswith(self._text_since_restart):
                    return self._append_text(text[len(self._text_since_restart) :])
                if self._text_since_restart.strip() == text.strip():
                    return ""
                self._text_since_restart = ""
                return self._append_text(text)

    def _append_text(self, text: str) -> str:
        if not text:
            return ""
        shown = PARAGRAPH_GAP + text if self.written_text and not self._text_since_restart else text
        self._text_since_restart += text
        self.written_text += shown
        return shown
