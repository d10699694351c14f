// Live quotes: a watch list that the user edits, one row for each instrument, and no old value that looks live.

import { Spark } from "./chart.js";
import { byId, h, reconcile, setClass, setText } from "./dom.js";
import { change, count, duration, field, money, NOTHING, shown } from "./format.js";
import { Prefill } from "./prefill.js";
import { QuoteBook, ROWS_MAX } from "./quotebook.js";
import { remembered } from "./remembered.js";

const DRAW_MS = 200; // rows on the screen
const DRAW_MS_PER_ROW = 3; // all rows: many rows are drawn less often
const STALE_AFTER_S = [2, 5, 10, 30, 120];
const HOW_TO_BEGIN =
  "Name topics to watch: md.us.eq.AAPL.quote for one, md.us.eq.*.quote for all, md.> for everything.";
const NO_HISTORY = "A subscription begins now: history needs a distribution tree, which this plant does not have.";
const SAMPLING = "looking for topics with data that you may read";
const FLASH_MS = 900;
const FLASH_ROWS_MAX = 60; // with more rows the whole table would flicker
const WATCHES_MAX = 32;

export class Quotes {
  #watch;
  #stream;
  #store;
  #prefill;
  #book = new QuoteBook();
  #sparks = new Map();
  #rowOf = new Map(); // element → row
  #onScreen = new Set(); // elements
  #observer = new IntersectionObserver((entries) => this.#see(entries), { rootMargin: "100px" });
  #timer = 0;
  #drawnAt = 0;
  #staleAfter = remembered("stale-after", (value) => STALE_AFTER_S.includes(value), 10);

