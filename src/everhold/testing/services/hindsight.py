"""A fake Hindsight on loopback that answers as its API does: banks, documents, operations, recall, reflect.

A document replaces another with the same id. An operation is recognised by its id, and other content under that id is
silently dropped. An operation keeps what was submitted, and so does the log of requests to the language model. A search
returns neighbours, not only texts with the same words. Instead of extraction by a language model, each document yields
one fact, word for word.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.testing.services.base import LoopbackService, ServiceRefusal, ServiceRequest, score_overlap

Row = dict[str, Any]
_BANK: Final = "/v1/default/banks/{bank}"
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass
class HindsightServiceState:
    """What the service stores."""

    banks: dict[str, Row] = field(default_factory=dict)
    documents: dict[tuple[str, str], Row] = field(default_factory=dict)
    operations: dict[str, Row] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """Ids of documents in the order they were written; rewritten documents again."""
    loose: int = 0
    """Documents that came without an id."""
    observations: list[Row] = field(default_factory=list)
    """What was consolidated of several documents: `bank`, `text`, `tags`, `at`. It has no document."""
    llm_requests: list[Row] = field(default_factory=list)
    """The requests to the language model. Nothing deletes them."""


class HindsightService(LoopbackService):
    """The service. `holding` keeps operations pending until `work`; `breaking` makes them fail; `forgetful` makes them
    report success but drop their facts.
    """

    routes = (
        ("GET", "/health", "health"),
        ("GET", "/version", "version"),
        ("GET", "/v1/default/banks", "list_banks"),
        ("PUT", _BANK, "put_bank"),
        ("DELETE", _BANK, "delete_bank"),
        ("POST", f"{_BANK}/import", "import_template"),
        ("POST", f"{_BANK}/memories", "retain"),
        ("POST", f"{_BANK}/memories/recall", "recall"),
        ("POST", f"{_BANK}/reflect", "reflect"),
        ("GET", f"{_BANK}/documents", "list_documents"),
        ("GET", f"{_BANK}/documents/{{document}}", "get_document"),
        ("DELETE", f"{_BANK}/documents/{{document}}", "delete_document"),
        ("GET", f"{_BANK}/operations", "list_operations"),
        ("GET", f"{_BANK}/operations/{{operation}}", "get_operation"),
        ("DELETE", f"{_BANK}/operations/{{operation}}/delete", "delete_operation"),
        ("POST", f"{_BANK}/operations/{{operation}}/retry", "retry_operation"),
    )

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__(key=key)
        self.finds_neighbours = True
        """Whether a search also returns texts without a common word, as the real service does."""
        self.state = HindsightServiceState()
        self.holds_operations = False
        self.failures_left = 0
        self.loses_operations = False

    # -- inspection --------------------------------------------------------------------------------------------------

    def texts(self, bank: str) -> list[str]:
        """Return the documents of a bank, in the order they were first written."""
        return [row["text"] for (where, _), row in self.state.documents.items() if where == bank]

    def process_operations(self) -> None:
        """Carry out the accepted operations."""
        for operation in self.state.operations.values():
            if operation["status"] == "pending":
                self._process_operation(operation)

    # -- banks -------------------------------------------------------------------------------------------------------

    def put_bank(self, call: ServiceRequest, bank: str) -> Row:
        row = self._find_bank(bank)
        row.update({key: value for key, value in (call.json or {}).items() if value is not None})
        return {
            "bank_id": bank,
            "name": row.get("name", bank),
            "mission": row.get("mission", ""),
            "disposition": {"skepticism": 3, "literalism": 3, "empathy": 3},
        }

    def list_banks(self, call: ServiceRequest) -> Row:
        offset, limit = int(call.query.get("offset", "0")), int(call.query.get("limit", "100"))
        disposition = {"skepticism": 3, "literalism": 3, "empathy": 3}
        rows = [{"bank_id": bank, "disposition": disposition} for bank in sorted(self.state.banks)]
        return {"banks": rows[offset : offset + limit], "total": len(rows), "limit": limit, "offset": offset}

    def _find_bank(self, bank: str) -> Row:
        row: Row = self.state.banks.setdefault(bank, {})
        return row

    def delete_bank(self, call: ServiceRequest, bank: str) -> Row:
        self.state.banks.pop(bank, None)
        mine = [key for key in self.state.documents if key[0] == bank]
        for key in mine:
            del self.state.documents[key]
        return {"success": True, "message": "deleted", "deleted_count": len(mine)}

    def import_template(self, call: ServiceRequest, bank: str) -> Row:
        if (call.json or {}).get("version") != "1":
            raise ServiceRefusal(400, {"detail": "unknown manifest version"})
        self._find_bank(bank)["template"] = call.json
        return {"bank_id": bank, "config_applied": True}

    # -- retaining ---------------------------------------------------------------------------------------------------

    def retain(self, call: ServiceRequest, bank: str) -> Row:
        items = call.json.get("items") or []
        if not items:
            raise ServiceRefusal(
                422, {"detail": [{"loc": ["body", "items"], "msg": "no items", "type": "value_error"}]}
            )
        self._find_bank(bank)
        if not call.json.get("async"):
            self._write_documents(bank, items, call.json.get("document_tags"))
            return {"success": True, "bank_id": bank, "items_count": len(items), "async": False}
        given = call.json.get("operation_id")
        if given is not None and not _UUID.fullmatch(given):
            raise ServiceRefusal(
                422, {"detail": [{"loc": ["body", "operation_id"], "msg": "no UUID", "type": "value_error"}]}
            )
        operation = given or f"00000000-0000-4000-8000-{next(self._count):012x}"
        if operation not in self.state.operations:
            self.state.operations[operation] = row = {
                "id": operation,
                "bank": bank,
                "status": "pending",
                "items": items,
                "error": None,
                "metadata": {},
                "tags": call.json.get("document_tags"),
                "at": self._next_time(),
            }
            if not self.holds_operations:
                self._process_operation(row)
        return {
            "success": True,
            "bank_id": bank,
            "items_count": len(items),
            "async": True,
            "operation_id": operation,
            "operation_ids": [operation],
        }

    def _process_operation(self, operation: Row) -> None:
        if self.failures_left:
            self.failures_left -= 1
            operation.update(status="failed", error="the language model is not available")
            return
        self.state.llm_requests += [{"bank": operation["bank"], "text": it["content"]} for it in operation["items"]]
        self._write_documents(operation["bank"], operation["items"], operation["tags"])
        operation.update(status="completed", error=None)
        if self.loses_operations:
            operation["metadata"] = {"extraction_errors_count": len(operation["items"])}

    def _write_documents(self, bank: str, items: Sequence[Row], tags: Sequence[str] | None) -> None:
        for item in items:
            document = item.get("document_id")
            if document is None:
                self.state.loose += 1
                document = f"doc-{self.state.loose}"
            text = item["content"]
            before = self.state.documents.get((bank, document))
            if before is not None and item.get("update_mode") == "append":
                text = f"{before['text']}\n{text}"
            if before is not None and before["text"] == text:
                continue
            row = {
                "id": document,
                "text": text,
                "tags": sorted({*(item.get("tags") or ()), *(tags or ())}),
                "metadata": item.get("metadata") or {},
                "context": item.get("context"),
                "at": item.get("timestamp") or self._next_time(),
                "scopes": item.get("observation_scopes"),
                "created": before["created"] if before else self._next_time(),
            }
            self.state.documents[bank, document] = row
            self.state.order.append(document)

    # -- queries -----------------------------------------------------------------------------------------------------

    def recall(self, call: ServiceRequest, bank: str) -> Row:
        known = [{**row, "type": "world"} for row in self._find_documents(bank)]
        known += [
            {**row, "id": None, "metadata": {}, "type": "observation"}
            for row in self.state.observations
            if row["bank"] == bank
        ]
        wanted = call.json.get("types") or ("world", "experience", "observation")
        rows = [
            row
            for row in known
            if row["type"] in wanted
            and _has_matching_tags(row["tags"], call.json.get("tags"), call.json.get("tags_match"))
            and all(
                _has_matching_tags(row["tags"], it["tags"], it["match"]) for it in call.json.get("tag_groups") or ()
            )
        ]
        scored = sorted(((score_overlap(call.json["query"], row["text"]), row) for row in rows), key=lambda it: -it[0])
        return {
            "results": [
                {
                    "id": hashlib.sha256(row["text"].encode()).hexdigest()[:16],
                    "text": row["text"],
                    "type": row["type"],
                    "document_id": row["id"],
                    "tags": row["tags"],
                    "metadata": row["metadata"],
                    "mentioned_at": row["at"],
                    "scores": {"final": score},
                }
                for score, row in scored
                if score or self.finds_neighbours
            ]
        }

    def reflect(self, call: ServiceRequest, bank: str) -> Row:
        known = self.recall(call, bank)["results"]
        return {"text": "\n".join(one["text"] for one in known) or "I know nothing about that."}

    def get_document(self, call: ServiceRequest, bank: str, document: str) -> Row:
        row = self.state.documents.get((bank, document))
        if row is None:
            raise ServiceRefusal(404, {"detail": "Document not found"})
        return {**self._describe_document(bank, row), "original_text": row["text"]}

    def list_documents(self, call: ServiceRequest, bank: str) -> Row:
        wanted = [value for key, value in call.pairs if key == "tags"]
        rows = [
            row
            for row in self._find_documents(bank)
            if _has_matching_tags(row["tags"], wanted, call.query.get("tags_match"))
        ]
        offset, limit = int(call.query.get("offset", "0")), int(call.query.get("limit", "100"))
        items = [self._describe_document(bank, row) for row in rows[offset : offset + limit]]
        return {"items": items, "total": len(rows), "limit": limit, "offset": offset}

    def delete_document(self, call: ServiceRequest, bank: str, document: str) -> Row:
        if self.state.documents.pop((bank, document), None) is None:
            raise ServiceRefusal(404, {"detail": "Document not found"})
        return {"success": True, "message": "deleted", "document_id": document, "memory_units_deleted": 1}

    def _describe_document(self, bank: str, row: Row) -> Row:
        return {
            "id": row["id"],
            "bank_id": bank,
            "content_hash": hashlib.sha256(row["text"].encode()).hexdigest(),
            "created_at": row["created"],
            "updated_at": row["created"],
            "memory_unit_count": 0 if self.loses_operations else 1,
            "text_length": len(row["text"]),
            "tags": row["tags"],
            "document_metadata": row["metadata"],
        }

    def get_operation(self, call: ServiceRequest, bank: str, operation: str) -> Row:
        row = self._find_operation(operation)
        payload = {"contents": row["items"]} if call.query.get("include_payload", "").lower() == "true" else None
        return {
            "operation_id": operation,
            "status": row["status"],
            "operation_type": "retain",
            "error_message": row["error"],
            "result_metadata": row["metadata"],
            "task_payload": payload,
        }

    def delete_operation(self, call: ServiceRequest, bank: str, operation: str) -> Row:
        if self._find_operation(operation)["status"] in ("pending", "processing"):
            raise ServiceRefusal(409, {"detail": "operation is not finished"})
        del self.state.operations[operation]
        return {"success": True, "message": "deleted", "operation_id": operation}

    def retry_operation(self, call: ServiceRequest, bank: str, operation: str) -> Row:
        row = self._find_operation(operation)
        if row["status"] != "failed":
            raise ServiceRefusal(409, {"detail": f"operation is {row['status']}"})
        row["status"] = "pending"
        if not self.holds_operations:
            self._process_operation(row)
        return {"success": True, "message": "queued", "operation_id": operation}

    def list_operations(self, call: ServiceRequest, bank: str) -> Row:
        rows = [
            row
            for row in self.state.operations.values()
            if row["bank"] == bank and call.query.get("status") in (None, row["status"])
        ]
        listed = [
            {
                "id": row["id"],
                "task_type": "retain",
                "items_count": len(row["items"]),
                "created_at": row["at"],
                "status": row["status"],
                "error_message": row["error"],
            }
            for row in rows
        ]
        offset, limit = int(call.query.get("offset", "0")), int(call.query.get("limit", "20"))
        page = listed[offset : offset + limit]
        return {"bank_id": bank, "total": len(rows), "limit": limit, "offset": offset, "operations": page}

    def health(self, call: ServiceRequest) -> Row:
        return {"status": "healthy", "database": "connected"}

    def version(self, call: ServiceRequest) -> Row:
        names = (
            "observations mcp worker bank_config_api bank_llm_health file_upload_api document_export_api "
            "document_import_api audit_log llm_trace store_document_text"
        )
        return {"api_version": "1.1.0", "features": dict.fromkeys(names.split(), True)}

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _find_documents(self, bank: str) -> list[Row]:
        return [row for (where, _), row in self.state.documents.items() if where == bank]

    def _find_operation(self, operation: str) -> Row:
        row: Row | None = self.state.operations.get(operation)
        if row is None:
            raise ServiceRefusal(404, {"detail": "Operation not found"})
        return row


def _has_matching_tags(tags: Sequence[str], wanted: Sequence[str] | None, match: str | None) -> bool:
    """Match tags. `any` and `all` let untagged documents through, so a caller that separates people must match
    strictly.
    """
    if not wanted:
        return True
    if not tags:
        return match not in ("any_strict", "all_strict", "exact")
    rules: Mapping[str, bool] = {
        "all": set(wanted) <= set(tags),
        "all_strict": set(wanted) <= set(tags),
        "exact": set(wanted) == set(tags),
    }
    return rules.get(match or "any", bool(set(wanted) & set(tags)))
