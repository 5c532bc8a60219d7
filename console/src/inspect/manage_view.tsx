// What can be done with a session: name it, archive it, compress it, export it, branch it, erase it.

import { useState } from "preact/hooks";
import { call, callForText } from "../api/client";
import type { ErasurePlanResponse, SessionView } from "../api/generated";
import { buildLink } from "../router";
import { parseAddress } from "../state/address";
import { state } from "../state/console_state";
import { Action } from "../ui/action";
import { saveFile } from "../ui/download";
import { Facts } from "../ui/facts";
import { Field } from "../ui/field";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { formatFull, formatNumber } from "../ui/time";
import { words } from "../words";

type Properties = { session: SessionView; reload: () => void };

export function ManageView({ session, reload }: Properties) {
  const operator = state.caller.value?.operator;
  return (
    <section class="stack" aria-label={words.inspect.manage}>
      <Facts
        rows={[
          [words.manage.id, <code>{session.id}</code>],
          [words.agent, session.agent],
          [words.manage.address, <code>{session.address}</code>],
          [words.manage.entries, formatNumber(session.last_seq)],
          [words.manage.lastEntry, formatFull(session.at)],
        ]}
      />
      <Rename session={session} reload={reload} />
      <div class="row">
        <Action
          label={session.archived ? words.manage.unarchive : words.manage.archive}
          act={async () => void (await call("POST /api/sessions/{id}/archive", { id: session.id }, { archived: !session.archived }))}
          onDone={reload}
        />
        <Compress session={session} />
        {state.isOwnChat(session) && <Branch session={session} />}
        {operator && <Export session={session} />}
      </div>
      {operator && <Erase session={session} />}
    </section>
  );
}

function Rename({ session, reload }: Properties) {
  const [title, write] = useState(session.title);
  return (
    <form class="row" onSubmit={(event) => event.preventDefault()}>
      <Field label={words.manage.title} value={title} onInput={write} />
      <Action
        label={words.manage.rename}
        disabled={!title.trim() || title === session.title}
        act={async () => void (await call("POST /api/sessions/{id}/title", { id: session.id }, { title: title.trim() }))}
        onDone={reload}
      />
    </form>
  );
}

function Compress({ session }: { session: SessionView }) {
  const compress = (preview: boolean) => async () => (await call("POST /api/sessions/{id}/compress", { id: session.id }, { preview })).message;
  return (
    <>
      <Action label={words.manage.previewCompression} act={compress(true)} />
      <Action label={words.manage.compress} act={compress(false)} confirm={words.manage.confirmCompress} />
    </>
  );
}

// A branch is made by a command in the conversation, so that its log says who made it.
function Branch({ session }: { session: SessionView }) {
  const { agent, chat } = parseAddress(session.address);
  return (
    <Action
      label={words.manage.branch}
      act={async () => {
        await call("POST /api/messages", {}, { id: crypto.randomUUID(), agent, chat, text: "/branch" });
        return words.manage.branched;
      }}
    />
  );
}

function Export({ session }: { session: SessionView }) {
  return (
    <Action
      label={words.manage.export}
      act={async () => saveFile(`${session.id}.ndjson`, await callForText("GET /api/sessions/{id}/export", { id: session.id }))}
    />
  );
}

function Erase({ session }: { session: SessionView }) {
  const [planned, setPlanned] = useState(false);
  return (
    <fieldset class="danger-zone">
      <legend>{words.manage.erase}</legend>
      <p>{words.manage.eraseAbout}</p>
      {planned ? (
        <ErasurePlan session={session} />
      ) : (
        <button class="plain-button" onClick={() => setPlanned(true)}>
          {words.manage.planErasure}
        </button>
      )}
    </fieldset>
  );
}

function ErasurePlan({ session }: { session: SessionView }) {
  const plan = useResource((signal) => call("GET /api/sessions/{id}/erasure-plan", { id: session.id }, undefined, signal), [session.id]);
  const erase = async (found: ErasurePlanResponse) => {
    const { erased } = await call("POST /api/sessions/{id}/erase", { id: session.id }, { seqs: found.seqs });
    return words.manage.erased(erased.length);
  };
  return (
    <Loaded resource={plan}>
      {(found) => (
        <>
          <Facts
            rows={[
              [words.manage.entries, formatNumber(found.seqs.length)],
              [words.manage.records, formatNumber(found.records)],
              [words.manage.running, found.ends.join(", ")],
              [words.manage.branches, found.branches.map((id) => <a href={buildLink("inspect", [id])}>{id} </a>)],
              ...Object.entries(found.delivered).map(([place, count]): [string, string] => [place, words.manage.delivered(count)]),
            ]}
          />
          <p class="hint">{words.manage.eraseElsewhere}</p>
          <Action label={words.manage.erase} danger confirm={words.manage.confirmErase} disabled={!found.seqs.length} act={() => erase(found)} onDone={plan.reload} />
        </>
      )}
    </Loaded>
  );
}
