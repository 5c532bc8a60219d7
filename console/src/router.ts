// The address of a page is the fragment: #/session/ID, #/memory/dead-letters?consumer=x. Anybody can write it into a
// link, so it only selects what is shown.

import { signal } from "@preact/signals";

export interface Place {
  page: string;
  parts: string[]; // what follows the page's name
  query: URLSearchParams;
}

const SESSION_ID = /^[0-9a-z]{26}$/; // a link of an earlier version is #ID; a link to log in is #code=…

export const place = signal<Place>(readPlace());

export function readPlace(hash: string = location.hash): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...parts] = path.split("/").map(decode);
  if (!hash.startsWith("#/")) return { page: SESSION_ID.test(page) ? "session" : "", parts: [page], query: new URLSearchParams() };
  return { page, parts, query: new URLSearchParams(query) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function buildLink(page: string, parts: Array<string | number> = [], query: Record<string, string> = {}): string {
  const path = [page, ...parts].map((part) => encodeURIComponent(part)).join("/");
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return `#/${path}${given.size ? `?${given}` : ""}`;
}

export function go(link: string): void {
  location.hash = link;
}

// Changes the address without a new entry in the browser's history.
export function replacePlace(link: string): void {
  history.replaceState(null, "", link || location.pathname);
  place.value = readPlace();
}

export function followAddress(onCode: () => void): void {
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#code=")) onCode();
    else place.value = readPlace();
  });
}
