// One session in detail: what was done, what the model saw, why it answered so, and what can be done with the session.

import { call } from "../api/client";
import type { SessionView } from "../api/generated";
import { nameSession } from "../conversation/session_list";
import { ContextDiff, ContextView } from "../inspect/context_view";
import { DeliveriesView } from "../inspect/deliveries_view";
import { ManageView } from "../inspect/manage_view";
import { TimelineView } from "../inspect/timeline_view";
import { WhyView } from "../inspect/why_view";
import { buildLink, place } from "../router";
import { state } from "../state/console_state";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { words } from "../words";

const TABS = ["timeline", "context", "why", "manage"] as const;

export default function InspectPage() {
  const { parts, query } = place.value;
  const [id = "", part = "timeline"] = parts;
  const session = useResource((signal) => call("GET /api/sessions/{id}", { id }, undefined, signal), [id], (entry) => entry.session === id && entry.kind === "changed");
  const at = readNumber(query.get("at"));
  return (
    <Loaded resource={session}>
      {(found) => (
        <>
          <Head session={found} part={part} />
          {part === "timeline" && <TimelineView id={found.id} />}
          {part === "context" && (query.get("b") ? <ContextDiff id={found.id} a={at ?? 1} b={readNumber(query.get("b")) ?? 1} /> : <ContextView id={found.id} at={at} />)}
          {part === "why" && <WhyView id={found.id} at={at} />}
          {part === "manage" && <ManageView session={found} reload={session.reload} />}
          {part === "entry" && <DeliveriesView id={found.id} seq={at ?? 1} />}
        </>
      )}
    </Loaded>
  );
}

function readNumber(text: string | null): number | undefined {
  const number = Number(text);
  return text && Number.isSafeInteger(number) && number > 0 ? number : undefined;
}

function Head({ session, part }: { session: SessionView; part: string }) {
  const known = state.sessions.get(session.id);
  return (
    <>
      <p class="breadcrumb">
        <a href={buildLink("sessions")}>{words.pages.sessions}</a> / <a href={buildLink("session", [session.id])}>{words.inspect.open}</a>
      </p>
      <h2>{nameSession({ ...session, first: known?.first ?? "" })}</h2>
      <nav class="tabs" aria-label={words.inspect.tabs}>
        {TABS.map((name) => (
          <a href={buildLink("inspect", [session.id, name])} aria-current={part === name ? "page" : undefined}>
            {words.inspect[name]}
          </a>
        ))}
      </nav>
    </>
  );
}
