"""Writes a growing reply to a stream so that the client ends up with the committed text."""

from __future__ import annotations

from typing import Final

from everhold.api.reply_wait import FinalReply, ReplyGrowth, ReplyRestarted, ReplyText

PARAGRAPH_GAP: Final = "\n\n"


class ReplyWriter:
    """Tracks the written text. Written text cannot be removed, so the committed text follows where it differs."""

    def __init__(self) -> None:
        self.written_text = ""
        """All text so far."""
        self._text_since_restart = ""
        """The text since the reply last started again."""

    def write_growth(self, growth: ReplyGrowth) -> str:
        """Return the text to write now."""
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
