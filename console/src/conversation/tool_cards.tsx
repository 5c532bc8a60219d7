// The tool calls of one step, each with its arguments, result and duration.

import { formatSeconds } from "../ui/time";
import { words } from "../words";
import type { ToolCard } from "./rows";

const GIST_LENGTH = 90;

export function ToolCards({ cards }: { cards: ToolCard[] }) {
  return (
    <div class="cards">
      {cards.map((card) => (
        <Card key={card.id} card={card} />
      ))}
    </div>
  );
}

function Card({ card }: { card: ToolCard }) {
  return (
    <details class={`card ${card.state}`}>
      <summary>
        <span class="tool">{card.tool}</span> <span class="gist">{summarize(card.arguments)}</span>{" "}
        <span class="outcome">
          {words.tool[card.state]}
          {card.seconds !== null && ` · ${formatSeconds(card.seconds)}`}
        </span>
      </summary>
      <h3>{words.tool.arguments}</h3>
      <pre tabIndex={0}>{JSON.stringify(card.arguments, null, 2)}</pre>
      {card.effect && <p class="hint">{words.tool.effect(card.effect)}</p>}
      {card.result && (
        <>
          <h3>{words.tool.result}</h3>
          <pre tabIndex={0}>{card.result}</pre>
        </>
      )}
      {card.files.length > 0 && (
        <ul>
          {card.files.map((file) => (
            <li>{file.name || file.blob}</li>
          ))}
        </ul>
      )}
    </details>
  );
}

function summarize(given: Record<string, unknown>): string {
  const text = Object.values(given)
    .map((value) => (typeof value === "string" ? value : JSON.stringify(value)))
    .join(" · ");
  return text.length > GIST_LENGTH ? `${text.slice(0, GIST_LENGTH)}…` : text;
}
