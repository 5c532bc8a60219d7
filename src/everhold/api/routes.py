"""The table of all routes. The dispatcher, the OpenAPI document and the reference page are made from it."""

from __future__ import annotations

from typing import Final

from everhold.api import (
    admin,
    chat_locations,
    console,
    events,
    handlers as api_handlers,
    health as api_health,
    hooks,
    login_handlers,
    mcp_server,
    memory,
    openai_chat,
    openai_responses,
    own_data,
    people,
    request_files,
    schemas,
)
from everhold.api.approval_routes import APPROVAL_ROUTES
from everhold.api.console_routes import ACTIVE_LIST_PARAMETERS, CONSOLE_ROUTES, DEAD_LETTER_FILTERS
from everhold.api.console_schemas import ActiveSessionsResponse
from everhold.api.request import JsonObject, RouteHandler
from everhold.api.route_types import ApiRoute, ResponseBody, RouteParameter
from everhold.core.callers import CallerRole

_NUMBER_SCHEMA: Final[JsonObject] = {"type": "integer", "minimum": 0, "maximum": 2**53}
_COUNT_SCHEMA: Final[JsonObject] = {"type": "integer", "minimum": 1, "maximum": 2**53}
_SESSION_ID_PARAMETER: Final = RouteParameter(
    "id", "The session's id; operators may also give a unique prefix, a title or `last`.", "path"
)
_SESSION_HEADER: Final = RouteParameter(
    "X-Everhold-Session",
    "The name of the conversation, which you choose. Without it nothing is stored or recalled.",
    "header",
)
_PERSON_HEADER: Final = RouteParameter(
    "X-Everhold-Person", "The sender. An operator may name any person, a service names its user.", "header"
)
_MEMORY_NAME_PARAMETER: Final = RouteParameter("name", "A memory, as `memories` in the configuration names it.", "path")
_ERASURE_PARAMETER: Final = RouteParameter("id", "A forgetting, as `GET /api/memory/erasures` names it.", "path")
_PERSON_PARAMETER: Final = RouteParameter("person", "A name, or an identity such as `telegram:1001`.", required=True)
_IDEMPOTENCY_KEY_HEADER: Final = RouteParameter(
    "Idempotency-Key", "A repeated request with the same key and body gets the same answer.", "header"
)
_STREAM_TEXT: Final = " With `stream: true` the answer comes as server-sent events."
_SESSION_TEXT: Final = (
    "In a session only the text after the last assistant message is accepted, as one message, because the log has the "
    "rest. The reply is committed even if the caller disconnects. Without a session the request goes to the agent's "
    "model, with the agent's persona before your own system text, and nothing is stored."
)
_ANY_OBJECT_SCHEMA: Final[JsonObject] = {"type": "object"}


def _build_count_schema(most: int) -> JsonObject:
    return {**_COUNT_SCHEMA, "maximum": most}


