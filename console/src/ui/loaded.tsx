// Shows what a resource has loaded, that it loads, or why it failed.

import type { ComponentChildren } from "preact";
import { words } from "../words";
import { Problem } from "./problem";
import type { Resource } from "./resource";

export function Loaded<T>({ resource, children }: { resource: Resource<T>; children: (value: T) => ComponentChildren }) {
  const { value, error } = resource;
  return (
    <>
      <Problem error={error} />
      {value !== undefined ? (
        children(value)
      ) : error ? (
        <button class="quiet" onClick={resource.reload}>
          {words.tryAgain}
        </button>
      ) : (
        <p class="hint" role="status">
          {words.loading}
        </p>
      )}
    </>
  );
}
