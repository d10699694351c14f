// Alerts: conditions on prices, losses and node states, checked in this page while it is open, and kept in the browser.

import { byId, h, setText } from "./dom.js";
import { clock, count, money, NOTHING, shown } from "./format.js";
import { dismissible, notice, say } from "./notices.js";
import { instrument, number } from "./quotebook.js";
import { remembered } from "./remembered.js";
import { badge, Table } from "./tables.js";

const ALERTS_MAX = 32;
const LENGTH_MAX = 240;
const DRAW_MS = 250;
const PRICES = { bid: "bid_price", ask: "ask_price", last: "price" };
const WELL = new Set(["up", "no page"]);
const KINDS = ["above", "below", "loss", "state"];

const COLUMNS = [
  { title: "Alert", whole: true, cell: ({ alert }) => describe(alert) },
  { title: "State", cell: (row, before) => badge(...state(row), before) },
  { title: "Value", whole: true, cell: ({ told }) => told || NOTHING },
  { title: "Times", number: true, cell: ({ times }) => count(times) },
  { title: "Last", cell: ({ lastMs }) => (lastMs ? clock(lastMs) : NOTHING) },
  { title: "", cell: (row, before) => before ?? removeButton(row) },
];

export class Alerts {
  #watch;
  #stream;
  #store;
  #rows = []; // { id, alert, isTrue, told, times, lastMs, lost: node → total seen before }
  #next = 1;
  #subscription = null;
  #timer = 0;
  #table = new Table(byId("alert-table"), byId("alert-empty"), COLUMNS, ({ id }) => id);

