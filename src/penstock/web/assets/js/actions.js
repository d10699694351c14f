// Actions of operators: each is confirmed with a reason, and its result is shown.

import { post, Refusal } from "./api.js";
import { byId, h } from "./dom.js";
import { shown } from "./format.js";

const REASON_LENGTH_MAX = 256;

const KINDS = {
  kill: ({ node }) => ({
    title: `Kill ${shown(node)}?`,
    text: "Its process is ended at once. The supervisor starts it again after a pause.",
    verb: "Kill",
    isDanger: true,
    fields: { node },
  }),
  promote: ({ node }) => ({
    title: `Promote ${shown(node)}?`,
    text: "It becomes the active one in place of the one that is active now.",
    verb: "Promote",
    isDanger: true,
    fields: { node },
  }),
  move: ({ node, parent, others }) => ({
    title: `Move ${shown(node)}`,
    text: `${shown(parent)} tells it to go to another parent for the time being. Nothing is lost or repeated.`,
    verb: "Move",
    fields: { node: parent, child: node },
    choices: [["to", "New parent", others]],
  }),
  return: ({ node, parent }) => ({
    title: `Send ${shown(node)} back?`,
    text: `${shown(parent)} tells it to go back to the parent that it was moved from.`,
    verb: "Send back",
    fields: { node: parent, child: node },
  }),
  revoke: ({ client }) => ({
    title: `Revoke rights of ${shown(client)}?`,
    text: "It is told, with your reason, and gets no more of these topics. Nobody else notices.",
    verb: "Revoke",
    isDanger: true,
    fields: { client },
    topics: "", // everything is ">", which must be typed
  }),
  restore: ({ client }) => ({
    title: `Restore the rights of ${shown(client)}?`,
    text: "Every revocation of this client is taken back.",
    verb: "Restore",
    fields: { client },
  }),
};

let listener = () => {};

// Called with a text about the completed action.
export function onDone(told) {
  listener = told;
}

export function openAction(action, subject) {
  const { title, text, verb, isDanger, fields, choices = [], topics } = KINDS[action](subject);
  const dialog = byId("confirm");
  const told = h("p", { class: "notice bad", role: "alert", hidden: true });
  const selects = choices.map(([name, label, values]) =>
    h(
      "label",
      {},
      label,
      h(
        "select",
        { name, required: true },
        values.map((value) => h("option", { value }, shown(value))),
      ),
    ),
  );
  const isPossible = choices.every(([, , values]) => values.length > 0);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "confirm-title" }, title),
    h("p", {}, isPossible ? text : "There is none to choose from now."),
    ...selects,
    topics === undefined
      ? null
      : h(
          "label",
          {},
          "Topics",
          h("input", {
            name: "topics",
            value: topics,
            placeholder: "md.us.eq.> or, for everything, >",
            required: true,
            spellcheck: "false",
            autocapitalize: "none",
          }),
        ),
    h(
      "label",
      {},
      "Reason (it is written into the log)",
      h("input", { name: "reason", required: true, maxlength: REASON_LENGTH_MAX, autocomplete: "off" }),
    ),
    told,
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"),
      h("button", { class: `primary${isDanger ? " danger" : ""}`, disabled: !isPossible }, verb),
    ),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = { action, ...fields, reason: form.elements.reason.value.trim() };
    for (const [name] of choices) request[name] = form.elements[name].value;
    if (topics !== undefined) request.topics = form.elements.topics.value.split(/[\s,]+/).filter(Boolean);
    await carryOut(request, dialog, form, told);
  });
  const asker = document.activeElement;
  dialog.addEventListener("close", () => asker?.isConnected && asker.focus(), { once: true });
  dialog.replaceChildren(form);
  dialog.showModal();
  (form.querySelector("select") ?? form.elements.reason).focus();
}

// A disabled button with the reason beside it.
export function refusedAction(label, reason, id) {
  return h(
    "div",
    { class: "refused" },
    h("button", { type: "button", disabled: true, "aria-describedby": id }, label),
    h("span", { id, class: "hint" }, shown(reason, 200)),
  );
}

async function carryOut(request, dialog, form, told) {
  const button = form.querySelector(".primary");
  button.disabled = true;
  told.hidden = true;
  try {
    const answer = await post("/api/actions", request);
    dialog.close();
    listener(`${request.action} ${shown(answer?.subject ?? "")}: ${shown(answer?.detail || "done", 300)}`);
  } catch (error) {
    told.textContent = shown(error instanceof Refusal ? error.told : error, 400);
    told.hidden = false;
  } finally {
    button.disabled = false;
  }
}
