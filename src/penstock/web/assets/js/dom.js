// Elements are made by these functions only: texts become text nodes, so external text is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function dress(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return element;
}

// h("td", { class: "number" }, "1,024")
export function h(tag, attributes = {}, ...children) {
  const element = dress(document.createElement(tag), attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = dress(document.createElementNS(SVG, tag), attributes);
  element.append(...children);
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.getAttribute("class") !== name) element.setAttribute("class", name);
}

// Makes a parent's children those of `items`, in their order: an element is kept as long as its key is there, so focus,
// selection and transitions last. `make(item)` gives an element, `update(element, item)` changes it.
export function reconcile(parent, items, keyOf, make, update) {
  const kept = parent.keyed ?? (parent.keyed = new Map());
  const wanted = new Map(items.map((item) => [keyOf(item), item]));
  for (const [key, element] of kept) {
    if (wanted.has(key)) continue;
    kept.delete(key);
    element.remove();
  }
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let place = parent.firstChild;
  for (const [key, item] of wanted) {
    let element = kept.get(key);
    if (!element) {
      element = make(item);
      kept.set(key, element);
    }
    update(element, item);
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true }); // moving takes it away
}
