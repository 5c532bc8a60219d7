// Messages of a request to a model, word for word.

import { words } from "../words";

type Message = Record<string, any>;

export function MessageList({ messages }: { messages: Array<Record<string, unknown>> }) {
  return (
    <ol class="model-messages">
      {messages.map((message, index) => (
        <ModelMessage key={index} message={message} />
      ))}
    </ol>
  );
}

function ModelMessage({ message }: { message: Message }) {
  const { role = "", name, text, ...rest } = message;
  const more = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length)));
  return (
    <li class={`role-${role}`}>
      <p class="by">{[words.context.roles[role] ?? role, name].filter(Boolean).join(" · ")}</p>
      {text && <pre>{String(text)}</pre>}
      {Object.keys(more).length > 0 && <pre class="more">{JSON.stringify(more, null, 2)}</pre>}
    </li>
  );
}
