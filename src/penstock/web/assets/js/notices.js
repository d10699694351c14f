// What the user must know, above everything else: one line for each matter, until it is over or was put aside.

import { byId, h, setClass, setText } from "./dom.js";

const notices = new Map();

// An empty text takes the notice away.
export function notice(matter, text, tone = "bad", { canDismiss = false } = {}) {
  let element = notices.get(matter);
  if (!text) {
    element?.remove();
    notices.delete(matter);
    return;
  }
  if (!element) {
    const dismiss = canDismiss && h("button", { type: "button", class: "quiet", on: { click: () => notice(matter, "") } }, "Understood");
    element = h("div", { role: "alert", data: { matter } }, h("span", { class: "what" }), dismiss);
    notices.set(matter, element);
    byId("notices").append(element);
  }
  setClass(element, `notice ${tone}`);
  setText(element.firstChild, text);
}

export function clearNotices() {
  for (const matter of [...notices.keys()]) notice(matter, "");
}

// For those who hear the page.
export function say(text) {
  setText(byId("said"), text);
}
