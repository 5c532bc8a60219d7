"""A fake Honcho on loopback that answers as its API v3 does: workspaces, peers, sessions, messages, conclusions, cards,
context.

Creating is get-or-create; writes have no key, so repeats are not recognised; messages cannot be deleted. A session is
hidden from lists at once and deleted later by a worker; until then searches find its text, and writes to it get 404. A
search returns neighbours, not only texts with the same words. Instead of reasoning, it derives one conclusion from each
message: for its author, and for those peers of the session that observe others. It returns the conclusions of the
observer that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from everhold.testing.services.base import LoopbackService, ServiceRefusal, ServiceReply, ServiceRequest, score_overlap

MAX_MESSAGES: Final = 100
MAX_MESSAGE_CHARS: Final = 25_000
MAX_CONCLUSIONS: Final = 65_535
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,512}")
Row = dict[str, Any]


@dataclass
class HonchoServiceState:
    """What the service stores."""

    workspaces: dict[str, Row] = field(default_factory=dict)
    peers: dict[tuple[str, str], Row] = field(default_factory=dict)
    sessions: dict[tuple[str, str], Row] = field(default_factory=dict)
    messages: list[Row] = field(default_factory=list)
    conclusions: list[Row] = field(default_factory=list)
    cards: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    """Names of the created sessions, in order, for tests to count."""


class HonchoService(LoopbackService):
    """The service; tests inspect `state`."""

    routes = (
        ("POST", "/v3/workspaces", "workspace"),
        ("POST", "/v3/workspaces/{workspace}/peers", "peer"),
        ("POST", "/v3/workspaces/{workspace}/peers/list", "peers"),
        ("POST", "/v3/workspaces/{workspace}/peers/{peer}/chat", "chat"),
        ("POST", "/v3/workspaces/{workspace}/peers/{peer}/search", "search_peer"),
        ("POST", "/v3/workspaces/{workspace}/peers/{peer}/representation", "representation"),
        ("GET", "/v3/workspaces/{workspace}/peers/{peer}/context", "peer_context"),
        ("GET", "/v3/workspaces/{workspace}/peers/{peer}/card", "card"),
        ("PUT", "/v3/workspaces/{workspace}/peers/{peer}/card", "set_card"),
        ("POST", "/v3/workspaces/{workspace}/search", "search"),
        ("GET", "/v3/workspaces/{workspace}/queue/status", "queue"),
        ("POST", "/v3/workspaces/{workspace}/sessions", "session"),
        ("POST", "/v3/workspaces/{workspace}/sessions/list", "sessions"),
        ("DELETE", "/v3/workspaces/{workspace}/sessions/{session}", "delete_session"),
        ("GET", "/v3/workspaces/{workspace}/sessions/{session}/context", "context"),
        ("PUT", "/v3/workspaces/{workspace}/sessions/{session}/peers/{peer}/config", "set_peer_config"),
        ("POST", "/v3/workspaces/{workspace}/sessions/{session}/search", "search_session"),
        ("POST", "/v3/workspaces/{workspace}/sessions/{session}/messages", "add_messages"),
        ("POST", "/v3/workspaces/{workspace}/sessions/{session}/messages/list", "list_messages"),
        ("PUT", "/v3/workspaces/{workspace}/sessions/{session}/messages/{message}", "update_message"),
        ("POST", "/v3/workspaces/{workspace}/conclusions", "conclude"),
        ("POST", "/v3/workspaces/{workspace}/conclusions/list", "list_conclusions"),
        ("POST", "/v3/workspaces/{workspace}/conclusions/query", "query_conclusions"),
        ("DELETE", "/v3/workspaces/{workspace}/conclusions/{conclusion}", "delete_conclusion"),
    )

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__(key=key)
        self.finds_neighbours = True
        """Whether a search also returns texts without a common word, as the real service does."""
        self.derives = False
        """Whether the deriver runs. Tests that count conclusions leave it off."""
        self.state = HonchoServiceState()
        self.deletes_sessions = True
        """Whether the worker that deletes sessions runs. The service answers 202 in any case."""
        self.deletion_reads = 0
        """How many requests the worker lets pass before it deletes a session."""
        self.clock: Callable[[], float] | None = None
        """The service's clock. Without one it begins at a fixed time, and each answer is a second later."""
        self._last_time = 0.0
        self._doomed: dict[tuple[str, str], int] = {}
        """(workspace, session) -> requests until it is deleted."""

    # -- inspection --------------------------------------------------------------------------------------------------

    def texts(self, session: str) -> list[str]:
        """Return the messages of a session, in the order they were stored."""
        return [row["content"] for row in self.state.messages if row["session_id"] == session]

    def list_conclusion_texts(self) -> list[str]:
        return [row["content"] for row in self.state.conclusions]

    # -- workspaces, peers, sessions ---------------------------------------------------------------------------------

    def workspace(self, call: ServiceRequest) -> ServiceReply:
        name = _check_name(call.json)
        return self._get_or_create(self.state.workspaces, name, {"id": name, "metadata": {}, "configuration": {}}, call)

    def peer(self, call: ServiceRequest, workspace: str) -> ServiceReply:
        return self._get_or_create_peer(workspace, _check_name(call.json), call)

    def _get_or_create_peer(self, workspace: str, name: str, call: ServiceRequest | None = None) -> ServiceReply:
        fresh = {"id": name, "workspace_id": workspace, "metadata": {}, "configuration": {}}
        return self._get_or_create(self.state.peers, (workspace, name), fresh, call)

    def peers(self, call: ServiceRequest, workspace: str) -> Row:
        rows = [row for (where, _), row in self.state.peers.items() if where == workspace]
        return _make_page(call, _filter_rows(rows, call.json))

    def session(self, call: ServiceRequest, workspace: str) -> ServiceReply:
        return self._get_or_create_session(workspace, _check_name(call.json), call.json.get("peers") or {}, call)

    def _get_or_create_session(
        self, workspace: str, name: str, peers: Mapping[str, Any], call: ServiceRequest | None = None
    ) -> ServiceReply:
        if (workspace, name) in self.state.sessions:
            self._require_session(workspace, name)  # a session that is being deleted takes nothing any more
        for peer in peers:
            self._get_or_create_peer(workspace, peer)
        fresh = {
            "id": name,
            "workspace_id": workspace,
            "is_active": True,
            "metadata": {},
            "configuration": {},
            "peers": {},
        }
        reply = self._get_or_create(self.state.sessions, (workspace, name), fresh, call)
        if reply.status == 201:
            self.state.created.append(name)
        for peer, config in peers.items():
            # a peer that is in the session already keeps its configuration
            self.state.sessions[workspace, name]["peers"].setdefault(peer, dict(config or {}))
        return reply

    def set_peer_config(self, call: ServiceRequest, workspace: str, session: str, peer: str) -> ServiceReply:
        found = self.state.sessions.get((workspace, session), {}).get("peers", {})
        if peer not in found:
            raise ServiceRefusal(404, {"detail": "Session peer not found"})
        found[peer].update(call.json or {})
        return ServiceReply(None, 204)

    def sessions(self, call: ServiceRequest, workspace: str) -> Row:
        self.work()
        rows = [row for (where, _), row in self.state.sessions.items() if where == workspace and row["is_active"]]
        return _make_page(call, _filter_rows(rows, call.json))

    def delete_session(self, call: ServiceRequest, workspace: str, session: str) -> ServiceReply:
        self._require_session(workspace, session)
        self.state.sessions[workspace, session]["is_active"] = False
        self._doomed[workspace, session] = self.deletion_reads
        return ServiceReply({"message": "Session deleted successfully"}, 202)

    def _rank_rows(self, wanted: Mapping[str, Any], rows: Sequence[Row]) -> list[Row]:
        """Return the rows, the best first: vectors always have neighbours, and nothing says where they stop to fit."""
        scored = [(score_overlap(wanted["query"], row["content"]), -place, row) for place, row in enumerate(rows)]
        nearest = sorted(scored, key=lambda it: it[:2], reverse=True)
        fitting = [row for score, _, row in nearest if score or self.finds_neighbours]
        return fitting[: wanted.get("limit") or 10]

    def work(self) -> None:
        """Let the worker do what is due: it deletes sessions some time after the service has answered 202."""
        for (workspace, session), reads in list(self._doomed.items()):
            if reads > 0:
                self._doomed[workspace, session] = reads - 1
            elif self.deletes_sessions:
                del self._doomed[workspace, session]
                self._erase_session(workspace, session)

    def _erase_session(self, workspace: str, session: str) -> None:
        del self.state.sessions[workspace, session]
        for shelf in ("messages", "conclusions"):
            rows = getattr(self.state, shelf)
            left = [row for row in rows if (row["workspace_id"], row["session_id"]) != (workspace, session)]
            setattr(self.state, shelf, left)

    def _require_session(self, workspace: str, session: str) -> None:
        row = self.state.sessions.get((workspace, session))
        if row is None or not row["is_active"]:
            raise ServiceRefusal(404, {"detail": "Session not found"})

    def _get_or_create(self, shelf: dict[Any, Row], key: Any, fresh: Row, call: ServiceRequest | None) -> ServiceReply:
        status = 200 if key in shelf else 201
        row = shelf.setdefault(key, {**fresh, "created_at": self._next_time()})
        given = (call.json or {}) if call is not None else {}
        row.update({field: given[field] for field in ("metadata", "configuration") if given.get(field) is not None})
        return ServiceReply({name: value for name, value in row.items() if name != "peers"}, status)

    # -- messages ----------------------------------------------------------------------------------------------------

    def add_messages(self, call: ServiceRequest, workspace: str, session: str) -> ServiceReply:
        given = (call.json or {}).get("messages") or []
        if not 1 <= len(given) <= MAX_MESSAGES:
            raise _make_invalid_refusal("messages", "List should have between 1 and 100 items")
        for message in given:
            if len(message["content"]) > MAX_MESSAGE_CHARS:
                raise _make_invalid_refusal("content", "String should have at most 25000 characters")
            _check_name({"id": message["peer_id"]})
        _check_name({"id": session})
        # all or none, because the service adds them in one transaction
        self._get_or_create_session(workspace, session, {message["peer_id"]: {} for message in given})
        rows = [
            {
                "id": self._next_id("msg"),
                "content": message["content"].replace("\x00", ""),
                "peer_id": message["peer_id"],
                "session_id": session,
                "workspace_id": workspace,
                "metadata": message.get("metadata") or {},
                "created_at": message.get("created_at") or self._next_time(),
                "token_count": len(message["content"].split()),
            }
            for message in given
        ]
        self.state.messages.extend(rows)
        if self.derives:
            reasoned = [row for row, message in zip(rows, given, strict=True) if _is_reasoned(message)]
            self._derive_conclusions(workspace, session, reasoned)
        return ServiceReply(rows, 201)

    def _derive_conclusions(self, workspace: str, session: str, rows: Sequence[Row]) -> None:
        peers = self.state.sessions[workspace, session]["peers"]
        for row in rows:
            observed = row["peer_id"]
            if peers.get(observed, {}).get("observe_me") is False:
                continue
            others = [peer for peer, config in peers.items() if peer != observed and config.get("observe_others")]
            for observer in (observed, *others):
                self.state.conclusions.append(
                    {
                        "id": self._next_id("con"),
                        "content": f"{observed} said: {row['content']}",
                        "observer_id": observer,
                        "observed_id": observed,
                        "session_id": session,
                        "level": "explicit",
                        "times_derived": 1,
                        "workspace_id": workspace,
                        "created_at": self._next_time(),
                    }
                )

    def list_messages(self, call: ServiceRequest, workspace: str, session: str) -> Row:
        self._require_session(workspace, session)
        return _make_page(call, _filter_rows(self._find_messages(workspace, session), call.json))

    def update_message(self, call: ServiceRequest, workspace: str, session: str, message: str) -> Row:
        for row in self._find_messages(workspace, session):
            if row["id"] == message:
                row["metadata"] = call.json.get("metadata") or {}
                return row
        raise ServiceRefusal(404, {"detail": "Message not found"})

    def _find_messages(self, workspace: str, session: str = "", peer: str = "") -> list[Row]:
        return [
            row
            for row in self.state.messages
            if row["workspace_id"] == workspace
            and (not session or row["session_id"] == session)
            and (not peer or row["peer_id"] == peer)
        ]

    def search(self, call: ServiceRequest, workspace: str) -> list[Row]:
        return self._rank_rows(call.json, _filter_rows(self._find_messages(workspace), call.json))

    def search_session(self, call: ServiceRequest, workspace: str, session: str) -> list[Row]:
        return self._rank_rows(call.json, _filter_rows(self._find_messages(workspace, session), call.json))

    def search_peer(self, call: ServiceRequest, workspace: str, peer: str) -> list[Row]:
        return self._rank_rows(call.json, _filter_rows(self._find_messages(workspace, peer=peer), call.json))

    # -- conclusions, cards, context ---------------------------------------------------------------------------------

    def conclude(self, call: ServiceRequest, workspace: str) -> ServiceReply:
        given = (call.json or {}).get("conclusions") or []
        if not 1 <= len(given) <= MAX_MESSAGES:
            raise _make_invalid_refusal("conclusions", "List should have between 1 and 100 items")
        for one in given:
            if not 1 <= len(one["content"]) <= MAX_CONCLUSIONS:
                raise _make_invalid_refusal("content", "String should have between 1 and 65535 characters")
            for peer in (one["observer_id"], one["observed_id"]):
                if (workspace, peer) not in self.state.peers:
                    raise ServiceRefusal(404, {"detail": f"Peer {peer} not found"})
            if one.get("session_id"):
                self._require_session(workspace, one["session_id"])
        rows = [
            {
                "id": self._next_id("con"),
                "content": one["content"],
                "observer_id": one["observer_id"],
                "observed_id": one["observed_id"],
                "session_id": one.get("session_id"),
                "level": "explicit",
                "times_derived": 1,
                "workspace_id": workspace,
                "created_at": self._next_time(),
            }
            for one in given
        ]
        self.state.conclusions.extend(rows)
        return ServiceReply(rows, 201)

    def _find_conclusions(self, workspace: str) -> list[Row]:
        return [row for row in self.state.conclusions if row["workspace_id"] == workspace]

    def list_conclusions(self, call: ServiceRequest, workspace: str) -> Row:
        newest_first = list(reversed(self._find_conclusions(workspace)))
        return _make_page(call, _filter_rows(newest_first, call.json))

    def query_conclusions(self, call: ServiceRequest, workspace: str) -> list[Row]:
        wanted = {"query": call.json["query"], "limit": call.json.get("top_k", 10)}
        return self._rank_rows(wanted, _filter_rows(self._find_conclusions(workspace), call.json))

    def delete_conclusion(self, call: ServiceRequest, workspace: str, conclusion: str) -> ServiceReply:
        kept = [row for row in self.state.conclusions if row["id"] != conclusion]
        if len(kept) == len(self.state.conclusions):
            raise ServiceRefusal(404, {"detail": "Conclusion not found"})
        self.state.conclusions = kept
        return ServiceReply(None, 204)

    def card(self, call: ServiceRequest, workspace: str, peer: str) -> Row:
        return {"peer_card": self.state.cards.get((workspace, peer, call.query.get("target", peer)))}

    def set_card(self, call: ServiceRequest, workspace: str, peer: str) -> Row:
        self.state.cards[workspace, peer, call.query.get("target", peer)] = list(call.json["peer_card"])
        return {"peer_card": call.json["peer_card"]}

    def _render_representation(self, workspace: str, observer: str, observed: str) -> str:
        return "\n".join(
            row["content"]
            for row in self._find_conclusions(workspace)
            if (row["observer_id"], row["observed_id"]) == (observer, observed)
        )

    def representation(self, call: ServiceRequest, workspace: str, peer: str) -> Row:
        return {"representation": self._render_representation(workspace, peer, call.json.get("target") or peer)}

    def peer_context(self, call: ServiceRequest, workspace: str, peer: str) -> Row:
        target = call.query.get("target", peer)
        return {
            "peer_id": peer,
            "target_id": target,
            "representation": self._render_representation(workspace, peer, target),
            "peer_card": self.state.cards.get((workspace, peer, target)),
        }

    def context(self, call: ServiceRequest, workspace: str, session: str) -> Row:
        self._require_session(workspace, session)
        target, seen_by = call.query.get("peer_target", ""), call.query.get("peer_perspective", "")
        return {
            "id": session,
            "messages": self._find_messages(workspace, session)[-10:],
            "summary": None,
            "peer_representation": self._render_representation(workspace, seen_by or target, target)
            if target
            else None,
            "peer_card": self.state.cards.get((workspace, seen_by or target, target)) if target else None,
        }

    def chat(self, call: ServiceRequest, workspace: str, peer: str) -> Row:
        target = call.json.get("target") or peer
        known = self._render_representation(workspace, peer, target)
        return {"content": f"About {target}: {known}" if known else "I know nothing about that yet."}

    def queue(self, call: ServiceRequest, workspace: str) -> Row:
        done = len(self._find_messages(workspace))
        return {
            "total_work_units": done,
            "completed_work_units": done,
            "in_progress_work_units": 0,
            "pending_work_units": 0,
        }

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _next_time(self) -> str:
        if self.clock is None:
            return super()._next_time()
        self._last_time = max(self._last_time + 1e-6, self.clock())
        return datetime.fromtimestamp(self._last_time, UTC).isoformat()

    def _next_id(self, kind: str) -> str:
        return f"{kind}_{next(self._count):018d}xyz"


