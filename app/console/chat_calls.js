/**
 * Calls of tools on the page: of functions, which the visitor answers, and of MCP servers, which the server answers once
 * it may. Used by chat_answer.js.
 *
 * @typedef {import("./chat_conversation.js").ToolResult | import("./chat_conversation.js").Decision} Given
 */

import { legible, seen } from "./chat_legible.js";
import { button, element } from "./dom.js";

/** For labels, which need ids. */
let fields = 0;

/** @param {string} label @param {string} text */
function code(label, text) {
  return element(
    "div",
    { class: "told" },
    element("span", { class: "label" }, label),
    element("pre", { tabindex: "0", role: "group", "aria-label": label }, text),
  );
}

/** What a model says of a call: its name and arguments. */
class Called {
  root = element("section", { class: "call" });
  id = "";
  /** @type {Given | null} */ given = null;
  #arguments = document.createTextNode("");
  #shown = "";
  #name = element("code");

  /** @param {string} title */
  constructor(title) {
    this.root.append(
      element("h4", {}, title, " ", this.#name),
      element("pre", { class: "arguments", tabindex: "0", role: "group", "aria-label": "Arguments" }, this.#arguments),
    );
  }

  /** @param {{id: string, name: string, arguments: string, label?: string}} part */
  sync(part) {
    this.id = part.id;
    this.#name.textContent = seen(part.label ? `${part.label}.${part.name}` : part.name);
    if (part.arguments === this.#shown) return;
    this.#shown = part.arguments;
    this.#arguments.data = part.arguments;
  }

  end() {
    this.#arguments.data = legible(this.#shown);
  }

  get name() {
    return this.#name.textContent ?? "";
  }

  /** @param {Node} asked */
  put(asked) {
    this.root.querySelector(":scope > .asked")?.remove();
    this.root.append(asked);
  }
}

/** A function that the visitor plays. */
export class CallView extends Called {
  /** @type {HTMLTextAreaElement | null} */ #field = null;

  constructor() {
    super("The model calls");
  }

  /** @param {Given | null} given @param {boolean} isLast @param {() => void} changed */
  ask(given, isLast, changed) {
    if (given?.role === "tool") this.#show(given);
    else if (isLast && !this.given) this.#open(changed);
    else if (!this.given) this.put(element("p", { class: "asked hint" }, "No result was given."));
  }

  /** @param {import("./chat_conversation.js").ToolResult} given */
  #show(given) {
    this.given = given;
    this.put(element("div", { class: "asked" }, code("Result", legible(given.text))));
  }

  /** What was given could not be sent. @param {() => void} changed */
  reopen(changed) {
    const text = this.given?.role === "tool" ? this.given.text : "";
    this.given = null;
    this.#open(changed, text);
  }

  /** @param {() => void} changed @param {string} [value] */
  #open(changed, value = "") {
    const id = `result-${(fields += 1)}`;
    const field = element("textarea", { id, rows: "3", spellcheck: "false", placeholder: '{"temperature": 21}', value });
    this.#field = field;
    const give = () => {
      this.#show({ role: "tool", id: this.id, text: field.value });
      changed();
    };
    field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      give();
    });
    this.put(
      element(
        "div",
        { class: "asked" },
        element("label", { for: id }, `Result of ${this.name}`),
        field,
        element("div", { class: "row" }, button("Send result", give, { class: "primary" })),
      ),
    );
  }

  focus() {
    this.#field?.focus();
  }
}

/** A call that an MCP server would get. */
export class ApprovalView extends Called {
  constructor() {
    super("The model wants to call");
    this.root.tabIndex = -1;
    this.root.setAttribute("role", "group");
  }

  /** @param {import("./chat_conversation.js").Approval} part */
  sync(part) {
    super.sync(part);
    this.root.setAttribute("aria-label", `The model wants to call ${this.name}. Allow or refuse it.`);
  }

  /** @param {Given | null} given @param {boolean} isLast @param {() => void} changed */
  ask(given, isLast, changed) {
    if (given?.role === "decision") this.#show(given);
    else if (isLast && !this.given) this.#open(changed);
    else if (!this.given) this.put(element("p", { class: "asked hint" }, "Nobody has decided."));
  }

  /** @param {import("./chat_conversation.js").Decision} given */
  #show(given) {
    this.given = given;
    this.put(element("p", { class: "asked hint" }, given.approve ? "You have allowed it." : "You have refused it."));
  }

  /** What was decided could not be sent. @param {() => void} changed */
  reopen(changed) {
    this.given = null;
    this.#open(changed);
  }

  /** @param {() => void} changed */
  #open(changed) {
    const decide = (/** @type {boolean} */ approve) => {
      this.#show({ role: "decision", id: this.id, approve });
      changed();
    };
    const allow = button("Allow", () => decide(true), { class: "primary", "aria-label": `Allow ${this.name}` });
    const refuse = button("Refuse", () => decide(false), { "aria-label": `Refuse ${this.name}` });
    this.put(element("div", { class: "asked row" }, refuse, allow));
  }

  /** Of the whole, and of neither button: who presses Enter once too often has decided nothing. */
  focus() {
    this.root.focus();
  }
}

/** A call that an MCP server has got. */
export class McpView {
  #title = element("summary");
  #body = element("div");
  root = element("details", { class: "call mcp" }, this.#title, this.#body);

  /** @param {import("./chat_conversation.js").McpCall} part */
  sync(part) {
    const states = { completed: "", failed: "failed", incomplete: "cut off" };
    const state = states[/** @type {keyof typeof states} */ (part.status)] ?? "…";
    this.#title.replaceChildren(
      element("code", {}, seen(`${part.label}.${part.name}`)),
      state && element("span", { class: part.status === "failed" ? "bad" : "hint" }, ` ${state}`),
    );
    this.#body.replaceChildren(
      code("Arguments", legible(part.arguments)),
      ...(part.output ? [code("Result", legible(part.output))] : []),
      ...(part.error ? [code("Error", part.error)] : []),
    );
  }
}

/** The tools of an MCP server. */
export class ListView {
  root = element("details", { class: "call mcp" });

  /** @param {import("./chat_conversation.js").List} part */
  sync(part) {
    const count = `${part.tools.length} ${part.tools.length === 1 ? "tool" : "tools"}`;
    const state = part.error ? element("span", { class: "bad" }, " cannot be asked") : ` has ${count}`;
    this.root.replaceChildren(
      element("summary", {}, element("code", {}, part.label), state),
      part.error ? code("Error", part.error) : element("p", { class: "names" }, seen(part.tools.join(", "))),
    );
  }
}
