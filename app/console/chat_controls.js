/**
 * The panel beside the conversation: what is asked of the server beside the words. It writes what is chosen into the
 * choices (chat_choices.js) and tells that they have changed. Used by chat.js.
 *
 * @typedef {import("./chat_choices.js").Choices} Choices
 * @typedef {import("./chat_choices.js").Served} Served
 */

import { EXAMPLE_SCHEMA, EXAMPLE_TOOLS, FIELDS, NOTHING_SERVED, readSchema, readTools } from "./chat_choices.js";
import { NumberField, judged } from "./chat_number_field.js";
import { button, element } from "./dom.js";

export class Controls {
  #choices;
  #changed;
  /** @type {(() => void)[]} */ #renewals = [];
  #servers = element("div", { class: "servers", hidden: true });
  /** @type {any} */ #approval;
  /** @type {any} */ #thinking;
  #served = NOTHING_SERVED;
  /** What is shown of it. */ #told = "";

  /** @param {Choices} choices @param {() => void} changed */
  constructor(choices, changed) {
    this.#choices = choices;
    this.#changed = changed;
    const groups = [
      this.#group("System prompt", true, this.#system()),
      this.#group("Sampling", true, this.#sampling()),
      this.#group("Form of the answer", false, this.#format()),
      this.#group("Tools", false, this.#tools()),
    ];
    const wide = matchMedia("(min-width: 60rem)");
    this.root = this.#group("Settings", wide.matches, element("div", { class: "controls" }, ...groups));
    this.root.className = "settings panel";
    wide.addEventListener("change", () => (this.root.open = wide.matches));
  }

