// The agents with their models, memories, tools and budgets, and a live test of an agent's model.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { AgentView } from "../api/generated";
import { Action } from "../ui/action";
import { Facts } from "../ui/facts";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { formatMoney, formatNumber, formatSeconds } from "../ui/time";
import { words } from "../words";

export default function AgentsPage() {
  const agents = useResource((signal) => call("GET /api/agents", {}, undefined, signal), []);
  return (
    <>
      <h2>{words.pages.agents}</h2>
      <Loaded resource={agents}>
        {({ agents: rows, default: standard }) => (
          <div class="cards-grid">
            {rows.map((it) => (
              <Agent key={it.name} agent={it} isDefault={it.name === standard} />
            ))}
          </div>
        )}
      </Loaded>
    </>
  );
}

function Agent({ agent, isDefault }: { agent: AgentView; isDefault: boolean }) {
  const { usd, tokens } = agent.budget;
  return (
    <section class="panel">
      <h3>
        {agent.name} {isDefault && <span class="count">{words.agents.default}</span>}
      </h3>
      <Facts
        rows={[
          [words.agents.model, [agent.model, ...agent.fallback].join(" → ")],
          [words.pages.memories, agent.memories.join(", ")],
          [words.pages.tools, agent.tools.join(", ")],
          [words.agents.missing, agent.missing.length > 0 && <span class="bad">{agent.missing.join(", ")}</span>],
          [words.agents.budget, [usd ? formatMoney(usd) : "", tokens ? words.tokens(formatNumber(tokens)) : ""].filter(Boolean).join(", ")],
        ]}
      />
      <ModelTest agent={agent.name} />
    </section>
  );
}

// Asks the model for one word. The request belongs to no session, so nothing of it is stored.
function ModelTest({ agent }: { agent: string }) {
  const [reply, show] = useState("");
  const test = async () => {
    const began = performance.now();
    const answer = (await call("POST /v1/chat/completions", {}, { model: agent, messages: [{ role: "user", content: words.agents.testWords }] })) as {
      choices?: Array<{ message?: { content?: string } }>;
    };
    show(answer.choices?.[0]?.message?.content ?? "");
    return words.agents.testDone(formatSeconds((performance.now() - began) / 1000));
  };
  return (
    <>
      <Action label={words.agents.test} act={test} />
      {reply && <pre class="block">{reply}</pre>}
    </>
  );
}
