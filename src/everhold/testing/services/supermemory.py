"""A fake Supermemory on loopback that answers as its API v5 does: documents in namespaces, learned memories, search,
profile.

The same text under the same id is recognised; another text under it is appended. Documents become searchable in steps,
and one that cannot be processed disappears. Instead of learning, it returns the document's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.testing.services.base import LoopbackService, ServiceRefusal, ServiceReply, ServiceRequest, score_overlap

Row = dict[str, Any]
MAX_BATCH_DOCUMENTS: Final = 600


@dataclass
class SupermemoryServiceState:
    """What the service stores."""

    documents: dict[tuple[str, str], Row] = field(default_factory=dict)
    learned: dict[tuple[str, str], Row] = field(default_factory=dict)
    """What was learned from deleted documents, if `keeps_learned`."""
    forgotten: set[tuple[str, str]] = field(default_factory=set)
    writes: list[str] = field(default_factory=list)
    """Ids of documents in the order they changed."""


class SupermemoryService(LoopbackService):
    """The service. `holding` keeps documents queued until `work`; `breaking` makes that many of them fail."""

    routes = (
        ("GET", "/ns", "namespaces"),
        ("POST", "/ns/{ns}/document", "add"),
        ("DELETE", "/ns/{ns}/document", "delete"),
        ("POST", "/ns/{ns}/document/batch", "batch"),
        ("GET", "/ns/{ns}/document/{document}", "get"),
        ("PATCH", "/ns/{ns}/document/{document}", "update"),
        ("POST", "/ns/{ns}/search", "search"),
        ("POST", "/ns/{ns}/profile", "profile"),
        ("POST", "/ns/{ns}/list/{kind}", "list_all"),
        ("DELETE", "/ns/{ns}/memories", "forget"),
    )

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__(key=key)
        self.finds_neighbours = True
        """Whether a search also returns texts without a common word, as the real service does."""
        self.state = SupermemoryServiceState()
        self.holds_documents = False
        self.failures_left = 0
        self.keeps_learned = False
        """Whether searches, lists and the profile show what was learned from a document after it was deleted."""
        self.undeletable: set[str] = set()
        """Documents whose deletion is refused, in an answer with status 200."""

    # -- inspection --------------------------------------------------------------------------------------------------

    def texts(self, ns: str = "") -> list[str]:
        return [row["content"] for (where, _), row in self.state.documents.items() if not ns or where == ns]

    def process_documents(self) -> None:
        """Process what is queued."""
        for row in self.state.documents.values():
            if row["status"] == "queued":
                self._process_document(row)

    # -- documents ---------------------------------------------------------------------------------------------------

    def add(self, call: ServiceRequest, ns: str) -> Row:
        return self._add_document(ns, call.json or {})

    def _add_document(self, ns: str, given: Row) -> Row:
        if not given.get("content"):
            raise ServiceRefusal(400, {"error": "content is required"})
        id_ = given.get("id") or f"doc_{next(self._count)}"
        before = self.state.documents.get((ns, id_))
        if before is not None and before["content"] == given["content"] and before["status"] != "failed":
            return {"id": id_, "status": before["status"]}
        text = given["content"]
        if before is not None and before["status"] != "failed":
            text = f"{before['content']}\n{text}"
        row = {
            "id": id_,
            "content": text,
            "metadata": given.get("metadata") or {},
            "date": given.get("date"),
            "status": "queued",
            "at": self._next_time(),
        }
        self.state.documents[ns, id_] = row
        self.state.writes.append(id_)
        if not self.holds_documents:
            self._process_document(row)
        return {"id": id_, "status": "queued"}

    def _process_document(self, row: Row) -> None:
        if self.failures_left:
            self.failures_left -= 1
            row["status"] = "failed"
        else:
            row["status"] = "done"

    def batch(self, call: ServiceRequest, ns: str) -> Row:
        given = call.json.get("documents") or []
        if not 1 <= len(given) <= MAX_BATCH_DOCUMENTS:
            raise ServiceRefusal(400, {"error": "between 1 and 600 documents"})
        results = [self._add_document(ns, one) for one in given]
        return {"results": results, "success": len(results), "failed": 0}

    def get(self, call: ServiceRequest, ns: str, document: str) -> Row:
        row = self._find_document(ns, document)
        return {**_describe_document(row), "content": row["content"]}

    def update(self, call: ServiceRequest, ns: str, document: str) -> Row:
        row = self._find_document(ns, document)
        row.update({key: call.json[key] for key in ("content", "metadata") if call.json.get(key) is not None})
        return {"id": document, "status": row["status"]}

    def delete(self, call: ServiceRequest, ns: str) -> Row:
        errors, count = [], 0
        for id_ in call.json["ids"]:
            if id_ in self.undeletable:
                errors.append({"id": id_, "error": "Document is being processed"})
            elif (row := self.state.documents.pop((ns, id_), None)) is None:
                errors.append({"id": id_, "error": "Document not found"})
            else:
                count += 1
                if self.keeps_learned:
                    self.state.learned[ns, id_] = row
        return {"count": count, "errors": errors}

    def _find_document(self, ns: str, document: str) -> Row:
        row: Row | None = self.state.documents.get((ns, document))
        if row is None:
            raise ServiceRefusal(404, {"error": "Document not found"})
        return row

    # -- queries -----------------------------------------------------------------------------------------------------

    def search(self, call: ServiceRequest, ns: str) -> Row:
        rows = [row for row in self._find_learned(ns, call.json.get("filter")) if row["status"] == "done"]
        scored = sorted(
            ((score_overlap(call.json["query"], row["content"]), row) for row in rows), key=lambda it: -it[0]
        )
        results = [
            {
                "id": f"mem_{row['id']}",
                "memory": row["content"],
                "metadata": row["metadata"],
                "similarity": score,
                "isLatest": True,
                "isInference": False,
                "system": {"updatedAt": row["at"], "createdAt": row["at"]},
            }
            for score, row in scored
            if score or self.finds_neighbours
            if score >= (call.json.get("threshold") or 0.0)
        ]
        return {"results": results[: call.json.get("limit") or 10], "searchTime": 1}

    def profile(self, call: ServiceRequest, ns: str) -> Row:
        known = [{"memory": row["content"], "metadata": row["metadata"]} for row in self._find_learned(ns, None)]
        return {"profile": {"static": [], "dynamic": known[-5:], "buckets": {}}}

    def list_all(self, call: ServiceRequest, ns: str, kind: str) -> Row:
        find = self._find_documents if kind == "documents" else self._find_learned
        rows = find(ns, (call.json or {}).get("filter"))
        page, limit = int(call.query.get("page", "1")), int(call.query.get("limit", "20"))
        some = rows[(page - 1) * limit : page * limit]
        pages = -(-len(rows) // limit)
        return {
            "documents": [_describe_document(row) for row in some] if kind == "documents" else [],
            "chunks": [],
            "memories": [_describe_memory(row) for row in some] if kind == "memories" else [],
            "pagination": {"currentPage": page, "limit": limit, "totalItems": len(rows), "totalPages": pages},
        }

    def forget(self, call: ServiceRequest, ns: str) -> Row:
        self.state.forgotten |= {(ns, str(id_).removeprefix("mem_")) for id_ in call.json["ids"]}
        return {"count": len(call.json["ids"]), "errors": []}

    def namespaces(self, call: ServiceRequest) -> Row:
        names = dict.fromkeys(ns for ns, _ in self.state.documents)
        return {"namespaces": [{"id": name} for name in names], "pagination": {}}

    def _find_documents(self, ns: str, filter_: Any) -> list[Row]:
        return [
            row
            for (where, id_), row in self.state.documents.items()
            if where == ns and (ns, id_) not in self.state.forgotten and _matches_filter(row["metadata"], filter_)
        ]

    def _find_learned(self, ns: str, filter_: Any) -> list[Row]:
        """Return what a search, the profile and the list of memories show: of documents, and what outlives them."""
        late = [
            row
            for (where, _), row in self.state.learned.items()
            if where == ns and _matches_filter(row["metadata"], filter_)
        ]
        return [*self._find_documents(ns, filter_), *late]

    def make_unauthorised_reply(self) -> ServiceReply:
        return ServiceReply({"error": "Unauthorized"}, 401)


def _describe_document(row: Row) -> Row:
    system = {"status": row["status"], "dreamingStatus": "done", "createdAt": row["at"], "updatedAt": row["at"]}
    return {"id": row["id"], "type": "text", "metadata": row["metadata"], "system": system}


def _describe_memory(row: Row) -> Row:
    return {
        "id": f"mem_{row['id']}",
        "memory": row["content"],
        "metadata": row["metadata"],
        "isStatic": False,
        "isInference": False,
        "isLatest": True,
        "isForgotten": False,
        "version": 1,
        "system": {"createdAt": row["at"], "updatedAt": row["at"]},
    }


def _matches_filter(metadata: Mapping[str, Any], expression: Any) -> bool:
    if not expression:
        return True
    inner: Sequence[Any] = expression.get("operands") or ()
    match expression.get("operator"):
        case "and":
            return all(_matches_filter(metadata, one) for one in inner)
        case "or":
            return any(_matches_filter(metadata, one) for one in inner)
        case "eq":
            return bool(metadata.get(expression["field"]) == expression["value"])
        case _:
            raise ServiceRefusal(400, {"error": f"unknown operator in {expression}"})
