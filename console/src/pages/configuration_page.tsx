// The configuration as text: checked before it is written, refused if another text has replaced it, and undone byte for byte.

import { useState } from "preact/hooks";
import { ApiError, call } from "../api/client";
import type { ConfigCheckResponse, ConfigResponse, ConfigVersionView } from "../api/generated";
import { Action } from "../ui/action";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull } from "../ui/time";
import { words } from "../words";
import { Problems } from "./health_page";

export default function ConfigurationPage() {
  const config = useResource((signal) => call("GET /api/config", {}, undefined, signal), []);
  return (
    <>
      <h2>{words.pages.configuration}</h2>
      <p class="hint">{words.configuration.about}</p>
      <Loaded resource={config}>{(found) => <Editor key={found.digest} config={found} reload={config.reload} />}</Loaded>
    </>
  );
}

function Editor({ config, reload }: { config: ConfigResponse; reload: () => void }) {
  const [text, write] = useState(config.text);
  const [checked, show] = useState<ConfigCheckResponse | null>(null);
  const changed = text !== config.text;
  const check = async () => show(await call("POST /api/config/check", {}, { text }));
  const save = async () => {
    try {
      const written = await call("POST /api/config", {}, { text, base: config.digest });
      reload();
      return written.restart.length ? words.configuration.needsRestart(written.restart.join(", ")) : words.configuration.written;
    } catch (error) {
      if (error instanceof ApiError && error.status === 400) await check();
      throw error;
    }
  };
  return (
    <>
      {!config.in_force && <p class="problem">{words.configuration.notInForce}</p>}
      {config.restart.length > 0 && <p class="problem">{words.configuration.needsRestart(config.restart.join(", "))}</p>}
      <Problems rows={config.problems} />
      <label class="field">
        <span>config.yaml</span>
        <textarea
          class="code-field"
          rows={24}
          spellcheck={false}
          value={text}
          onInput={(event) => {
            write(event.currentTarget.value);
            show(null);
          }}
        />
      </label>
      <div class="row">
        <Action label={words.configuration.check} disabled={!changed} act={check} />
        <Action label={words.configuration.save} disabled={!changed} confirm={words.configuration.confirmSave} act={save} />
        <Action label={words.configuration.discard} disabled={!changed} act={async () => write(config.text)} />
      </div>
      {checked && <Checked checked={checked} />}
      <Versions base={config.digest} reload={reload} />
    </>
  );
}

function Checked({ checked }: { checked: ConfigCheckResponse }) {
  return (
    <section role="status">
      <p class={checked.valid ? "good" : "bad"}>{checked.valid ? words.configuration.valid : words.configuration.invalid}</p>
      <Problems rows={checked.problems} />
      {checked.diff && <Diff text={checked.diff} />}
    </section>
  );
}

function Diff({ text }: { text: string }) {
  const kind = (line: string) => (line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "");
  return (
    <pre class="block diff" tabIndex={0}>
      {text.split("\n").map((line) => (
        <span class={kind(line)}>{`${line}\n`}</span>
      ))}
    </pre>
  );
}

function Versions({ base, reload }: { base: string; reload: () => void }) {
  const versions = useResource((signal) => call("GET /api/config/versions", {}, undefined, signal), [base]);
  return (
    <>
      <h3>{words.configuration.versions}</h3>
      <Loaded resource={versions}>
        {({ versions: rows }) => (
          <Table
            label={words.configuration.versions}
            rows={rows}
            getKey={(it) => it.id}
            empty={words.configuration.noVersions}
            columns={[
              { title: words.delivery.at, show: (it: ConfigVersionView) => formatFull(it.at) },
              { title: words.configuration.by, show: (it) => it.by },
              {
                title: words.actions,
                show: (it) => (
                  <Action
                    label={words.configuration.restore}
                    confirm={words.configuration.confirmRestore}
                    act={async () => void (await call("POST /api/config/undo", {}, { id: it.id, base }))}
                    onDone={reload}
                  />
                ),
              },
            ]}
          />
        )}
      </Loaded>
    </>
  );
}
