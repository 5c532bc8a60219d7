"""Every route there is, in one table. The router, the OpenAPI document and the reference page are made from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from everhold.web import (
    admin,
    api,
    chat_locations,
    completions,
    events,
    memory,
    operations,
    page,
    people,
    responses,
    shapes,
)
from everhold.web.call import Call, Handler, Json


class Parameter(Struct, frozen=True, kw_only=True):
    """Something a route reads from its path, its query or a header."""

    name: str
    about: str
    where: Literal["path", "query", "header"] = "query"
    schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "string"})


class Body(Struct, frozen=True, kw_only=True):
    """What an answer holds: a shape, or text of some media type."""

    about: str
    shape: type | None = None
    media: str = "application/json"
    schema: dict[str, Any] | None = None
    streams: bool = False
    """May also come as server-sent events."""


class Way(Struct, frozen=True, kw_only=True):
    """One route."""

    method: Literal["GET", "POST"]
    path: str
    handler: Handler
    summary: str
    about: str = ""
    parameters: tuple[Parameter, ...] = ()
    takes: type | None = None
    gives: dict[int, Body]
    refuses: tuple[int, ...] = ()
    operator: bool = False
    """Only for operators."""


_NUMBER: Final[Json] = {"type": "integer", "minimum": 0, "maximum": 2**53}
_COUNT: Final[Json] = {"type": "integer", "minimum": 1, "maximum": 2**53}
_ID: Final = Parameter(
    name="id", where="path", about="A session: its id; operators may also give a unique prefix, a title or `last`."
)
_SESSION: Final = Parameter(
    name="X-Everhold-Session",
    where="header",
    about="The conversation, by a name you choose. Without it nothing is stored or recalled.",
)
_PERSON: Final = Parameter(name="X-Everhold-Person", where="header", about="Who speaks. Operators only.")
_MEMORY: Final = Parameter(name="name", where="path", about="A memory, as `memories` in the configuration names it.")
_OF_PERSON: Final = Parameter(name="person", about="A name, or an identity such as `telegram:1001`.")
_KEY: Final = Parameter(
    name="Idempotency-Key",
    where="header",
    about="Sent again with the same body, the request is recognised and gets the same answer.",
)
_STREAM: Final = " With `stream: true` the answer comes as server-sent events."
_HEARS: Final = (
    "In a session only what follows the last assistant message is heard, as one message; the log knows the rest. The "
    "reply is committed whether or not the caller stays to read it. Without a session the request goes to the agent's "
    "model, with the agent's persona before your own system text, and nothing is kept."
)
_ANY: Final[Json] = {"type": "object"}


def _json(about: str, shape: type | None) -> Body:
    return Body(about=about, shape=shape)


def ways(*, files: page.Page, metrics: operations.Metrics, document: Handler) -> tuple[Way, ...]:
    """The table."""
    return (
        *_messages(),
        *_sessions(),
        *_session_changes(),
        *_compressions(),
        *_memory(),
        *_memory_transfer(),
        *_dead_letters(),
        *_gateway(),
        *_backups(),
        *_people(),
        *_pairing(),
        *_schedules(),
        *_compatible(),
        *_machine(metrics, document),
        *_page(files),
    )


def _messages() -> Iterable[Way]:
    yield Way(
        method="POST",
        path="/api/messages",
        handler=api.send,
        summary="Send a message",
        about="Answered only after the message is committed. Read the reply from `/api/events` or from the session's "
        "entries. The same `id` with the same text again gets 200 and the same place; with another text 409.",
        takes=shapes.Message,
        gives={
            202: _json("It is committed and will be answered.", shapes.Accepted),
            200: _json("It was accepted before: where it stands.", shapes.Accepted),
        },
        refuses=(400, 403, 404, 409, 507),
    )
    yield Way(
        method="GET",
        path="/api/events",
        handler=events.events,
        summary="Everything as it happens",
        about="Server-sent events. `entry` is an entry with its `session`, the moment it is committed; its id is its "
        "`pos`. Come back with the last id you saw and nothing is missed, also across restarts. `delta` "
        "(`{session, op, at, text}`) is more of a reply while it is made, from character `at` on. It has no id and may "
        "be lost. `reset` (`{session, op}`) says that the deltas before it are no part of the reply. `hello` tells "
        "where the stream starts.",
        parameters=(
            Parameter(name="Last-Event-ID", where="header", about="The last id you saw; without it: from now on."),
            Parameter(name="after", about="The same, for clients that cannot set headers.", schema=_NUMBER),
            Parameter(name="session", about="Only this session."),
            Parameter(name="after_seq", about="With `session`: every entry after this seq of it.", schema=_NUMBER),
        ),
        gives={200: Body(about="Events, until you leave.", media="text/event-stream", schema={"type": "string"})},
        refuses=(400, 404, 503),
    )
    yield Way(
        method="GET",
        path="/api/chat-locations",
        handler=chat_locations.find_chat_location,
        summary="Where a terminal speaks",
        about="The `location` for a message that should reach the chat or session called `name`. A name that means "
        "nothing yet is a new chat.",
        parameters=(
            Parameter(name="name", about="A chat's name, or a session: id, unique prefix, title, address or `last`."),
            Parameter(name="agent", about="The agent to speak to; the default agent if not given."),
        ),
        gives={200: _json("The location.", shapes.FoundLocation)},
        refuses=(400, 404),
        operator=True,
    )


def _sessions() -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/api/me",
        handler=api.me,
        summary="Who you are here",
        gives={200: _json("You.", shapes.Me)},
    )
    yield Way(
        method="GET",
        path="/api/sessions",
        handler=api.sessions,
        summary="Sessions, newest first",
        parameters=(
            Parameter(
                name="limit", about="How many; 100 if not given.", schema={**_COUNT, "maximum": api.MOST_SESSIONS}
            ),
            Parameter(name="after", about="The next page: `next` of the page before."),
            Parameter(
                name="name",
                about="Only the session of this id; operators may also give a prefix, title, address or `last`.",
            ),
        ),
        gives={200: _json("The sessions you may see.", shapes.Sessions)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/sessions/{id}",
        handler=api.session,
        summary="One session",
        parameters=(_ID,),
        gives={200: _json("The session.", shapes.SessionView)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/sessions/{id}/entries",
        handler=api.entries,
        summary="A session's log",
        parameters=(
            _ID,
            Parameter(name="after", about="Only entries after this seq.", schema=_NUMBER),
            Parameter(name="limit", about="At most so many; all if not given.", schema=_COUNT),
        ),
        gives={200: _json("The entries, oldest first.", shapes.Entries)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/sessions/{id}/context",
        handler=api.context,
        summary="What the model sees",
        about="Built from the log and compared with the digest that was recorded when it was sent.",
        parameters=(
            _ID,
            Parameter(
                name="at", about="The thought at, or next after, this seq; without it the next turn's.", schema=_COUNT
            ),
        ),
        gives={200: _json("The request to the model.", shapes.ContextView)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/sessions/{id}/addresses",
        handler=api.addresses,
        summary="The addresses of a session",
        about="Those that lead to it now.",
        parameters=(_ID,),
        gives={200: _json("The addresses.", shapes.Addresses)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/entries",
        handler=api.search,
        summary="Search every log",
        about="Entries that hold all the words, the newest, grouped by session.",
        parameters=(
            Parameter(name="q", about="The words."),
            Parameter(
                name="limit", about="At most so many; 50 if not given.", schema={**_COUNT, "maximum": api.MOST_HITS}
            ),
        ),
        gives={200: _json("The entries.", shapes.Hits)},
        refuses=(400,),
        operator=True,
    )


def _session_changes() -> Iterable[Way]:
    yield Way(
        method="POST",
        path="/api/sessions/{id}/undo",
        handler=api.undo,
        summary="Undo turns, or a compression",
        about="Nothing is deleted: what is undone leaves the context.",
        parameters=(_ID,),
        takes=shapes.Undo,
        gives={200: _json("What was done.", shapes.Done)},
        refuses=(400, 404),
    )
    yield Way(
        method="POST",
        path="/api/sessions/{id}/stop",
        handler=api.stop,
        summary="End the running turn",
        parameters=(_ID,),
        gives={200: _json("What was done.", shapes.Done)},
        refuses=(400, 404),
    )
    yield Way(
        method="POST",
        path="/api/sessions/{id}/erase",
        handler=api.erase,
        summary="Erase entries for good",
        about="Their bodies are removed, with every record that repeats them, in branches too. This cannot be undone.",
        parameters=(_ID,),
        takes=shapes.Erase,
        gives={200: _json("The entries that were erased.", shapes.ErasedEntries)},
        refuses=(400, 404),
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/notes",
        handler=api.note,
        summary="Remember a fact",
        takes=shapes.Note,
        gives={202: _json("It is committed and will reach every memory.", shapes.Accepted)},
        refuses=(400, 404),
    )


def _compressions() -> Iterable[Way]:
    yield Way(
        method="POST",
        path="/api/sessions/{id}/compress",
        handler=api.compress,
        summary="Compress the conversation",
        about="The session keeps its id; `undo` with `compress` brings the originals back. The answer comes when it is "
        "done, or at once with `preview`.",
        parameters=(_ID,),
        takes=shapes.Compress,
        gives={200: _json("What came of it.", shapes.Done)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/sessions/{id}/compressions",
        handler=api.compressions,
        summary="A session's compressions",
        parameters=(_ID,),
        gives={200: _json("The compressions, oldest first.", shapes.Compressions)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/sessions/{id}/compressions/{op}/diff",
        handler=api.compression_diff,
        summary="What a compression replaced",
        parameters=(_ID, Parameter(name="op", where="path", about="The compression's `op`.", schema=_COUNT)),
        gives={200: _json("The messages before and after.", shapes.CompressionDiff)},
        refuses=(400, 404),
    )


def _memory() -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/api/memory/search",
        handler=memory.search_memory,
        summary="What is remembered of a person",
        about="The facts about a person that are in every prompt, with those that held before, and what the agent's "
        "memories find for them. Without `q` nothing is searched.",
        parameters=(
            Parameter(name="q", about="The words to search for."),
            Parameter(name="agent", about="Whose memory; the default agent's if not given."),
            Parameter(name="person", about="Of whom; yourself if not given. Operators only."),
            Parameter(
                name="limit", about="At most so many; 20 if not given.", schema={**_COUNT, "maximum": memory.MAX_HITS}
            ),
        ),
        gives={200: _json("What is remembered.", shapes.Memories)},
        refuses=(400, 403, 404),
    )
    yield Way(
        method="GET",
        path="/api/sessions/{id}/why",
        handler=memory.explain_answer,
        summary="What an answer rested on",
        about="What was recalled for it, from where, and what was left out by budget or deadline.",
        parameters=(_ID, Parameter(name="at", about="The answer at, or last before, this seq.", schema=_COUNT)),
        gives={200: _json("What was recalled.", shapes.WhyView)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/memory/status",
        handler=memory.show_memory_status,
        summary="Each agent's memories",
        about="Backlog, dead letters and last error of each.",
        gives={200: _json("One row per agent and memory.", shapes.MemoryStatus)},
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/memory/providers/{name}/resend",
        handler=memory.resend_to_memory,
        summary="Send a memory again what it received",
        about="In order, under the same keys. Refused where everything would be there twice.",
        parameters=(_MEMORY,),
        takes=shapes.ResendToMemory,
        gives={200: _json("How much goes again.", shapes.ResentItems)},
        refuses=(400, 404),
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/memory/providers/{name}/backfill",
        handler=memory.backfill_memory,
        summary="Send a memory older history",
        about="What was said before the memory was attached, at a limited rate. It resumes after a restart.",
        parameters=(_MEMORY,),
        takes=shapes.BackfillMemory,
        gives={200: _json("How much goes.", shapes.BackfilledItems)},
        refuses=(400, 404),
        operator=True,
    )


def _memory_transfer() -> Iterable[Way]:
    yield Way(
        method="POST",
        path="/api/memory/forget",
        handler=memory.forget_person,
        summary="Forget a person everywhere",
        about="Erases what is theirs in every log and asks every memory to delete it. This cannot be undone. The same "
        "request again continues where a memory has not confirmed.",
        takes=shapes.ForgetPerson,
        gives={200: _json("What is, or would be, erased.", shapes.ForgottenPerson)},
        refuses=(400, 404),
        operator=True,
    )
    yield Way(
        method="GET",
        path="/api/memory/export",
        handler=memory.export_person,
        summary="Export everything of a person",
        about="From the logs, the schedules, and each memory that can tell. A record with `missing` names one that "
        "cannot.",
        parameters=(_OF_PERSON,),
        gives={200: Body(about="One JSON record per line.", media=memory.NDJSON, schema={"type": "string"})},
        refuses=(400,),
        operator=True,
    )
    yield Way(
        method="GET",
        path="/api/memory/files",
        handler=memory.show_memory_files,
        summary="Facts about a person as Markdown",
        parameters=(_OF_PERSON,),
        gives={200: _json("The memory files, as an import takes them.", shapes.MemoryFiles)},
        refuses=(400,),
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/memory/import",
        handler=memory.import_memory_files,
        summary="Note what Markdown files hold",
        about="Each part once: what was imported before is skipped.",
        takes=shapes.ImportMemoryFiles,
        gives={200: _json("What the files hold.", shapes.ImportedFiles)},
        refuses=(400, 404),
        operator=True,
    )


def _dead_letters() -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/api/dead-letters",
        handler=admin.list_dead_letters,
        summary="What could not be delivered",
        parameters=(
            Parameter(
                name="limit", about="How many; 200 if not given.", schema={**_COUNT, "maximum": admin.MAX_DEAD_LETTERS}
            ),
            Parameter(name="after", about="The next page: `next` of the page before.", schema=_NUMBER),
        ),
        gives={200: _json("Dead letters, oldest first.", shapes.DeadLetters)},
        refuses=(400,),
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/dead-letters/replay",
        handler=admin.replay_dead_letters,
        summary="Send dead letters again",
        takes=shapes.ReplayDeadLetters,
        gives={200: _json("How many are sent again.", shapes.Replayed)},
        refuses=(400,),
        operator=True,
    )


def _gateway() -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/api/status",
        handler=admin.show_status,
        summary="Health at a glance",
        gives={200: _json("The status.", shapes.StatusView)},
        operator=True,
    )
    yield Way(
        method="GET",
        path="/api/agents",
        handler=admin.list_agents,
        summary="The agents",
        gives={200: _json("The agents in force, and which is the default.", shapes.AgentList)},
        operator=True,
    )
    yield Way(
        method="GET",
        path="/api/audit",
        handler=admin.run_audit,
        summary="Check the promises on the store",
        about="Reads every entry, which takes a while in a large home.",
        parameters=(Parameter(name="session", about="Only this session."),),
        gives={200: _json("The report.", shapes.AuditReport)},
        refuses=(400, 404),
        operator=True,
    )


def _backups() -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/api/backups",
        handler=admin.list_backups,
        summary="The copies of the store",
        gives={200: _json("Those in `backups/`, oldest first.", shapes.BackupList)},
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/backups",
        handler=admin.create_backup,
        summary="Copy the store, and check the copy",
        takes=shapes.CreateBackup,
        gives={200: _json("What the copy holds.", shapes.CreatedBackup)},
        refuses=(400, 403, 507),
        operator=True,
    )


def _people() -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/api/people",
        handler=people.list_people,
        summary="Everybody known by name",
        gives={200: _json("People and their identities.", shapes.PersonList)},
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/people/link",
        handler=people.link_identity,
        summary="Link an identity to a person",
        takes=shapes.LinkIdentity,
        gives={200: _json("The link.", shapes.LinkedIdentity)},
        refuses=(400,),
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/people/unlink",
        handler=people.unlink_identity,
        summary="Unlink an identity from its person",
        takes=shapes.UnlinkIdentity,
        gives={200: _json("The link that was removed.", shapes.LinkedIdentity)},
        refuses=(400,),
        operator=True,
    )


def _pairing() -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/api/pairing",
        handler=people.list_pairing,
        summary="Pairing requests and grants",
        gives={200: _json("Who waits with a code, and who was let in by one.", shapes.PairingState)},
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/pairing/approve",
        handler=people.approve_pairing,
        summary="Approve a pairing code",
        takes=shapes.ApprovePairing,
        gives={200: _json("Who is let in.", shapes.ApprovedPairing)},
        refuses=(400, 404),
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/pairing/revoke",
        handler=people.revoke_pairing,
        summary="Revoke what a code granted",
        takes=shapes.UnlinkIdentity,
        gives={200: _json("What was revoked.", shapes.RevokedPairing)},
        refuses=(400, 404),
        operator=True,
    )


def _schedules() -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/api/schedules",
        handler=people.list_schedules,
        summary="Every schedule",
        gives={200: _json("The schedules, and when each fires next.", shapes.ScheduleList)},
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/schedules/{id}/delete",
        handler=people.delete_schedule,
        summary="Delete a schedule",
        parameters=(Parameter(name="id", where="path", about="The schedule's id."),),
        gives={200: _json("The id.", shapes.DeletedSchedule)},
        refuses=(404,),
        operator=True,
    )


def _compatible() -> Iterable[Way]:
    yield Way(
        method="POST",
        path="/v1/chat/completions",
        handler=completions.completions,
        summary="Chat completions",
        about=_HEARS + _STREAM,
        parameters=(_SESSION, _PERSON, _KEY),
        takes=completions.Chat,
        gives={200: Body(about="The reply, or a stream of it.", schema=_ANY, streams=True)},
        refuses=(400, 403, 404, 409, 410, 502, 503, 504, 507),
    )
    yield Way(
        method="POST",
        path="/v1/responses",
        handler=responses.responses,
        summary="Responses",
        about=_HEARS + _STREAM,
        parameters=(_SESSION, _PERSON, _KEY),
        takes=responses.Ask,
        gives={200: Body(about="The response, or a stream of it.", schema=_ANY, streams=True)},
        refuses=(400, 403, 404, 409, 410, 502, 503, 504, 507),
    )
    yield Way(
        method="GET",
        path="/v1/models",
        handler=completions.models,
        summary="The agents, as models",
        gives={200: _json("One model per agent.", shapes.Models)},
    )
    yield Way(
        method="GET",
        path="/v1/models/{id}",
        handler=completions.model,
        summary="One agent, as a model",
        parameters=(Parameter(name="id", where="path", about="The agent's name."),),
        gives={200: _json("The model.", shapes.ModelView)},
        refuses=(404,),
    )


def _machine(metrics: operations.Metrics, document: Handler) -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/health",
        handler=operations.health,
        summary="Is the process there?",
        gives={200: _json("It is.", shapes.Health)},
    )
    yield Way(
        method="GET",
        path="/ready",
        handler=operations.ready,
        summary="Can messages be accepted?",
        gives={200: _json("They can.", shapes.Health)},
        refuses=(503,),
    )
    yield Way(
        method="GET",
        path="/metrics",
        handler=metrics,
        summary="Numbers for Prometheus",
        gives={200: Body(about="Text in Prometheus' format.", media="text/plain", schema={"type": "string"})},
        operator=True,
    )
    yield Way(
        method="GET",
        path="/openapi.json",
        handler=document,
        summary="This document",
        gives={200: Body(about="OpenAPI 3.1.", schema=_ANY)},
    )


def _page(files: page.Page) -> Iterable[Way]:
    yield Way(
        method="GET",
        path="/",
        handler=files.index,
        summary="The page in the browser",
        gives={200: Body(about="HTML.", media="text/html", schema={"type": "string"})},
    )
    yield Way(
        method="GET",
        path="/static/{name}",
        handler=files.file,
        summary="A part of the page",
        parameters=(Parameter(name="name", where="path", about="A file."),),
        gives={200: Body(about="The file.", media="*/*", schema={"type": "string"})},
        refuses=(404,),
    )


__all__ = ["Body", "Call", "Parameter", "Way", "ways"]
