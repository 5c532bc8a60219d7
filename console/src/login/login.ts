// The login. A cookie has its first half, which no script can read. The page keeps the second half and sends it with
// every request. Neither half works alone.

import { signal } from "@preact/signals";
import { words } from "../words";

const KEY_NAME = "everhold.key";

export type LoginState = "in" | "out" | "ended" | "working";
type Proof = { code?: string; token?: string; replace?: boolean };

let memoryKey = ""; // without storage a reload needs a new login

function readKey(): string {
  try {
    return localStorage.getItem(KEY_NAME) ?? memoryKey;
  } catch {
    return memoryKey;
  }
}

function writeKey(key: string): void {
  memoryKey = key;
  try {
    if (key) localStorage.setItem(KEY_NAME, key);
    else localStorage.removeItem(KEY_NAME);
  } catch {
    // the key stays in memory
  }
}

class Login {
  readonly state = signal<LoginState>(readKey() ? "in" : "out");
  readonly problem = signal("");
  readonly offered = signal<(Proof & { message: string }) | null>(null); // a link that somebody else may have made

  // Sends a request with the key. A login that has ended shows the page for logging in.
  async fetch(path: string, options: RequestInit = {}): Promise<Response> {
    for (;;) {
      const key = readKey();
      const headers = { ...(options.headers as Record<string, string>), ...(key && { "X-Everhold-Key": key }) };
      const response = await fetch(path, { cache: "no-store", ...options, headers });
      if (response.status !== 401) return response;
      const other = readKey();
      if (other && other !== key) continue; // another tab has logged in again
      if (this.state.value === "in") this.change(key ? "ended" : "out");
      return response;
    }
  }

  // Uses the code of a login link. The code leaves the address bar before anything else happens.
  async useLink(): Promise<void> {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (!code) return;
    history.replaceState(null, "", location.pathname);
    await this.logIn({ code });
  }

  // Uses the link for another token, or leaves everything as it is.
  async answerOffer(use: boolean): Promise<void> {
    const code = this.offered.value?.code;
    this.offered.value = null;
    if (use && code) await this.logIn({ code, replace: true });
  }

  async logIn(proof: Proof): Promise<void> {
    const before = this.state.value;
    if (before !== "in") this.change("working");
    try {
      const key = readKey();
      const response = await fetch("/api/login", {
        method: "POST",
        headers: { "content-type": "application/json", ...(key && { "X-Everhold-Key": key }) },
        body: JSON.stringify(proof),
      });
      const answer = await response.json();
      if (answer.error?.type === "other_login") {
        this.offered.value = { ...proof, message: answer.error.message };
        return this.change(before);
      }
      if (!response.ok) throw new Error(answer.error?.message ?? response.statusText);
      this.change("working"); // nothing of the person before stays
      writeKey(answer.key);
      this.change("in");
    } catch (error) {
      this.change(before === "in" ? "in" : "out", error instanceof TypeError ? words.login.noAnswer : (error as Error).message);
    }
  }

  async logOut(): Promise<void> {
    const options = { method: "POST", headers: { "content-type": "application/json" }, body: "{}" };
    await this.fetch("/api/logout", options).catch(() => undefined);
    writeKey("");
    this.change("out");
  }

  private change(state: LoginState, problem = ""): void {
    this.problem.value = problem;
    this.state.value = state;
  }
}

export const login = new Login();
