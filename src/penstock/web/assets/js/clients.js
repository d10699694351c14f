// Connected clients, and the rights of all clients.

import { openAction } from "./actions.js";
import { get, Refusal } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { clock, count, duration, isNumber, NOTHING, rate, shown } from "./format.js";
import { badge, Table } from "./tables.js";

const NO_ROLE = "Revoking and restoring rights needs the role administrator.";
const NO_AUDIT = "The rights and subscriptions of all clients need the role administrator or auditor.";
const ASK_MS = 5_000;

const CONNECTED = [
  { title: "Client", cell: (row) => shown(row.consumer) },
  { title: "At", cell: (row) => shown(row.node) },
  { title: "By", cell: (row) => shown(row.destination) || NOTHING },
  { title: "Sent/s", number: true, cell: (row) => rate(row.sent_per_s) },
  { title: "Sent", number: true, cell: (row) => count(Number(row.sent)) },
  { title: "Conflated", number: true, cell: (row) => count(Number(row.conflated)) },
  { title: "Receipts", number: true, cell: (row) => count(Number(row.receipts)) },
  { title: "Topics", number: true, cell: (row) => count(row.topics) },
  { title: "State", cell: (row, before) => state(row, before) },
];

export class Clients {
  #watch;
  #onRefused;
  #connected = new Table(byId("client-table"), byId("client-empty"), CONNECTED, ({ node, consumer, number }) =>
    JSON.stringify([node, consumer, number]),
  );
  #everybody = null;
  #subscribed = null;
  #session = null;
  #timer = 0;

  constructor(watch, onRefused) {
    this.#watch = watch;
    this.#onRefused = onRefused;
    watch.on("picture", () => this.draw());
  }

  start(session) {
    this.#session = session;
    this.#everybody = this.#subscribed = null;
    byId("entitlements").replaceChildren();
    byId("rights").replaceChildren();
    setText(byId("entitlements-told"), "");
    this.#timer = setInterval(() => this.refresh(), ASK_MS);
  }

  stop() {
    clearInterval(this.#timer);
    this.#session = null;
  }

  draw() {
    if (byId("clients").hidden) return;
    const { consumers, counts } = this.#watch.seen;
    this.#connected.show(consumers);
    const parts = [];
    if (counts.consumers > consumers.length)
      parts.push(`${count(consumers.length)} of ${count(counts.consumers)} clients`);
    if (this.#watch.picture && this.#watch.isStale) parts.unshift(`STALE: seen ${duration(this.#watch.ageS)} ago`);
    setText(byId("clients-state"), parts.join(" · "));
  }

  // Rights change rarely, and requests are a load for the administration server: fetched only while they are shown.
  async refresh() {
    if (byId("clients").hidden || !this.#session) return;
    try {
      this.#show(await get("/api/entitlements"));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      if (error.isLoggedOut) this.#onRefused(error);
      else byId("rights").replaceChildren(h("p", { class: "mistake" }, shown(error.told, 300)));
    }
  }

  #show(found) {
    if (!this.#session || !found) return;
    byId("rights").replaceChildren(
      ...(found.grants?.length ? found.grants.map(grant) : [h("p", {}, "Nothing: no right was granted.")]),
    );
    if (!Array.isArray(found.clients)) {
      setText(byId("entitlements-told"), NO_AUDIT);
      return;
    }
    setText(byId("entitlements-told"), this.#session.is_operator ? "" : NO_ROLE);
    this.#everybody ??= this.#open("Everybody's rights", this.#clientColumns(), (row) => row.client);
    this.#subscribed ??= this.#open(
      "Subscriptions at the administration server",
      SUBSCRIBED,
      (row) => row.subscription_id,
    );
    this.#everybody.show(found.clients);
    this.#subscribed.show(found.subscriptions ?? []);
  }

  #open(title, columns, keyOf) {
    const table = h("table", { class: "stack" });
    const empty = h("p", { class: "empty" }, "Nobody.");
    byId("entitlements").append(h("h2", {}, title), h("div", { class: "sheet" }, table, empty));
    return new Table(table, empty, columns, keyOf);
  }

  #clientColumns() {
    const columns = [
      { title: "Client", cell: (row) => shown(row.client) },
      { title: "Roles", cell: (row) => (row.roles?.length ? shown(row.roles.join(", ")) : NOTHING) },
      {
        title: "Rights",
        whole: true,
        cell: (row) =>
          row.grants?.length
            ? shown(row.grants.map((each) => `${each.action} ${each.pattern}`).join(", "), 300)
            : NOTHING,
      },
      { title: "Revoked", whole: true, cell: (row, before) => revoked(row, before) },
    ];
    const { is_operator: isOperator } = this.#session;
    columns.push({ title: "", cell: (row, before) => buttons(row, before, isOperator) });
    return columns;
  }
}

const SUBSCRIBED = [
  { title: "Client", cell: (row) => shown(row.client) },
  { title: "Receives", whole: true, cell: (row) => shown(row.topics?.join(", "), 300) || NOTHING },
  { title: "Sends", whole: true, cell: (row) => shown(row.send?.join(", "), 300) || NOTHING },
  { title: "Until", number: true, cell: (row) => (isNumber(row.expires_ms) ? clock(row.expires_ms) : NOTHING) },
];

function state(row, before) {
  if (isNumber(row.age_s)) return badge(`last words, ${duration(row.age_s)} old`, "off", before);
  if (row.is_behind) return badge("behind", "warn", before);
  return badge("live", "good", before);
}

function grant({ pattern, action, delay_s: delayS }) {
  const delay = delayS ? `, ${duration(delayS)} late` : "";
  return h("span", { class: "badge plain" }, `${shown(action)} ${shown(pattern)}${delay}`);
}

function revoked(row, before) {
  if (!row.revoked?.length) return NOTHING;
  const text = row.revoked.map((each) => `${each.topics?.join(", ")}: ${each.reason || "no reason"}`).join("; ");
  return badge(shown(text, 300), "bad", before);
}

function buttons(row, before, isOperator) {
  const ask = (action, label, name) => {
    const open = () => openAction(action, { client: row.client });
    const words = { "aria-label": `${label} ${shown(row.client)}`, class: name };
    return h("button", { type: "button", ...words, on: { click: open } }, `${label}…`);
  };
  const element = before ?? h("span", {}, ask("revoke", "Revoke", "danger quiet"), ask("restore", "Restore", "quiet"));
  allow(element.firstChild, isOperator ? "" : NO_ROLE);
  allow(element.lastChild, !isOperator ? NO_ROLE : row.revoked?.length ? "" : "Nothing of this client is revoked.");
  return element;
}

// Enables a button, or disables it with the reason.
function allow(button, reason) {
  button.disabled = Boolean(reason);
  button.title = reason;
}
