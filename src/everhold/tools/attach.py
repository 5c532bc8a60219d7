"""The `attach` tool attaches a file to the reply: a file of this conversation, by its id or name, or a new text file. A
name only selects among stored files. It is never opened as a path."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from typing import Any, Final

from everhold.core.attachments import build_attachment, list_incoming_attachments, sanitize_file_name
from everhold.core.entries import Attachment, EntryKind
from everhold.core.policy import ToolReach
from everhold.core.roles import ToolAccess
from everhold.ports.model import ToolSpec
from everhold.ports.store import Store
from everhold.ports.tool import ToolContext, ToolEffect, ToolFile, ToolResult

MAX_TEXT_CHARS: Final = 500_000
"""Maximum characters of a text that becomes a file."""
PAGE_SIZE: Final = 500
MAX_LISTED: Final = 20
SHORT_HASH_CHARS: Final = 12
"""How many characters of a hash are shown, and accepted as an id."""


class AttachTool:
    """The attachment commits with the call's result, so a repeated run before the commit has no effect: the tool is
    pure."""

    effect = ToolEffect.PURE
    access = ToolAccess.ACT
    deadline = 20.0

    def __init__(self, store: Store) -> None:
        self.store = store
        self.spec = ToolSpec(
            name="attach",
            description=(
                "Attach a file to your reply: one that was sent or made in this conversation (`file`: its id or name), "
                "or a new text file (`name` and `text`). Without arguments it lists the files there are."
            ),
            parameters={
                "type": "object",
                "properties": {
                    "file": {"type": "string", "description": "Id or name of a file of this conversation."},
                    "name": {"type": "string", "description": "The name of a new file, such as report.csv."},
                    "text": {
                        "type": "string",
                        "maxLength": MAX_TEXT_CHARS,
                        "description": "The content of the new file.",
                    },
                },
                "additionalProperties": False,
            },
        )

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.OWN

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        wanted, name, text = (arguments.get(key) for key in ("file", "name", "text"))
        if context.origin is None:
            return ToolResult(text="There is no reply here to attach a file to.", error=True)
        if isinstance(text, str) and text:
            return self._create_text_file(name if isinstance(name, str) else "", text)
        if not isinstance(wanted, str) or not wanted.strip():
            return ToolResult(text=await self._list_files(context.session), error=bool(arguments))
        found = await self._find_file(context.session, wanted.strip())
        if found is None:
            return ToolResult(text=f"There is no such file here. {await self._list_files(context.session)}", error=True)
        return ToolResult(text=f"{format_file(found)} goes with your reply.", attached=(found,))

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    def _create_text_file(self, name: str, text: str) -> ToolResult:
        if len(text) > MAX_TEXT_CHARS:
            return ToolResult(
                text=f"The text has {len(text):,} characters; a file may have at most {MAX_TEXT_CHARS:,}.", error=True
            )
        name = sanitize_file_name(name) or "text.txt"
        media = mimetypes.guess_type(name)[0] or "text/plain"
        data = text.encode("utf-8", "replace")
        made = build_attachment(data, name=name, media=media)
        file = ToolFile(data=data, name=name, media=media)
        return ToolResult(text=f"{format_file(made)} goes with your reply.", files=(file,), attached=(made,))

    async def _find_file(self, session: str, wanted: str) -> Attachment | None:
        """Return the newest file with this id or name."""
        id = wanted.lower() if len(wanted) >= SHORT_HASH_CHARS else ""
        async for file in self._iterate_files(session):
            if file.name == wanted or (id and file.blob.startswith(id)):
                return file
        return None

    async def _list_files(self, session: str) -> str:
        found: dict[str, Attachment] = {}
        async for file in self._iterate_files(session):
            found.setdefault(file.blob, file)
            if len(found) == MAX_LISTED:
                break
        if not found:
            return "No file is stored here."
        return "\n".join(["The files of this conversation, newest first:", *map(format_file, found.values())])

    async def _iterate_files(self, session: str) -> AsyncIterator[Attachment]:
        """Return every file of a conversation, and of those it branched from, newest first."""
        kinds = (EntryKind.HEARD, EntryKind.RETURNED)
        upto = (await self.store.get_session(session)).last_seq
        while session:
            while upto > 0:
                entries = await self.store.list_entries(session, after=max(0, upto - PAGE_SIZE), upto=upto, kinds=kinds)
                for entry in reversed(entries):
                    for file in list_incoming_attachments(entry):
                        if file.blob and await self.store.get_blob(file.blob) is not None:
                            yield file
                upto -= PAGE_SIZE
            found = await self.store.get_session(session)
            session, upto = found.parent, found.parent_at


def format_file(file: Attachment) -> str:
    """Return a line about a file, with the id that `attach` accepts."""
    about = ", ".join(filter(None, (file.media, f"{file.size:,} bytes", f"id {file.blob[:SHORT_HASH_CHARS]}")))
    return f"{file.name or 'a file'} ({about})"
