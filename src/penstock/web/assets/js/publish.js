// The publish form: made from the gateway's message models.

import { get, Refusal } from "./api.js";
import { byId, h, setClass, setText } from "./dom.js";
import { clock, shown } from "./format.js";

const NO_TREE = "You cannot publish here: this plant has no distribution tree, which publishing needs.";
const PUBLISHED_MAX = 50;
const INTEGER = /^[+-]?\d+$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

// Models of messages that only nodes of Penstock publish, about themselves.
const OWN = /^(agent|engine|filter|router|tree)_/;
const FIRST = "quote";

export class Publish {
  #stream;
  #onWatch;
  #session = null;
  #isAllowed = true;
  #models = new Map();

  constructor(stream, onWatch) {
    this.#stream = stream;
    this.#onWatch = onWatch;
    this.#make();
    stream.on("models", (models) => this.#take(models));
  }

  start(session) {
    this.#session = session;
    byId("published").replaceChildren();
    this.#allow(session.has_tree ? "" : NO_TREE, "");
    this.draw();
  }

  stop() {
    this.#session = null;
  }

  // Whether the user may publish, asked while the section is shown: rights change.
  async draw() {
    if (byId("publish").hidden || !this.#session?.has_tree) return;
    let patterns;
    try {
      const found = await get("/api/entitlements");
      patterns = (found?.grants ?? []).filter((grant) => grant.action === "send").map((grant) => grant.pattern);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return; // publishing is refused with the reason
    }
    if (!this.#session) return;
    if (patterns.length) this.#allow("", `You may publish on ${shown(patterns.join(", "), 300)}.`);
    else this.#allow("You may not publish: you have no right to send on any topic.", "");
  }

  #allow(reason, told) {
    const place = byId("publish-rights");
    setText(place, reason || told);
    setClass(place, reason ? "notice warn" : "hint");
    byId("publish-form").querySelector(".primary").disabled = Boolean(reason);
    this.#isAllowed = !reason;
  }

  #make() {
    const form = byId("publish-form");
    form.append(
      h(
        "label",
        {},
        "Topic",
        h("input", {
          name: "topic",
          required: true,
          maxlength: 255,
          placeholder: "app.notes.desk",
          autocapitalize: "none",
          spellcheck: "false",
        }),
      ),
      h(
        "label",
        {},
        "Message model",
        h("select", { name: "model", required: true, on: { change: () => this.#drawFields() } }),
      ),
      h("fieldset", { class: "fieldset", id: "publish-fields" }, h("legend", { class: "unseen" }, "Fields")),
      h("p", { id: "publish-told", class: "mistake", role: "alert" }),
      h("div", { class: "buttons" }, h("button", { class: "primary" }, "Publish")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit(form);
    });
  }

  #take(models) {
    const before = byId("publish-form").elements.model.value;
    this.#models = new Map(
      models
        .filter((model) => typeof model?.name === "string" && !OWN.test(model.name))
        .map((model) => [model.name, model]),
    );
    const options = [...this.#models.keys()]
      .sort((one, other) => (other === FIRST) - (one === FIRST) || (one < other ? -1 : 1))
      .map((name) => h("option", { value: name, selected: name === before }, shown(name)));
    byId("publish-form").elements.model.replaceChildren(...options);
    if (!this.#models.has(before)) this.#drawFields();
  }

  #drawFields() {
    const fields = this.#models.get(byId("publish-form").elements.model.value)?.fields ?? [];
    const labels = fields.map((field) =>
      h(
        "label",
        {},
        shown(field.name, 60),
        h("span", { class: "optional" }, ` ${shown(field.type, 30)}`),
        input(field),
      ),
    );
    byId("publish-fields").replaceChildren(byId("publish-fields").firstElementChild, ...labels);
  }

  async #submit(form) {
    const told = byId("publish-told");
    const button = form.querySelector(".primary");
    told.textContent = "";
    const topic = form.elements.topic.value.trim();
    const model = form.elements.model.value;
    button.disabled = true;
    try {
      const values = this.#values(form, model);
      await this.#stream.publish(topic, model, values);
      this.#note(topic, `${shown(model)}: the root keeps it, and distributes it`);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      told.textContent = `Not published: ${shown(error.told, 400)}`;
    } finally {
      button.disabled = !this.#isAllowed;
    }
  }

  #values(form, model) {
    const values = {};
    for (const field of this.#models.get(model)?.fields ?? []) {
      const text = form.elements[`field.${field.name}`]?.value.trim() ?? "";
      if (text !== "") values[field.name] = parsed(field, text);
    }
    return values;
  }

  #note(topic, text) {
    const watch = h(
      "button",
      { type: "button", class: "quiet", on: { click: () => this.#onWatch(topic) } },
      "Watch it",
    );
    const list = byId("published");
    list.prepend(
      h(
        "li",
        {},
        h("span", { class: "minor" }, clock(Date.now())),
        h("span", { class: "code" }, shown(topic)),
        h("span", {}, text),
        watch,
      ),
    );
    while (list.children.length > PUBLISHED_MAX) list.lastChild.remove();
  }
}

function input(field) {
  const name = `field.${field.name}`;
  const listed = (values) => (Array.isArray(values) ? values : []);
  if (field.type === "enum") return choice(name, listed(field.values));
  if (field.type === "bool") return choice(name, ["true", "false"]);
  const plain = { autocomplete: "off", autocapitalize: "none", spellcheck: "false", maxlength: 4000 };
  const inputmode = isNumeric(field.type) ? "decimal" : null;
  return h("input", { name, ...plain, inputmode, placeholder: listed(field.flags).join(", ") || null });
}

// An empty choice, or one of these.
function choice(name, values) {
  return h(
    "select",
    { name },
    h("option", { value: "" }, "–"),
    ...values.map((value) => h("option", { value }, shown(value))),
  );
}

function isNumeric(type) {
  return type === "price" || type === "quantity" || /^[iuf]\d+$/.test(type);
}

// The input as the model's JSON. Numbers that a double cannot hold exactly stay texts.
function parsed(field, text) {
  if (field.type === "bool") return text === "true";
  if (field.type === "flags") return text.split(/[\s,]+/).filter(Boolean);
  if (isNumeric(field.type)) {
    if (!NUMBER.test(text))
      throw new Refusal({ code: "request", what: `${field.name} is no number: ${text.slice(0, 40)}` });
    const number = Number(text);
    return INTEGER.test(text) && !Number.isSafeInteger(number) ? text : number;
  }
  return text;
}
