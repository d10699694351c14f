// Rates, latencies and losses of a node over time, from the console's memory, drawn by uPlot.

import { get, Refusal } from "./api.js";
import { colour } from "./chart.js";
import { byId, h, setText } from "./dom.js";
import { brief, clock, duration, isNumber, micros, shown } from "./format.js";
import { remembered } from "./remembered.js";

const ASK_MS = 2_000;
const HEIGHT = 170;
const RANGES_S = [60, 300, 900, 3600];

const CHARTS = [
  {
    id: "history-rates",
    title: "Messages per second",
    format: brief,
    series: [
      ["in_per_s", "in", "--accent", []],
      ["out_per_s", "out", "--good", [6, 4]],
    ],
  },
  {
    id: "history-latencies",
    title: "Latency since the start of the node",
    format: micros,
    series: [
      ["p50_us", "p50", "--accent", []],
      ["p99_us", "p99", "--warn", [6, 4]],
    ],
  },
  { id: "history-losses", title: "Messages lost", format: brief, series: [["lost", "lost", "--bad", []]] },
];

export class History {
  #watch;
  #range = remembered("history-range", (value) => RANGES_S.includes(value), 300);
  #node = "";
  #plots = new Map(); // id → uPlot
  #timer = 0;

  constructor(watch) {
    this.#watch = watch;
    const form = byId("history-form");
    form.elements.range.value = String(this.#range.value);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => {
      this.#node = form.elements.node.value;
      this.#range.value = Number(form.elements.range.value);
      this.refresh();
    });
    byId("history-charts").append(
      ...CHARTS.map(({ id, title }) =>
        h(
          "figure",
          { id, class: "plot-card" },
          h("figcaption", {}, title, h("span", { class: "legend-words" })),
          h("div", { class: "plot", role: "img", "aria-label": title }),
        ),
      ),
    );
    new ResizeObserver(() => this.#resize()).observe(byId("history-charts"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const plot of this.#plots.values()) plot.redraw(false);
    });
  }

  start() {
    this.#timer = setInterval(() => this.refresh(), ASK_MS);
  }

  stop() {
    clearInterval(this.#timer);
    for (const plot of this.#plots.values()) plot.destroy();
    this.#plots.clear();
    this.#node = "";
  }

  // Called when the section is shown, and then every two seconds.
  async refresh() {
    if (byId("history").hidden) return;
    this.#fillNodes();
    if (!this.#node) return;
    const [node, seconds] = [this.#node, this.#range.value];
    try {
      const found = await get(`/api/history?node=${encodeURIComponent(node)}&seconds=${seconds}`);
      if (node === this.#node && seconds === this.#range.value && !byId("history").hidden) this.#draw(found, seconds);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      setText(byId("history-state"), shown(error.told, 300));
    }
  }

  #fillNodes() {
    const select = byId("history-form").elements.node;
    const names = this.#watch.seen.nodes.map(({ node }) => node).filter((name) => typeof name === "string");
    if (JSON.stringify(names) !== JSON.stringify([...select.options].map(({ value }) => value))) {
      select.replaceChildren(...names.map((value) => h("option", { value }, shown(value, 60))));
      if (!names.includes(this.#node)) this.#node = this.#firstNode(names);
      select.value = this.#node;
    }
  }

  // The first node with a rate.
  #firstNode(names) {
    const busy = this.#watch.seen.nodes.find((row) => isNumber(row.out_per_s) || isNumber(row.in_per_s));
    return typeof busy?.node === "string" ? busy.node : (names[0] ?? "");
  }

  #draw(found, seconds) {
    const times = column(found?.time_ms).map((timeMs) => timeMs / 1000);
    const spanS = times.length ? times.at(-1) - times[0] : 0;
    const parts = [`${duration(spanS)} of ${duration(seconds)}`];
    if (this.#watch.isStale) parts.push("STALE");
    setText(byId("history-state"), parts.join(" · "));
    for (const chart of CHARTS) {
      const values = chart.series.map(([name]) => padded(column(found?.[name]), times.length));
      const end = (found?.to_ms ?? 0) / 1000;
      this.#plot(chart, [end - seconds, end]).setData([times, ...values]);
      describe(chart, values);
    }
  }

  // `range` is that of the newest drawing, because uPlot asks when it draws.
  #plot(chart, range) {
    let plot = this.#plots.get(chart.id);
    if (!plot) {
      const element = byId(chart.id).querySelector(".plot");
      plot = new globalThis.uPlot(options(chart, element.clientWidth, () => plot?.range ?? range), [[]], element);
      this.#plots.set(chart.id, plot);
    }
    plot.range = range;
    return plot;
  }

  #resize() {
    for (const [id, plot] of this.#plots) {
      const width = byId(id).querySelector(".plot").clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
    }
  }
}

// The newest value and the highest one of each series, in words.
function describe({ id, title, series, format }, values) {
  const words = series.map(([, name], index) => {
    const known = values[index].filter(isNumber);
    if (!known.length) return `${name} –`;
    const most = known.reduce((one, other) => Math.max(one, other));
    return `${name} ${format(known.at(-1))} (at most ${format(most)})`;
  });
  const element = byId(id);
  setText(element.querySelector(".legend-words"), words.join(" · "));
  element.querySelector(".plot").setAttribute("aria-label", `${title}: ${words.join(", ")}`);
}

function column(values) {
  return Array.isArray(values) ? values.map((value) => (isNumber(value) ? value : null)) : [];
}

function padded(values, length) {
  return Array.from({ length }, (_, index) => values[index] ?? null);
}

function options({ series, format }, width, range) {
  const axis = { stroke: () => colour("--ink-faint"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: width || 300,
    height: HEIGHT,
    cursor: { show: false },
    legend: { show: false },
    select: { show: false },
    axes: [
      { ...axis, values: (_, splits) => splits.map((at) => clock(1000 * at)) },
      { ...axis, size: 70, values: (_, splits) => splits.map((value) => (value ? format(value) : "0")) },
    ],
    scales: { x: { time: true, range }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    series: [
      {},
      ...series.map(([, , tint, dash]) => ({
        stroke: () => colour(tint),
        width: 1.5,
        dash,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}
