// A labelled input.

import { useId } from "preact/hooks";

export function Field({ label, value, onInput, type = "text", placeholder, hint }: {
  label: string;
  value: string;
  onInput: (value: string) => void;
  type?: "text" | "search" | "password" | "number" | "date";
  placeholder?: string;
  hint?: string;
}) {
  const id = useId();
  return (
    <p class="field">
      <label for={id}>{label}</label>
      <input id={id} type={type as "text"} value={value} placeholder={placeholder} onInput={(event) => onInput(event.currentTarget.value)} />
      {hint && <span class="hint">{hint}</span>}
    </p>
  );
}

export function Choice({ label, value, options, onChange }: {
  label: string;
  value: string;
  options: Array<[string, string]>;
  onChange: (value: string) => void;
}) {
  const id = useId();
  return (
    <p class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map(([name, title]) => (
          <option value={name}>{title}</option>
        ))}
      </select>
    </p>
  );
}
