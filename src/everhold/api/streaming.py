"""Writes a growing reply to a stream so that the client ends up with the committed text."""

from __future__ import annotations

from typing import Final

from everhold.api.reply_wait import FinalReply, ReplyGrowth, ReplyRestarted, ReplyText

PARAGRAPH_GAP: Final = "\n\n"


class ReplyWriter:
    """Tracks the written text. Written text cannot be removed, so the committed text follows where it differs."""

    def __init__(self) -> None:
        self._written: list[str] = []
        """All text so far. It is joined once, because a reply comes in very many pieces."""
        self._since_restart: list[str] = []
        """The text since the reply last started again."""

    @property
    def written_text(self) -> str:
        return "".join(self._written)

    def is_first(self, text: str) -> bool:
        """Whether nothing was written before this text."""
        return self._written == [text]

    def write_growth(self, growth: ReplyGrowth) -> str:
        """Return the text to write now."""
        match growth:
            case ReplyText(text):
                return self._append_text(text)
            case ReplyRestarted():
                self._since_restart.clear()
                return ""
            case FinalReply(text=text):
                since_restart = "".join(self._since_restart)
                if text.startswith(since_restart):
                    return self._append_text(text[len(since_restart) :])
                if since_restart.strip() == text.strip():
                    return ""
                self._since_restart.clear()
                return self._append_text(text)

    def _append_text(self, text: str) -> str:
        if not text:
            return ""
        shown = PARAGRAPH_GAP + text if self._written and not self._since_restart else text
        self._since_restart.append(text)
        self._written.append(shown)
        return shown
