// The operator's picture: the newest one, its age, and the agents' messages.

import { Emitter } from "./emitter.js";
import { Socket } from "./socket.js";

const INFOS_MAX = 1000;
const SILENCE_MS = 20_000;
const INTERVALS_MAX = 3;
const UNKNOWN_RATES = {
  ...Object.fromEntries(["in", "out", "sent", "accepted", "delivered", "settled"].map((name) => [`${name}_per_s`, null])),
  per_s: null,
  latency_us: {},
};

// Events: "picture", "info", "audit", "state".
export class Watch extends Emitter {
  socket = new Socket("/ws/watch", { silenceMs: SILENCE_MS });
  picture = null;
  infos = [];
  #seen = -1;
  #arrivedAt = 0;
  #clockMs = 0;

  constructor() {
    super();
    this.socket.on("state", (state) => this.emit("state", state));
    this.socket.on("frame", (said) => this.#take(said));
  }

  start() {
    this.socket.open();
  }

  stop() {
    this.socket.close();
    this.picture = null;
    this.infos = [];
    this.#seen = -1;
  }

  // Seconds since the console last polled the plant.
  get ageS() {
    return this.picture ? (this.picture.age_s ?? 0) + (performance.now() - this.#arrivedAt) / 1000 : Infinity;
  }

  get isStale() {
    return this.ageS > INTERVALS_MAX * (this.picture?.interval_s ?? 1) + 0.5;
  }

  // The picture for display: nothing of an old picture looks live.
  get seen() {
    if (!this.picture) return cleaned({});
    if (!this.isStale) return this.picture;
    const { nodes, streams, losses, consumers, endpoints } = this.picture;
    const old = (row) => ({ ...row, ...UNKNOWN_RATES, age_s: (row.age_s ?? 0) + this.ageS, is_old: true });
    return {
      ...this.picture,
      nodes: nodes.map(old),
      streams: streams.map(old),
      losses: losses.map(old),
      consumers: consumers.map(old),
      endpoints: endpoints.map(old),
    };
  }

  // The console's time: this browser's clock and the measured difference.
  get nowMs() {
    return Date.now() + this.#clockMs;
  }

  #take(said) {
    if (said.kind === "picture") {
      this.#arrivedAt = performance.now();
      if (Number.isFinite(said.time_ms)) this.#clockMs = said.time_ms + 1000 * (said.age_s ?? 0) - Date.now();
      this.picture = cleaned(said);
      this.socket.silenceMs = Math.max(SILENCE_MS, 1000 * 2 * INTERVALS_MAX * (said.interval_s ?? 0));
      this.emit("picture", this.picture);
    } else if (said.kind === "info") {
      if (said.number <= this.#seen) return; // repeated after a new connection
      this.#seen = said.number;
      this.infos.push(said);
      if (this.infos.length > INFOS_MAX) this.infos.splice(0, this.infos.length - INFOS_MAX);
      this.emit("info", said);
    } else if (said.kind === "audit") {
      this.emit("audit", said);
    }
  }
}

function cleaned(said) {
  const lists = ["nodes", "links", "streams", "losses", "consumers", "endpoints"].map((name) => [
    name,
    Array.isArray(said[name]) ? said[name].filter((row) => row !== null && typeof row === "object") : [],
  ]);
  return { ...said, ...Object.fromEntries(lists), counts: said.counts ?? {} };
}
