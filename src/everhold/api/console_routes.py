"""The routes of the console beside those of `routes.py`, which has the whole table."""

from __future__ import annotations

from typing import Any, Final

from everhold.api import (
    admin,
    configuration,
    console_schemas,
    handlers,
    inbox,
    inspection,
    logs,
    memory,
    overview,
    setup,
)
from everhold.api.route_types import ApiRoute, ResponseBody, RouteParameter
from everhold.config.whole_text import MAX_VERSIONS
from everhold.core.callers import CallerRole
from everhold.telemetry.log_file import LOG_LEVELS

_SEQ_SCHEMA: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": 2**53}
_SESSION: Final = RouteParameter("id", "The session's id; operators may also give a unique prefix or a title.", "path")

ACTIVE_LIST_PARAMETERS: Final = (
    RouteParameter("order", "`active`: the session with the latest entry first.", schema={"enum": ["active"]}),
    RouteParameter("before", "With `order=active`, the next page: `next` of the page before."),
    RouteParameter("q", "With `order=active`: words of the title or of an entry."),
    RouteParameter("agent", "With `order=active`: only sessions with this agent."),
    RouteParameter("platform", "With `order=active`: only sessions on this platform."),
    RouteParameter("person", "With `order=active`: only sessions in which this person wrote. Operators only."),
    RouteParameter(
        "state",
        "With `order=active`: which sessions; those that are not archived if not given.",
        schema={"enum": list(overview.STATES)},
    ),
)
DEAD_LETTER_FILTERS: Final = (
    RouteParameter("consumer", "Only those of this consumer."),
    RouteParameter("cause", "Only those with exactly this reason."),
    RouteParameter("session", "Only those of this session."),
)

