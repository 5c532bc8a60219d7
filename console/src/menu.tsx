// The menu of all pages. A narrow window shows it when its button is pressed.

import { signal } from "@preact/signals";
import { GROUPS, listPages } from "./pages";
import { buildLink, place } from "./router";
import { state } from "./state/console_state";
import { words } from "./words";

const open = signal(false);

export function MenuButton() {
  return (
    <button class="quiet menu-button" aria-expanded={open.value} aria-controls="menu" onClick={() => (open.value = !open.value)}>
      {words.menu}
    </button>
  );
}

export function Menu() {
  const { page } = place.value;
  const caller = state.caller.value;
  const close = () => (open.value = false);
  return (
    <nav id="menu" class={`pages${open.value ? " open" : ""}`} aria-label={words.pagesLabel} onClick={close}>
      {GROUPS.map((group) => {
        const pages = listPages(caller, group);
        if (!pages.length && group !== "talk") return null;
        return (
          <section key={group} aria-label={words.groups[group]}>
            <h2>{words.groups[group]}</h2>
            {group === "talk" && (
              <a href={state.openId.value ? buildLink("session", [state.openId.value]) : "#/"} aria-current={page === "" || page === "session" ? "page" : undefined}>
                {words.conversation.name}
              </a>
            )}
            {pages.map(({ name }) => (
              <a key={name} href={buildLink(name)} aria-current={page === name ? "page" : undefined}>
                {words.pages[name]}
              </a>
            ))}
          </section>
        );
      })}
    </nav>
  );
}
