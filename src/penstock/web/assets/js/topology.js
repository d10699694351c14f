// The topology: the drawing, the chosen node with what an operator can do, and all nodes as a table.

import { openAction, refusedAction } from "./actions.js";
import { byId, h, setText } from "./dom.js";
import { clock, count, duration, isNumber, micros, NOTHING, rate, shown } from "./format.js";
import { Graph } from "./graph.js";
import { stateBadge, Table } from "./tables.js";

const CHANGES_MAX = 8;
const WELL = new Set(["up", "no page"]);

const COLUMNS = [
  { title: "Node", cell: (row) => shown(row.node) },
  {
    title: "Role",
    cell: (row) =>
      [row.role, row.place]
        .filter(Boolean)
        .map((word) => shown(word))
        .join(" · ") || NOTHING,
  },
  { title: "State", cell: (row, before) => stateBadge(row, row.is_old, before) },
  { title: "In/s", number: true, cell: (row) => rate(row.in_per_s) },
  { title: "Out/s", number: true, cell: (row) => rate(row.out_per_s) },
  { title: "p50", number: true, cell: (row) => micros(row.latency_us?.p50) },
  { title: "p99", number: true, cell: (row) => micros(row.latency_us?.p99) },
  { title: "p99.9", number: true, cell: (row) => micros(row.latency_us?.["p99.9"]) },
  { title: "Lost", number: true, cell: (row) => count(row.lost) },
  { title: "Clients", number: true, cell: (row) => count(row.consumers) },
  {
    title: "Up for",
    number: true,
    cell: (row) => (isNumber(row.age_s) ? `silent ${duration(row.age_s)}` : duration(row.uptime_s)),
  },
];

