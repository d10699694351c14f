// A WebSocket that reconnects with increasing pauses, and its state.

import { Emitter } from "./emitter.js";

export const CLOSED = { browser: 1000, misunderstood: 4400, loggedOut: 4401, noRights: 4403 };

const PAUSE_MS_FIRST = 500;
const PAUSE_MS_MAX = 15_000;
const STEADY_MS = 5_000; // after a connection of this duration, pauses begin anew
const FINAL = new Set([CLOSED.misunderstood, CLOSED.loggedOut, CLOSED.noRights]);
// Close codes after which another attempt would fail as well.

// Events: "frame" (a document), "open", "state".
export class Socket extends Emitter {
  #path;
  #protocol;
  #socket = null;
  #timer = 0;
  #watchdog = 0;
  #tries = 0;
  #openedAt = 0;
  #isWanted = false;

  // state: "idle" | "connecting" | "open" | "waiting" | "over"
  state = "idle";
  retryAt = 0;
  heardAt = 0;
  closeCode = 0;

  constructor(path, { protocol, silenceMs }) {
    super();
    this.#path = path;
    this.#protocol = protocol;
    this.silenceMs = silenceMs;
  }

  open() {
    this.#isWanted = true;
    this.#tries = 0;
    this.#connect();
  }

  close() {
    this.#isWanted = false;
    clearTimeout(this.#timer);
    this.#forget(CLOSED.browser);
    this.#become("idle");
  }

  retryNow() {
    if (this.state === "waiting") this.#connect();
  }

  send(said) {
    if (this.state !== "open") return false;
    this.#socket.send(JSON.stringify(said));
    return true;
  }

  #connect() {
    clearTimeout(this.#timer);
    this.#forget(CLOSED.browser);
    this.#become("connecting");
    const url = new URL(this.#path, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url, this.#protocol ?? []);
    this.#socket = socket;
    this.#listen();
    socket.onopen = () => {
      this.#openedAt = performance.now();
      this.#become("open");
      this.emit("open");
    };
    socket.onmessage = ({ data }) => {
      this.#listen();
      const said = frame(data);
      if (said) this.emit("frame", said);
    };
    socket.onclose = ({ code }) => this.#lost(code);
  }

  // A peer that is silent for too long counts as failed, even if TCP still works.
  #listen() {
    this.heardAt = performance.now();
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => this.#lost(0), this.silenceMs);
  }

  #lost(code) {
    if (this.state === "open" && performance.now() - this.#openedAt > STEADY_MS) this.#tries = 0;
    this.#forget(CLOSED.browser);
    this.closeCode = code;
    if (FINAL.has(code)) return this.#become("over");
    const pause = Math.min(PAUSE_MS_MAX, PAUSE_MS_FIRST * 2 ** this.#tries) * (0.75 + Math.random() / 2);
    this.#tries = Math.min(this.#tries + 1, 10);
    this.retryAt = performance.now() + pause;
    this.#timer = setTimeout(() => this.#connect(), pause);
    return this.#become("waiting");
  }

  #forget(code) {
    clearTimeout(this.#watchdog);
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close(code);
  }

  #become(state) {
    this.state = state;
    if (this.#isWanted || state === "idle") this.emit("state", state);
  }
}

function frame(data) {
  try {
    const found = JSON.parse(data);
    return found !== null && typeof found === "object" && typeof found.kind === "string" ? found : null;
  } catch {
    return null;
  }
}
