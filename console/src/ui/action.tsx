// A button that does something on the server. It says what was done or why not. With `confirm` it asks first.

import { useEffect, useRef, useState } from "preact/hooks";
import { words } from "../words";
import { Problem } from "./problem";

export interface ActionProperties {
  label: string;
  act: () => Promise<string | void>;
  confirm?: string | undefined;
  danger?: boolean;
  disabled?: boolean;
  onDone?: () => void;
}

export function Action({ label, act, confirm, danger, disabled, onDone }: ActionProperties) {
  const [phase, setPhase] = useState<"idle" | "asking" | "busy">("idle");
  const [said, say] = useState("");
  const [error, fail] = useState<unknown>(null);
  const refuse = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (phase === "asking") refuse.current?.focus();
  }, [phase]);
  const run = async () => {
    setPhase("busy");
    fail(null);
    try {
      say((await act()) ?? "");
      onDone?.();
    } catch (caught) {
      fail(caught);
    }
    setPhase("idle");
  };
  return (
    <span class="action">
      {phase === "asking" ? (
        <span class="confirm" role="group" aria-label={label}>
          <span>{confirm}</span>
          <button type="button" class="danger" onClick={() => void run()}>
            {label}
          </button>
          <button type="button" class="plain-button" ref={refuse} onClick={() => setPhase("idle")}>
            {words.cancel}
          </button>
        </span>
      ) : (
        <button
          type="button"
          class={danger ? "danger" : "plain-button"}
          disabled={disabled || phase === "busy"}
          onClick={() => (confirm ? setPhase("asking") : void run())}
        >
          {label}
        </button>
      )}
      {said && (
        <span class="hint" role="status">
          {said}
        </span>
      )}
      <Problem error={error} />
    </span>
  );
}
