// Places of the topology's nodes: a pure function of nodes and links. Tolerates cycles, unknown nodes and duplicates.

const CARD = { height: 62, widthMin: 128, widthMax: 190 };
const GAP = { x: 18, y: 40, row: 10 };
const EDGE = 14;
const INDENT = 16;

export const NARROW = 560;

// { places: Map(name → { x, y, width, height }), height }
export function placed(nodes, links, width) {
  const ranks = ranked(nodes, links);
  return width < NARROW ? outlined(nodes, links, ranks, width) : layered(nodes, links, ranks, width);
}

// The row of each node, below those of its sources; nodes without links are last, on their own row.
export function ranked(nodes, links) {
  const names = new Set(nodes.map(({ node }) => node));
  const above = parents(names, links);
  const linked = new Set(
    links.flatMap(({ from, to }) => (names.has(from) && names.has(to) && from !== to ? [from, to] : [])),
  );
  const ranks = new Map();
  const visiting = new Set();
  const rank = (name) => {
    if (ranks.has(name)) return ranks.get(name);
    if (visiting.has(name)) return 0; // a cycle is cut where it was entered
    visiting.add(name);
    const found = Math.max(-1, ...above.get(name).map(rank)) + 1;
    visiting.delete(name);
    ranks.set(name, found);
    return found;
  };
  for (const name of names) if (linked.has(name)) rank(name);
  const last = Math.max(-1, ...ranks.values()) + 1;
  for (const name of names) if (!linked.has(name)) ranks.set(name, last);
  return ranks;
}

function parents(names, links) {
  const above = new Map([...names].map((name) => [name, []]));
  for (const { from, to, kind } of links) {
    if (kind !== "peer" && from !== to && names.has(from) && names.has(to)) above.get(to).push(from);
  }
  return above;
}

// Rows from the top down; each node as near as possible below the middle of its sources.
function layered(nodes, links, ranks, width) {
  const rows = [];
  for (const { node } of nodes) (rows[ranks.get(node)] ??= []).push(node);
  const perRow = Math.max(1, Math.floor((width - 2 * EDGE + GAP.x) / (CARD.widthMin + GAP.x)));
  const most = Math.min(perRow, Math.max(1, ...rows.filter(Boolean).map((row) => row.length)));
  const cardWidth = Math.min(CARD.widthMax, (width - 2 * EDGE - (most - 1) * GAP.x) / most);
  const above = parents(new Set(ranks.keys()), links);
  const places = new Map();
  let y = EDGE;
  for (const row of rows.filter(Boolean)) {
    const wanted = (name) =>
      middle(
        above
          .get(name)
          .filter((each) => places.has(each))
          .map((each) => places.get(each).x),
      );
    const order = row
      .map((name, index) => [wanted(name) ?? (width - cardWidth) / 2, index, name])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    for (let first = 0; first < order.length; first += perRow) {
      const part = order.slice(first, first + perRow);
      const lefts = spread(
        part.map(([x]) => x),
        cardWidth + GAP.x,
        EDGE,
        width - EDGE - cardWidth,
      );
      part.forEach(([, , name], index) =>
        places.set(name, { x: lefts[index], y, width: cardWidth, height: CARD.height }),
      );
      y += CARD.height + GAP.row;
    }
    y += GAP.y - GAP.row;
  }
  return { places, height: y - GAP.y + EDGE };
}

// A list in which each node follows its first source, further to the right: for phones.
function outlined(nodes, links, ranks, width) {
  const above = parents(new Set(ranks.keys()), links);
  const below = new Map();
  for (const { node } of nodes) {
    const parent = above.get(node).find((each) => ranks.get(each) < ranks.get(node)) ?? null;
    below.set(parent, [...(below.get(parent) ?? []), node]);
  }
  const places = new Map();
  let y = EDGE;
  const visit = (name, depth) => {
    const x = EDGE + Math.min(depth, 6) * INDENT;
    places.set(name, { x, y, width: width - x - EDGE, height: CARD.height });
    y += CARD.height + GAP.row;
    for (const child of below.get(name) ?? []) visit(child, depth + 1);
  };
  const roots = below.get(null) ?? [];
  for (const root of roots.sort((a, b) => ranks.get(a) - ranks.get(b))) visit(root, 0);
  return { places, height: y - GAP.row + EDGE };
}

// Increasing places as near as possible to the given ones, `step` apart: between the nearest left and right.
function spread(wanted, step, least, most) {
  const right = [],
    left = [];
  wanted.forEach((x, index) => right.push(Math.max(x, index ? right[index - 1] + step : least)));
  for (let index = wanted.length - 1; index >= 0; index -= 1) {
    left[index] = Math.min(wanted[index], index + 1 < wanted.length ? left[index + 1] - step : most);
  }
  const found = [];
  wanted.forEach((_, index) => {
    const room = most - (wanted.length - 1 - index) * step;
    found.push(
      Math.max(
        least + index * step,
        Math.min(room, (right[index] + left[index]) / 2),
        index ? found[index - 1] + step : least,
      ),
    );
  });
  return found;
}

function middle(numbers) {
  return numbers.length ? numbers.reduce((sum, each) => sum + each, 0) / numbers.length : null;
}

// The line from one place to another.
export function path(from, to, isNarrow) {
  if (isNarrow) {
    const x = from.x + INDENT / 2 - 2;
    return `M${x},${from.y + from.height} V${to.y + to.height / 2} H${to.x}`;
  }
  if (Math.abs(from.y - to.y) < 1) {
    const [left, right] = from.x < to.x ? [from, to] : [to, from];
    const y = left.y + left.height;
    return `M${left.x + left.width / 2},${y} q0,16 16,16 H${right.x + right.width / 2 - 16} q16,0 16,-16`;
  }
  const isDown = to.y > from.y;
  const [x1, y1] = [from.x + from.width / 2, isDown ? from.y + from.height : from.y];
  const [x2, y2] = [to.x + to.width / 2, isDown ? to.y : to.y + to.height];
  const bend = Math.max(14, Math.abs(y2 - y1) / 2) * (isDown ? 1 : -1);
  return `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
}
