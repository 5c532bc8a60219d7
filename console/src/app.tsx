// The frame of all pages: the bar, the menu, and the page that the address names.

import { useEffect, useState } from "preact/hooks";
import type { FunctionComponent } from "preact";
import { connection } from "./live/event_stream";
import { login } from "./login/login";
import { LoginPage, OfferedLogin } from "./login/login_page";
import { listMenu, PAGES, type Page } from "./pages";
import { ConversationPage } from "./pages/conversation_page";
import { buildLink, place } from "./router";
import { state } from "./state/console_state";
import { words } from "./words";

export function App() {
  if (login.state.value !== "in") return <LoginPage />;
  const page = PAGES.find((it) => it.name === place.value.page);
  return (
    <>
      <OfferedLogin />
      <div class="console">
        <Bar />
        {page ? <LazyPage key={page.name} page={page} /> : <ConversationPage />}
      </div>
    </>
  );
}

function Bar() {
  const { state: reached } = connection.value;
  const caller = state.caller.value;
  return (
    <header>
      <h1>
        <img src="/static/logo.svg" alt="" width="22" height="22" /> everhold
      </h1>
      <Menu />
      <p class={`state ${reached}`} role="status">
        <span class="dot" aria-hidden="true" />
        {words.connection[reached]}
      </p>
      {caller?.login && (
        <>
          <span class="who">{caller.name}</span>
          <button class="quiet logout" onClick={() => void login.logOut()}>
            {words.login.logOut}
          </button>
        </>
      )}
    </header>
  );
}

function Menu() {
  const current = place.value.page === "session" ? "" : place.value.page;
  const pages = listMenu(state.caller.value);
  if (!pages.length) return null;
  return (
    <nav class="pages" aria-label={words.pagesLabel}>
      <a href="#/" aria-current={current === "" ? "page" : undefined}>
        {words.conversation.name}
      </a>
      {pages.map((page) => (
        <a href={buildLink(page.name)} aria-current={current === page.name ? "page" : undefined}>
          {words.pages[page.name]}
        </a>
      ))}
    </nav>
  );
}

function LazyPage({ page }: { page: Page }) {
  const [Loaded, setLoaded] = useState<FunctionComponent | null>(null);
  const [failed, fail] = useState(false);
  useEffect(() => {
    page.load().then(
      (loaded) => setLoaded(() => loaded.default),
      () => fail(true),
    );
  }, []);
  return <main class="page">{Loaded ? <Loaded /> : <p class="hint">{failed ? words.pageFailed : words.loading}</p>}</main>;
}