export class Topology {
  #watch;
  #say;
  #graph;
  #table = new Table(
    byId("node-table"),
    null,
    COLUMNS,
    (row) => row.node,
    (row) => (isNumber(row.age_s) ? "aged" : ""),
  );
  #chosen = null;
  #parents = null;
  #changes = [];

  constructor(watch, say) {
    this.#watch = watch;
    this.#say = say;
    this.#graph = new Graph(byId("graph"), (node) => this.#choose(node));
    watch.on("picture", (picture) => {
      this.#compare(picture);
      this.draw();
    });
    watch.on("audit", (done) => {
      const who = `${shown(done.client, 60)}: ${shown(done.action, 40)} ${shown(done.subject, 60)}`;
      this.#note(`${who}, ${shown(done.outcome, 40)} ${shown(done.detail, 200)}`);
    });
    new ResizeObserver(() => this.draw()).observe(byId("graph"));
  }

  start() {
    this.#chosen = null;
    this.#parents = null;
    this.#changes = [];
    this.#graph.forget();
    this.draw();
  }

  draw() {
    if (byId("topology").hidden) return;
    const picture = this.#watch.seen;
    if (this.#watch.picture) this.#graph.draw(picture, this.#chosen, this.#watch.isStale);
    this.#table.show(picture.nodes);
    this.#drawState(picture);
    this.#drawPanel(picture);
  }

  // Who has another parent than before: that is how a tree heals.
  #compare({ nodes }) {
    const parents = new Map(
      nodes.filter((node) => node.role === "agent").map((node) => [node.node, node.parent ?? ""]),
    );
    for (const [node, parent] of parents) {
      const before = this.#parents?.get(node);
      if (before === undefined || before === parent) continue;
      const what = parent
        ? `${shown(node)} is now below ${shown(parent)}${before ? `, no longer below ${shown(before)}` : ""}`
        : `${shown(node)} has lost ${shown(before)}`;
      this.#note(what);
      this.#say(what);
    }
    this.#parents = parents;
  }

  #note(what) {
    this.#changes.unshift({ at: Date.now(), what });
    this.#changes.length = Math.min(this.#changes.length, CHANGES_MAX);
  }

  #drawState({ nodes }) {
    const ill = nodes.filter((node) => !WELL.has(node.state));
    const parts = [];
    if (!this.#watch.picture) parts.push("Nothing is known yet.");
    else if (this.#watch.isStale) parts.push(`STALE: seen ${duration(this.#watch.ageS)} ago`);
    else
      parts.push(
        `${count(nodes.length)} nodes, ${
          ill.length
            ? `${count(ill.length)} not well: ${ill
                .slice(0, 4)
                .map((node) => shown(node.node, 40))
                .join(", ")}`
            : "all well"
        }`,
      );
    const [change] = this.#changes;
    if (change) parts.push(`${clock(change.at)} ${change.what}`);
    setText(byId("topology-state"), parts.join(" · "));
  }

  #choose(node) {
    this.#chosen = this.#chosen === node ? null : node;
    this.draw();
  }

  // The chosen node. Its buttons are made again only if they change, so that focus stays.

  #drawPanel(picture) {
    const panel = byId("node-panel");
    const node = picture.nodes.find((each) => each.node === this.#chosen);
    if (!node) {
      panel.replaceChildren(
        h("h2", { id: "node-title" }, "Choose a node"),
        h(
          "p",
          { class: "hint" },
          "Its figures are shown here, and what can be done with it.",
        ),
        this.#history(),
      );
      panel.shown = null;
      return;
    }
    const actions = (node.actions ?? []).filter((action) => action in LABELS);
    const refused = Object.entries(node.refused_actions ?? {}).filter(([action]) => action in LABELS);
    const shape = JSON.stringify([node.node, actions, refused]);
    if (panel.shown !== shape) {
      panel.shown = shape;
      const buttons = actions.map((action) =>
        h(
          "button",
          {
            type: "button",
            class: action === "kill" ? "danger" : null,
            on: { click: () => openAction(action, this.#subject(node.node)) },
          },
          LABELS[action],
        ),
      );
      const against = refused.map(([action, reason]) => refusedAction(LABELS[action], reason, `refused-${action}`));
      panel.replaceChildren(
        h("h2", { id: "node-title" }, shown(node.node)),
        h("p", {}, h("span")),
        h("p", { class: "hint" }),
        h("dl"),
        h("div", { class: "actions" }, buttons, against),
      );
    }
    stateBadge(node, node.is_old, panel.children[1].firstChild);
    setText(panel.children[2], shown(node.detail ?? "", 400));
    panel.children[3].replaceChildren(
      ...facts(node, picture).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    );
  }

  #history() {
    return h(
      "div",
      {},
      this.#changes.map(({ at, what }) => h("p", { class: "hint" }, `${clock(at)} ${what}`)),
    );
  }

  // The newest state at the click: the tree may have changed since the button was drawn.
  #subject(name) {
    const { nodes } = this.#watch.seen;
    const parent = nodes.find((node) => node.node === name)?.parent ?? "";
    const parents = new Map(nodes.map((node) => [node.node, node.parent]));
    const isBelow = (node) => {
      for (let at = node, steps = 0; at && steps < nodes.length; at = parents.get(at), steps += 1)
        if (at === name) return true;
      return false;
    };
    const others = nodes.filter((node) => node.role === "agent" && node.node !== parent && !isBelow(node.node));
    return { node: name, parent, others: others.map((node) => node.node) };
  }
}

const LABELS = { kill: "Kill…", promote: "Promote…", move: "Move…", return: "Send back…" };

function facts(node, { links }) {
  const above = links
    .filter((link) => link.to === node.node)
    .map((link) => `${shown(link.from)} (${shown(link.state)})`);
  const below = links.filter((link) => link.from === node.node).map((link) => shown(link.to));
  return [
    [
      "Role",
      [node.role, node.place]
        .filter(Boolean)
        .map((word) => shown(word))
        .join(" · "),
    ],
    ["Group", node.group ? shown(node.group) : null],
    ["Fed by", above.join(", ") || null],
    ["Feeds", below.join(", ") || null],
    ["In", `${rate(node.in_per_s)} /s`],
    ["Out", `${rate(node.out_per_s)} /s`],
    ["p50", micros(node.latency_us?.p50)],
    ["p99", micros(node.latency_us?.p99)],
    ["p99.9", micros(node.latency_us?.["p99.9"])],
    ["Lost", count(node.lost)],
    ["Clients", count(node.consumers)],
    ["Restarts", count(node.restarts)],
    isNumber(node.age_s) ? ["Last heard", `${duration(node.age_s)} ago`] : ["Up for", duration(node.uptime_s)],
  ].filter(([, value]) => value !== null);
}
