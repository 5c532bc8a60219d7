"""The table of all routes. The dispatcher, the OpenAPI document and the reference page are made from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from everhold.api import (
    admin,
    chat_locations,
    console,
    events,
    handlers as api_handlers,
    health as api_health,
    memory,
    openai_chat,
    openai_responses,
    people,
    schemas,
)
from everhold.api.request import ApiCall, JsonObject, RouteHandler


class RouteParameter(Struct, frozen=True, kw_only=True):
    """A parameter of a route in its path, its query or a header."""

    name: str
    about: str
    where: Literal["path", "query", "header"] = "query"
    schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "string"})


class ResponseBody(Struct, frozen=True, kw_only=True):
    """The body of a response: a schema class, or text of some media type."""

    about: str
    shape: type | None = None
    media: str = "application/json"
    schema: dict[str, Any] | None = None
    streams: bool = False
    """The response may also be a stream of server-sent events."""


class ApiRoute(Struct, frozen=True, kw_only=True):
    """A route with its handler, parameters and responses."""

    method: Literal["GET", "POST"]
    path: str
    handler: RouteHandler
    summary: str
    about: str = ""
    parameters: tuple[RouteParameter, ...] = ()
    request_type: type | None = None
    response_bodies: dict[int, ResponseBody]
    refusal_statuses: tuple[int, ...] = ()
    operator: bool = False
    """Only operators may call it."""


_NUMBER_SCHEMA: Final[JsonObject] = {"type": "integer", "minimum": 0, "maximum": 2**53}
_COUNT_SCHEMA: Final[JsonObject] = {"type": "integer", "minimum": 1, "maximum": 2**53}
_SESSION_ID_PARAMETER: Final = RouteParameter(
    name="id", where="path", about="The session's id; operators may also give a unique prefix, a title or `last`."
)
_SESSION_HEADER: Final = RouteParameter(
    name="X-Everhold-Session",
    where="header",
    about="The name of the conversation, which you choose. Without it nothing is stored or recalled.",
)
_PERSON_HEADER: Final = RouteParameter(name="X-Everhold-Person", where="header", about="The sender. Operators only.")
_MEMORY_NAME_PARAMETER: Final = RouteParameter(
    name="name", where="path", about="A memory, as `memories` in the configuration names it."
)
_PERSON_PARAMETER: Final = RouteParameter(name="person", about="A name, or an identity such as `telegram:1001`.")
_IDEMPOTENCY_KEY_HEADER: Final = RouteParameter(
    name="Idempotency-Key",
    where="header",
    about="A repeated request with the same key and body gets the same answer.",
)
_STREAM_TEXT: Final = " With `stream: true` the answer comes as server-sent events."
_SESSION_TEXT: Final = (
    "In a session only the text after the last assistant message is accepted, as one message, because the log has the "
    "rest. The reply is committed even if the caller disconnects. Without a session the request goes to the agent's "
    "model, with the agent's persona before your own system text, and nothing is stored."
)
_ANY_OBJECT_SCHEMA: Final[JsonObject] = {"type": "object"}


def _build_json_body(about: str, shape: type | None) -> ResponseBody:
    return ResponseBody(about=about, shape=shape)


def build_routes(
    *, files: console.ConsoleFiles, metrics: api_health.MetricsEndpoint, document: RouteHandler
) -> tuple[ApiRoute, ...]:
    """Return all routes."""
    return (
        *_build_message_routes(),
        *_build_session_routes(),
        *_build_session_view_routes(),
        *_build_change_routes(),
        *_build_compression_routes(),
        *_build_memory_routes(),
        *_build_memory_transfer_routes(),
        *_build_person_memory_routes(),
        *_build_dead_letter_routes(),
        *_build_gateway_routes(),
        *_build_backup_routes(),
        *_build_people_routes(),
        *_build_pairing_routes(),
        *_build_schedule_routes(),
        *_build_openai_routes(),
        *_build_health_routes(metrics, document),
        *_build_console_routes(files),
    )


def _build_message_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="POST",
        path="/api/messages",
        handler=api_handlers.accept_message,
        summary="Send a message",
        about="The response is sent after the message is committed. Read the reply from `/api/events` or from the "
        "session's entries. A repeated `id` with the same text gets 200 and the same entry; with another text 409.",
        request_type=schemas.MessageRequest,
        response_bodies={
            202: _build_json_body("The message is committed and will be answered.", schemas.AcceptedResponse),
            200: _build_json_body("The message was accepted before as this entry.", schemas.AcceptedResponse),
        },
        refusal_statuses=(400, 403, 404, 409, 507),
    )
    yield ApiRoute(
        method="GET",
        path="/api/events",
        handler=events.stream_events,
        summary="Stream entries",
        about="Server-sent events. `entry` is an entry with its `session`, sent when it is committed; its id is its "
        "`pos`. A client that reconnects with the last id it saw misses nothing, even across restarts. `delta` "
        "(`{session, op, at, text}`) is more text of a growing reply, from character `at` on. It has no id and may "
        "be lost. `reset` (`{session, op}`) says that the deltas before it are not part of the reply. `hello` says "
        "where the stream starts.",
        parameters=(
            RouteParameter(
                name="Last-Event-ID", where="header", about="The last id you saw; new entries only if not given."
            ),
            RouteParameter(name="after", about="The same, for clients that cannot set headers.", schema=_NUMBER_SCHEMA),
            RouteParameter(name="session", about="Only this session."),
            RouteParameter(
                name="after_seq", about="With `session`: all its entries after this seq.", schema=_NUMBER_SCHEMA
            ),
        ),
        response_bodies={
            200: ResponseBody(
                about="Events, until you disconnect.", media="text/event-stream", schema={"type": "string"}
            )
        },
        refusal_statuses=(400, 404, 503),
    )
    yield ApiRoute(
        method="GET",
        path="/api/chat-locations",
        handler=chat_locations.find_chat_location,
        summary="Find the location of a chat for a terminal",
        about="The `location` for a message to the chat or session called `name`. An unknown name is a new chat.",
        parameters=(
            RouteParameter(
                name="name", about="A chat's name, or a session: id, unique prefix, title, address or `last`."
            ),
            RouteParameter(name="agent", about="The agent; the default agent if not given."),
        ),
        response_bodies={200: _build_json_body("The location.", schemas.ChatLocationResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )


def _build_session_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/me",
        handler=api_handlers.get_caller,
        summary="Show the caller",
        response_bodies={200: _build_json_body("The caller.", schemas.CallerView)},
    )
    yield ApiRoute(
        method="GET",
        path="/api/sessions",
        handler=api_handlers.list_sessions,
        summary="List sessions, newest first",
        parameters=(
            RouteParameter(
                name="limit",
                about="How many; 100 if not given.",
                schema={**_COUNT_SCHEMA, "maximum": api_handlers.MAX_SESSIONS},
            ),
            RouteParameter(name="after", about="The next page: `next` of the page before."),
            RouteParameter(
                name="name",
                about="Only the session of this id; operators may also give a prefix, title, address or `last`.",
            ),
        ),
        response_bodies={200: _build_json_body("The sessions you may see.", schemas.SessionListResponse)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="GET",
        path="/api/sessions/{id}",
        handler=api_handlers.get_session,
        summary="Show a session",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: _build_json_body("The session.", schemas.SessionView)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="GET",
        path="/api/sessions/{id}/entries",
        handler=api_handlers.list_entries,
        summary="List a session's entries",
        parameters=(
            _SESSION_ID_PARAMETER,
            RouteParameter(name="after", about="Only entries after this seq.", schema=_NUMBER_SCHEMA),
            RouteParameter(name="limit", about="The maximum number; all if not given.", schema=_COUNT_SCHEMA),
        ),
        response_bodies={200: _build_json_body("The entries, oldest first.", schemas.EntryListResponse)},
        refusal_statuses=(400, 404),
    )


def _build_session_view_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/sessions/{id}/context",
        handler=api_handlers.get_context,
        summary="Show the context of a turn",
        about="Computed from the log and compared with the digest that was recorded when it was sent.",
        parameters=(
            _SESSION_ID_PARAMETER,
            RouteParameter(
                name="at",
                about="The thought at or after this seq; the next turn if not given.",
                schema=_COUNT_SCHEMA,
            ),
        ),
        response_bodies={200: _build_json_body("The request to the model.", schemas.ContextView)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="GET",
        path="/api/sessions/{id}/addresses",
        handler=api_handlers.list_addresses,
        summary="List the addresses that are bound to a session",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: _build_json_body("The addresses.", schemas.AddressListResponse)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="GET",
        path="/api/entries",
        handler=api_handlers.search_entries,
        summary="Search the entries of all sessions",
        about="The newest entries that contain all words, grouped by session.",
        parameters=(
            RouteParameter(name="q", about="The words."),
            RouteParameter(
                name="limit",
                about="The maximum number; 50 if not given.",
                schema={**_COUNT_SCHEMA, "maximum": api_handlers.MAX_HITS},
            ),
        ),
        response_bodies={200: _build_json_body("The entries.", schemas.SearchResponse)},
        refusal_statuses=(400,),
        operator=True,
    )


def _build_change_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="POST",
        path="/api/sessions/{id}/undo",
        handler=api_handlers.undo_operations,
        summary="Undo turns, or a compression",
        about="Nothing is deleted. The undone operations leave the context.",
        parameters=(_SESSION_ID_PARAMETER,),
        request_type=schemas.UndoRequest,
        response_bodies={200: _build_json_body("What was done.", schemas.ActionResponse)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="POST",
        path="/api/sessions/{id}/stop",
        handler=api_handlers.stop_operation,
        summary="Stop the running turn",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: _build_json_body("What was done.", schemas.ActionResponse)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="POST",
        path="/api/sessions/{id}/erase",
        handler=api_handlers.erase_entries,
        summary="Erase entries",
        about="Removes their bodies and all records that repeat them, also in branches. This cannot be undone.",
        parameters=(_SESSION_ID_PARAMETER,),
        request_type=schemas.EraseRequest,
        response_bodies={200: _build_json_body("The entries that were erased.", schemas.EraseResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/notes",
        handler=api_handlers.add_note,
        summary="Add a note",
        request_type=schemas.NoteRequest,
        response_bodies={
            202: _build_json_body("The note is committed and will reach every memory.", schemas.AcceptedResponse)
        },
        refusal_statuses=(400, 404),
    )


def _build_compression_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="POST",
        path="/api/sessions/{id}/compress",
        handler=api_handlers.compress_session,
        summary="Compress a session",
        about="The session keeps its id; `undo` with `compress` restores the originals. The response is sent when the "
        "compression is done, or at once with `preview`.",
        parameters=(_SESSION_ID_PARAMETER,),
        request_type=schemas.CompressRequest,
        response_bodies={200: _build_json_body("The result.", schemas.ActionResponse)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="GET",
        path="/api/sessions/{id}/compressions",
        handler=api_handlers.list_compressions,
        summary="List a session's compressions",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: _build_json_body("The compressions, oldest first.", schemas.CompressionListResponse)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="GET",
        path="/api/sessions/{id}/compressions/{op}/diff",
        handler=api_handlers.show_compression_diff,
        summary="Show what a compression replaced",
        parameters=(
            _SESSION_ID_PARAMETER,
            RouteParameter(name="op", where="path", about="The compression's `op`.", schema=_COUNT_SCHEMA),
        ),
        response_bodies={200: _build_json_body("The messages before and after.", schemas.CompressionDiffResponse)},
        refusal_statuses=(400, 404),
    )


def _build_memory_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/memory/search",
        handler=memory.search_memory,
        summary="Search an agent's memory of a person",
        about="The facts about a person, with those that were replaced, and the hits of the agent's memories. Without "
        "`q` the memories are not searched.",
        parameters=(
            RouteParameter(name="q", about="The words to search for."),
            RouteParameter(name="agent", about="The agent; the default agent if not given."),
            RouteParameter(name="person", about="The person; yourself if not given. Operators only."),
            RouteParameter(
                name="limit",
                about="The maximum number; 20 if not given.",
                schema={**_COUNT_SCHEMA, "maximum": memory.MAX_HITS},
            ),
        ),
        response_bodies={200: _build_json_body("The facts and hits.", schemas.MemorySearchResponse)},
        refusal_statuses=(400, 403, 404),
    )
    yield ApiRoute(
        method="GET",
        path="/api/sessions/{id}/why",
        handler=memory.explain_answer,
        summary="Explain an answer",
        about="What was recalled for it, from which memory, and what was left out because of budget or deadline.",
        parameters=(
            _SESSION_ID_PARAMETER,
            RouteParameter(
                name="at", about="The answer at or before this seq; the last if not given.", schema=_COUNT_SCHEMA
            ),
        ),
        response_bodies={200: _build_json_body("What was recalled.", schemas.ExplanationView)},
        refusal_statuses=(400, 404),
    )
    yield ApiRoute(
        method="GET",
        path="/api/memory/status",
        handler=memory.show_memory_status,
        summary="Show the state of each agent's memories",
        about="Backlog, dead letters and last error of each memory.",
        response_bodies={200: _build_json_body("One row per agent and memory.", schemas.MemoryStatusResponse)},
        operator=True,
    )


def _build_memory_transfer_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="POST",
        path="/api/memory/providers/{name}/resend",
        handler=memory.resend_to_memory,
        summary="Resend to a memory what it received",
        about="In order, under the same keys. Refused for a memory that would store everything twice.",
        parameters=(_MEMORY_NAME_PARAMETER,),
        request_type=schemas.MemoryResendRequest,
        response_bodies={200: _build_json_body("How much is sent again.", schemas.MemoryResendResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/memory/providers/{name}/backfill",
        handler=memory.backfill_memory,
        summary="Backfill a memory with older history",
        about="Sends the history from before the memory was attached, at a limited rate. It resumes after a restart.",
        parameters=(_MEMORY_NAME_PARAMETER,),
        request_type=schemas.MemoryBackfillRequest,
        response_bodies={200: _build_json_body("How much is sent.", schemas.MemoryBackfillResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )


def _build_person_memory_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="POST",
        path="/api/memory/forget",
        handler=memory.forget_person,
        summary="Forget a person",
        about="Erases a person's entries in every log and asks every memory to delete its data. This cannot be undone. "
        "A repeated request continues with the memories that have not confirmed.",
        request_type=schemas.ForgetRequest,
        response_bodies={200: _build_json_body("What is or would be erased.", schemas.ForgetResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )
    yield ApiRoute(
        method="GET",
        path="/api/memory/export",
        handler=memory.export_person,
        summary="Export a person's data",
        about="From the logs, the schedules, and each memory that can export. A record with `missing` names a memory "
        "that cannot.",
        parameters=(_PERSON_PARAMETER,),
        response_bodies={
            200: ResponseBody(about="One JSON record per line.", media=memory.NDJSON, schema={"type": "string"})
        },
        refusal_statuses=(400,),
        operator=True,
    )
    yield ApiRoute(
        method="GET",
        path="/api/memory/files",
        handler=memory.show_memory_files,
        summary="Show the facts about a person as Markdown",
        parameters=(_PERSON_PARAMETER,),
        response_bodies={
            200: _build_json_body("The memory files, in the format of an import.", schemas.MemoryFileListResponse)
        },
        refusal_statuses=(400,),
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/memory/import",
        handler=memory.import_memory_files,
        summary="Import Markdown files as facts and notes",
        about="Parts that were imported before are skipped.",
        request_type=schemas.MemoryImportRequest,
        response_bodies={200: _build_json_body("What the files contain.", schemas.MemoryImportResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )


def _build_dead_letter_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/dead-letters",
        handler=admin.list_dead_letters,
        summary="List dead letters",
        parameters=(
            RouteParameter(
                name="limit",
                about="How many; 200 if not given.",
                schema={**_COUNT_SCHEMA, "maximum": admin.MAX_DEAD_LETTERS},
            ),
            RouteParameter(name="after", about="The next page: `next` of the page before.", schema=_NUMBER_SCHEMA),
        ),
        response_bodies={200: _build_json_body("Dead letters, oldest first.", schemas.DeadLetterListResponse)},
        refusal_statuses=(400,),
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/dead-letters/replay",
        handler=admin.replay_dead_letters,
        summary="Replay dead letters",
        request_type=schemas.DeadLetterReplayRequest,
        response_bodies={200: _build_json_body("How many are sent again.", schemas.ReplayResponse)},
        refusal_statuses=(400,),
        operator=True,
    )


def _build_gateway_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/status",
        handler=admin.show_status,
        summary="Show the state of the gateway",
        response_bodies={200: _build_json_body("The status.", schemas.StatusResponse)},
        operator=True,
    )
    yield ApiRoute(
        method="GET",
        path="/api/agents",
        handler=admin.list_agents,
        summary="List the agents",
        response_bodies={
            200: _build_json_body("The agents in force, and which is the default.", schemas.AgentListResponse)
        },
        operator=True,
    )
    yield ApiRoute(
        method="GET",
        path="/api/audit",
        handler=admin.run_audit,
        summary="Check the promises on the store",
        about="Reads every entry, so it takes long in a large home.",
        parameters=(RouteParameter(name="session", about="Only this session."),),
        response_bodies={200: _build_json_body("The report.", schemas.AuditResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )


def _build_backup_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/backups",
        handler=admin.list_backups,
        summary="List backups",
        response_bodies={200: _build_json_body("The backups in `backups/`, oldest first.", schemas.BackupListResponse)},
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/backups",
        handler=admin.create_backup,
        summary="Copy the store and check the copy",
        request_type=schemas.BackupRequest,
        response_bodies={200: _build_json_body("What the copy contains.", schemas.BackupResponse)},
        refusal_statuses=(400, 403, 507),
        operator=True,
    )


def _build_people_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/people",
        handler=people.list_people,
        summary="List people",
        response_bodies={200: _build_json_body("People and their identities.", schemas.PersonListResponse)},
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/people/link",
        handler=people.link_identity,
        summary="Link an identity to a person",
        request_type=schemas.IdentityLinkRequest,
        response_bodies={200: _build_json_body("The link.", schemas.IdentityLinkResponse)},
        refusal_statuses=(400,),
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/people/unlink",
        handler=people.unlink_identity,
        summary="Unlink an identity from its person",
        request_type=schemas.IdentityRequest,
        response_bodies={200: _build_json_body("The link that was removed.", schemas.IdentityLinkResponse)},
        refusal_statuses=(400,),
        operator=True,
    )


def _build_pairing_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/pairing",
        handler=people.list_pairing,
        summary="List pairing requests and grants",
        response_bodies={200: _build_json_body("The open requests and the grants.", schemas.PairingResponse)},
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/pairing/approve",
        handler=people.approve_pairing,
        summary="Approve a pairing code",
        request_type=schemas.PairingApprovalRequest,
        response_bodies={200: _build_json_body("The identity that has access now.", schemas.PairingApprovalResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/pairing/revoke",
        handler=people.revoke_pairing,
        summary="Revoke the access that a code granted",
        request_type=schemas.IdentityRequest,
        response_bodies={200: _build_json_body("What was revoked.", schemas.PairingRevocationResponse)},
        refusal_statuses=(400, 404),
        operator=True,
    )


def _build_schedule_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/api/schedules",
        handler=people.list_schedules,
        summary="List schedules",
        response_bodies={
            200: _build_json_body("The schedules, and when each fires next.", schemas.ScheduleListResponse)
        },
        operator=True,
    )
    yield ApiRoute(
        method="POST",
        path="/api/schedules/{id}/delete",
        handler=people.delete_schedule,
        summary="Delete a schedule",
        parameters=(RouteParameter(name="id", where="path", about="The schedule's id."),),
        response_bodies={200: _build_json_body("The schedule's id.", schemas.ScheduleDeletionResponse)},
        refusal_statuses=(404,),
        operator=True,
    )


def _build_openai_routes() -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="POST",
        path="/v1/chat/completions",
        handler=openai_chat.create_completion,
        summary="Create a chat completion",
        about=_SESSION_TEXT + _STREAM_TEXT,
        parameters=(_SESSION_HEADER, _PERSON_HEADER, _IDEMPOTENCY_KEY_HEADER),
        request_type=openai_chat.ChatCompletionRequest,
        response_bodies={
            200: ResponseBody(about="The reply, or a stream of it.", schema=_ANY_OBJECT_SCHEMA, streams=True)
        },
        refusal_statuses=(400, 403, 404, 409, 410, 502, 503, 504, 507),
    )
    yield ApiRoute(
        method="POST",
        path="/v1/responses",
        handler=openai_responses.create_response,
        summary="Create a response",
        about=_SESSION_TEXT + _STREAM_TEXT,
        parameters=(_SESSION_HEADER, _PERSON_HEADER, _IDEMPOTENCY_KEY_HEADER),
        request_type=openai_responses.ResponseRequest,
        response_bodies={
            200: ResponseBody(about="The response, or a stream of it.", schema=_ANY_OBJECT_SCHEMA, streams=True)
        },
        refusal_statuses=(400, 403, 404, 409, 410, 502, 503, 504, 507),
    )
    yield ApiRoute(
        method="GET",
        path="/v1/models",
        handler=openai_chat.list_models,
        summary="List the agents as models",
        response_bodies={200: _build_json_body("One model per agent.", schemas.ModelListResponse)},
    )
    yield ApiRoute(
        method="GET",
        path="/v1/models/{id}",
        handler=openai_chat.get_model,
        summary="Show an agent as a model",
        parameters=(RouteParameter(name="id", where="path", about="The agent's name."),),
        response_bodies={200: _build_json_body("The model.", schemas.ModelView)},
        refusal_statuses=(404,),
    )


def _build_health_routes(metrics: api_health.MetricsEndpoint, document: RouteHandler) -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/health",
        handler=api_health.get_health,
        summary="Check that the process runs",
        response_bodies={200: _build_json_body("The process runs.", schemas.HealthResponse)},
    )
    yield ApiRoute(
        method="GET",
        path="/ready",
        handler=api_health.get_readiness,
        summary="Check that messages can be accepted",
        response_bodies={200: _build_json_body("Messages can be accepted.", schemas.HealthResponse)},
        refusal_statuses=(503,),
    )
    yield ApiRoute(
        method="GET",
        path="/metrics",
        handler=metrics,
        summary="Show metrics for Prometheus",
        response_bodies={
            200: ResponseBody(about="Text in Prometheus' format.", media="text/plain", schema={"type": "string"})
        },
        operator=True,
    )
    yield ApiRoute(
        method="GET",
        path="/openapi.json",
        handler=document,
        summary="Show the OpenAPI document",
        response_bodies={200: ResponseBody(about="OpenAPI 3.1.", schema=_ANY_OBJECT_SCHEMA)},
    )


def _build_console_routes(files: console.ConsoleFiles) -> Iterable[ApiRoute]:
    yield ApiRoute(
        method="GET",
        path="/",
        handler=files.get_index,
        summary="Show the console",
        response_bodies={200: ResponseBody(about="HTML.", media="text/html", schema={"type": "string"})},
    )
    yield ApiRoute(
        method="GET",
        path="/static/{name}",
        handler=files.get_file,
        summary="Show a file of the console",
        parameters=(RouteParameter(name="name", where="path", about="The file's name."),),
        response_bodies={200: ResponseBody(about="The file.", media="*/*", schema={"type": "string"})},
        refusal_statuses=(404,),
    )


__all__ = ["ApiCall", "ApiRoute", "ResponseBody", "RouteParameter", "build_routes"]
