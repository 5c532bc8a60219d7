"""Search services on loopback. They refuse what the real ones refuse, and answer with more than pages."""

from __future__ import annotations

from typing import Any

from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse, LoopbackServer

KEY = "search-key-0123456789"
PAGES = [
    {
        "title": f"Page <strong>{number}</strong> &amp; more",
        "url": f"https://example.org/{number}",
        "content": "x" * 2_000 if number == 2 else f"about\n2. it\n{number}",
    }
    for number in range(1, 26)
]


class SearchServices(LoopbackServer):
    """SearXNG, Brave and Tavily, by their paths and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.formats = {"html", "json"}
        self.pages: list[dict[str, Any]] = PAGES
        self.unresponsive: list[list[str]] = []

    def name_call(self, request: LoopbackRequest) -> str:
        if request.path == "/res/v1/web/search":
            return "brave"
        return "tavily" if request.method == "POST" else "searxng"

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        match self.name_call(request):
            case "brave":
                return self._answer_brave(request)
            case "tavily":
                return self._answer_tavily(request)
            case _:
                return self._answer_searxng(request)

    def _answer_searxng(self, request: LoopbackRequest) -> LoopbackResponse:
        if request.path != "/search" or not request.query.get("q"):
            return LoopbackResponse(status=400, media="text/html")
        if request.query.get("format") not in self.formats:
            return LoopbackResponse(status=403, media="text/html", body=b"<h1>Forbidden</h1>")
        more = [{"title": "no address"}, {"title": "bad", "url": "javascript:alert(1)"}]
        results = [*more, *self.pages]  # it has no parameter for their number
        return LoopbackResponse.json({"results": results, "unresponsive_engines": self.unresponsive})

    def _answer_brave(self, request: LoopbackRequest) -> LoopbackResponse:
        if request.headers.get("x-subscription-token") != KEY:
            error = {"error": {"code": "SUBSCRIPTION_TOKEN_INVALID", "status": 422}}
            return LoopbackResponse.json(error, status=422)
        query, count = request.query.get("q", ""), int(request.query.get("count", "20"))
        if not query or len(query) > 400 or len(query.split()) > 50 or not 1 <= count <= 20:
            return LoopbackResponse.json({"error": {"code": "VALIDATION", "status": 422}}, status=422)
        results = [{**page, "description": page["content"], "age": "2 days ago"} for page in self.pages[:count]]
        answer: dict[str, Any] = {"type": "search", "mixed": {}}
        return LoopbackResponse.json(answer | ({"web": {"results": results}} if results else {}))

    def _answer_tavily(self, request: LoopbackRequest) -> LoopbackResponse:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return LoopbackResponse.json({"detail": {"error": "Unauthorized: missing or invalid API key."}}, status=401)
        count = request.fields.get("max_results", 5)
        if not request.fields.get("query") or not 0 <= count <= 20:
            return LoopbackResponse.json({"detail": {"error": "invalid"}}, status=400)
        return LoopbackResponse.json({"results": [{**page, "score": 0.9} for page in self.pages[:count]]})
