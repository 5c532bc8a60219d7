// Connects an account of a chat platform. It is tested first; only one that works is written.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { AccountTestResponse, SetupResponse } from "../api/generated";
import { state } from "../state/console_state";
import { Action } from "../ui/action";
import { Choice, Field } from "../ui/field";
import { words } from "../words";
import { InvitationMaker } from "./invitation";
import { Failure } from "./test_result";

const FIRST = "telegram"; // the one that needs the fewest steps

export function AccountForm({ setup, onDone }: { setup: SetupResponse; onDone: () => void }) {
  const offers = setup.platforms.filter((it) => it.settings.length || it.problem);
  const [platform, choose] = useState((offers.find((it) => it.name === FIRST) ?? offers[0])?.name ?? "");
  const [agent, setAgent] = useState("");
  const [values, write] = useState<Record<string, string>>({});
  const [result, show] = useState<AccountTestResponse | null>(null);
  const offer = offers.find((it) => it.name === platform);
  if (!offer) return null;
  const test = async () => {
    const answer = await call("POST /api/setup/account", {}, { platform, account: agent, agent, values, write: true });
    show(answer);
    if (!answer.written) return;
    write({});
    onDone();
  };
  return (
    <form class="stack" onSubmit={(event) => event.preventDefault()}>
      <div class="row">
        <Choice
          label={words.sessions.platform}
          value={platform}
          options={offers.map((it) => [it.name, it.name])}
          onChange={(name) => {
            choose(name);
            write({});
            show(null);
          }}
        />
        {state.agents.value.length > 1 && (
          <Choice label={words.agent} value={agent} options={[["", words.memories.defaultAgent], ...state.agents.value.map((it) => [it, it] as [string, string])]} onChange={setAgent} />
        )}
        {offer.settings.map((it) => (
          <Field
            key={`${platform} ${it.name}`}
            label={it.question}
            value={values[it.name] ?? ""}
            type={it.is_secret ? "password" : "text"}
            onInput={(value) => write({ ...values, [it.name]: value })}
          />
        ))}
        {!offer.problem && <Action label={words.setup.connect} act={test} />}
      </div>
      {offer.problem && <Failure message={offer.problem} remedy={offer.remedy} />}
      {result && !result.works && <Failure message={result.message} remedy={result.remedy} />}
      {result?.works && (
        <p class="good" role="status">
          {words.setup.connected(platform, result.name)} {result.hello}
        </p>
      )}
      {result?.written && <InvitationMaker platform={platform} account={result.account} />}
    </form>
  );
}
