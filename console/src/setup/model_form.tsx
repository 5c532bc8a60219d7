// Sets up a model: it is asked for one word first, and only a model that works is written.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { ModelTestResponse, SetupResponse } from "../api/generated";
import { Action } from "../ui/action";
import { Choice, Field } from "../ui/field";
import { words } from "../words";
import { ModelTestResult } from "./test_result";

export function ModelForm({ setup, onDone }: { setup: SetupResponse; onDone: () => void }) {
  const [provider, choose] = useState(setup.providers[0]?.name ?? "");
  const [url, setUrl] = useState("");
  const [name, setName] = useState("");
  const [key, setKey] = useState("");
  const [result, show] = useState<ModelTestResponse | null>(null);
  const usual = setup.providers.find((it) => it.name === provider);
  const change = (act: (value: string) => void) => (value: string) => {
    act(value);
    show(null);
  };
  const test = async () => {
    const answer = await call("POST /api/setup/model", {}, { provider, url, name, key, write: true });
    show(answer);
    if (!answer.written) return;
    setKey("");
    onDone();
  };
  return (
    <form class="stack" onSubmit={(event) => event.preventDefault()}>
      <div class="row">
        <Choice label={words.setup.provider} value={provider} options={setup.providers.map((it) => [it.name, words.setup.providers[it.name] ?? it.about])} onChange={change(choose)} />
        {usual?.url && (
          <>
            <Field label={words.setup.url} value={url} placeholder={usual.url} onInput={change(setUrl)} />
            <Field label={words.setup.modelName} value={name} placeholder={usual.example} onInput={change(setName)} />
            <Field label={words.setup.key} value={key} type="password" onInput={change(setKey)} />
          </>
        )}
        <Action label={words.setup.useModel} disabled={Boolean(usual?.url) && !name.trim()} act={test} />
      </div>
      {result && <ModelTestResult result={result} />}
    </form>
  );
}
