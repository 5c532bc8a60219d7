"""The `attach` tool: a file goes with the reply. One of this conversation, by its id or its name, or a text that
becomes one. A name only ever chooses among what is kept here: it is never opened as a path.
"""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from typing import Any, Final

from everhold.core.attachments import attachment, brought, label
from everhold.core.entries import Attachment, Kind
from everhold.ports.model import ToolSpec
from everhold.ports.store import Store
from everhold.ports.tool import Effect, File, Result, ToolContext

LONGEST: Final = 500_000
"""Characters of a text that becomes a file."""
PAGE: Final = 500
MOST_LISTED: Final = 20
SHORT: Final = 12
"""So much of a hash is shown, and understood again."""


class Attach:
    """What it attaches commits with its result, so a run that is repeated before that has done nothing: it is pure."""

    effect = Effect.PURE
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
                    "name": {"type": "string", "description": "What a new file is called, such as report.csv."},
                    "text": {"type": "string", "maxLength": LONGEST, "description": "What is in the new file."},
                },
                "additionalProperties": False,
            },
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        wanted, name, text = (arguments.get(key) for key in ("file", "name", "text"))
        if context.origin is None:
            return Result(text="There is no reply here that a file could go with.", error=True)
        if isinstance(text, str) and text:
            return self._written(name if isinstance(name, str) else "", text)
        if not isinstance(wanted, str) or not wanted.strip():
            return Result(text=await self._listed(context.session), error=bool(arguments))
        found = await self._find(context.session, wanted.strip())
        if found is None:
            return Result(text=f"There is no such file here. {await self._listed(context.session)}", error=True)
        return Result(text=f"{shown(found)} goes with your reply.", attached=(found,))

    async def probe(self, context: ToolContext) -> Result | None:
        return None

    def _written(self, name: str, text: str) -> Result:
        if len(text) > LONGEST:
            return Result(text=f"That is {len(text):,} characters; at most {LONGEST:,} become a file.", error=True)
        name = label(name) or "text.txt"
        media = mimetypes.guess_type(name)[0] or "text/plain"
        data = text.encode("utf-8", "replace")
        made = attachment(data, name=name, media=media)
        file = File(data=data, name=name, media=media)
        return Result(text=f"{shown(made)} goes with your reply.", files=(file,), attached=(made,))

    async def _find(self, session: str, wanted: str) -> Attachment | None:
        """The newest file of that id or name."""
        id = wanted.lower() if len(wanted) >= SHORT else ""
        async for file in self._files(session):
            if file.name == wanted or (id and file.blob.startswith(id)):
                return file
        return None

    async def _listed(self, session: str) -> str:
        found: dict[str, Attachment] = {}
        async for file in self._files(session):
            found.setdefault(file.blob, file)
            if len(found) == MOST_LISTED:
                break
        if not found:
            return "No file is kept here."
        return "\n".join(["The files of this conversation, newest first:", *map(shown, found.values())])

    async def _files(self, session: str) -> AsyncIterator[Attachment]:
        """Every file that came up in a conversation, and in those it branched off, newest first."""
        kinds = (Kind.HEARD, Kind.RETURNED)
        upto = (await self.store.get_session(session)).last_seq
        while session:
            while upto > 0:
                entries = await self.store.list_entries(session, after=max(0, upto - PAGE), upto=upto, kinds=kinds)
                for entry in reversed(entries):
                    for file in brought(entry):
                        if file.blob and await self.store.get_blob(file.blob) is not None:
                            yield file
                upto -= PAGE
            found = await self.store.get_session(session)
            session, upto = found.parent, found.parent_at


def shown(file: Attachment) -> str:
    """A file in a line, with the id that it can be attached by."""
    about = ", ".join(filter(None, (file.media, f"{file.size:,} bytes", f"id {file.blob[:SHORT]}")))
    return f"{file.name or 'a file'} ({about})"
