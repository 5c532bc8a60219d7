// The pages beside the conversation. Each is loaded when it is opened for the first time.

import type { FunctionComponent } from "preact";
import type { CallerView } from "../api/generated";
import type { Words } from "../words";

export type PageName = keyof Words["pages"];
export type PageGroup = keyof Words["groups"];

export interface Page {
  name: PageName;
  group: PageGroup | null; // null: the page is not in the menu
  isForOperators: boolean;
  load: () => Promise<{ default: FunctionComponent }>;
}

function forAll(name: PageName, group: PageGroup | null, load: Page["load"]): Page {
  return { name, group, load, isForOperators: false };
}

function forOperators(name: PageName, group: PageGroup | null, load: Page["load"]): Page {
  return { name, group, load, isForOperators: true };
}

export const PAGES: Page[] = [
  forAll("inbox", "talk", () => import("./inbox_page")),
  forAll("sessions", "talk", () => import("./sessions_page")),
  forAll("schedules", "talk", () => import("./schedules_page")),
  forAll("memories", "knowledge", () => import("./memories_page")),
  forOperators("people", "knowledge", () => import("./people_page")),
  forOperators("setup", "set_up", () => import("./setup_page")),
  forOperators("models", "set_up", () => import("./models_page")),
  forOperators("agents", "set_up", () => import("./agents_page")),
  forOperators("platforms", "set_up", () => import("./platforms_page")),
  forOperators("tools", "set_up", () => import("./tools_page")),
  forOperators("configuration", "set_up", () => import("./configuration_page")),
  forAll("logins", "set_up", () => import("./logins_page")),
  forOperators("health", "watch", () => import("./health_page")),
  forOperators("deadLetters", "watch", () => import("./dead_letters_page")),
  forOperators("usage", "watch", () => import("./usage_page")),
  forOperators("audit", "watch", () => import("./audit_page")),
  forOperators("logs", "watch", () => import("./logs_page")),
  forOperators("hosts", "watch", () => import("./hosts_page")),
  forOperators("backups", "watch", () => import("./backups_page")),
  forAll("inspect", null, () => import("./inspect_page")),
];

const PRELOAD_AFTER_MS = 1000; // the conversation comes first

export const GROUPS: PageGroup[] = ["talk", "knowledge", "set_up", "watch"];

export function listPages(caller: CallerView | null, group: PageGroup): Page[] {
  return PAGES.filter((page) => page.group === group && (!page.isForOperators || caller?.operator));
}

// Loads the pages in the background, so that each opens at once and also while the gateway is away.
export function preloadPages(caller: CallerView): void {
  const wanted = PAGES.filter((page) => !page.isForOperators || caller.operator);
  setTimeout(async () => {
    for (const page of wanted) await page.load().catch(() => undefined);
  }, PRELOAD_AFTER_MS);
}
