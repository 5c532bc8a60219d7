// Reads /api/events. It reconnects with the pos of the last entry, so that no entry is missed.

const MIN_WAIT_MS = 300;
const MAX_WAIT_MS = 4000;
const SILENCE_MS = 40_000; // the server sends a heartbeat every 15 seconds

export class EventStream {
  constructor({ login, onEntry, onDelta, onReset, onHello, onConnection }) {
    this.handlers = { entry: onEntry, delta: onDelta, reset: onReset, hello: onHello };
    this.onConnection = onConnection;
    this.login = login;
    this.lastPos = null; // of the last entry received
    this.retryNow = () => {};
    this.abort = new AbortController();
  }

  // Connects again, because the login has changed.
  restart() {
    this.abort.abort();
    this.retryNow();
  }

  async run() {
    const retry = () => this.retryNow();
    addEventListener("online", retry);
    document.addEventListener("visibilitychange", retry);
    for (let wait = MIN_WAIT_MS; ; wait = Math.min(wait * 2, MAX_WAIT_MS)) {
      try {
        if (this.login.state !== "in") throw Object.assign(new Error("not logged in"), { status: 401 });
        await this.readEvents(() => (wait = MIN_WAIT_MS));
      } catch (error) {
        this.onConnection(error.status === 401 || error.status === 403 ? "denied" : "offline");
      }
      await new Promise((done) => {
        this.retryNow = done;
        setTimeout(done, wait);
      });
    }
  }

  async readEvents(onStarted) {
    const abort = (this.abort = new AbortController());
    let timer = 0;
    const restartTimer = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    try {
      restartTimer();
      const headers = this.lastPos === null ? {} : { "Last-Event-ID": String(this.lastPos) };
      const response = await this.login.fetch("/api/events", { headers, signal: abort.signal });
      if (!response.ok) throw Object.assign(new Error(response.statusText), { status: response.status });
      onStarted();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { done, value } = await reader.read();
        if (done) throw new Error("the stream ended");
        restartTimer();
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        blocks.forEach((block) => this.handleEvent(block));
      }
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  handleEvent(block) {
    const fields = {};
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (!fields.data) return;
    const data = JSON.parse(fields.data);
    if (fields.event === "hello") {
      this.onConnection("live");
      this.handlers.hello(data, this.lastPos !== null && data.end < this.lastPos);
      this.lastPos = data.pos;
    } else {
      this.handlers[fields.event]?.(data);
      if (fields.id) this.lastPos = Number(fields.id);
    }
  }
}
