// The order book of one instrument: up to ten levels of each side from its snapshots, or the best bid and offer where
// the plant publishes no snapshots; and the last trades.

import { byId, h, reconcile, setClass, setText } from "./dom.js";
import { clock, count, duration, isNumber, money, NOTHING, shown } from "./format.js";
import { number } from "./quotebook.js";
import { remembered } from "./remembered.js";
import { Table } from "./tables.js";

const DRAW_MS = 200;
const LEVELS_MAX = 10;
const TRADES_MAX = 20;
const LENGTH_MAX = 240;
const SIDES = ["bid", "ask"];

const TRADES = [
  { title: "Time", cell: (row) => clock(row.timeMs) },
  { title: "Price", number: true, cell: (row) => money(row.price) },
  { title: "Quantity", number: true, cell: (row) => count(row.quantity) },
  { title: "Aggressor", cell: (row) => (row.aggressor ? shown(row.aggressor, 20) : NOTHING) },
];

export class Book {
  #watch;
  #stream;
  #instruments;
  #store;
  #subscriptions = []; // of prices, and of trades, none of which is conflated
  #depth = null; // { timeMs, bid, ask } of a snapshot, each side a list of { price, size, orders }
  #top = null; // the same of a quote
  #trades = [];
  #tradeNumber = 0;
  #timer = 0;
  #table = new Table(byId("book-trades"), byId("book-trades-empty"), TRADES, (row) => row.number);

  // `instruments` lists what the quotes show.
  constructor(watch, stream, instruments) {
    this.#watch = watch;
    this.#stream = stream;
    this.#instruments = instruments;
    stream.on("messages", (messages) => messages.forEach((message) => this.#take(message)));
    byId("book-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#choose(event.target.elements.instrument.value.trim());
    });
  }

  start(session) {
    this.#store = remembered(`book:${session.plant}:${session.client}`, isName, "");
    this.#timer = setInterval(() => this.draw(), DRAW_MS);
    this.#forget();
  }

  stop() {
    clearInterval(this.#timer);
    this.#subscriptions = [];
    this.#forget();
  }

  // The subscription lasts as long as the section is shown.
  open() {
    byId("book-instruments").replaceChildren(...this.#instruments().map((name) => h("option", { value: name })));
    if (byId("book").hidden) this.#end();
    else if (!this.#subscriptions.length) this.#begin(this.#store.value || (this.#instruments()[0] ?? ""));
  }

  draw() {
    if (byId("book").hidden) return;
    const [subscription] = this.#subscriptions;
    const isDepthNew = this.#depth && !this.#isStale(this.#depth);
    const found = isDepthNew ? this.#depth : (this.#top ?? this.#depth);
    byId("book-state").dataset.state = this.#subscriptions.map(({ state }) => state).join(" ");
    setText(byId("book-state"), this.#told(subscription, found));
    setClass(byId("book-ladder"), found && this.#isStale(found) ? "ladder stale" : "ladder");
    byId("book-ladder").hidden = !found;
    this.#table.show(this.#trades);
    if (!found) return;
    const sizeMax = Math.max(1, ...SIDES.flatMap((side) => found[side].map(({ size }) => size ?? 0)));
    for (const side of SIDES) {
      reconcile(
        byId(`book-${side}`),
        found[side].map((level, index) => ({ ...level, index })),
        ({ index }) => index,
        () => makeLevel(side),
        (element, level) => drawLevel(element, level, sizeMax),
      );
    }
  }

  #choose(name) {
    this.#end();
    this.#store.value = name;
    this.#begin(name);
    this.draw();
  }

  #begin(name) {
    byId("book-form").elements.instrument.value = name;
    if (!name) return;
    this.#subscriptions = [
      this.#stream.subscribe({ topics: [`${name}.snapshot`, `${name}.quote`], owner: "book" }),
      this.#stream.subscribe({ topics: [`${name}.trade`], owner: "book", kind: "lossless" }),
    ];
  }

  #end() {
    for (const { id } of this.#subscriptions) this.#stream.unsubscribe(id);
    this.#subscriptions = [];
    this.#forget();
  }

  #forget() {
    this.#depth = this.#top = null;
    this.#trades = [];
  }

  #take(message) {
    if (!this.#subscriptions.some(({ id }) => Array.isArray(message?.ids) && message.ids.includes(id))) return;
    const { fields, time_ms: time } = message;
    if (fields === null || typeof fields !== "object") return;
    const timeMs = Number(time);
    if ("bid_price_1" in fields || "ask_price_1" in fields) {
      this.#depth = { timeMs, bid: levels(fields, "bid"), ask: levels(fields, "ask") };
    } else if (SIDES.some((side) => `${side}_price` in fields || `${side}_size` in fields)) {
      const best = (side) => level(fields, `${side}_price`, `${side}_size`, `${side}_orders`);
      this.#top = { timeMs, bid: best("bid"), ask: best("ask") };
    } else if ("price" in fields) {
      const quantity = number(fields.quantity ?? fields.size);
      const trade = { number: (this.#tradeNumber += 1), timeMs, price: number(fields.price), quantity };
      this.#trades.unshift({ ...trade, aggressor: fields.aggressor });
      this.#trades.length = Math.min(this.#trades.length, TRADES_MAX);
    }
  }

  #isStale({ timeMs }) {
    return !this.#stream.isLive || this.#ageS(timeMs) > Number(byId("stale-after").value);
  }

  #ageS(timeMs) {
    return Math.max(0, (this.#watch.nowMs - timeMs) / 1000);
  }

  #told(subscription, found) {
    if (!subscription) return "Name an instrument: md.us.eq.AAPL";
    if (subscription.state === "over") return `No subscription: ${shown(subscription.told, 300)}`;
    if (!found) return this.#trades.length ? "Only trades have arrived." : "Nothing has arrived yet.";
    const depthAge = this.#depth && duration(this.#ageS(this.#depth.timeMs));
    let what = "Best bid and offer only: no snapshot of the book has arrived";
    if (found === this.#depth) what = `${count(Math.max(found.bid.length, found.ask.length))} levels of the book`;
    else if (this.#depth) what = `Best bid and offer only: the last snapshot of the book is ${depthAge} old`;
    const age = duration(this.#ageS(found.timeMs));
    return `${what} · ${this.#isStale(found) ? `STALE ${age}` : age}`;
  }
}

function levels(fields, side) {
  return Array.from({ length: LEVELS_MAX }, (_, index) => {
    const n = index + 1;
    return level(fields, `${side}_price_${n}`, `${side}_size_${n}`, `${side}_orders_${n}`);
  }).flat();
}

// One level, or none without a price.
function level(fields, price, size, orders) {
  const found = { price: number(fields[price]), size: number(fields[size]), orders: number(fields[orders]) };
  return isNumber(found.price) ? [found] : [];
}

function makeLevel(side) {
  const cells = [h("td", { class: "number orders" }), h("td", { class: "number size" }), h("td", { class: "number price" })];
  const bar = h("span", { class: "depth", "aria-hidden": "true" });
  cells[1].append(bar, h("span"));
  return h("tr", {}, side === "bid" ? cells : cells.reverse());
}

function drawLevel(element, { price, size, orders }, sizeMax) {
  setText(element.querySelector(".price"), money(price));
  setText(element.querySelector(".orders"), isNumber(orders) ? count(orders) : "");
  setText(element.querySelector(".size").lastChild, count(size));
  element.querySelector(".depth").style.width = `${Math.min(100, Math.max(0, (100 * (size ?? 0)) / sizeMax))}%`;
}

function isName(value) {
  return typeof value === "string" && value.length <= LENGTH_MAX;
}
