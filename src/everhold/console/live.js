// The stream of everything that happens. Comes back by itself, with the last place it saw, so that nothing is missed.

const FIRST_WAIT = 300;
const LONGEST_WAIT = 4000;
const SILENCE = 40_000; // the server says something every fifteen seconds

export class Live {
  constructor({ onEntry, onDelta, onReset, onHello, onState }) {
    this.on = { entry: onEntry, delta: onDelta, reset: onReset, hello: onHello };
    this.onState = onState;
    this.place = null; // of the last entry seen
    this.wake = () => {};
  }

  async run() {
    const hurry = () => this.wake();
    addEventListener("online", hurry);
    document.addEventListener("visibilitychange", hurry);
    for (let wait = FIRST_WAIT; ; wait = Math.min(wait * 2, LONGEST_WAIT)) {
      try {
        await this.listen(() => (wait = FIRST_WAIT));
      } catch (error) {
        this.onState(error.status === 401 || error.status === 403 ? "denied" : "offline");
      }
      await new Promise((done) => {
        this.wake = done;
        setTimeout(done, wait);
      });
    }
  }

  async listen(began) {
    const giveUp = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => giveUp.abort(), SILENCE);
    };
    try {
      heard();
      const headers = this.place === null ? {} : { "Last-Event-ID": String(this.place) };
      const response = await fetch("/api/events", { headers, cache: "no-store", signal: giveUp.signal });
      if (!response.ok) throw Object.assign(new Error(response.statusText), { status: response.status });
      began();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { done, value } = await reader.read();
        if (done) throw new Error("the stream ended");
        heard();
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        blocks.forEach((block) => this.event(block));
      }
    } finally {
      clearTimeout(timer);
      giveUp.abort();
    }
  }

  event(block) {
    const fields = {};
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (!fields.data) return;
    const data = JSON.parse(fields.data);
    if (fields.event === "hello") {
      this.onState("live");
      this.on.hello(data, this.place !== null && data.end < this.place);
      this.place = data.pos;
    } else {
      this.on[fields.event]?.(data);
      if (fields.id) this.place = Number(fields.id);
    }
  }
}
