// A button that copies a text.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { words } from "../words";

const SHOWN_MS = 1500;

export function CopyButton({ text, label, children }: { text: string; label: string; children?: ComponentChildren }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), SHOWN_MS);
  };
  return (
    <>
      <button type="button" class="quiet copy" aria-label={children ? undefined : label} title={label} onClick={() => void copy()}>
        {children ?? words.copy}
      </button>
      <span class="hint" aria-live="polite">
        {copied ? words.copied : ""}
      </span>
    </>
  );
}
