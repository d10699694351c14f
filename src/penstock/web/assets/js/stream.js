// This page's own link to the tree, through the gateway: subscriptions, renewed automatically, and publications.

import { Refusal } from "./api.js";
import { Emitter } from "./emitter.js";
import { CLOSED, Socket } from "./socket.js";

const PING_MS = 4_000;
const SILENCE_MS = 12_000;
const PUBLISH_MS_MAX = 10_000;
const RECEIPTS = new Set(["conflated", "gone", "lagging", "lost"]);

// Events: "messages", "subscription", "revoked", "info", "models", "state".
export class Stream extends Emitter {
  socket = new Socket("/ws/stream", { protocol: "penstock.json.1", silenceMs: SILENCE_MS });
  subscriptions = new Map(); // id → { id, owner, kind, topics, where, since, state, told, missed, session }
  link = { state: "connecting", agent: "", path: [], detail: "" };
  over = null;
  models = [];
  #next = 1;
  #publications = new Map();
  #pinging = 0;

  constructor() {
    super();
    this.socket.on("open", () => this.#greet());
    this.socket.on("state", (state) => this.#stand(state));
    this.socket.on("frame", (said) => this.#take(said));
  }

  start() {
    this.over = null;
    this.socket.open();
    this.#pinging = setInterval(() => this.socket.send({ op: "ping", id: 1 }), PING_MS);
  }

  // After the end of the connection, with all earlier subscriptions.
  again() {
    for (const subscription of this.subscriptions.values()) Object.assign(subscription, { state: "asked", told: "" });
    this.over = null;
    this.socket.open();
  }

  // One subscription that was refused or revoked.
  askAgain(subscription) {
    Object.assign(subscription, { state: "asked", told: "" });
    this.#ask(subscription);
    this.emit("subscription", subscription);
  }

  stop() {
    clearInterval(this.#pinging);
    this.socket.close();
    this.subscriptions.clear();
    this.over = null;
  }

  get isLive() {
    return this.socket.state === "open" && this.link.state === "connected";
  }

  // `owner` is the section of the page that shows the subscription, `kind` its class.
  subscribe({ topics, where = "", since = null, owner = "quotes", kind = "conflating" }) {
    const subscription = { id: this.#next++, owner, kind, topics, where, since, state: "asked", told: "", missed: {} };
    this.subscriptions.set(subscription.id, subscription);
    this.#ask(subscription);
    return subscription;
  }

  unsubscribe(id) {
    const subscription = this.subscriptions.get(id);
    this.subscriptions.delete(id);
    if (subscription?.state === "held" || subscription?.state === "asked") this.socket.send({ op: "unsubscribe", id });
  }

  // Resolves when the root has the message, or throws a Refusal.
  publish(topic, model, fields) {
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      const late = () =>
        this.#settle(
          id,
          null,
          new Refusal({ code: "timeout", what: "no answer: it may or may not have been published" }),
        );
      this.#publications.set(id, { resolve, reject, timer: setTimeout(late, PUBLISH_MS_MAX) });
      if (!this.socket.send({ op: "publish", id, topic, model, fields })) {
        this.#settle(id, null, new Refusal({ code: "unreachable", what: "there is no connection to the console" }));
      }
    });
  }

  #ask({ id, topics, where, since, kind }) {
    this.socket.send({ op: "subscribe", id, topics, where: where || null, since, class: kind });
  }

  #greet() {
    this.socket.send({ op: "models" });
    for (const subscription of this.subscriptions.values()) {
      if (subscription.state === "over") continue;
      subscription.state = "asked";
      this.#ask(subscription);
    }
  }

  #stand(state) {
    if (state !== "open") {
      this.link = { state: state === "over" ? "over" : "connecting", agent: "", path: [], detail: "" };
      for (const id of [...this.#publications.keys()]) {
        this.#settle(
          id,
          null,
          new Refusal({
            code: "connection-lost",
            what: "the connection was lost: it may or may not have been published",
          }),
        );
      }
    }
    this.emit("state", state);
  }

  #take(frame) {
    const take = this.#takers[frame.kind];
    if (take) take(frame);
  }

  #takers = {
    welcome: (frame) => this.#linked({ state: "connected", agent: frame.agent, path: frame.path, detail: "" }),
    state: (frame) => this.#linked({ state: frame.state, agent: frame.agent, path: frame.path, detail: frame.detail }),
    messages: (frame) => this.emit("messages", Array.isArray(frame.messages) ? frame.messages : []),
    models: (frame) => {
      this.models = Array.isArray(frame.models) ? frame.models : [];
      this.emit("models", this.models);
    },
    subscribed: (frame) => this.#change([frame.id], "held", ""),
    live: (frame) => this.#change([frame.id], "held", ""),
    receipt: (frame) => this.#note(frame),
    info: (frame) => this.emit("info", frame),
    revoked: (frame) => {
      this.#change(frame.ids ?? [], "over", `revoked: ${frame.reason || "no reason was given"}`);
      this.emit("revoked", frame);
    },
    published: (frame) => this.#settle(frame.id, frame, null),
    refused: (frame) => {
      if (frame.op === "publish") this.#settle(frame.id, null, new Refusal(frame));
      else if (frame.op === "subscribe") this.#change([frame.id], "over", new Refusal(frame).told);
    },
    over: (frame) => {
      this.over = frame;
      if (frame.close_code === CLOSED.noRights) {
        this.emit("revoked", { topics: [">"], reason: frame.what, ids: [...this.subscriptions.keys()] });
        this.#change([...this.subscriptions.keys()], "over", frame.what);
      }
    },
  };

  #linked(link) {
    this.over = null;
    this.link = link;
    this.emit("state", this.socket.state);
  }

  #change(ids, state, told) {
    for (const id of ids) {
      const subscription = this.subscriptions.get(id);
      if (!subscription) continue;
      if (subscription.state === "over" && state === "held") continue;
      subscription.state = state;
      subscription.told = told;
      if (state === "held") subscription.since = null; // history is requested once; a renewed subscription begins live
      this.emit("subscription", subscription);
    }
  }

  // Losses and pauses of a subscription, counted by kind while it lasts. A session is shown, not counted.
  #note({ id, receipt, count, first, last, detail }) {
    const subscription = this.subscriptions.get(id);
    if (subscription && receipt === "session") {
      subscription.session = detail;
      this.emit("subscription", subscription);
      return;
    }
    if (!subscription || !RECEIPTS.has(receipt)) return;
    const span = Number(last) - Number(first) + 1;
    const missed = count ?? (span > 0 ? span : 1);
    subscription.missed[receipt] = (subscription.missed[receipt] ?? 0) + Number(missed);
    this.emit("subscription", subscription);
  }

  #settle(id, answer, refusal) {
    const waiting = this.#publications.get(id);
    if (!waiting) return;
    this.#publications.delete(id);
    clearTimeout(waiting.timer);
    if (refusal) waiting.reject(refusal);
    else waiting.resolve(answer);
  }
}
