// The models: which agents use each, a live test of each, and setting up another.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { ModelTestResponse, ConfiguredModelView } from "../api/generated";
import { ModelForm } from "../setup/model_form";
import { ModelTestResult } from "../setup/test_result";
import { Action } from "../ui/action";
import { Facts } from "../ui/facts";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { words } from "../words";

export default function ModelsPage() {
  const models = useResource((signal) => call("GET /api/models", {}, undefined, signal), []);
  const setup = useResource((signal) => call("GET /api/setup", {}, undefined, signal), []);
  return (
    <>
      <h2>{words.pages.models}</h2>
      <Loaded resource={models}>
        {({ models: rows }) => (
          <div class="cards-grid">
            {rows.map((it) => (
              <Model key={it.name} model={it} />
            ))}
          </div>
        )}
      </Loaded>
      <h3>{words.setup.anotherModel}</h3>
      <Loaded resource={setup}>{(found) => <ModelForm setup={found} onDone={models.reload} />}</Loaded>
    </>
  );
}

function Model({ model }: { model: ConfiguredModelView }) {
  const [result, show] = useState<ModelTestResponse | null>(null);
  return (
    <section class="panel">
      <h3>{model.name}</h3>
      <Facts
        rows={[
          [words.setup.provider, model.provider],
          [words.setup.modelName, model.model],
          [words.setup.url, model.url],
          [words.setup.key, model.key_env],
          [words.agents.missing, model.missing.length > 0 && <span class="bad">{model.missing.join(", ")}</span>],
          [words.pages.agents, model.agents.join(", ")],
        ]}
      />
      <Action label={words.agents.test} act={async () => show(await call("POST /api/models/{name}/test", { name: model.name }))} />
      {result && <ModelTestResult result={result} />}
    </section>
  );
}
