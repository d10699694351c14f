// Streams, and everything that was lost, dropped or refused, as the nodes count it.

import { byId, setText } from "./dom.js";
import { count, duration, isNumber, NOTHING, rate, shown } from "./format.js";
import { stateBadge, Table } from "./tables.js";

const AGE = { title: "Age", cell: (row) => (isNumber(row.age_s) ? `last words, ${duration(row.age_s)} old` : NOTHING) };

const STREAMS = [
  { title: "Stream", cell: (row) => shown(row.stream) },
  { title: "Node", cell: (row) => shown(row.node) },
  { title: "State", cell: (row, before) => stateBadge(row, isNumber(row.age_s), before) },
  { title: "Position", number: true, cell: (row) => count(Number(row.position)) },
  { title: "Per second", number: true, cell: (row) => rate(row.per_s) },
  AGE,
];

const LOSSES = [
  { title: "Node", cell: (row) => shown(row.node) },
  { title: "Component", cell: (row) => shown(row.component) },
  { title: "What", cell: (row) => shown(row.what).replaceAll("_", " ") },
  { title: "Cause", cell: (row) => shown(row.cause) || NOTHING },
  { title: "Count", number: true, cell: (row) => count(Number(row.count)) },
  { title: "Per second", number: true, cell: (row) => rate(row.per_s) },
  AGE,
];

const aged = (row) => (isNumber(row.age_s) ? "aged" : "");

export class Streams {
  #watch;
  #streams = new Table(
    byId("stream-table"),
    byId("stream-empty"),
    STREAMS,
    ({ node, stream }) => JSON.stringify([node, stream]),
    aged,
  );
  #losses = new Table(
    byId("loss-table"),
    byId("loss-empty"),
    LOSSES,
    ({ node, component, what, cause }) => JSON.stringify([node, component, what, cause]),
    aged,
  );

  constructor(watch) {
    this.#watch = watch;
    watch.on("picture", () => this.draw());
  }

  draw() {
    if (byId("streams").hidden) return;
    const { streams, losses, counts } = this.#watch.seen;
    this.#streams.show(streams);
    this.#losses.show(losses);
    const parts = [];
    if (counts.streams > streams.length) parts.push(`${count(streams.length)} of ${count(counts.streams)} streams`);
    if (counts.losses > losses.length) parts.push(`${count(losses.length)} of ${count(counts.losses)} losses`);
    if (this.#watch.picture && this.#watch.isStale) parts.unshift(`STALE: seen ${duration(this.#watch.ageS)} ago`);
    setText(byId("streams-state"), parts.join(" · "));
  }
}
