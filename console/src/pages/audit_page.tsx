// The audit of the promises, live: it reports how far it is, then each promise with its evidence, and what it found.

import { useEffect, useRef, useState } from "preact/hooks";
import type { AuditResponse } from "../api/generated";
import { readStream } from "../live/sse";
import { Problem } from "../ui/problem";
import { buildLink } from "../router";
import { formatFull } from "../ui/time";
import { words } from "../words";

type Report = AuditResponse & { at: number };
type Promised = { promise: string; text: string; holds: boolean; evidence: string; doubts: number };
type Finding = { promise: string; session: string; seq: number; text: string; level: "broken" | "doubt" };

export default function AuditPage() {
  const [report, show] = useState<Report | null>(null);
  const [progress, advance] = useState<{ done: number; total: number } | null>(null);
  const [error, fail] = useState<unknown>(null);
  const running = useRef<AbortController | null>(null);
  const run = async () => {
    const abort = (running.current = new AbortController());
    advance({ done: 0, total: 0 });
    fail(null);
    try {
      const status = await readStream("/api/audit?stream=1", {
        signal: abort.signal,
        onEvent: ({ event, data }) => {
          if (event === "progress") advance(data);
          else if (event === "report" || data.promises) show({ ...data, at: Date.now() / 1000 });
        },
      });
      if (status) fail(new Error(words.audit.refused(status)));
    } catch (caught) {
      if (!abort.signal.aborted) fail(caught);
    }
    advance(null);
  };
  useEffect(() => {
    void run();
    return () => running.current?.abort();
  }, []);
  return (
    <>
      <h2>{words.pages.audit}</h2>
      <Problem error={error} />
      <p role="status">{progress ? words.audit.progress(progress.done, progress.total) : report && words.audit.ended(report.sessions, formatFull(report.at))}</p>
      {progress && progress.total > 0 && <progress max={progress.total} value={progress.done} aria-label={words.pages.audit} />}
      <button class="plain-button" disabled={Boolean(progress)} onClick={() => void run()}>
        {words.audit.again}
      </button>
      {report && <Results report={report} />}
    </>
  );
}

function Results({ report }: { report: Report }) {
  return (
    <>
      <ul class="promises">
        {(report.promises as Promised[]).map((it) => (
          <li class={it.holds ? "holds" : "broken"}>
            <p>
              <strong>{it.holds ? words.audit.holds : words.audit.broken}</strong> {it.text}
            </p>
            <p class="hint">{it.evidence}</p>
            {it.doubts > 0 && <p class="hint">{words.audit.doubts(it.doubts)}</p>}
          </li>
        ))}
      </ul>
      {report.findings.length > 0 && (
        <>
          <h3>{words.audit.findings}</h3>
          <ul class="traces">
            {(report.findings as Finding[]).map((it) => (
              <li class={it.level === "doubt" ? undefined : "bad"}>
                {it.promise} {it.text}{" "}
                {it.session && <a href={it.seq ? buildLink("inspect", [it.session, "entry"], { at: String(it.seq) }) : buildLink("inspect", [it.session])}>{words.inspect.open}</a>}
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}
