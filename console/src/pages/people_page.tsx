// People: their identities, links and rights, who asks for access, and forgetting a person with its plan and states.

import { useState } from "preact/hooks";
import { call, callForText } from "../api/client";
import type { ErasurePlace, ErasureView, ForgetResponse, PersonView } from "../api/generated";
import { buildLink, place } from "../router";
import { Action } from "../ui/action";
import { saveFile } from "../ui/download";
import { Facts } from "../ui/facts";
import { Field } from "../ui/field";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull, formatNumber } from "../ui/time";
import { words } from "../words";
import { ApprovePairing } from "./inbox_page";

export default function PeoplePage() {
  const people = useResource((signal) => call("GET /api/people", {}, undefined, signal), [], (entry) => entry.kind === "heard");
  const chosen = place.value.parts[0];
  return (
    <Loaded resource={people}>
      {({ people: rows }) => {
        const person = rows.find((it) => it.id === chosen);
        return person ? <Person key={person.id} person={person} reload={people.reload} /> : <Overview people={rows} reload={people.reload} />;
      }}
    </Loaded>
  );
}

function nameOf(person: PersonView): string {
  return person.name || person.identities[0]?.identity || person.id;
}

function Overview({ people, reload }: { people: PersonView[]; reload: () => void }) {
  return (
    <>
      <h2>{words.pages.people}</h2>
      <Table
        label={words.pages.people}
        rows={people}
        getKey={(it) => it.id}
        empty={words.people.none}
        columns={[
          { title: words.people.name, show: (it) => <a href={buildLink("people", [it.id])}>{nameOf(it)}</a> },
          { title: words.people.identities, show: (it) => it.identities.map((identity) => identity.identity).join(", ") },
          { title: words.people.role, show: (it) => describeRole(it) },
        ]}
      />
      <Link reload={reload} />
      <Pairing reload={reload} />
      <Erasures />
    </>
  );
}

function describeRole(person: PersonView): string {
  if (person.owner) return words.people.owner;
  return person.owner_of.length ? words.people.ownerOf(person.owner_of.join(", ")) : words.people.member;
}

function Link({ reload }: { reload: () => void }) {
  const [identity, write] = useState("");
  const [person, name] = useState("");
  return (
    <>
      <h3>{words.people.link}</h3>
      <form class="row" onSubmit={(event) => event.preventDefault()}>
        <Field label={words.people.identity} value={identity} onInput={write} placeholder="telegram:1001" />
        <Field label={words.people.toPerson} value={person} onInput={name} />
        <Action
          label={words.people.link}
          disabled={!identity.trim() || !person.trim()}
          act={async () => void (await call("POST /api/people/link", {}, { identity: identity.trim(), person: person.trim() }))}
          onDone={reload}
        />
      </form>
    </>
  );
}

type Stranger = { identity: string; name?: string; platform?: string; until?: number; person?: string; at?: number };

function Pairing({ reload }: { reload: () => void }) {
  const pairing = useResource((signal) => call("GET /api/pairing", {}, undefined, signal), []);
  const done = () => {
    pairing.reload();
    reload();
  };
  return (
    <>
      <h3>{words.people.access}</h3>
      <Loaded resource={pairing}>
        {({ waiting, granted }) => (
          <>
            <Table
              label={words.people.asking}
              rows={waiting as Stranger[]}
              getKey={(it) => it.identity}
              empty={words.people.nobodyAsks}
              columns={[
                { title: words.people.asking, show: (it) => it.name || it.identity },
                { title: words.people.identity, show: (it) => it.identity },
                { title: words.people.until, show: (it) => (it.until ? formatFull(it.until) : "") },
              ]}
            />
            {waiting.length > 0 && <ApprovePairing reload={done} />}
            {granted.length > 0 && (
              <Table
                label={words.people.granted}
                rows={granted as Stranger[]}
                getKey={(it) => it.identity}
                empty=""
                columns={[
                  { title: words.people.granted, show: (it) => it.identity },
                  {
                    title: words.actions,
                    show: (it) => (
                      <Action
                        label={words.people.revoke}
                        confirm={words.people.confirmRevoke}
                        act={async () => void (await call("POST /api/pairing/revoke", {}, { identity: it.identity }))}
                        onDone={done}
                      />
                    ),
                  },
                ]}
              />
            )}
          </>
        )}
      </Loaded>
    </>
  );
}

