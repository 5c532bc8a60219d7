"""A round of LangGraph's SqliteSaver for every line on stdin. Runs in the peers' venv, without everhold."""

import json
import sqlite3
import sys
import time

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

directory, size, message, reply = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
    return {"messages": [AIMessage(content=reply)]}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", END)
saver = SqliteSaver(sqlite3.connect(f"{directory}/langgraph-{size}.db", check_same_thread=False))
app = graph.compile(checkpointer=saver)
config = {"configurable": {"thread_id": "t1"}}
past = [each for n in range(size // 2) for each in (HumanMessage(message, id=f"h{n}"), AIMessage(reply, id=f"a{n}"))]
app.update_state(config, {"messages": past})
print("[]", flush=True)
for _ in sys.stdin:
    started = time.perf_counter()
    app.invoke({"messages": [HumanMessage(message)]}, config)
    append = time.perf_counter() - started
    started = time.perf_counter()
    saver.get_tuple(config)
    print(json.dumps([append * 1e3, (time.perf_counter() - started) * 1e3]), flush=True)
