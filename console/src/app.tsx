// The frame of all pages: the bar, the menu, and the page that the address names.

import { useEffect, useState } from "preact/hooks";
import type { FunctionComponent } from "preact";
import { connection } from "./live/event_stream";
import { login } from "./login/login";
import { LoginPage, OfferedLogin } from "./login/login_page";
import { Menu, MenuButton } from "./menu";
import { PAGES, type Page } from "./pages";
import { ConversationPage } from "./pages/conversation_page";
import { place } from "./router";
import { state } from "./state/console_state";
import { words } from "./words";

export function App() {
  if (login.state.value !== "in") return <LoginPage />;
  return (
    <>
      <OfferedLogin />
      <div class="console">
        <Bar />
        <Menu />
        <Content />
      </div>
    </>
  );
}

function Content() {
  const page = PAGES.find((it) => it.name === place.value.page);
  const caller = state.caller.value;
  if (!page) return <ConversationPage />;
  if (caller && page.isForOperators && !caller.operator)
    return (
      <main class="page">
        <h2>{words.pages[page.name]}</h2>
        <p class="hint">{words.onlyOperators}</p>
      </main>
    );
  return <LazyPage key={page.name} page={page} />;
}

function Bar() {
  const { state: reached } = connection.value;
  const caller = state.caller.value;
  return (
    <header>
      <h1>
        <img src="/static/logo.svg" alt="" width="22" height="22" /> everhold
      </h1>
      <MenuButton />
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

function LazyPage({ page }: { page: Page }) {
  const [Loaded, setLoaded] = useState<FunctionComponent | null>(null);
  const [failed, fail] = useState(false);
  const isLive = state.isLive;
  useEffect(() => {
    page.load().then(
      (loaded) => setLoaded(() => loaded.default),
      () => fail(true),
    );
  }, []);
  useEffect(() => {
    if (failed && isLive) location.reload(); // a browser does not load a script again that it failed to load
  }, [failed, isLive]);
  return <main class="page">{Loaded ? <Loaded /> : <p class="hint">{failed ? words.pageFailed : words.loading}</p>}</main>;
}
