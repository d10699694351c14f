// The agents' messages on the infostream, live: the newest first, bounded, filtered, paused on demand.

import { byId, setText } from "./dom.js";
import { clock, count, field, NOTHING, shown } from "./format.js";
import { badge, Table } from "./tables.js";

const ROWS_MAX = 200;
const DRAW_MS = 250;
const TONES = {
  parent_lost: "bad",
  revoked: "bad",
  gone: "bad",
  lagging: "warn",
  move: "warn",
  stopping: "warn",
  parent_found: "good",
  return: "good",
  path: "good",
};

const COLUMNS = [
  { title: "Time", cell: (row) => clock(row.time_ms) },
  { title: "Agent", cell: (row) => shown(row.agent) },
  { title: "Kind", cell: (row, before) => badge(shown(row.info, 40), TONES[row.info] ?? "off", before) },
  { title: "What", whole: true, cell: (row) => shown(row.detail, 300) || fields(row.fields) },
];

export class Infostream {
  #watch;
  #table = new Table(byId("infostream-table"), byId("infostream-empty"), COLUMNS, (row) => row.number);
  #isPaused = false;
  #held = null; // the rows shown during the pause
  #after = -1;
  #wanted = "";
  #timer = 0;

  constructor(watch) {
    this.#watch = watch;
    watch.on("info", () => this.#soon());
    byId("infostream-form").addEventListener("submit", (event) => event.preventDefault());
    byId("infostream-form").elements.wanted.addEventListener("input", (event) => {
      this.#wanted = event.target.value.trim().toLowerCase();
      this.draw();
    });
    byId("infostream-pause").addEventListener("click", () => this.#pause());
    byId("infostream-clear").addEventListener("click", () => {
      this.#after = this.#watch.infos.at(-1)?.number ?? -1;
      this.#held = this.#isPaused ? [] : null;
      this.draw();
    });
  }

  start() {
    this.#after = -1;
    if (this.#isPaused) this.#pause();
    this.draw();
  }

  draw() {
    if (byId("infostream").hidden) return;
    const all = this.#held ?? this.#watch.infos.filter((row) => row.number > this.#after);
    const found = this.#wanted ? all.filter((row) => text(row).includes(this.#wanted)) : all;
    this.#table.show(found.slice(-ROWS_MAX).reverse());
    const parts = [`${count(found.length)} of ${count(all.length)}`];
    if (found.length > ROWS_MAX) parts.push(`the newest ${ROWS_MAX} are shown`);
    if (this.#held)
      parts.push(`PAUSED, ${count(this.#watch.infos.filter((row) => row.number > this.#held.through).length)} new`);
    setText(byId("infostream-state"), parts.join(" · "));
    setText(byId("infostream-empty"), this.#wanted && all.length ? "Nothing contains this." : "Nothing was said yet.");
  }

  #pause() {
    this.#isPaused = !this.#isPaused;
    if (this.#isPaused) {
      this.#held = this.#watch.infos.filter((row) => row.number > this.#after);
      this.#held.through = this.#watch.infos.at(-1)?.number ?? -1;
    } else {
      this.#held = null;
    }
    byId("infostream-pause").setAttribute("aria-pressed", String(this.#isPaused));
    setText(byId("infostream-pause"), this.#isPaused ? "Go on" : "Pause");
    this.draw();
  }

  #soon() {
    if (this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.draw();
    }, DRAW_MS);
  }
}

function fields(found) {
  const entries = found !== null && typeof found === "object" ? Object.entries(found) : [];
  return (
    entries
      .slice(0, 12)
      .map(([name, value]) => `${shown(name, 40)} ${field(value)}`)
      .join(" · ") || NOTHING
  );
}

function text(row) {
  return `${row.agent} ${row.info} ${row.detail} ${fields(row.fields)}`.toLowerCase();
}
