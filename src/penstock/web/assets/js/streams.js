// Streams, endpoints of message routers, and the nodes' counters of losses, drops and refusals.

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

const ENDPOINTS = [
  { title: "Endpoint", cell: (row) => shown(row.endpoint) },
  { title: "Node", cell: (row) => shown(row.node) },
  { title: "Messages", number: true, cell: (row) => count(Number(row.messages)) },
  { title: "Bytes", number: true, cell: (row) => count(Number(row.bytes)) },
  { title: "Unsettled", number: true, cell: (row) => count(Number(row.unsettled)) },
  { title: "Consumers", number: true, cell: (row) => count(Number(row.flows)) },
  { title: "Accepted/s", number: true, cell: (row) => rate(row.accepted_per_s) },
  { title: "Delivered/s", number: true, cell: (row) => rate(row.delivered_per_s) },
  { title: "Settled/s", number: true, cell: (row) => rate(row.settled_per_s) },
  { title: "Given up", number: true, cell: (row) => count(Number(row.given_up)) },
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
  #endpoints = new Table(
    byId("endpoint-table"),
    byId("endpoint-empty"),
    ENDPOINTS,
    ({ node, endpoint }) => JSON.stringify([node, endpoint]),
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
    const { streams, endpoints, losses, counts } = this.#watch.seen;
    this.#streams.show(streams);
    this.#endpoints.show(endpoints);
    this.#losses.show(losses);
    const parts = [];
    if (counts.streams > streams.length) parts.push(`${count(streams.length)} of ${count(counts.streams)} streams`);
    if (counts.endpoints > endpoints.length)
      parts.push(`${count(endpoints.length)} of ${count(counts.endpoints)} endpoints`);
    if (counts.losses > losses.length) parts.push(`${count(losses.length)} of ${count(counts.losses)} losses`);
    if (this.#watch.picture && this.#watch.isStale) parts.unshift(`STALE: seen ${duration(this.#watch.ageS)} ago`);
    setText(byId("streams-state"), parts.join(" · "));
  }
}
