// The topology as a drawing: nodes are buttons, links are lines of an SVG behind them. It is drawn again whenever the
// picture has changed, and what is new is marked for a while.

import { h, reconcile, setClass, setText, svg } from "./dom.js";
import { brief, count, micros, shown } from "./format.js";
import { NARROW, path, placed } from "./layout.js";
import { tone } from "./tables.js";

const FRESH_MS = 8_000;
const BUSY_PER_S = 1_000;

export class Graph {
  #element;
  #choose;
  #lines = svg("g");
  #cards = h("div");
  #known = null; // link → when it was first seen

  constructor(element, choose) {
    this.#element = element;
    this.#choose = choose;
    const arrow = svg(
      "marker",
      {
        id: "arrow",
        viewBox: "0 0 8 8",
        refX: 7,
        refY: 4,
        markerWidth: 8,
        markerHeight: 8,
        markerUnits: "userSpaceOnUse",
        orient: "auto",
      },
      svg("path", { d: "M0,0.5 L8,4 L0,7.5 Z" }),
    );
    element.append(svg("svg", { "aria-hidden": "true" }, svg("defs", {}, arrow), this.#lines), this.#cards);
  }

  forget() {
    this.#known = null;
  }

  draw({ nodes, links }, chosen, isStale) {
    const width = this.#element.clientWidth;
    if (!width) return; // hidden
    const { places, height } = placed(nodes, links, width);
    this.#element.style.height = `${height}px`;
    this.#drawLinks(links, places, width < NARROW, isStale);
    reconcile(
      this.#cards,
      nodes
        .filter(({ node }) => places.has(node))
        .sort((a, b) => places.get(a.node).y - places.get(b.node).y || places.get(a.node).x - places.get(b.node).x),
      (node) => node.node,
      (node) => this.#make(node),
      (card, node) => this.#update(card, node, places.get(node.node), chosen, isStale),
    );
  }

  #drawLinks(links, places, isNarrow, isStale) {
    // In a list, upward lines would be ambiguous; the chosen node shows all of its sources.
    const isShown = (from, to) => from && to && from !== to && (!isNarrow || from.y < to.y);
    const drawn = links.filter(({ from, to }) => isShown(places.get(from), places.get(to)));
    const now = performance.now();
    const isFirst = this.#known === null;
    const known = new Map(drawn.map((link) => [key(link), this.#known?.get(key(link)) ?? (isFirst ? -FRESH_MS : now)]));
    this.#known = known;
    reconcile(
      this.#lines,
      drawn,
      key,
      () => svg("path", { "marker-end": "url(#arrow)" }),
      (line, link) => {
        const isFresh = now - known.get(key(link)) < FRESH_MS && link.state !== "down";
        const words = [
          "edge",
          (link.kind === "standby" || link.kind === "peer") && "side",
          link.per_s >= BUSY_PER_S && "busy",
          isFresh && "fresh",
          link.state === "down" && "dead",
          isStale && "aged",
        ];
        setClass(line, words.filter(Boolean).join(" "));
        line.setAttribute("d", path(places.get(link.from), places.get(link.to), isNarrow));
        line.dataset.link = `${shown(link.from)} → ${shown(link.to)}`;
        line.dataset.state = shown(link.state);
      },
    );
  }

  #make(node) {
    const card = h(
      "button",
      { type: "button", on: { click: () => this.#choose(node.node) } },
      ...["name", "health", "role", "figures", "latency", "lost"].map((name) => h("span", { class: name })),
    );
    card.dataset.node = shown(node.node);
    return card;
  }

  #update(card, node, place, chosen, isStale) {
    const [name, health, role, figures, latency, lost] = card.children;
    const isAged = isStale || (node.age_s !== null && node.age_s !== undefined);
    setClass(card, `node is-${isStale ? "off" : tone(node.state)}${isAged ? " aged" : ""}`);
    card.style.transform = `translate(${place.x}px, ${place.y}px)`;
    card.style.width = `${place.width}px`;
    card.style.height = `${place.height}px`;
    setText(name, shown(node.node));
    setText(health, isStale ? "STALE" : shown(node.state));
    setText(role, nature(node));
    setText(figures, (node.out_per_s ?? node.in_per_s) ? `${brief(node.out_per_s ?? node.in_per_s)}/s` : "");
    const p50 = node.latency_us?.p50,
      p99 = node.latency_us?.p99;
    setText(latency, p99 ? `p50 ${micros(p50)} p99 ${micros(p99)}` : "");
    setText(lost, node.lost ? `lost ${count(node.lost)}` : "");
    card.setAttribute("aria-pressed", String(node.node === chosen));
    card.dataset.state = shown(node.state);
    card.dataset.parent = shown(node.parent ?? "");
  }
}

function key({ from, to, kind }) {
  return JSON.stringify([from, to, kind]);
}

// The role of a node; for an agent, its place in the tree.
function nature({ role, place }) {
  return role === "agent" && place
    ? shown(place)
    : [role, place]
        .filter(Boolean)
        .map((word) => shown(word))
        .join(" · ");
}
