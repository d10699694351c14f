// Draws a LiveChart as SVG: a line for each topic, the range of values and of times, and a legend.

const COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2"];
const WIDTH = 720;
const HEIGHT = 260;
const LEFT = 80;
const BOTTOM = 24;
const SVG = "http://www.w3.org/2000/svg";

function made(name, attributes, text = "") {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

function range(values) {
  const low = values.reduce((one, other) => Math.min(one, other), Infinity);
  const high = values.reduce((one, other) => Math.max(one, other), -Infinity);
  return low < high ? [low, high] : [low - 0.5, high + 0.5];
}

function clock(ms) {
  return new Date(ms).toISOString().slice(11, 19);
}

function render({ model, el }) {
  const svg = made("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "penstock-chart", role: "img" });
  svg.style.maxWidth = `${WIDTH}px`;
  const legend = document.createElement("div");
  const foot = document.createElement("div");
  el.append(svg, legend, foot);

  function draw() {
    const series = model.get("series");
    const points = series.flatMap((each) => each.points);
    svg.setAttribute("aria-label", `${model.get("field")} over time`);
    svg.replaceChildren(made("text", { x: LEFT, y: 12, "font-size": 12 }, model.get("field")));
    if (points.length > 0) {
      const [first, last] = range(points.map(([ms]) => ms));
      const [low, high] = range(points.map(([, value]) => value));
      const x = (ms) => LEFT + ((ms - first) / (last - first)) * (WIDTH - LEFT - 8);
      const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - 24);
      const label = { "font-size": 11, fill: "#666" };
      svg.append(
        made("text", { ...label, x: LEFT - 6, y: y(high) + 4, "text-anchor": "end" }, high.toPrecision(7)),
        made("text", { ...label, x: LEFT - 6, y: y(low) + 4, "text-anchor": "end" }, low.toPrecision(7)),
        made("text", { ...label, x: LEFT, y: HEIGHT - 6 }, clock(first)),
        made("text", { ...label, x: WIDTH - 8, y: HEIGHT - 6, "text-anchor": "end" }, `${clock(last)} UTC`),
      );
      series.forEach((each, index) => {
        const path = each.points.map(([ms, value]) => `${x(ms).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
        const color = COLORS[index % COLORS.length];
        svg.append(made("polyline", { points: path, fill: "none", stroke: color, "stroke-width": 1.5 }));
      });
    }
    legend.replaceChildren(
      ...series.map((each, index) => {
        const name = document.createElement("span");
        name.textContent = `▬ ${each.name}  `;
        name.style.color = COLORS[index % COLORS.length];
        return name;
      }),
    );
    foot.textContent = model.get("state");
  }

  for (const name of ["series", "field", "state"]) model.on(`change:${name}`, draw);
  draw();
}

export default { render };
