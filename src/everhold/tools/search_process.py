"""Searches texts with a regular expression. It is a program of its own, because an expression may need unlimited time,
and a process can be ended. It imports nothing else of this package.

Standard input: JSON `[pattern, most, [[name, text], …]]`. Standard output: JSON `{"hits": […]}` or `{"error": …}`.
"""

import json
import re
import sys

MAX_SHOWN_CHARS = 300
MAX_MEMORY_BYTES = 1 << 30


def main() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
    except (ImportError, ValueError, OSError):
        pass  # the time limit of the gateway still holds
    pattern, most, texts = json.load(sys.stdin)
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    hits = []
    for name, text in texts:
        for number, line in enumerate(text.splitlines(), start=1):
            if compiled.search(line):
                hits.append([name, number, line[:MAX_SHOWN_CHARS]])
                if len(hits) >= most:
                    json.dump({"hits": hits}, sys.stdout)
                    return
    json.dump({"hits": hits}, sys.stdout)


if __name__ == "__main__":
    main()
