// Tables by their columns: { title, cell(row) → text or element, number?, whole?, low? }. Rows keep their elements.

import { h, reconcile, setClass, setText } from "./dom.js";
import { NOTHING, shown } from "./format.js";

export class Table {
  #table;
  #empty;
  #columns;
  #keyOf;
  #rowClass;
  #body = h("tbody");

  constructor(table, empty, columns, keyOf, rowClass = () => "") {
    this.#table = table;
    this.#empty = empty;
    this.#columns = columns;
    this.#keyOf = keyOf;
    this.#rowClass = rowClass;
    const heads = columns.map((column) =>
      h("th", { scope: "col", class: column.number ? "number" : null }, column.title),
    );
    table.append(h("thead", {}, h("tr", {}, heads)), this.#body);
  }

  show(rows) {
    reconcile(
      this.#body,
      rows,
      this.#keyOf,
      () => this.#make(),
      (element, row) => this.#update(element, row),
    );
    if (this.#empty) this.#empty.hidden = rows.length > 0;
    this.#table.hidden = rows.length === 0;
  }

  #make() {
    return h(
      "tr",
      {},
      this.#columns.map((column, index) => h(index === 0 ? "th" : "td", { scope: index === 0 ? "row" : null })),
    );
  }

  #update(element, row) {
    setClass(element, this.#rowClass(row));
    this.#columns.forEach((column, index) => {
      const cell = element.children[index];
      const content = column.cell(row, cell.firstElementChild);
      if (typeof content === "string") setText(cell, content);
      else if (cell.firstElementChild !== content) cell.replaceChildren(...(content ? [content] : []));
      const words = [
        column.number && "number",
        (column.whole || index === 0) && "whole",
        content === NOTHING && "nothing",
      ];
      setClass(cell, words.filter(Boolean).join(" "));
      if (index > 0 && column.title) cell.dataset.name = column.title;
    });
  }
}

const TONES = {
  up: "good",
  connected: "good",
  live: "good",
  fed: "good",
  synchronised: "good",
  degraded: "warn",
  lost: "bad",
  failed: "bad",
  failing: "bad",
  unreachable: "bad",
  garbled: "bad",
  down: "bad",
};

export function tone(state) {
  return TONES[state] ?? "off";
}

// A word with its colour, in the existing element if there is one.
export function badge(text, name, before = null) {
  const element = before ?? h("span");
  setClass(element, `badge is-${name}`);
  setText(element, text);
  return element;
}

// The state of a row; for an old row, its last state.
export function stateBadge({ state }, isOld, before) {
  return isOld ? badge(`was ${shown(state)}`, "off", before) : badge(shown(state), tone(state), before);
}
