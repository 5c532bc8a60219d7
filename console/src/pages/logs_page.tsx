// Log lines of the host that answers: the last ones, then those that come.

import { useEffect, useRef, useState } from "preact/hooks";
import { buildUrl } from "../api/client";
import { useFollow } from "../conversation/follow";
import { readStream } from "../live/sse";
import { buildLink } from "../router";
import { Choice, Field } from "../ui/field";
import { Problem } from "../ui/problem";
import { words } from "../words";

type Line = { at: string; level: string; event: string; trace?: string; [name: string]: unknown };
type Filter = { level: string; event: string; session: string; q: string };

const LEVELS = ["debug", "info", "warning", "error"];
const MOST_LINES = 1000;
const RETRY_MS = 2000;

export default function LogsPage() {
  const [filter, setFilter] = useState<Filter>({ level: "info", event: "", session: "", q: "" });
  const { lines, error, live } = useLines(filter);
  const end = useRef<HTMLDivElement>(null);
  const follow = useFollow(end, [lines.length, lines.at(-1)]);
  const change = (changes: Partial<Filter>) => setFilter({ ...filter, ...changes });
  return (
    <div class="fill">
      <h2>{words.pages.logs}</h2>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Choice label={words.logs.level} value={filter.level} options={LEVELS.map((it) => [it, it])} onChange={(level) => change({ level })} />
        <Field label={words.logs.event} value={filter.event} onInput={(event) => change({ event })} />
        <Field label={words.pages.inspect} value={filter.session} onInput={(session) => change({ session })} />
        <Field label={words.logs.words} value={filter.q} onInput={(q) => change({ q })} />
      </form>
      <Problem error={error} />
      <p class="hint" role="status">
        {live ? words.connection.live : words.loading}
      </p>
      <div class="lines" ref={follow} tabIndex={0} role="log" aria-label={words.pages.logs} aria-live="off">
        <ol>
          {lines.map((line, index) => (
            <LogLine key={index} line={line} />
          ))}
        </ol>
        <div ref={end} />
      </div>
    </div>
  );
}

// Follows the stream with this filter, and begins again when it ends.
function useLines(filter: Filter) {
  const [lines, show] = useState<Line[]>([]);
  const [error, fail] = useState<unknown>(null);
  const [live, setLive] = useState(false);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const run = async () => {
      const found: Line[] = [];
      let drawn = 0;
      const draw = () => {
        drawn ||= requestAnimationFrame(() => {
          drawn = 0;
          show(found.slice(-MOST_LINES));
        });
      };
      try {
        const status = await readStream(buildUrl("/api/logs", { ...filter, stream: 1 }), {
          signal: abort.signal,
          onEvent: ({ event, data }) => {
            if (event === "line") found.push(data);
            if (found.length > 2 * MOST_LINES) found.splice(0, MOST_LINES);
            if (event === "live") setLive(true);
            draw();
          },
        });
        fail(status ? new Error(words.logs.refused(status)) : null);
      } catch {
        // the connection was lost, or the filter has changed
      }
      setLive(false);
      if (!abort.signal.aborted) timer = setTimeout(run, RETRY_MS) as unknown as number;
    };
    timer = setTimeout(run, 200) as unknown as number; // a typed filter is used when its user pauses
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [filter]);
  return { lines, error, live };
}

function LogLine({ line }: { line: Line }) {
  const { at, level, event, trace, ...fields } = line;
  const session = typeof fields.session === "string" ? fields.session : "";
  return (
    <li class={`level-${level}`}>
      <time>{String(at).slice(11, 23)}</time> <span class="level">{level}</span> <strong>{event}</strong>{" "}
      {Object.entries(fields).map(([name, value]) =>
        name === "session" && session ? (
          <a key={name} href={buildLink("inspect", [session])}>{`session=${session} `}</a>
        ) : (
          <span key={name}>{`${name}=${typeof value === "string" ? value : JSON.stringify(value)} `}</span>
        ),
      )}
      {trace && <pre>{trace}</pre>}
    </li>
  );
}