  constructor(watch, stream) {
    this.#watch = watch;
    this.#stream = stream;
    this.#prefill = new Prefill(stream, (found) => this.#fill(found));
    byId("watch-form").addEventListener("submit", (event) => this.#submit(event));
    byId("stale-after").value = String(this.#staleAfter.value);
    byId("stale-after").addEventListener("change", ({ target }) => {
      this.#staleAfter.value = Number(target.value);
      this.#draw();
    });
    stream.on("messages", (messages) => this.#take(messages));
    stream.on("subscription", () => this.#drawList());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const spark of this.#sparks.values()) spark.repaint();
    });
  }

  start(session) {
    this.#store = remembered(`watch:${session.plant}:${session.client}`, isWatchList, null);
    for (const { topics, where } of this.#store.value ?? []) this.#stream.subscribe({ topics, where });
    byId("watch-form").elements.since.disabled = !session.has_tree;
    setText(byId("since-told"), session.has_tree ? "" : NO_HISTORY);
    if (this.#store.value === null && session.has_stream) this.#prefill.start();
    this.#drawList();
    this.#timer = setInterval(() => this.#drawInTurn(), DRAW_MS);
  }

  stop() {
    clearInterval(this.#timer);
    this.#prefill.stop();
    this.#book = new QuoteBook();
    this.#drawRows([]);
    reconcile(byId("watch-list"), [], () => "", null, null);
  }

  // The first watch list, with the newest messages of its topics.
  #fill(found) {
    for (const { topics, messages } of found) {
      const { id } = this.#stream.subscribe({ topics });
      this.#take(messages.map((message) => ({ ...message, ids: [id] })));
    }
    this.#remember();
    this.#drawList();
  }

  add(topics, where = "", since = null) {
    this.#prefill.stop();
    const isThere = this.#own.some(
      (each) => each.state !== "over" && each.where === where && each.topics.join() === topics.join(),
    );
    if (isThere && since === null) return "It is watched already.";
    if (this.#own.length >= WATCHES_MAX) return `At most ${WATCHES_MAX} can be watched at a time.`;
    this.#stream.subscribe({ topics, where, since });
    this.#remember();
    this.#drawList();
    return "";
  }

  // The instruments of the table, for other sections.
  instruments() {
    return [...this.#book.rows.values()].filter((row) => !row.fields).map((row) => row.key).sort();
  }

  get #own() {
    return [...this.#stream.subscriptions.values()].filter(({ owner }) => owner === "quotes");
  }

  #isOwn(message) {
    if (!Array.isArray(message?.ids)) return false;
    return message.ids.some((id) => this.#stream.subscriptions.get(id)?.owner === "quotes");
  }

  #submit(event) {
    event.preventDefault();
    const form = event.target;
    const topics = form.elements.topics.value.split(/[\s,]+/).filter(Boolean);
    const mistake = this.add(topics, form.elements.where.value.trim(), since(form.elements.since.value));
    setText(byId("watch-told"), mistake);
    if (!mistake) form.reset();
    form.elements.topics.focus();
  }

  #remove(subscription) {
    if (subscription.id === this.#prefill.id) this.#prefill.stop();
    this.#stream.unsubscribe(subscription.id);
    this.#book.drop(subscription.id);
    this.#remember();
    this.#drawList();
    this.#draw();
    byId("watch-form").elements.topics.focus();
  }

  #remember() {
    this.#store.value = this.#own.map(({ topics, where }) => ({ topics, where }));
  }

  #take(messages) {
    for (const message of messages) {
      if (this.#prefill.take(message) || !this.#isOwn(message)) continue;
      const row = this.#book.take(message);
      if (row && row.value !== null) this.#spark(row).add(row.timeMs / 1000, row.value);
    }
  }

  #spark(row) {
    let spark = this.#sparks.get(row.key);
    if (!spark) {
      spark = new Spark(h("div", { class: "plot", role: "img", "aria-label": "too few values for a chart" }));
      this.#sparks.set(row.key, spark);
    }
    return spark;
  }

  // Drawing

  #drawList() {
    reconcile(
      byId("watch-list"),
      this.#own,
      (subscription) => subscription.id,
      (subscription) => {
        const isSample = subscription.id === this.#prefill.id;
        const name = isSample ? SAMPLING : nameOf(subscription);
        const remove = h(
          "button",
          {
            type: "button",
            class: "quiet",
            "aria-label": `Stop watching ${shown(name)}`,
            on: { click: () => this.#remove(subscription) },
          },
          "×",
        );
        const again = h(
          "button",
          {
            type: "button",
            class: "quiet again",
            "aria-label": `Try again: ${shown(name)}`,
            on: { click: () => this.#stream.askAgain(subscription) },
          },
          "Again",
        );
        return h("li", {}, h("span", {}, shown(name), h("span", { class: "told" })), again, remove);
      },
      (element, subscription) => {
        element.dataset.state = subscription.state;
        setClass(element, subscription.state === "over" ? "is-bad" : "");
        element.children[1].hidden = subscription.state !== "over";
        setText(element.querySelector(".told"), told(subscription));
      },
    );
  }

  #drawInTurn() {
    const { size } = this.#book.rows;
    const isDue = performance.now() >= this.#drawnAt + size * DRAW_MS_PER_ROW;
    if (isDue || size !== this.#rowOf.size) this.#draw();
    else if (!byId("quotes").hidden) for (const element of this.#onScreen) this.#update(element, this.#rowOf.get(element));
  }

  #see(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && this.#rowOf.has(target)) this.#onScreen.add(target);
      else this.#onScreen.delete(target);
    }
  }

  #draw() {
    if (byId("quotes").hidden) return;
    this.#drawnAt = performance.now();
    const rows = [...this.#book.rows.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
    this.#drawRows(rows);
    byId("quotes-empty").hidden = rows.length > 0;
    byId("quote-rows").parentElement.hidden = rows.length === 0;
    setText(byId("quotes-empty"), this.#own.length ? "Nothing has arrived yet." : HOW_TO_BEGIN);
    this.#drawState(rows);
  }

  #drawRows(rows) {
    for (const [key, spark] of this.#sparks) {
      if (this.#book.rows.has(key)) continue;
      spark.end();
      this.#sparks.delete(key);
    }
    reconcile(
      byId("quote-rows"),
      rows,
      (row) => row.key,
      (row) => this.#make(row),
      (element, row) => this.#update(element, row),
    );
    for (const element of this.#rowOf.keys()) {
      if (element.isConnected) continue;
      this.#observer.unobserve(element);
      this.#onScreen.delete(element);
      this.#rowOf.delete(element);
    }
  }

  #drawState(rows) {
    const stale = rows.filter((row) => this.#ageOf(row).isStale).length;
    const parts = [`${count(rows.length)} watched`];
    if (stale) parts.push(`${count(stale)} STALE`);
    if (this.#book.left) parts.push(`only the first ${ROWS_MAX} topics are shown`);
    setText(byId("quotes-state"), rows.length ? parts.join(" · ") : "");
  }

  #make(row) {
    const cell = (name, title) =>
      h(
        "td",
        { class: `number ${name}`, data: { name: title } },
        h("span", { class: "value" }),
        h("span", { class: "size" }),
      );
    const levels = shown(row.key).split(".");
    const topic = h(
      "th",
      { scope: "row", class: "topic" },
      levels.at(-1),
      h("small", {}, levels.slice(0, -1).join(".")),
    );
    const chart = h("td", { class: "chart" });
    const age = h("td", { class: "age" }, h("span"));
    const element = h(
      "tr",
      {},
      topic,
      cell("bid", "Bid"),
      cell("ask", "Ask"),
      cell("last", "Last"),
      h("td", { class: "number change" }),
      chart,
      h("td", { class: "number updates" }),
      age,
    );
    element.dataset.topic = shown(row.key);
    this.#rowOf.set(element, row);
    this.#observer.observe(element);
    return element;
  }

  #update(element, row) {
    const [, bid, ask, last, changed, chart, updates, age] = element.children;
    const { isStale, text, why } = this.#ageOf(row);
    setClass(element, isStale ? "stale" : "");
    if (row.fields) {
      this.#describe(bid, row);
    } else {
      this.#value(bid, row, "bid", row.bidSize, isStale);
      this.#value(ask, row, "ask", row.askSize, isStale);
      this.#value(last, row, "last", row.lastSize, isStale);
      const difference = row.value === null ? null : row.value - row.first;
      const arrow = difference > 0 ? "▲ " : difference < 0 ? "▼ " : "";
      setText(changed, difference === null ? NOTHING : `${arrow}${change(round(difference))}`);
      setClass(changed, `number change ${difference > 0 ? "rise" : difference < 0 ? "fall" : ""}`);
    }
    const spark = this.#sparks.get(row.key);
    if (spark) {
      if (!chart.firstChild) chart.append(spark.element);
      spark.draw((low, high, seconds) => `between ${money(low)} and ${money(high)} in ${duration(seconds)}`);
    }
    setText(updates, count(row.updates));
    setText(age.firstChild, isStale ? `STALE ${text}` : text);
    setClass(age.firstChild, isStale ? "badge is-warn" : "minor");
    age.title = why;
    row.moved = {};
  }

  #value(cell, row, name, size, isStale) {
    const value = cell.children[0];
    setText(value, money(row[name]));
    setText(cell.children[1], size === undefined || size === null ? "" : count(Number(size)));
    if (row.moved[name]) flash(value, row.moved[name], isStale || this.#book.rows.size > FLASH_ROWS_MAX);
  }

  // A message that is not a quote: its fields, unchanged.
  #describe(cell, row) {
    cell.colSpan = 4;
    setClass(cell, "fields");
    for (const other of [...cell.parentElement.children].slice(2, 5)) other.hidden = true;
    const text = Object.entries(row.fields)
      .slice(0, 12)
      .map(([name, value]) => `${shown(name, 40)} ${field(value)}`)
      .join(" · ");
    setText(cell, text || NOTHING);
  }

  #ageOf(row) {
    const ageS = Math.max(0, (this.#watch.nowMs - row.timeMs) / 1000);
    const text = duration(ageS);
    if (!this.#stream.isLive)
      return { isStale: true, text, why: "The connection is lost: this is what was last known." };
    const isOver = [...row.ids].every((id) => this.#stream.subscriptions.get(id)?.state === "over");
    if (isOver) return { isStale: true, text, why: "This subscription is over: this is what was last known." };
    const staleAfterS = Number(byId("stale-after").value);
    if (ageS > staleAfterS) return { isStale: true, text, why: `Nothing has come for more than ${staleAfterS} s.` };
    return { isStale: false, text, why: "" };
  }
}

function nameOf({ topics, where }) {
  return `${topics.join(" ")}${where ? ` where ${where}` : ""}`;
}

function told({ told: reason, missed, session }) {
  const parts = Object.entries(missed).map(([kind, number]) => `${count(number)} ${shown(kind)}`);
  const last = session ? ` · ${shown(session, 300)}` : "";
  return (reason ? `: ${shown(reason, 300)}` : "") + last + (parts.length ? ` (${parts.join(", ")})` : "");
}

function since(choice) {
  if (choice === "oldest") return "oldest";
  return choice ? { ago_s: Number(choice) } : null;
}

function round(value) {
  return Math.round(value * 1e6) / 1e6;
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const flashes = new WeakMap(); // asking an element for its animations would lay out the page each time

function flash(element, direction, isQuiet) {
  element.dataset.moved = direction;
  flashes.get(element)?.cancel();
  if (isQuiet || calm.matches) return;
  const [tint, ink] = direction === "up" ? ["var(--good-soft)", "var(--good)"] : ["var(--bad-soft)", "var(--bad)"];
  const moved = { backgroundColor: tint, color: ink };
  flashes.set(element, element.animate([moved, { ...moved, offset: 0.3 }, {}], FLASH_MS));
}

function isWatchList(value) {
  return (
    Array.isArray(value) &&
    value.length <= WATCHES_MAX &&
    value.every(
      (each) =>
        Array.isArray(each?.topics) &&
        each.topics.every((topic) => typeof topic === "string") &&
        typeof each.where === "string",
    )
  );
}
