// The page for logging in, and the question whether a link may replace a login.

import { useState } from "preact/hooks";
import { words } from "../words";
import { login } from "./login";

// Asks before a link decides who is logged in, because somebody else may have made the link.
export function OfferedLogin() {
  const offered = login.offered.value;
  if (!offered) return null;
  return (
    <div class="offer" role="alertdialog" aria-label={words.login.anotherLogin} aria-describedby="offer">
      <p id="offer">{words.login.offer(offered.message)}</p>
      <button class="quiet" onClick={() => login.answerOffer(true)}>
        {words.login.useLink}
      </button>
      <button class="send" onClick={() => login.answerOffer(false)}>
        {login.state.value === "in" ? words.login.stay : words.login.refuse}
      </button>
    </div>
  );
}

export function LoginPage() {
  const [token, write] = useState("");
  const send = (event: Event) => {
    event.preventDefault();
    if (!token.trim()) return;
    void login.logIn({ token: token.trim() });
    write("");
  };
  return (
    <main class="login">
      <OfferedLogin />
      <form onSubmit={send} aria-label={words.login.logIn}>
        <h1>
          <img src="/static/logo.svg" alt="" width="28" height="28" /> everhold
        </h1>
        {login.state.value === "ended" && <p role="status">{words.login.ended}</p>}
        <p>
          {words.login.howBefore} <code>everhold open</code> {words.login.howAfter}
        </p>
        <label for="token">{words.login.token}</label>
        <input
          id="token"
          type="password"
          autocomplete="off"
          spellcheck={false}
          value={token}
          onInput={(event) => write(event.currentTarget.value)}
        />
        <button type="submit" class="send" disabled={!token.trim() || login.state.value === "working"}>
          {words.login.logIn}
        </button>
        <p class="bad" role="alert">
          {login.problem.value}
        </p>
      </form>
    </main>
  );
}