CONSOLE_ROUTES: Final = (
    # -- sessions ------------------------------------------------------------------------------------------------------
    ApiRoute(
        "POST /api/sessions/{id}/title",
        overview.rename_session,
        "Give a session a title",
        parameters=(_SESSION,),
        request_type=console_schemas.TitleRequest,
        response_bodies={200: ResponseBody("The title.", console_schemas.TitleResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "POST /api/sessions/{id}/archive",
        overview.archive_session,
        "Archive a session, or undo that",
        about="An archived session is left out of lists. It is answered and remembered as before.",
        parameters=(_SESSION,),
        request_type=console_schemas.ArchiveRequest,
        response_bodies={200: ResponseBody("Whether it is archived.", console_schemas.ArchiveResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "GET /api/sessions/{id}/export",
        overview.export_session,
        "Export a session",
        about="The first line is the session, every other line an entry of its log.",
        parameters=(_SESSION,),
        response_bodies={
            200: ResponseBody("One JSON record per line.", media=memory.NDJSON, schema={"type": "string"})
        },
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
        fresh=True,
        is_agent_scoped=True,
    ),
    ApiRoute(
        "GET /api/sessions/{id}/erasure-plan",
        overview.plan_erasure,
        "Plan the erasure of a session",
        about="`POST /api/sessions/{id}/erase` with the `seqs` of the plan erases all words of the session.",
        parameters=(_SESSION,),
        response_bodies={200: ResponseBody("What the erasure would include.", console_schemas.ErasurePlanResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
        is_agent_scoped=True,
    ),
    ApiRoute(
        "GET /api/sessions/{id}/timeline",
        inspection.list_timeline,
        "List a session's operations",
        parameters=(
            _SESSION,
            RouteParameter("before", "Only operations before this one.", schema=_SEQ_SCHEMA),
            RouteParameter(
                "limit",
                "How many; 50 if not given.",
                schema={"type": "integer", "minimum": 1, "maximum": inspection.MAX_OPERATIONS},
            ),
        ),
        response_bodies={200: ResponseBody("The operations, newest first.", console_schemas.TimelineResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "GET /api/sessions/{id}/context/diff",
        inspection.compare_contexts,
        "Compare the contexts of two model calls",
        parameters=(
            _SESSION,
            RouteParameter("a", "The earlier model call, by its seq.", schema=_SEQ_SCHEMA, required=True),
            RouteParameter("b", "The later model call, by its seq.", schema=_SEQ_SCHEMA, required=True),
        ),
        response_bodies={200: ResponseBody("What became of each part.", console_schemas.ContextDiffResponse)},
        refusal_statuses=(400, 404),
    ),
    ApiRoute(
        "GET /api/sessions/{id}/entries/{seq}/deliveries",
        inspection.list_deliveries,
        "Show where an entry was delivered",
        parameters=(_SESSION, RouteParameter("seq", "The entry.", "path", schema=_SEQ_SCHEMA)),
        response_bodies={200: ResponseBody("Its state at each consumer.", console_schemas.EntryDeliveriesResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
        is_agent_scoped=True,
    ),
    ApiRoute(
        "POST /api/retry",
        handlers.retry_waiting,
        "Try everything that waits after a failure now",
        about="Delays that a service demanded stay.",
        response_bodies={200: ResponseBody("How many cursors were waiting.", console_schemas.RetryResponse)},
        least=CallerRole.OPERATOR,
    ),
    # -- operation -----------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /api/dead-letters/causes",
        admin.count_dead_letters,
        "Count dead letters by reason",
        response_bodies={
            200: ResponseBody(
                "Consumers and reasons, the most frequent first.", console_schemas.DeadLetterCausesResponse
            )
        },
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/dead-letters/drop",
        admin.drop_dead_letters,
        "Give up dead letters for good",
        about="They leave the list and are never delivered. The log keeps their entries.",
        request_type=console_schemas.DeadLetterDropRequest,
        response_bodies={200: ResponseBody("How many.", console_schemas.DeadLetterDropResponse)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/usage",
        overview.show_usage,
        "Show the use of models",
        parameters=(
            RouteParameter("by", "`day` if not given.", schema={"enum": list(overview.USAGE_KEYS)}),
            RouteParameter("since", "The first day, such as 2026-11-01."),
            RouteParameter("until", "The last day."),
        ),
        response_bodies={200: ResponseBody("Tokens and cost.", console_schemas.UsageResponse)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
        is_agent_scoped=True,
    ),
    # -- configuration -------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /api/config",
        configuration.show_config,
        "Show the configuration",
        about="Secrets are not in config.yaml, and none is shown.",
        response_bodies={200: ResponseBody("The text, and what is in force.", console_schemas.ConfigResponse)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "POST /api/config/check",
        configuration.check_config,
        "Check a change of the configuration",
        about="Nothing is written. The answer contains the text, so it needs the same login.",
        request_type=console_schemas.ConfigDraft,
        response_bodies={200: ResponseBody("What the change would do.", console_schemas.ConfigCheckResponse)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
        fresh=True,
        is_write=False,
    ),
    ApiRoute(
        "POST /api/config",
        configuration.write_config,
        "Change the configuration",
        about="An invalid text is refused (400), and so is a change of a text that another one has replaced (409).",
        request_type=console_schemas.ConfigWriteRequest,
        response_bodies={200: ResponseBody("What was written.", console_schemas.ConfigWriteResponse)},
        refusal_statuses=(400, 409),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "GET /api/config/versions",
        configuration.list_config_versions,
        "List earlier configurations",
        about=f"The last {MAX_VERSIONS} texts that this API has replaced.",
        response_bodies={200: ResponseBody("The texts, the last one first.", console_schemas.ConfigVersionsResponse)},
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "POST /api/config/undo",
        configuration.undo_config,
        "Write an earlier configuration again",
        about="Byte for byte. The present text becomes an earlier one.",
        request_type=console_schemas.ConfigUndoRequest,
        response_bodies={200: ResponseBody("What was written.", console_schemas.ConfigWriteResponse)},
        refusal_statuses=(400, 404, 409),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "GET /api/logs",
        logs.show_logs,
        "Show log lines",
        about="Those of the host that answers. With `stream` it sends server-sent events: `line` for each line, `live` "
        "before the first one that is new, and `lost` (`{lines}`) if the reader was too slow.",
        parameters=(
            RouteParameter("level", "Lines of at least this level.", schema={"enum": list(LOG_LEVELS)}),
            RouteParameter("event", "The beginning of an event's name, such as `delivery.`."),
            RouteParameter("session", "Only lines of this session, by its id."),
            RouteParameter("q", "Only lines with these words."),
            RouteParameter(
                "limit",
                f"How many of the last lines; {logs.DEFAULT_LINES} if not given.",
                schema={"type": "integer", "minimum": 0, "maximum": logs.MAX_LINES},
            ),
            RouteParameter("stream", "Any value: send those that come, too."),
        ),
        response_bodies={200: ResponseBody("The lines, oldest first.", console_schemas.LogLinesResponse, streams=True)},
        refusal_statuses=(400,),
        least=CallerRole.OPERATOR,
    ),
    # -- setup ---------------------------------------------------------------------------------------------------------
    ApiRoute(
        "GET /api/setup",
        setup.describe_setup,
        "Show what can be set up",
        response_bodies={200: ResponseBody("Kinds of models, and platforms.", console_schemas.SetupResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "GET /api/models",
        setup.list_models,
        "List the configured models",
        response_bodies={200: ResponseBody("The models.", console_schemas.ModelsResponse)},
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/models/{name}/test",
        setup.test_model,
        "Test a configured model",
        about="It is asked for one word. The request belongs to no session.",
        parameters=(RouteParameter("name", "Its key in `models`.", "path"),),
        response_bodies={200: ResponseBody("Its answer, or the error.", console_schemas.ModelTestResponse)},
        refusal_statuses=(404,),
        least=CallerRole.OPERATOR,
    ),
    ApiRoute(
        "POST /api/setup/model",
        setup.set_up_model,
        "Test a model, and use it",
        about="With `write` a model that works becomes the model of all agents that name none.",
        request_type=console_schemas.ModelSetupRequest,
        response_bodies={200: ResponseBody("Its answer, or the error.", console_schemas.ModelTestResponse)},
        refusal_statuses=(400, 409),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "POST /api/setup/account",
        setup.set_up_account,
        "Test an account of a platform, and connect it",
        about="With `write` an account that works is connected at once.",
        request_type=console_schemas.AccountSetupRequest,
        response_bodies={200: ResponseBody("Its name there, or the error.", console_schemas.AccountTestResponse)},
        refusal_statuses=(400, 409),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "POST /api/invitations",
        setup.create_invitation,
        "Invite a person to an account",
        about="Whoever opens the link first has access to direct chats with the account, for good.",
        request_type=console_schemas.InvitationRequest,
        response_bodies={200: ResponseBody("The link.", console_schemas.InvitationResponse)},
        refusal_statuses=(400, 404),
        least=CallerRole.OPERATOR,
        fresh=True,
    ),
    ApiRoute(
        "GET /api/inbox",
        inbox.list_inbox,
        "List what waits for a person",
        response_bodies={200: ResponseBody("Each item with its remedy.", console_schemas.InboxResponse)},
        least=CallerRole.OPERATOR,
    ),
)