  constructor(watch, stream) {
    this.#watch = watch;
    this.#stream = stream;
    stream.on("messages", (messages) => messages.forEach((message) => this.#takeMessage(message)));
    watch.on("picture", (picture) => this.#takePicture(picture));
    const form = byId("alert-form");
    form.elements.kind.addEventListener("change", () => this.#showFields());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit(form);
    });
    this.#showFields();
  }

  start(session) {
    this.#store = remembered(`alerts:${session.plant}:${session.client}`, isAlertList, []);
    this.#rows = this.#store.value.map((alert) => this.#row(alert));
    this.#subscribe();
    this.#timer = setInterval(() => this.draw(), DRAW_MS);
  }

  stop() {
    clearInterval(this.#timer);
    this.#rows = [];
    this.#subscription = null;
  }

  draw() {
    if (byId("alerts").hidden) return;
    for (const row of this.#rows) row.isOver = isPrice(row.alert) && this.#subscription?.state === "over";
    this.#table.show(this.#rows);
    const met = this.#rows.filter(({ isTrue }) => isTrue).length;
    const over = this.#subscription?.state === "over" ? `No prices: ${shown(this.#subscription.told, 300)}` : "";
    setText(byId("alerts-state"), [this.#rows.length ? `${count(met)} of ${count(this.#rows.length)} met` : "", over].filter(Boolean).join(" · "));
  }

  #showFields() {
    const { kind, price, limit, subject } = byId("alert-form").elements;
    const isOfPrice = isPrice({ kind: kind.value });
    for (const field of [price, limit]) field.closest("label").hidden = !isOfPrice;
    limit.required = isOfPrice;
    subject.required = isOfPrice;
    subject.placeholder = isOfPrice ? "md.us.eq.AAPL" : "any node";
  }

  #submit(form) {
    const { kind, price, limit, subject } = form.elements;
    const alert = { kind: kind.value, subject: subject.value.trim(), price: price.value, limit: Number(limit.value) };
    let mistake = isAlert(alert) ? "" : "This is not a condition.";
    if (this.#rows.length >= ALERTS_MAX) mistake = `At most ${ALERTS_MAX} alerts are possible.`;
    setText(byId("alert-told"), mistake);
    if (mistake) return;
    this.#rows.push(this.#row(alert));
    form.reset();
    this.#showFields();
    this.#changed();
    subject.focus();
  }

  #row(alert) {
    const id = this.#next++;
    const row = { id, alert, isTrue: false, told: "", times: 0, lastMs: 0, lost: new Map() };
    row.remove = () => {
      this.#rows = this.#rows.filter((each) => each !== row);
      notice(`alert:${id}`, "");
      this.#changed();
      byId("alert-form").elements.subject.focus();
    };
    return row;
  }

  #changed() {
    this.#store.value = this.#rows.map(({ alert }) => alert);
    this.#subscribe();
    if (this.#watch.picture) this.#takePicture(this.#watch.picture);
    this.draw();
  }

  // One subscription to the quotes and trades of all alerts.
  #subscribe() {
    if (this.#subscription) this.#stream.unsubscribe(this.#subscription.id);
    const names = new Set(this.#rows.filter(({ alert }) => isPrice(alert)).map(({ alert }) => alert.subject));
    const topics = [...names].flatMap((name) => [`${name}.quote`, `${name}.trade`]);
    this.#subscription = topics.length ? this.#stream.subscribe({ topics, owner: "alerts" }) : null;
  }

  #takeMessage(message) {
    if (!this.#subscription || !Array.isArray(message?.ids) || !message.ids.includes(this.#subscription.id)) return;
    const { fields, topic } = message;
    if (typeof topic !== "string" || fields === null || typeof fields !== "object") return;
    const key = instrument(message);
    for (const row of this.#rows) {
      const { kind, subject, price, limit } = row.alert;
      if (!isPrice(row.alert) || subject !== key) continue;
      const value = number(fields[PRICES[price]]);
      if (value === null) continue;
      this.#judge(row, kind === "above" ? value > limit : value < limit, `${price} ${money(value)}`);
    }
  }

  #takePicture({ nodes }) {
    for (const row of this.#rows) {
      const { kind, subject } = row.alert;
      const concerned = nodes.filter(({ node }) => !subject || node === subject);
      if (kind === "state") {
        const ill = concerned.filter((node) => !WELL.has(node.state));
        const told = ill.slice(0, 4).map(({ node, state: word }) => `${shown(node, 60)} is ${shown(word, 40)}`);
        this.#judge(row, ill.length > 0, told.join(", "));
      } else if (kind === "loss") {
        this.#judgeLosses(row, concerned);
      }
    }
  }

  // True while a total has grown since the picture before.
  #judgeLosses(row, nodes) {
    const grown = [];
    for (const { node, lost } of nodes) {
      const total = number(lost);
      if (total === null) continue;
      const before = row.lost.get(node);
      row.lost.set(node, total);
      if (before !== undefined && total > before) grown.push(`${shown(node, 60)} lost ${count(total - before)}`);
    }
    this.#judge(row, grown.length > 0, grown.slice(0, 4).join(", ") || row.told);
  }

  #judge(row, isTrue, told) {
    row.told = told;
    if (isTrue && !row.isTrue) {
      row.times += 1;
      row.lastMs = this.#watch.nowMs;
      const text = `Alert: ${describe(row.alert)}. ${clock(row.lastMs)} ${told}`;
      dismissible(`alert:${row.id}`, text, "warn");
      say(text);
    }
    row.isTrue = isTrue;
  }
}

function isPrice({ kind }) {
  return kind === "above" || kind === "below";
}

function describe({ kind, subject, price, limit }) {
  const who = subject ? shown(subject, 80) : "any node";
  if (kind === "loss") return `${who} loses messages`;
  if (kind === "state") return `${who} is not up`;
  return `${price} of ${who} is ${kind} ${money(limit)}`;
}

function state({ isTrue, isOver }) {
  if (isOver) return ["not watched", "bad"];
  return isTrue ? ["MET", "warn"] : ["not met", "off"];
}

function removeButton(row) {
  const label = `Remove the alert: ${describe(row.alert)}`;
  return h("button", { type: "button", class: "quiet", "aria-label": label, on: { click: () => row.remove() } }, "×");
}

function isAlert(value) {
  const { kind, subject, price, limit } = value ?? {};
  if (!KINDS.includes(kind) || typeof subject !== "string" || subject.length > LENGTH_MAX) return false;
  return !isPrice(value) || (subject !== "" && Object.hasOwn(PRICES, price) && Number.isFinite(limit));
}

function isAlertList(value) {
  return Array.isArray(value) && value.length <= ALERTS_MAX && value.every(isAlert);
}
