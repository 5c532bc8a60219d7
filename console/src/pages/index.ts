// The pages beside the conversation. Each is loaded when it is opened for the first time.

import type { FunctionComponent } from "preact";
import type { CallerView } from "../api/generated";
import type { Words } from "../words";

export interface Page {
  name: keyof Words["pages"];
  load: () => Promise<{ default: FunctionComponent }>;
  operator: boolean; // only operators may see it
}

export const PAGES: Page[] = [];

export function listPages(caller: CallerView | null): Page[] {
  return PAGES.filter((page) => !page.operator || caller?.operator);
}