def _is_reasoned(message: Mapping[str, Any]) -> bool:
    reasoning = (message.get("configuration") or {}).get("reasoning") or {}
    return reasoning.get("enabled") is not False


def _check_name(body: Any) -> str:
    name = (body or {}).get("id", "")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise _make_invalid_refusal("id", "String should match pattern '^[a-zA-Z0-9_-]+$'")
    return name


def _make_invalid_refusal(where: str, why: str) -> ServiceRefusal:
    return ServiceRefusal(422, {"detail": [{"loc": ["body", where], "msg": why, "type": "value_error"}]})


def _make_page(call: ServiceRequest, rows: Sequence[Row]) -> Row:
    page, size = int(call.query.get("page", "1")), int(call.query.get("size", "50"))
    if not 1 <= size <= 100:
        raise _make_invalid_refusal("size", "Input should be between 1 and 100")
    ordered = list(reversed(rows)) if call.query.get("reverse") == "true" else list(rows)
    items = ordered[(page - 1) * size : page * size]
    return {"items": items, "page": page, "size": size, "total": len(rows), "pages": -(-len(rows) // size)}


def _filter_rows(rows: Sequence[Row], body: Any) -> list[Row]:
    filters = (body or {}).get("filters") or {}
    return [row for row in rows if _matches_filters(row, filters)]


def _matches_filters(row: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    for key, wanted in filters.items():
        match key:
            case "AND":
                fits = all(_matches_filters(row, one) for one in wanted)
            case "OR":
                fits = any(_matches_filters(row, one) for one in wanted)
            case "NOT":
                fits = not any(_matches_filters(row, one) for one in wanted)
            case "metadata":
                fits = all(_matches_value(row["metadata"].get(name), value) for name, value in wanted.items())
            case _ if key in row:
                fits = _matches_value(row[key], wanted)
            case _:
                raise ServiceRefusal(422, {"detail": f"Column '{key}' does not exist"})
        if not fits:
            return False
    return True


def _matches_value(value: Any, wanted: Any) -> bool:
    if wanted == "*":
        return True
    if isinstance(wanted, dict) and "in" in wanted:
        return value in wanted["in"]
    if isinstance(wanted, dict) and isinstance(value, dict):
        return all(_matches_value(value.get(key), inner) for key, inner in wanted.items())
    return bool(value == wanted)
