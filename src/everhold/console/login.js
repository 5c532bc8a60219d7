// The login. A cookie has its first half, which no script can read. The page keeps the second half and sends it with
// every request. Neither half works alone.

import { html, useState } from "./preact.js";

const KEY_NAME = "everhold.key";

function readKey() {
  try {
    return localStorage.getItem(KEY_NAME) ?? "";
  } catch {
    return "";
  }
}

function writeKey(key) {
  try {
    if (key) localStorage.setItem(KEY_NAME, key);
    else localStorage.removeItem(KEY_NAME);
  } catch {
    // without storage a reload needs a new login
  }
  memoryKey = key;
}

let memoryKey = "";

export class Login {
  constructor(changed) {
    this.changed = changed;
    this.state = readKey() ? "in" : "out"; // in, out, ended, working
    this.problem = "";
    this.offered = null; // a link that somebody else may have made: {code, message}
  }

  // Sends a request with the key. A login that has ended shows the page for logging in.
  async fetch(path, options = {}) {
    for (;;) {
      const key = readKey() || memoryKey;
      const response = await fetch(path, { cache: "no-store", ...options, headers: { ...options.headers, ...(key ? { "X-Everhold-Key": key } : {}) } });
      if (response.status !== 401) return response;
      const other = readKey();
      if (other && other !== key) continue; // another tab has logged in again
      if (this.state === "in") this.setState(key ? "ended" : "out");
      return response;
    }
  }

  // Uses the code of a login link. The code leaves the address bar before anything else happens.
  async useLink() {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (!code) return;
    history.replaceState(null, "", location.pathname);
    await this.logIn({ code });
  }

  // Uses the link for another token, or leaves everything as it is.
  async answerOffer(use) {
    const { code } = this.offered;
    this.offered = null;
    if (use) await this.logIn({ code, replace: true });
    else this.changed();
  }

  async logIn(proof) {
    const before = this.state;
    if (before !== "in") this.setState("working");
    try {
      const key = readKey() || memoryKey;
      const response = await fetch("/api/login", {
        method: "POST",
        headers: { "content-type": "application/json", ...(key ? { "X-Everhold-Key": key } : {}) },
        body: JSON.stringify(proof),
      });
      const answer = await response.json();
      if (answer.error?.type === "other_login") {
        this.offered = { ...proof, message: answer.error.message };
        return this.setState(before);
      }
      if (!response.ok) throw new Error(answer.error?.message ?? response.statusText);
      this.setState("working"); // nothing of the person before stays
      writeKey(answer.key);
      this.setState("in");
    } catch (error) {
      this.setState(before === "in" ? "in" : "out", error instanceof TypeError ? "everhold does not answer" : error.message);
    }
  }

  async logOut() {
    await this.fetch("/api/logout", { method: "POST", headers: { "content-type": "application/json" }, body: "{}" }).catch(() => {});
    writeKey("");
    this.setState("out");
  }

  setState(state, problem = "") {
    this.state = state;
    this.problem = problem;
    this.changed();
  }
}

// Asks before a link decides who is logged in, because somebody else may have made the link.
export function OfferedLogin({ login }) {
  return html`<div class="offer" role="alertdialog" aria-label="Another login" aria-describedby="offer">
    <p id="offer">You opened a login link: ${login.offered.message}. Use it only if you made it.</p>
    <button class="quiet" onClick=${() => login.answerOffer(true)}>Use the link</button>
    <button class="send" onClick=${() => login.answerOffer(false)}>${login.state === "in" ? "Stay logged in" : "Do not log in"}</button>
  </div>`;
}

export function LoginPage({ login }) {
  const [token, write] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (!token.trim()) return;
    login.logIn({ token: token.trim() });
    write("");
  };
  return html`<main class="login">
    ${login.offered && html`<${OfferedLogin} login=${login} />`}
    <form onSubmit=${send} aria-label="Log in">
      <h1><img src="/static/logo.svg" alt="" width="28" height="28" /> everhold</h1>
      ${login.state === "ended" && html`<p role="status">Your login has ended.</p>`}
      <p>Run <code>everhold open</code> on the machine of the gateway. It makes a link that logs you in.</p>
      <label for="token">Or enter your token</label>
      <input
        id="token"
        type="password"
        autocomplete="off"
        spellcheck="false"
        value=${token}
        onInput=${(event) => write(event.target.value)}
      />
      <button type="submit" class="send" disabled=${!token.trim() || login.state === "working"}>Log in</button>
      <p class="bad" role="alert">${login.problem}</p>
    </form>
  </main>`;
}
