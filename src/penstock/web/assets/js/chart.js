// A small chart of one value over the last minutes, drawn by uPlot.

const POINTS_MAX = 180;
const STEP_S = 1;
const DRAW_MS = 1000;
const SIZE = { width: 132, height: 36 };

export class Spark {
  element;
  #times = [];
  #values = [];
  #plot = null;
  #isDrawn = true;
  #drawnAt = -DRAW_MS;

  constructor(element) {
    this.element = element;
  }

  // One point for each second: the newest value in it.
  add(timeS, value) {
    const at = Math.floor(timeS / STEP_S) * STEP_S;
    const last = this.#times.length - 1;
    if (last >= 0 && at <= this.#times[last]) {
      this.#values[last] = value;
    } else {
      this.#times.push(at);
      this.#values.push(value);
      if (this.#times.length > POINTS_MAX) {
        this.#times.shift();
        this.#values.shift();
      }
    }
    this.#isDrawn = false;
  }

  // At most once in a second, which is enough for a small chart; there are many charts.
  draw(describe) {
    const now = performance.now();
    if (this.#isDrawn || this.#times.length < 2 || !this.element.isConnected || now < this.#drawnAt + DRAW_MS) return;
    this.#isDrawn = true;
    this.#drawnAt = now;
    if (!this.#plot) this.#plot = new globalThis.uPlot(options(), [[], []], this.element);
    this.#plot.setData([this.#times, this.#values]);
    const seconds = this.#times.at(-1) - this.#times[0];
    this.element.setAttribute("aria-label", describe(Math.min(...this.#values), Math.max(...this.#values), seconds));
  }

  // After a change of colours.
  repaint() {
    this.#plot?.redraw(false);
  }

  end() {
    this.#plot?.destroy();
    this.#plot = null;
  }
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options() {
  return {
    ...SIZE,
    pxAlign: 0,
    cursor: { show: false },
    legend: { show: false },
    select: { show: false },
    axes: [{ show: false }, { show: false }],
    scales: { x: { time: false }, y: { range: (_, low, high) => padded(low, high) } },
    padding: [4, 3, 4, 3],
    series: [{}, { stroke: () => colour("--accent"), width: 1.5, points: { show: false } }],
  };
}

// A constant value is a line in the middle.
function padded(low, high) {
  const room = (high - low) * 0.08 || Math.abs(high) * 0.001 || 1;
  return [low - room, high + room];
}
