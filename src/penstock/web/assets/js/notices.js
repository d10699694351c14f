// Notices at the top of the page: one line for each subject, until it is over or was dismissed.

import { byId, h, setClass, setText } from "./dom.js";

const notices = new Map();

// An empty text removes the notice. `detail` changes often, and is not read out each time; a button is [label, run].
export function notice(matter, text, tone = "bad", { detail = "", button = null } = {}) {
  let element = notices.get(matter);
  if (!text) {
    element?.remove();
    notices.delete(matter);
    return;
  }
  if (!element) {
    element = h(
      "div",
      { data: { matter } },
      h("span", { class: "what" }, h("span", { role: "alert" }), " ", h("span", { "aria-live": "off" })),
    );
    if (button) element.append(h("button", { type: "button", class: "quiet", on: { click: button[1] } }, button[0]));
    notices.set(matter, element);
    byId("notices").append(element);
  }
  setClass(element, `notice ${tone}`);
  setText(element.firstChild.firstChild, text);
  setText(element.firstChild.lastChild, detail);
}

// With a button that dismisses it.
export function dismissible(matter, text, tone) {
  notice(matter, text, tone, { button: ["Understood", () => notice(matter, "")] });
}

export function clearNotices() {
  for (const matter of [...notices.keys()]) notice(matter, "");
}

// For screen readers.
export function say(text) {
  setText(byId("said"), text);
}
