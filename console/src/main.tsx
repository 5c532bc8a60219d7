// Starts the console.

import { effect, type ReadonlySignal, untracked } from "@preact/signals";
import { render } from "preact";
import { App } from "./app";
import { connection, EventStream } from "./live/event_stream";
import { login } from "./login/login";
import { preloadPages } from "./pages";
import { followAddress, place } from "./router";
import { state } from "./state/console_state";
import { language } from "./words";
import "./style/base.css";
import "./style/conversation.css";
import "./style/pages.css";

const events = new EventStream({
  entry: (entry) => state.onEntry(entry),
  delta: (delta) => state.onDelta(delta),
  reset: (reset) => state.onReset(reset),
  hello: (restored) => state.onHello(restored),
});

document.documentElement.lang = language;
follow(login.state, (now) => {
  if (now !== "in") state.forgetCaller();
  events.restart();
});
follow(connection, (now) => {
  if (now.state !== "live") state.onDisconnected();
});
follow(state.caller, (caller) => {
  if (caller) preloadPages(caller);
});
follow(place, () => {
  if (state.caller.value) void state.followPlace();
});
followAddress(() => void login.useLink());
render(<App />, document.getElementById("console")!);
void login.useLink().finally(() => events.run());

// Calls `act` with each value of a signal. What `act` reads is not followed.
function follow<T>(source: ReadonlySignal<T>, act: (value: T) => void): void {
  effect(() => {
    const { value } = source;
    untracked(() => act(value));
  });
}
