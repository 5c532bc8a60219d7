// The pages beside the conversation. Each is loaded when it is opened for the first time.

import type { FunctionComponent } from "preact";
import type { CallerView } from "../api/generated";
import type { Words } from "../words";

export type PageName = keyof Words["pages"];

export interface Page {
  name: PageName;
  load: () => Promise<{ default: FunctionComponent }>;
  isForOperators: boolean;
  isInMenu: boolean;
}

function page(name: PageName, load: Page["load"], { isForOperators = true, isInMenu = true } = {}): Page {
  return { name, load, isForOperators, isInMenu };
}

export const PAGES: Page[] = [
  page("sessions", () => import("./sessions_page"), { isForOperators: false }),
  page("inspect", () => import("./inspect_page"), { isForOperators: false, isInMenu: false }),
];

export function listMenu(caller: CallerView | null): Page[] {
  return PAGES.filter((it) => it.isInMenu && (!it.isForOperators || caller?.operator));
}