_ROUTES: Final = (
    # -- messages ------------------------------------------------------------------------------------------------------
    ApiRoute(
        "POST /api/messages",
        api_handlers.accept_message,
        "Send a message",
        about="The response is sent after the message is committed. Read the reply from `/api/events` or from the "
        "session's entries. A repeated `id` with the same text gets 200 and the same entry; with another text 409.",
        request_type=schemas.MessageRequest,
        response_bodies={
            202: ResponseBody("The message is committed and will be answered.", schemas.AcceptedResponse),
            200: ResponseBody("The message was accepted before as this entry.", schemas.AcceptedResponse),
        },
        refusal_statuses=(400, 403, 404, 409, 507),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "POST /api/files",
        request_files.upload_file,
        "Upload a file",
        about="The body is the file, of at most 20,000,000 bytes. Name its id in `files` of a message, or as `file_id` "
        "in OpenAI's formats. An id counts for its uploader, for an hour, and at the host that it was sent to.",
        parameters=(
            RouteParameter("name", "The file's name."),
            RouteParameter("media", "Its media type, such as `image/png`; the header `Content-Type` if not given."),
        ),
        response_bodies={201: ResponseBody("The file.", schemas.UploadResponse)},
        refusal_statuses=(400, 503, 507),
        least=CallerRole.SERVICE,
        body_bytes=request_files.MAX_UPLOAD_BYTES,
    ),
    ApiRoute(
        "GET /api/events",
        events.stream_events,
        "Stream entries",
        about="Server-sent events. `entry` is an entry with its `session`, sent when it is committed; its id is its "
        "`pos`. A client that reconnects with the last id it saw misses nothing, even across restarts. `delta` "
        "(`{session, op, at, text}`) is more text of a growing reply, from character `at` on. It has no id and may "
        "be lost. `reset` (`{session, op}`) says that the deltas before it are not part of the reply. `hello` says "
        "where the stream starts.",
        parameters=(
            RouteParameter("Last-Event-ID", "The last id you saw; new entries only if not given.", "header"),
            RouteParameter("after", "The same, for clients that cannot set headers.", schema=_NUMBER_SCHEMA),
            RouteParameter("session", "Only this session."),
            RouteParameter("after_seq", "With `session`: all its entries after this seq.", schema=_NUMBER_SCHEMA),
        ),
        response_bodies={
            200: ResponseBody("Events, until you disconnect.", media="text/event-stream", schema={"type": "string"})
        },
        refusal_statuses=(400, 404, 503),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "GET /api/chat-locations",
        chat_locations.find_chat_location,
        "Find the location of a chat for a terminal",
        about="The `location` for a message to the chat or session called `name`. An unknown name is a new chat.",
        parameters=(
            RouteParameter(
                "name", "A chat's name, or a session: id, unique prefix, title, address or `last`.", required=True
            ),
            RouteParameter("agent", "The agent; the default agent if not given."),
        ),
        response_bodies={200: ResponseBody("The location.", schemas.ChatLocationResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    # -- sessions ------------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /api/me",
        api_handlers.get_caller,
        "Show the caller",
        response_bodies={200: ResponseBody("The caller.", schemas.CallerView)},
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "GET /api/me/export",
        own_data.export_own_data,
        "Export your data",
        about="What you said and what was answered to you, your notes and schedules, and what each memory has of you. "
        "A record with `missing` names a memory that cannot export it. A service names its user in the header "
        "`X-Everhold-Person`. At most ten requests at once for each token, and then one in thirty seconds, together "
        "with those to be forgotten.",
        response_bodies={
            200: ResponseBody("One JSON record per line.", media=memory.NDJSON, schema={"type": "string"})
        },
        refusal_statuses=(400,),
        least=CallerRole.SERVICE,
        fresh=True,
    ),
    ApiRoute(
        "POST /api/me/forget",
        own_data.forget_caller,
        "Be forgotten",
        about="Without `confirm` the answer is a plan, and nothing is changed. With `confirm` of the plan your entries "
        "are erased in every log, and every memory is asked to delete what it has of you. This cannot be undone. The "
        "gateway goes on with places that are `asked`. A service names its user in the header `X-Everhold-Person`. "
        "What is stored of the other users of the service stays.",
        request_type=schemas.OwnForgetRequest,
        response_bodies={200: ResponseBody("What is or would be erased.", schemas.OwnForgetResponse)},
        refusal_statuses=(400,),
        least=CallerRole.SERVICE,
        fresh=True,
    ),
    ApiRoute(
        "POST /api/login",
        login_handlers.log_in,
        "Log in",
        about="The answer sets a cookie and contains a key. A request of the console needs both: the cookie, and "
        "the key in the header `X-Everhold-Key`. A login ends thirty days after its last use, when it is ended, or "
        "when its token changes. A code works once and for ten minutes.",
        request_type=schemas.LoginRequest,
        response_bodies={200: ResponseBody("The login.", schemas.LoginResponse)},
        refusal_statuses=(400, 409),
        least=CallerRole.ANYBODY,
    ),
    ApiRoute(
        "POST /api/logout",
        login_handlers.log_out,
        "Log out",
        response_bodies={200: ResponseBody("The login that has ended.", schemas.LogoutResponse)},
        refusal_statuses=(400,),
        is_write=False,
    ),
    ApiRoute(
        "POST /api/login-codes",
        login_handlers.create_login_code,
        "Make a login link",
        about="The login has the rights of a token. You can name a token only if you have all of its rights.",
        request_type=schemas.LoginCodeRequest,
        response_bodies={200: ResponseBody("The code and the address.", schemas.LoginCodeResponse)},
        refusal_statuses=(400, 404, 409),
        fresh=True,
    ),
    ApiRoute(
        "GET /api/logins",
        login_handlers.list_logins,
        "List logins",
        about="Operators see all logins, others those of their own token.",
        response_bodies={200: ResponseBody("The logins, newest first.", schemas.LoginListResponse)},
    ),
    ApiRoute(
        "POST /api/logins/{id}/end",
        login_handlers.end_login,
        "End a login",
        parameters=(RouteParameter("id", "The login's id.", "path"),),
        response_bodies={200: ResponseBody("The login that has ended.", schemas.LogoutResponse)},
        refusal_statuses=(404,),
    ),
    ApiRoute(
        "GET /api/sessions",
        api_handlers.list_sessions,
        "List sessions, newest first",
        parameters=(
            RouteParameter(
                "limit", "How many; 100 if not given.", schema=_build_count_schema(api_handlers.MAX_SESSIONS)
            ),
            RouteParameter("after", "The next page: `next` of the page before."),
            *ACTIVE_LIST_PARAMETERS,
            RouteParameter(
                "name", "Only the session of this id; operators may also give a prefix, title, address or `last`."
            ),
        ),
        about="With `order=active` the answer is an `ActiveSessionsResponse`, with the latest activity first.",
        response_bodies={
            200: ResponseBody(
                "The sessions you may see.", schemas.SessionListResponse, variants=(ActiveSessionsResponse,)
            )
        },
        refusal_statuses=(400, 404),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "GET /api/sessions/{id}",
        api_handlers.get_session,
        "Show a session",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: ResponseBody("The session.", schemas.SessionView)},
        refusal_statuses=(400, 404),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "GET /api/sessions/{id}/entries",
        api_handlers.list_entries,
        "List a session's entries",
        parameters=(
            _SESSION_ID_PARAMETER,
            RouteParameter("after", "Only entries after this seq.", schema=_NUMBER_SCHEMA),
            RouteParameter("limit", "The maximum number; all if not given.", schema=_COUNT_SCHEMA),
        ),
        response_bodies={200: ResponseBody("The entries, oldest first.", schemas.EntryListResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "GET /api/sessions/{id}/context",
        api_handlers.get_context,
        "Show the context of a turn",
        about="Computed from the log and compared with the digest that was recorded when it was sent.",
        parameters=(
            _SESSION_ID_PARAMETER,
            RouteParameter("at", "The thought at or after this seq; the next turn if not given.", schema=_COUNT_SCHEMA),
        ),
        response_bodies={200: ResponseBody("The request to the model.", schemas.ContextView)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "GET /api/sessions/{id}/addresses",
        api_handlers.list_addresses,
        "List the addresses that are bound to a session",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: ResponseBody("The addresses.", schemas.AddressListResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "GET /api/entries",
        api_handlers.search_entries,
        "Search the entries of all sessions",
        about="The newest entries that contain all words, grouped by session.",
        parameters=(
            RouteParameter("q", "The words.", required=True),
            RouteParameter(
                "limit", "The maximum number; 50 if not given.", schema=_build_count_schema(api_handlers.MAX_HITS)
            ),
        ),
        response_bodies={200: ResponseBody("The entries.", schemas.SearchResponse)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/sessions/{id}/pins",
        api_handlers.list_pins,
        "List a session's pins",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: ResponseBody("The pinned entries, oldest first.", schemas.PinListResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "POST /api/sessions/{id}/pin",
        api_handlers.pin_entry,
        "Pin an entry",
        about="The entry stays in the context word for word, whatever is compressed. `done` is false if it was already "
        "pinned or does not fit; `message` says why. Only an operator may pin another person's words.",
        parameters=(_SESSION_ID_PARAMETER,),
        request_type=schemas.PinRequest,
        response_bodies={200: ResponseBody("What was done.", schemas.ActionResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "POST /api/sessions/{id}/unpin",
        api_handlers.unpin_entry,
        "Remove a pin",
        parameters=(_SESSION_ID_PARAMETER,),
        request_type=schemas.UnpinRequest,
        response_bodies={200: ResponseBody("What was done.", schemas.ActionResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "POST /api/sessions/{id}/undo",
        api_handlers.undo_operations,
        "Undo turns, or a compression",
        about="Nothing is deleted. The undone operations leave the context.",
        parameters=(_SESSION_ID_PARAMETER,),
        request_type=schemas.UndoRequest,
        response_bodies={200: ResponseBody("What was done.", schemas.ActionResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "POST /api/sessions/{id}/stop",
        api_handlers.stop_operation,
        "Stop the running turn",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: ResponseBody("What was done.", schemas.ActionResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "POST /api/sessions/{id}/erase",
        api_handlers.erase_entries,
        "Erase entries",
        about="Removes their bodies and all records that repeat them, also in branches. This cannot be undone.",
        parameters=(_SESSION_ID_PARAMETER,),
        request_type=schemas.EraseRequest,
        response_bodies={200: ResponseBody("The entries that were erased.", schemas.EraseResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
        fresh=True,
        is_agent_scoped=True,
    ),
    ApiRoute(
        "POST /api/notes",
        api_handlers.add_note,
        "Add a note",
        request_type=schemas.NoteRequest,
        response_bodies={
            202: ResponseBody("The note is committed and will reach every memory.", schemas.AcceptedResponse)
        },
        refusal_statuses=(400, 404),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "POST /api/sessions/{id}/compress",
        api_handlers.compress_session,
        "Compress a session",
        about="The session keeps its id; `undo` with `compress` restores the originals. The response is sent when the "
        "compression is done, or at once with `preview`.",
        parameters=(_SESSION_ID_PARAMETER,),
        request_type=schemas.CompressRequest,
        response_bodies={200: ResponseBody("The result.", schemas.ActionResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "GET /api/sessions/{id}/compressions",
        api_handlers.list_compressions,
        "List a session's compressions",
        parameters=(_SESSION_ID_PARAMETER,),
        response_bodies={200: ResponseBody("The compressions, oldest first.", schemas.CompressionListResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "GET /api/sessions/{id}/compressions/{op}/diff",
        api_handlers.show_compression_diff,
        "Show what a compression replaced",
        parameters=(
            _SESSION_ID_PARAMETER,
            RouteParameter("op", "The compression's `op`.", "path", schema=_COUNT_SCHEMA),
        ),
        response_bodies={200: ResponseBody("The messages before and after.", schemas.CompressionDiffResponse)},
        refusal_statuses=(400, 404),
    ),
    # -- memory --------------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /api/memory/search",
        memory.search_memory,
        "Search an agent's memory of a person",
        about="The facts about a person, with those that were replaced, and the hits of the agent's memories. Without "
        "`q` the memories are not searched.",
        parameters=(
            RouteParameter("q", "The words to search for."),
            RouteParameter("agent", "The agent; the default agent if not given."),
            RouteParameter("person", "The person; yourself if not given. Operators only."),
            RouteParameter(
                "limit", "The maximum number; 20 if not given.", schema=_build_count_schema(memory.MAX_HITS)
            ),
        ),
        response_bodies={200: ResponseBody("The facts and hits.", schemas.MemorySearchResponse)},
        refusal_statuses=(400, 403, 404),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "GET /api/sessions/{id}/why",
        memory.explain_answer,
        "Explain an answer",
        about="What was recalled for it, from which memory, and what was left out because of budget or deadline.",
        parameters=(
            _SESSION_ID_PARAMETER,
            RouteParameter("at", "The answer at or before this seq; the last if not given.", schema=_COUNT_SCHEMA),
        ),
        response_bodies={200: ResponseBody("What was recalled.", schemas.ExplanationView)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "POST /mcp",
        mcp_server.serve_mcp,
        "Serve the memory to MCP clients",
        about="Streamable HTTP of the Model Context Protocol, without sessions and streams: each message gets one "
        "answer. The tools `search`, `remember`, `why` and `list` have the rights of the token. A read-only token has "
        "no `remember`.",
        parameters=(RouteParameter("agent", "The agent whose memory it is; the default agent if not given."),),
        request_type=schemas.McpMessage,
        response_bodies={
            200: ResponseBody("The answer to a request.", schemas.McpAnswer),
            202: ResponseBody("A notification was accepted. There is no body."),
        },
        refusal_statuses=(400, 404),
        least=CallerRole.SERVICE,
        is_write=False,
    ),
    ApiRoute(
        "GET /api/memory/status",
        memory.show_memory_status,
        "Show the state of each agent's memories",
        about="Backlog, dead letters and last error of each memory.",
        response_bodies={200: ResponseBody("One row per agent and memory.", schemas.MemoryStatusResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/memory/compare",
        memory.compare_memories,
        "Compare memories by real questions",
        about="For the newest questions: what each memory found, how long it took, what it would cost to show, and "
        "which of it the answer used. A memory with `shadow: true` is compared without being shown.",
        request_type=schemas.MemoryCompareRequest,
        response_bodies={200: ResponseBody("The comparison.", schemas.MemoryCompareResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
        is_agent_scoped=True,
        is_write=False,
    ),
    ApiRoute(
        "POST /api/memory/providers/{name}/resend",
        memory.resend_to_memory,
        "Resend to a memory what it received",
        about="In order, under the same keys. Refused for a memory that would store everything twice.",
        parameters=(_MEMORY_NAME_PARAMETER,),
        request_type=schemas.MemoryResendRequest,
        response_bodies={200: ResponseBody("How much is sent again.", schemas.MemoryResendResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/memory/providers/{name}/rekey",
        memory.rekey_memory,
        "Move a person's items in a memory to their present peer",
        about="Each item is stored under the new peer, read back, and then the old one is deleted. It resumes after a "
        "restart.",
        parameters=(_MEMORY_NAME_PARAMETER,),
        request_type=schemas.MemoryRekeyRequest,
        response_bodies={200: ResponseBody("How much is moved.", schemas.MemoryRekeyResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/memory/providers/{name}/backfill",
        memory.backfill_memory,
        "Backfill a memory with older history",
        about="Sends the history from before the memory was attached, at a limited rate. It resumes after a restart.",
        parameters=(_MEMORY_NAME_PARAMETER,),
        request_type=schemas.MemoryBackfillRequest,
        response_bodies={200: ResponseBody("How much is sent.", schemas.MemoryBackfillResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/memory/forget",
        memory.forget_person,
        "Forget a person",
        about="Erases a person's entries in every log, asks every memory to delete its data, and reads back. This "
        "cannot be undone. A place is `confirmed` only after reading back. The gateway goes on with places that are "
        "`asked`; a repeated request asks again at once.",
        request_type=schemas.ForgetRequest,
        response_bodies={200: ResponseBody("What is or would be erased.", schemas.ForgetResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "GET /api/memory/erasures",
        memory.list_erasures,
        "List forgettings",
        about="Every person that was forgotten, by identity, with the state of each place: planned, asked, confirmed, "
        "unconfirmed, cannot.",
        response_bodies={200: ResponseBody("The newest first.", schemas.ErasureListResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/memory/erasures/{id}/accept",
        memory.accept_remainders,
        "Accept what cannot be deleted",
        about="Ends the withholding of a memory's answers after a forgetting: an operator has deleted by hand what the "
        "places report as `cannot`, or accepts that it stays. The report still names it.",
        parameters=(_ERASURE_PARAMETER,),
        response_bodies={200: ResponseBody("The forgetting.", schemas.ErasureView)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/memory/export",
        memory.export_person,
        "Export a person's data",
        about="From the logs, the schedules, and each memory that can export. A record with `missing` names a memory "
        "that cannot.",
        parameters=(_PERSON_PARAMETER,),
        response_bodies={
            200: ResponseBody("One JSON record per line.", media=memory.NDJSON, schema={"type": "string"})
        },
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "GET /api/memory/files",
        memory.show_memory_files,
        "Show the facts about a person as Markdown",
        parameters=(_PERSON_PARAMETER,),
        response_bodies={
            200: ResponseBody("The memory files, in the format of an import.", schemas.MemoryFileListResponse)
        },
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "POST /api/memory/import",
        memory.import_memory_files,
        "Import Markdown files as facts and notes",
        about="Parts that were imported before are skipped.",
        request_type=schemas.MemoryImportRequest,
        response_bodies={200: ResponseBody("What the files contain.", schemas.MemoryImportResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    # -- operation -----------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /api/dead-letters",
        admin.list_dead_letters,
        "List dead letters",
        parameters=(
            RouteParameter("limit", "How many; 200 if not given.", schema=_build_count_schema(admin.MAX_DEAD_LETTERS)),
            RouteParameter("after", "The next page: `next` of the page before.", schema=_NUMBER_SCHEMA),
            *DEAD_LETTER_FILTERS,
        ),
        response_bodies={200: ResponseBody("Dead letters, oldest first.", schemas.DeadLetterListResponse)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/dead-letters/replay",
        admin.replay_dead_letters,
        "Replay dead letters",
        request_type=schemas.DeadLetterReplayRequest,
        response_bodies={200: ResponseBody("How many are sent again.", schemas.ReplayResponse)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/status",
        admin.show_status,
        "Show the state of the gateway",
        response_bodies={200: ResponseBody("The status.", schemas.StatusResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/agents",
        admin.list_agents,
        "List the agents",
        response_bodies={
            200: ResponseBody("The agents in force, and which is the default.", schemas.AgentListResponse)
        },
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/audit",
        admin.run_audit,
        "Check the promises on the store",
        about="Reads every entry in one snapshot, so it takes long in a large home. With `stream` it sends server-sent "
        "events: `progress` (`{done, total}`, in entries) twice a second, then `report`, or `error` "
        "(`{message, remedy}`).",
        parameters=(
            RouteParameter("session", "Only this session."),
            RouteParameter("stream", "Any value: report the progress, too."),
        ),
        response_bodies={200: ResponseBody("The report.", schemas.AuditResponse, streams=True)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/backups",
        admin.list_backups,
        "List backups",
        response_bodies={200: ResponseBody("The backups in `backups/`, oldest first.", schemas.BackupListResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/backups",
        admin.create_backup,
        "Copy the store and check the copy",
        request_type=schemas.BackupRequest,
        response_bodies={200: ResponseBody("What the copy contains.", schemas.BackupResponse)},
        refusal_statuses=(400, 403, 507),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    # -- hosts ---------------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /api/hosts",
        admin.list_hosts,
        "List the hosts of a shared store",
        response_bodies={200: ResponseBody("The hosts, and what each holds.", schemas.HostListResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/drain",
        admin.start_draining,
        "End this gateway without losing work",
        response_bodies={202: ResponseBody("The gateway is draining.", schemas.DrainResponse)},
        refusal_statuses=(403,),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    # -- people --------------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /api/people",
        people.list_people,
        "List people",
        response_bodies={200: ResponseBody("People and their identities.", schemas.PersonListResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/people/link",
        people.link_identity,
        "Link an identity to a person",
        request_type=schemas.IdentityLinkRequest,
        response_bodies={200: ResponseBody("The link.", schemas.IdentityLinkResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/people/unlink",
        people.unlink_identity,
        "Unlink an identity from its person",
        request_type=schemas.IdentityRequest,
        response_bodies={200: ResponseBody("The link that was removed.", schemas.IdentityLinkResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/people/name",
        people.name_person,
        "Give a person a name",
        request_type=schemas.PersonNameRequest,
        response_bodies={200: ResponseBody("The person.", schemas.PersonNameResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/people/peers",
        people.list_peers,
        "List how memories call people",
        response_bodies={200: ResponseBody("The recorded peers.", schemas.PeerListResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/people/peers",
        people.assign_peer,
        "Assign a shared peer to an identity",
        about="From then on it is recalled for that person, and new messages of the identity go there.",
        request_type=schemas.PeerAssignmentRequest,
        response_bodies={200: ResponseBody("The assignment.", schemas.PeerAssignmentResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/people/events",
        people.list_people_events,
        "List the log of people",
        parameters=(
            RouteParameter("limit", "How many; 100 if not given.", schema=_build_count_schema(people.MAX_EVENTS)),
            RouteParameter("after", "The next page: `next` of the page before.", schema=_NUMBER_SCHEMA),
        ),
        response_bodies={200: ResponseBody("Events, oldest first.", schemas.PeopleEventsResponse)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/pairing",
        people.list_pairing,
        "List pairing requests and grants",
        response_bodies={200: ResponseBody("The open requests and the grants.", schemas.PairingResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/pairing/approve",
        people.approve_pairing,
        "Approve a pairing code",
        request_type=schemas.PairingApprovalRequest,
        response_bodies={200: ResponseBody("The identity that has access now.", schemas.PairingApprovalResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/pairing/revoke",
        people.revoke_pairing,
        "Revoke the access that a code granted",
        request_type=schemas.IdentityRequest,
        response_bodies={200: ResponseBody("What was revoked.", schemas.PairingRevocationResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/tools",
        admin.list_tools,
        "List tool servers, the tools that wait for a confirmation, and the tools of plug-ins",
        about="A tool that is new or changed since the owner saw it is not offered to a model until it is confirmed. A "
        "tool of a plug-in runs in the gateway's process. It is trusted code and needs no confirmation.",
        response_bodies={200: ResponseBody("The tool servers.", schemas.ToolServersResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/tools/{server}/confirm",
        admin.confirm_tools,
        "Confirm the new and changed tools of a server",
        about="409 if the tools are not those that the digest names.",
        parameters=(RouteParameter("server", "A tool server, as `mcp` in the configuration names it.", "path"),),
        request_type=schemas.ToolConfirmationRequest,
        response_bodies={200: ResponseBody("The tools that are offered now.", schemas.ToolConfirmationResponse)},
        refusal_statuses=(400, 404, 409),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/schedules",
        people.list_schedules,
        "List schedules",
        response_bodies={200: ResponseBody("The schedules, and when each fires next.", schemas.ScheduleListResponse)},
    ),
    ApiRoute(
        "POST /api/schedules/{id}/delete",
        people.delete_schedule,
        "Delete a schedule",
        parameters=(RouteParameter("id", "The schedule's id.", "path"),),
        response_bodies={200: ResponseBody("The schedule's id.", schemas.ScheduleDeletionResponse)},
        refusal_statuses=(404,),
    ),
    ApiRoute(
        "GET /api/hooks",
        hooks.list_hooks,
        "List webhooks",
        response_bodies={200: ResponseBody("The hooks, and where each is heard.", schemas.HookListResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/hooks/{name}/test",
        hooks.try_hook,
        "Test a webhook",
        about="Without `send` the answer shows what would be heard, and nothing is stored. With `send` the gateway "
        "signs the body with the secret of the hook, and accepts it like a delivery.",
        parameters=(RouteParameter("name", "A hook, as `hooks` in the configuration names it.", "path"),),
        request_type=schemas.HookTestRequest,
        response_bodies={200: ResponseBody("What is or would be heard.", schemas.HookTestResponse)},
        refusal_statuses=(400, 403, 404, 429, 503, 507),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /hooks/{name}",
        hooks.receive_delivery,
        "Deliver a webhook",
        about="The signature proves the sender, in the way that `hooks` in the configuration says; no token is "
        "needed. The response is sent after the commit. A repeated delivery gets 200 and the same entry. At most "
        "262,144 bytes.",
        parameters=(RouteParameter("name", "A hook, as `hooks` in the configuration names it.", "path"),),
        response_bodies={
            202: ResponseBody("The message is committed and will be heard.", schemas.HookDeliveryResponse),
            200: ResponseBody("It was accepted before, or `when` leaves it out.", schemas.HookDeliveryResponse),
        },
        refusal_statuses=(400, 401, 403, 404, 429, 503, 507),
        least=CallerRole.ANYBODY,
        body_bytes=hooks.MAX_DELIVERY_BYTES,
    ),
    # -- OpenAI's formats ----------------------------------------------------------------------------------------------
    ApiRoute(
        "POST /v1/chat/completions",
        openai_chat.create_completion,
        "Create a chat completion",
        about=_SESSION_TEXT + _STREAM_TEXT,
        parameters=(_SESSION_HEADER, _PERSON_HEADER, _IDEMPOTENCY_KEY_HEADER),
        request_type=openai_chat.ChatCompletionRequest,
        body_bytes=request_files.MAX_REQUEST_BYTES,
        response_bodies={200: ResponseBody("The reply, or a stream of it.", schema=_ANY_OBJECT_SCHEMA, streams=True)},
        refusal_statuses=(400, 403, 404, 409, 410, 502, 503, 504, 507),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "POST /v1/responses",
        openai_responses.create_response,
        "Create a response",
        about=_SESSION_TEXT + _STREAM_TEXT,
        parameters=(_SESSION_HEADER, _PERSON_HEADER, _IDEMPOTENCY_KEY_HEADER),
        request_type=openai_responses.ResponseRequest,
        body_bytes=request_files.MAX_REQUEST_BYTES,
        response_bodies={
            200: ResponseBody("The response, or a stream of it.", schema=_ANY_OBJECT_SCHEMA, streams=True)
        },
        refusal_statuses=(400, 403, 404, 409, 410, 502, 503, 504, 507),
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "GET /v1/models",
        openai_chat.list_models,
        "List the agents as models",
        response_bodies={200: ResponseBody("One model per agent.", schemas.ModelListResponse)},
        least=CallerRole.SERVICE,
    ),
    ApiRoute(
        "GET /v1/models/{id}",
        openai_chat.get_model,
        "Show an agent as a model",
        parameters=(RouteParameter("id", "The agent's name.", "path"),),
        response_bodies={200: ResponseBody("The model.", schemas.ModelView)},
        refusal_statuses=(404,),
        least=CallerRole.SERVICE,
    ),
    # -- health --------------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /health",
        api_health.get_health,
        "Check that the process runs",
        response_bodies={200: ResponseBody("The process runs.", schemas.HealthResponse)},
        least=CallerRole.ANYBODY,
    ),
    ApiRoute(
        "GET /ready",
        api_health.get_readiness,
        "Check that messages can be accepted",
        response_bodies={200: ResponseBody("Messages can be accepted.", schemas.HealthResponse)},
        refusal_statuses=(503,),
        least=CallerRole.ANYBODY,
    ),
)


def build_routes(
    *, files: console.ConsoleFiles, metrics: api_health.MetricsEndpoint, document: RouteHandler
) -> tuple[ApiRoute, ...]:
    """Return all routes."""
    return (
        *_ROUTES,
        *APPROVAL_ROUTES,
        *CONSOLE_ROUTES,
        ApiRoute(
            "GET /metrics",
            metrics,
            "Show metrics for Prometheus",
            response_bodies={
                200: ResponseBody("Text in Prometheus' format.", media="text/plain", schema={"type": "string"})
            },
            least=CallerRole.METRICS,
        ),
        ApiRoute(
            "GET /openapi.json",
            document,
            "Show the OpenAPI document",
            response_bodies={200: ResponseBody("OpenAPI 3.1.", schema=_ANY_OBJECT_SCHEMA)},
            least=CallerRole.SERVICE,
        ),
        ApiRoute(
            "GET /",
            files.get_index,
            "Show the console",
            response_bodies={200: ResponseBody("HTML.", media="text/html", schema={"type": "string"})},
            least=CallerRole.ANYBODY,
        ),
        ApiRoute(
            "GET /static/{name}",
            files.get_file,
            "Show a file of the console",
            parameters=(RouteParameter("name", "The file's name.", "path"),),
            response_bodies={200: ResponseBody("The file.", media="*/*", schema={"type": "string"})},
            refusal_statuses=(404,),
            least=CallerRole.ANYBODY,
        ),
    )