  /** @param {string} title @param {boolean} isOpen @param {HTMLElement} body */
  #group(title, isOpen, body) {
    return element("details", { open: isOpen }, element("summary", {}, title), body);
  }

  /** The choices are others now. @param {Choices} choices */
  renew(choices) {
    this.#choices = choices;
    for (const renew of this.#renewals) renew();
    this.#told = "";
    this.serve(this.#served);
  }

  /** @param {Served} served */
  serve(served) {
    this.#served = served;
    const told = JSON.stringify([served.toolServers, served.thinks]);
    if (told === this.#told) return;
    this.#told = told;
    this.#thinking.hidden = !served.thinks;
    this.#showServers(served.toolServers);
  }

  // -------------------------------------------------------------------- words

  #system() {
    const field = this.#area("system", "System prompt", 3, "You are a helpful assistant.");
    field.querySelector("label").classList.add("unseen");
    return field;
  }

  /** @param {"system" | "stop" | "schema" | "tools"} name @param {string} label @param {number} rows
   * @param {string} placeholder @param {((text: string) => void) | null} [check] throws what is wrong */
  #area(name, label, rows, placeholder, check = null) {
    const id = `choice-${name}`;
    const wrong = element("p", { class: "wrong", id: `${id}-wrong` });
    const area = element("textarea", { id, rows, placeholder, spellcheck: "false", "aria-describedby": wrong.id });
    const judge = () => judged(area, wrong, check && area.value ? said(() => check(area.value)) : "");
    area.addEventListener("input", () => {
      this.#choices[name] = area.value;
      judge();
      this.#changed();
    });
    this.#renewal(() => {
      area.value = this.#choices[name];
      judge();
    });
    return element("div", { class: "field" }, element("label", { for: id }, label), area, wrong);
  }

  /** @param {() => void} renew now, and whenever the choices are others */
  #renewal(renew) {
    this.#renewals.push(renew);
    renew();
  }

  // -------------------------------------------------------------------- sampling

  #sampling() {
    const reset = button(
      "Reset to the server’s defaults",
      () => {
        this.#choices.sampling = {};
        this.#choices.stop = "";
        this.#choices.thinking = "";
        for (const renew of this.#renewals) renew();
        this.#changed();
      },
      { class: "quiet" },
    );
    this.#thinking = this.#select("thinking", "Thoughts", { "": "server’s default", on: "on", off: "off" });
    this.#thinking.hidden = true;
    return element(
      "div",
      { class: "group" },
      element("p", { class: "hint" }, "Empty fields are the server’s defaults, and are not sent."),
      ...FIELDS.map((field) => this.#number(field)),
      this.#area("stop", "Stop strings, one a line (\\n is a line break)", 2, ""),
      this.#thinking,
      reset,
    );
  }

  /** @param {import("./chat_choices.js").Field} field */
  #number(field) {
    const made = new NumberField(field, (value) => {
      if (value === null) delete this.#choices.sampling[field.name];
      else this.#choices.sampling[field.name] = value;
      this.#changed();
    });
    this.#renewal(() => made.show(this.#choices.sampling[field.name] ?? null));
    return made.root;
  }

  /** @param {"thinking" | "format" | "toolChoice"} name @param {string} label @param {Record<string, string>} entries */
  #select(name, label, entries) {
    const id = `choice-${name}`;
    const select = element("select", { id });
    for (const [value, text] of Object.entries(entries)) select.append(element("option", { value }, text));
    select.addEventListener("change", () => {
      /** @type {any} */ (this.#choices)[name] = select.value;
      for (const renew of this.#renewals) renew();
      this.#changed();
    });
    this.#renewal(() => (select.value = this.#choices[name]));
    return element("div", { class: "field beside" }, element("label", { for: id }, label), select);
  }

  /** @param {"showsLogprobs" | "usesTools" | "asksApproval"} name @param {string} label */
  #check(name, label) {
    const box = element("input", { type: "checkbox" });
    box.addEventListener("change", () => {
      this.#choices[name] = box.checked;
      for (const renew of this.#renewals) renew();
      this.#changed();
    });
    this.#renewal(() => (box.checked = this.#choices[name]));
    return element("label", { class: "check" }, box, label);
  }

  /** @param {"schema" | "tools"} name @param {any} value */
  #example(name, value) {
    const put = () => {
      this.#choices[name] = JSON.stringify(value, null, 2);
      for (const renew of this.#renewals) renew();
      this.#changed();
    };
    return button("Put in an example", put, { class: "quiet" });
  }

  // -------------------------------------------------------------------- form of the answer

  #format() {
    const forms = { text: "text", json_object: "any JSON object", json_schema: "JSON of a schema" };
    const editor = this.#area("schema", "JSON schema", 8, "{ … }", readSchema);
    const schema = element("div", { class: "group" }, editor, this.#example("schema", EXAMPLE_SCHEMA));
    this.#renewal(() => (schema.hidden = this.#choices.format !== "json_schema"));
    return element(
      "div",
      { class: "group" },
      this.#select("format", "Answers are", forms),
      schema,
      this.#check("showsLogprobs", "Show how likely each token was"),
    );
  }

  // -------------------------------------------------------------------- tools

  #tools() {
    const editor = this.#area("tools", "Functions, as JSON", 10, "[ … ]", readTools);
    const choice = this.#select("toolChoice", "Calls are", {
      auto: "the model’s to make",
      required: "required",
      none: "not made",
    });
    const body = element("div", { class: "group" }, editor, this.#example("tools", EXAMPLE_TOOLS));
    this.#approval = this.#check("asksApproval", "Ask me before each of their calls");
    this.#renewal(() => (body.hidden = !this.#choices.usesTools));
    this.#renewal(() => (choice.hidden = !this.#choices.usesTools && !this.#choices.mcp.length));
    return element(
      "div",
      { class: "group" },
      this.#check("usesTools", "Functions, whose results you type"),
      body,
      this.#servers,
      choice,
    );
  }

  /** @param {string[]} labels */
  #showServers(labels) {
    this.#servers.hidden = !labels.length;
    const boxes = labels.map((label) => {
      const box = element("input", { type: "checkbox" });
      box.checked = this.#choices.mcp.includes(label);
      box.addEventListener("change", () => {
        const others = this.#choices.mcp.filter((each) => each !== label);
        this.#choices.mcp = box.checked ? [...others, label] : others;
        for (const renew of this.#renewals) renew();
        this.#changed();
      });
      return element("label", { class: "check" }, box, element("code", {}, label));
    });
    const hint = "With one of these the conversation goes over /v1/responses, and the server calls their tools itself.";
    this.#servers.replaceChildren(
      element("fieldset", {}, element("legend", {}, "MCP servers"), ...boxes, element("p", { class: "hint" }, hint)),
      this.#approval,
    );
  }
}

/** What it throws, in words. @param {() => void} check */
function said(check) {
  try {
    check();
    return "";
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}
