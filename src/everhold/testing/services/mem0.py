"""A fake of Mem0's platform on loopback that answers as its API does: memories are added by a queue, searched, listed,
deleted.

An added memory has no key, so a repeat is another memory. Instead of extraction by a language model, each message is
stored as it is. It also answers as the self-hosted server, which has other paths and no queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everhold.testing.services.base import LoopbackService, ServiceRefusal, ServiceReply, ServiceRequest, score_overlap

Row = dict[str, Any]


@dataclass
class Mem0ServiceState:
    """What the service stores."""

    memories: dict[str, Row] = field(default_factory=dict)
    events: dict[str, Row] = field(default_factory=dict)


class Mem0Service(LoopbackService):
    """The service. While `holds_events`, added memories stay in the queue until `process_events`. The next
    `failures_left` of them fail.
    """

    routes = (
        ("GET", "/v1/ping", "ping"),
        ("POST", "/v3/memories/add", "add"),
        ("POST", "/v3/memories/search", "search"),
        ("POST", "/v3/memories", "list_memories"),
        ("GET", "/v1/memories/{memory}", "get"),
        ("DELETE", "/v1/memories/{memory}", "delete"),
        ("GET", "/v1/event/{event}", "event"),
        ("POST", "/memories", "add_at_once"),
        ("POST", "/search", "search"),
        ("PUT", "/memories/{memory}", "update"),
        ("DELETE", "/memories/{memory}", "delete"),
    )

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__(key=key)
        self.state = Mem0ServiceState()
        self.holds_events = False
        self.failures_left = 0
        self.indexes = True
        """Whether the index is up to date. Otherwise lists and searches show neither what is added nor what is deleted,
        and a request by id shows both, until `update_index`.
        """
        self._unindexed: set[str] = set()
        self._doomed: set[str] = set()

    def is_authorised(self, headers: Mapping[str, str]) -> bool:
        given = (headers.get("authorization"), headers.get("x-api-key"))
        return self.key is None or given in ((f"Token {self.key}", None), (None, self.key))

    # -- inspection --------------------------------------------------------------------------------------------------

    def texts(self, user: str = "") -> list[str]:
        return [row["memory"] for row in self.state.memories.values() if not user or row["user_id"] == user]

    def process_events(self) -> None:
        """Process the queue."""
        for event in self.state.events.values():
            if event["status"] == "PENDING":
                self._process_event(event)

    def update_index(self) -> None:
        """Bring the index up to date, and finish the deletions."""
        self.indexes = True
        self._unindexed.clear()
        for memory in self._doomed:
            self.state.memories.pop(memory, None)
        self._doomed.clear()

    def drop_index(self) -> None:
        """Let the index begin anew: only a request by id shows what there is, until `update_index`."""
        self._unindexed |= set(self.state.memories)

    def _list_indexed(self) -> list[Row]:
        return [row for id, row in self.state.memories.items() if id not in self._unindexed]

    # -- endpoints ---------------------------------------------------------------------------------------------------

    def ping(self, call: ServiceRequest) -> Row:
        return {"status": "ok", "org_id": "org", "project_id": "project", "user_email": ""}

    def add(self, call: ServiceRequest) -> Row:
        given = call.json or {}
        if not given.get("messages") or not (given.get("user_id") or given.get("agent_id") or given.get("run_id")):
            raise ServiceRefusal(400, {"detail": "messages and one of user_id, agent_id, run_id are needed"})
        event = f"event-{next(self._count)}"
        row: Row = {"id": event, "status": "PENDING", "given": given, "results": []}
        self.state.events[event] = row
        if not self.holds_events:
            self._process_event(row)
        return {"message": "Memory processing has been queued", "status": "PENDING", "event_id": event}

    def add_at_once(self, call: ServiceRequest) -> Row:
        event = self.state.events[self.add(call)["event_id"]]
        if event["status"] == "PENDING":
            self._process_event(event)
        if event["status"] == "FAILED":
            raise ServiceRefusal(500, {"detail": "the memory could not be made"})
        return {
            "results": [{"id": it["id"], "memory": it["data"]["memory"], "event": "ADD"} for it in event["results"]]
        }

    def _process_event(self, event: Row) -> None:
        if self.failures_left:
            self.failures_left -= 1
            event["status"] = "FAILED"
            return
        given = event["given"]
        for message in given["messages"]:
            id_ = f"mem-{next(self._count):06d}"
            self.state.memories[id_] = {
                "id": id_,
                "memory": message["content"],
                "user_id": given.get("user_id"),
                "agent_id": given.get("agent_id"),
                "run_id": given.get("run_id"),
                "metadata": given.get("metadata") or {},
                "created_at": self._next_time(),
                "updated_at": self._next_time(),
            }
            if not self.indexes:
                self._unindexed.add(id_)
            event["results"].append({"id": id_, "event": "ADD", "data": {"memory": message["content"]}})
        event["status"] = "SUCCEEDED"

    def event(self, call: ServiceRequest, event: str) -> Row:
        row = self.state.events.get(event)
        if row is None:
            raise ServiceRefusal(404, {"detail": "Event not found"})
        return {"id": event, "event_type": "ADD", "status": row["status"], "results": row["results"]}

    def search(self, call: ServiceRequest) -> Row:
        rows = _filter_rows(self._list_indexed(), call.json.get("filters"))
        scored = sorted(
            ((score_overlap(call.json["query"], row["memory"]), row) for row in rows), key=lambda it: -it[0]
        )
        limit = call.json.get("top_k") or 10
        return {"results": [{**row, "score": score} for score, row in scored if score > 0][:limit]}

    def list_memories(self, call: ServiceRequest) -> Row:
        rows = _filter_rows(self._list_indexed(), (call.json or {}).get("filters"))
        page, size = int(call.query.get("page", "1")), int(call.query.get("page_size", "100"))
        items = rows[(page - 1) * size : page * size]
        more = f"{self.url}{call.path}?page={page + 1}" if page * size < len(rows) else None
        return {"count": len(rows), "next": more, "previous": None, "results": items}

    def get(self, call: ServiceRequest, memory: str) -> Row:
        return self._find_memory(memory)

    def update(self, call: ServiceRequest, memory: str) -> Row:
        self._find_memory(memory).update(memory=call.json["text"], updated_at=self._next_time())
        return {"message": "Memory updated successfully!"}

    def delete(self, call: ServiceRequest, memory: str) -> Row:
        self._find_memory(memory)
        if self.indexes:
            del self.state.memories[memory]
        else:
            self._unindexed.add(memory)
            self._doomed.add(memory)
        return {"message": "Memory deleted successfully!"}

    def _find_memory(self, memory: str) -> Row:
        row: Row | None = self.state.memories.get(memory)
        if row is None:
            raise ServiceRefusal(404, {"detail": "Memory not found!"})
        return row

    def make_unauthorised_reply(self) -> ServiceReply:
        return ServiceReply({"detail": "Given token not valid"}, 401)


def _filter_rows(rows: Any, filters: Any) -> Sequence[Row]:
    if not filters:
        raise ServiceRefusal(400, {"detail": "Filters are required and cannot be empty."})
    return [row for row in rows if _matches_filters(row, filters)]


def _matches_filters(row: Row, filters: Mapping[str, Any]) -> bool:
    for key, wanted in filters.items():
        match key:
            case "AND":
                fits = all(_matches_filters(row, one) for one in wanted)
            case "OR":
                fits = any(_matches_filters(row, one) for one in wanted)
            case "metadata":
                fits = all(row["metadata"].get(name) == value for name, value in wanted.items())
            case _:
                fits = row.get(key) == wanted
        if not fits:
            return False
    return True
