"""Input and output of a chat: a prompt with history, growing replies, and remarks.

Input is read on the main thread and replies arrive on another, so a reply that arrives during typing is written above
the prompt, and the typed text is printed again below it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Final

from everhold.cli.render import CommandScreen, escape_control

with contextlib.suppress(ImportError):  # without it, the chat works without history
    import readline

PROMPT: Final = "you> "
_CLEAR: Final = "\r\x1b[K"


class ChatTerminal:
    """One person at a terminal, or a program with pipes."""

    def __init__(self, screen: CommandScreen) -> None:
        self.screen = screen
        self.live = sys.stdin.isatty() and screen.out.isatty()
        """Input and output are a terminal: show a prompt, growing replies and remarks."""
        self._lock = RLock()
        self.prompting = False
        """A prompt is shown, so the person may be typing."""
        self._growing: tuple[int, str] | None = None
        """The operation whose reply is growing, and its text on the screen."""
        self._unwanted = 0
        """The operation whose growing reply is no longer shown."""
        if self.live and not screen.dumb and "readline" in sys.modules:
            # Python turns this off. Without it each line of pasted text would be sent as a message
            readline.parse_and_bind("set enable-bracketed-paste on")

    # -- input -------------------------------------------------------------------------------------------------------

    def set_history(self, lines: Iterable[str]) -> None:
        """Set the lines that the arrow keys recall."""
        if self.live and "readline" in sys.modules:
            for line in lines:
                readline.add_history(line)

    def offer_completions(self, complete: Callable[[str], list[str]]) -> None:
        """Let Tab complete the first word of a line to one of the words that `complete` returns for it."""
        if not self.live or "readline" not in sys.modules:
            return

        def find_candidate(text: str, state: int) -> str | None:
            found = complete(text) if readline.get_begidx() == 0 else []
            return found[state] if state < len(found) else None

        readline.set_completer(find_candidate)
        readline.set_completer_delims(" \t\n")  # the slash belongs to the word
        # on macOS Python uses another line editor with another syntax
        libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")

    def read_line(self) -> str:
        """Return the next typed message. Raises EOFError at the end and KeyboardInterrupt on Ctrl-C."""
        if not self.live:
            self.prompting = True
            try:
                line = sys.stdin.readline()
            finally:
                self.prompting = False
            if not line:
                raise EOFError
            return line.rstrip("\n")
        lines = [self._prompt_line(PROMPT)]
        while lines[-1].endswith("\\"):  # the message continues on the next line
            lines[-1] = lines[-1][:-1]
            lines.append(self._prompt_line("… "))
        return "\n".join(lines)

    def _prompt_line(self, prompt: str) -> str:
        with self._lock:
            self._end_growing()
        try:
            self.prompting = True
            return input(self._colour_prompt(prompt)).rstrip("\n")  # pasted text may end with a newline
        except UnicodeDecodeError:
            return ""
        finally:
            self.prompting = False

    def _colour_prompt(self, prompt: str) -> str:
        """Return the prompt with colours that the line editor does not count as columns."""
        if not self.screen.paint.enabled:
            return prompt
        return f"\x01\x1b[1;36m\x02{prompt}\x01\x1b[0m\x02"

    # -- output ------------------------------------------------------------------------------------------------------

    def print_remark(self, text: str, style: str = "dim") -> None:
        """Print a remark that is not part of the conversation. Programs do not get it."""
        if self.live:
            self._write(self.screen.paint(f"— {escape_control(text)}", style))

    def print_error(self, text: str) -> None:
        """Print an error, for programs, too."""
        if self.live:
            self._write(self.screen.paint(f"! {escape_control(text)}", "red"))
        else:
            self.screen.print_note(f"everhold: {escape_control(text)}")

    def print_message(self, who: str, text: str, style: str) -> None:
        """Print a complete message."""
        if self.live:
            self._write(f"{self.screen.paint(escape_control(who) + '>', 'bold', style)} {escape_control(text)}")
        else:
            self._write(escape_control(text))

    def update_reply(self, who: str, op: int, text: str) -> None:
        """Show the text so far of a growing reply. Does nothing while a prompt is shown."""
        with self._lock:
            if not self.live or self.prompting or not text or op == self._unwanted:
                return
            shown = escape_control(text)
            if self._growing is None or self._growing[0] != op or not shown.startswith(self._growing[1]):
                self._end_growing()
                self._growing = (op, "")
                self._write_raw(f"{self.screen.paint(escape_control(who) + '>', 'bold', 'green')} ")
            self._write_raw(shown[len(self._growing[1]) :])
            self._growing = (op, shown)

    def print_reply(self, who: str, op: int, text: str) -> None:
        """Print a committed reply: the rest of the growing text, or all of it."""
        with self._lock:
            if self._growing is not None and self._growing[0] == op:
                seen, whole = self._growing[1], escape_control(text)
                self._growing = None
                if whole.startswith(seen.rstrip()):  # models stream a last blank that the committed reply does not have
                    self._write_raw(whole[len(seen) :] + "\n")
                    return
                self._write_raw("\n")
            self.print_message(who, text, "green")

    def finish_growing_reply(self) -> None:
        """End the line of the growing reply, so that the next output starts on a new line."""
        with self._lock:
            self._end_growing()

    def hide_growing_reply(self) -> None:
        """Stop showing the present growing reply."""
        with self._lock:
            if self._growing is not None:
                self._unwanted = self._growing[0]
            self._end_growing()

    def _end_growing(self) -> None:
        if self._growing is not None:
            self._growing = None
            self._write_raw("\n")

    def _write(self, text: str) -> None:
        with self._lock:
            self._end_growing()
            if self.prompting:
                typed = readline.get_line_buffer() if "readline" in sys.modules else ""
                prompt = self.screen.paint(PROMPT, "bold", "cyan")
                self._write_raw(f"{_CLEAR}{text}\n{prompt}{typed}")
            else:
                self._write_raw(text + "\n")

    def _write_raw(self, text: str) -> None:
        self.screen.out.write(text)
        self.screen.out.flush()