function Person({ person, reload }: { person: PersonView; reload: () => void }) {
  const [name, write] = useState(person.name);
  return (
    <>
      <p class="breadcrumb">
        <a href={buildLink("people")}>{words.pages.people}</a>
      </p>
      <h2>{nameOf(person)}</h2>
      <Facts rows={[[words.people.role, describeRole(person)]]} />
      <form class="row" onSubmit={(event) => event.preventDefault()}>
        <Field label={words.people.name} value={name} onInput={write} />
        <Action
          label={words.manage.rename}
          disabled={!name.trim() || name === person.name}
          act={async () => void (await call("POST /api/people/name", {}, { person: person.identities[0]?.identity ?? person.id, name: name.trim() }))}
          onDone={reload}
        />
      </form>
      <Table
        label={words.people.identities}
        rows={person.identities}
        getKey={(it) => it.identity}
        empty={words.people.none}
        columns={[
          { title: words.people.identity, show: (it) => it.identity },
          { title: words.people.proof, show: (it) => words.people.proofs[it.proof] ?? it.proof },
          { title: words.people.since, show: (it) => (it.since ? formatFull(it.since) : words.people.always) },
          { title: words.actions, show: (it) => it.proof !== "config" && it.proof !== "token" && <Unlink identity={it.identity} reload={reload} /> },
        ]}
      />
      <p>
        <a href={buildLink("sessions", [], { person: nameOf(person), state: "all" })}>{words.people.sessions}</a>
      </p>
      <Action label={words.people.export} act={async () => saveFile(`${nameOf(person)}.ndjson`, await callForText("GET /api/memory/export", { person: nameOf(person) }))} />
      <Forget person={person} />
    </>
  );
}

function Unlink({ identity, reload }: { identity: string; reload: () => void }) {
  return (
    <Action
      label={words.people.unlink}
      confirm={words.people.confirmUnlink}
      act={async () => void (await call("POST /api/people/unlink", {}, { identity }))}
      onDone={reload}
    />
  );
}

function Forget({ person }: { person: PersonView }) {
  const [plan, show] = useState<ForgetResponse | null>(null);
  const [done, finish] = useState<ForgetResponse | null>(null);
  const name = nameOf(person);
  return (
    <fieldset class="danger-zone">
      <legend>{words.people.forget}</legend>
      <p>{words.people.forgetAbout}</p>
      {!plan && <Action label={words.people.planForget} act={async () => show(await call("POST /api/memory/forget", {}, { person: name, dry_run: true }))} />}
      {plan && <ForgetPlan plan={done ?? plan} />}
      {plan && !done && (
        <Action
          label={words.people.forget}
          danger
          act={async () => finish(await call("POST /api/memory/forget", {}, { person: name }))}
        />
      )}
      {done && <p role="status">{words.people.forgetBegan}</p>}
    </fieldset>
  );
}

function ForgetPlan({ plan }: { plan: ForgetResponse }) {
  return (
    <>
      <Facts
        rows={[
          [words.people.names, [...plan.names, ...plan.former].join(", ")],
          [words.pages.sessions, formatNumber(plan.sessions.length)],
          [words.manage.entries, formatNumber(plan.entries)],
          [words.people.recalls, formatNumber(plan.recalls)],
          [words.pages.schedules, formatNumber(plan.schedules)],
          [words.manage.records, formatNumber(plan.records)],
        ]}
      />
      <Places places={plan.places} />
      {plan.remains.length > 0 && (
        <>
          <h3>{words.people.remains}</h3>
          <ul class="traces">
            {plan.remains.map((it) => (
              <li>{it}</li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}

function Places({ places }: { places: ErasurePlace[] }) {
  return (
    <Table
      label={words.people.places}
      rows={places}
      getKey={(it) => `${it.place} ${it.agent}`}
      empty={words.people.noPlaces}
      columns={[
        { title: words.people.places, show: (it) => it.place },
        { title: words.agent, show: (it) => it.agent },
        { title: words.delivery.state, show: (it) => it.state },
        { title: words.people.parts, show: (it) => it.parts.map((part) => `${part.what} (${part.count})`).join(", ") },
        { title: words.delivery.reason, show: (it) => <span class={it.problem ? "bad" : undefined}>{it.problem}</span> },
      ]}
    />
  );
}

function Erasures() {
  const erasures = useResource((signal) => call("GET /api/memory/erasures", {}, undefined, signal), [], (entry) => entry.kind === "erased");
  return (
    <>
      <h3>{words.people.forgettings}</h3>
      <Loaded resource={erasures}>
        {({ erasures: rows }) => (
          <>
            {!rows.length && <p class="hint">{words.people.noForgettings}</p>}
            {rows.map((it) => (
              <Erasure key={it.id} erasure={it} reload={erasures.reload} />
            ))}
          </>
        )}
      </Loaded>
    </>
  );
}

function Erasure({ erasure, reload }: { erasure: ErasureView; reload: () => void }) {
  const problem = erasure.places.some((it) => it.problem && !it.accepted_at);
  return (
    <details open={problem}>
      <summary>
        {erasure.identities.join(", ")} · {erasure.state} · {formatFull(erasure.at)}
      </summary>
      <Places places={erasure.places} />
      {problem && (
        <Action
          label={words.people.accept}
          confirm={words.people.confirmAccept}
          act={async () => void (await call("POST /api/memory/erasures/{id}/accept", { id: erasure.id }))}
          onDone={reload}
        />
      )}
    </details>
  );
}
