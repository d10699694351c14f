// The newest values by instrument, out of messages of any model. Draws nothing.

import { isNumber } from "./format.js";

export const ROWS_MAX = 200;

// "md.us.eq.AAPL.quote" and "md.us.eq.AAPL.trade" are one instrument, "md.us.eq.AAPL"; other topics are instruments.
export function instrument(message) {
  return isInstrument(message) ? message.topic.split(".").slice(0, -1).join(".") : message.topic;
}

export function isInstrument({ topic, model, fields }) {
  const levels = topic.split(".");
  const isRecord = fields !== null && typeof fields === "object";
  return levels.length > 1 && levels.at(-1) === model && isRecord && (isQuote(fields) || isTrade(fields));
}

// A quote may omit the price of a side, so a size identifies a quote as well.
function isQuote(fields) {
  return ["bid_price", "ask_price", "bid_size", "ask_size"].some((name) => name in fields);
}

function isTrade(fields) {
  return "price" in fields;
}

export class QuoteBook {
  rows = new Map();
  left = 0; // messages of topics beyond the bound

  // The row that changed, or null.
  take(message) {
    if (message === null || typeof message !== "object" || typeof message.topic !== "string") return null;
    const fields = message.fields !== null && typeof message.fields === "object" ? message.fields : {};
    const key = instrument({ ...message, fields });
    let row = this.rows.get(key);
    if (!row) {
      if (this.rows.size >= ROWS_MAX) {
        this.left += 1;
        return null;
      }
      row = { key, ids: new Set(), updates: 0, first: null, value: null, moved: {} };
      this.rows.set(key, row);
    }
    for (const id of message.ids ?? []) row.ids.add(id);
    row.updates += 1;
    row.timeMs = Number(message.time_ms);
    row.topic = message.topic;
    row.model = message.model;
    if (isQuote(fields)) this.#quote(row, fields);
    else if (isTrade(fields)) this.#trade(row, fields);
    else row.fields = fields;
    return row;
  }

  // A subscription has ended: rows without another subscription are removed.
  drop(id) {
    for (const [key, row] of this.rows) {
      row.ids.delete(id);
      if (row.ids.size === 0) this.rows.delete(key);
    }
    this.left = 0;
  }

  #quote(row, fields) {
    move(row, "bid", fields.bid_price);
    move(row, "ask", fields.ask_price);
    row.bidSize = fields.bid_size;
    row.askSize = fields.ask_size;
    row.isQuoted = true;
    if (isNumber(row.bid) && isNumber(row.ask)) follow(row, (row.bid + row.ask) / 2);
    else follow(row, row.bid ?? row.ask);
  }

  #trade(row, fields) {
    move(row, "last", fields.price);
    row.lastSize = fields.quantity ?? fields.size;
    if (!row.isQuoted) follow(row, row.last);
  }
}

// A price or quantity; the gateway writes numbers that a double cannot hold as texts.
export function number(value) {
  const found = typeof value === "string" ? Number(value) : value;
  return isNumber(found) ? found : null;
}

function move(row, name, value) {
  const now = number(value);
  const before = row[name];
  if (isNumber(now) && isNumber(before) && now !== before) row.moved[name] = now > before ? "up" : "down";
  row[name] = now;
}

// The value drawn and compared: the middle of a quote, or the price where there is no quote.
function follow(row, value) {
  if (!isNumber(value)) return;
  row.first ??= value;
  row.value = value;
}
