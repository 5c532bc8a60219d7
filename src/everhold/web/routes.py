"""Every route there is, in one table. The router, the OpenAPI document and the reference page are made from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from everhold.web import api, completions, events, operations, page, responses, shapes
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
    return (*_messages(), *_sessions(), *_charge(), *_compatible(), *_machine(metrics, document), *_page(files))


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
        "`pos`. Come back with the last id you saw and nothing is missed, also across restarts. `piece` "
        "(`{session, op, text}`) is a reply while it is made: it has no id and may be lost; `anew` says that what came "
        "before was no part of it after all. `hello` tells where the stream starts.",
        parameters=(
            Parameter(name="Last-Event-ID", where="header", about="The last id you saw; without it: from now on."),
            Parameter(name="after", about="The same, for clients that cannot set headers.", schema=_NUMBER),
            Parameter(name="session", about="Only this session."),
        ),
        gives={200: Body(about="Events, until you leave.", media="text/event-stream", schema={"type": "string"})},
        refuses=(400, 404, 503),
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
        ),
        gives={200: _json("The sessions you may see.", shapes.Sessions)},
        refuses=(400,),
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


def _charge() -> Iterable[Way]:
    yield Way(
        method="POST",
        path="/api/sessions/{id}/undo",
        handler=api.undo,
        summary="Take back turns, or a compression",
        about="Nothing is deleted: what is undone leaves the context.",
        parameters=(_ID,),
        takes=shapes.Undo,
        gives={200: _json("What was done.", shapes.Done)},
        refuses=(400, 404),
    )
    yield Way(
        method="POST",
        path="/api/sessions/{id}/compress",
        handler=api.compress,
        summary="Compress the conversation",
        about="The session stays who it is; `undo` with `compress` brings the originals back.",
        parameters=(_ID,),
        takes=shapes.Compress,
        gives={200: _json("What came of it.", shapes.Done)},
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
        path="/api/notes",
        handler=api.note,
        summary="Remember a fact",
        takes=shapes.Note,
        gives={202: _json("It is committed and will reach every memory.", shapes.Accepted)},
        refuses=(400, 404),
    )
    yield Way(
        method="GET",
        path="/api/memories",
        handler=api.memories,
        summary="What is remembered of somebody",
        about="What an agent keeps in mind of a person, with what held before, and what its memories find for them. "
        "Without `q` nothing is searched.",
        parameters=(
            Parameter(name="q", about="What to look for."),
            Parameter(name="agent", about="Whose memory; the default agent's if not given."),
            Parameter(name="person", about="Of whom; yourself if not given. Operators only."),
            Parameter(
                name="limit",
                about="How many are found at most; 20 if not given.",
                schema={**_COUNT, "maximum": api.MOST_MEMORIES},
            ),
        ),
        gives={200: _json("What is remembered.", shapes.Memories)},
        refuses=(400, 403, 404),
    )
    yield Way(
        method="GET",
        path="/api/sessions/{id}/why",
        handler=api.why,
        summary="What an answer rested on",
        about="What was recalled for it, from where, and what was left out by budget or deadline.",
        parameters=(_ID, Parameter(name="at", about="The answer at, or last before, this seq.", schema=_COUNT)),
        gives={200: _json("What was recalled.", shapes.WhyView)},
        refuses=(400, 404),
    )
    yield Way(
        method="POST",
        path="/api/memories/{name}/replay",
        handler=api.hand_over,
        summary="Hand a memory again what it was handed",
        about="In order, under the same keys. Refused where everything would be there twice.",
        parameters=(Parameter(name="name", where="path", about="An instance from `memories`."),),
        takes=shapes.HandOver,
        gives={200: _json("How much goes again.", shapes.HandedOver)},
        refuses=(400, 404),
        operator=True,
    )
    yield Way(
        method="GET",
        path="/api/parked",
        handler=api.parked,
        summary="What could not be delivered",
        gives={200: _json("Dead letters, oldest first.", shapes.ParkedList)},
        operator=True,
    )
    yield Way(
        method="POST",
        path="/api/parked/replay",
        handler=api.replay,
        summary="Send parked items again",
        takes=shapes.Replay,
        gives={200: _json("How many went back to their lanes.", shapes.Replayed)},
        refuses=(400,),
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
