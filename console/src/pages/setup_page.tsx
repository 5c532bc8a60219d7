// The first steps: a model, a chat platform, and a first message. Each is tested before it is written.

import type { ComponentChildren } from "preact";
import { call } from "../api/client";
import { AccountForm } from "../setup/account_form";
import { ModelForm } from "../setup/model_form";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { words } from "../words";

export default function SetupPage() {
  const setup = useResource((signal) => call("GET /api/setup", {}, undefined, signal), []);
  return (
    <>
      <h2>{words.pages.setup}</h2>
      <Loaded resource={setup}>
        {(found) => {
          const accounts = found.platforms.flatMap((it) => it.accounts.map((account) => `${it.name} ${account}`));
          return (
            <ol class="steps">
              <Step title={words.setup.model} done={found.is_offline ? "" : words.setup.modelThere}>
                <p class="hint">{found.is_offline ? words.setup.offline : words.setup.anotherModel}</p>
                <ModelForm setup={found} onDone={setup.reload} />
              </Step>
              <Step title={words.setup.platform} done={accounts.join(", ")}>
                <p class="hint">{words.setup.platformAbout}</p>
                <AccountForm setup={found} onDone={setup.reload} />
              </Step>
              <Step title={words.setup.hello} done="">
                <a href="#/">{words.setup.toConversation}</a>
              </Step>
            </ol>
          );
        }}
      </Loaded>
    </>
  );
}

function Step({ title, done, children }: { title: string; done: string; children: ComponentChildren }) {
  return (
    <li class="panel">
      <h3>
        {title} {done && <span class="good">✓ {done}</span>}
      </h3>
      {children}
    </li>
  );
}
