// What a compression replaced, and what replaced it. It is read when it is opened.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { words } from "../words";
import { MessageList } from "./message_list";

export function CompressionDiff({ id, op }: { id: string; op: number }) {
  const [open, setOpen] = useState(false);
  if (!open)
    return (
      <button class="plain-button" onClick={() => setOpen(true)}>
        {words.timeline.showReplaced}
      </button>
    );
  return <Diff id={id} op={op} />;
}

function Diff({ id, op }: { id: string; op: number }) {
  const diff = useResource((signal) => call("GET /api/sessions/{id}/compressions/{op}/diff", { id, op }, undefined, signal), [id, op]);
  return (
    <Loaded resource={diff}>
      {({ replaced, by }) => (
        <div class="columns">
          <section>
            <h3>{words.timeline.replaced(replaced.length)}</h3>
            <MessageList messages={replaced} />
          </section>
          <section>
            <h3>{words.timeline.by}</h3>
            <MessageList messages={by} />
          </section>
        </div>
      )}
    </Loaded>
  );
}
