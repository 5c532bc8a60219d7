// The agents with their models, memories, tools and budgets.

import { call } from "../api/client";
import type { AgentView } from "../api/generated";
import { buildLink } from "../router";
import { Facts } from "../ui/facts";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { formatMoney, formatNumber } from "../ui/time";
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
          [words.agents.model, <a href={buildLink("models")}>{[agent.model, ...agent.fallback].join(" → ")}</a>],
          [words.pages.memories, agent.memories.join(", ")],
          [words.pages.tools, agent.tools.join(", ")],
          [words.agents.missing, agent.missing.length > 0 && <span class="bad">{agent.missing.join(", ")}</span>],
          [words.agents.budget, [usd ? formatMoney(usd) : "", tokens ? words.tokens(formatNumber(tokens)) : ""].filter(Boolean).join(", ")],
        ]}
      />
    </section>
  );
}
