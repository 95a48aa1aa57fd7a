/** The dialog that shows a request as a command and as a program. Used by chat.js. */

import { curl, python } from "./chat_snippets.js";
import { button, copyButton, element } from "./dom.js";

const KINDS = { curl: "curl", python: "Python" };

export class CodeDialog {
  #code = element("code");
  #text = element("pre", { tabindex: "0", role: "group", "aria-label": "Code" }, this.#code);
  #title = element("h2", { id: "code-title" });
  #hint = element("p", { class: "hint" });
  /** @type {Record<string, HTMLInputElement>} */ #choices = {};
  /** @type {Record<string, string>} */ #texts = { curl: "", python: "" };

  constructor() {
    const kinds = element("fieldset", { class: "kinds" }, element("legend", { class: "unseen" }, "As"));
    for (const [kind, name] of Object.entries(KINDS)) {
      const choice = element("input", { type: "radio", name: "code-kind", value: kind, onchange: () => this.#show() });
      this.#choices[kind] = choice;
      kinds.append(element("label", { class: "check" }, choice, name));
    }
    this.#choices.curl.checked = true;
    const close = button("Close", () => this.root.close());
    this.root = element(
      "dialog",
      { class: "code-dialog", "aria-labelledby": "code-title" },
      this.#title,
      kinds,
      this.#text,
      this.#hint,
      element(
        "div",
        { class: "row" },
        copyButton(() => this.#code.textContent ?? "", "the code"),
        close,
      ),
    );
  }

  /** @param {import("./chat_request.js").Request} request @param {string} base @param {string} title */
  open(request, base, title) {
    this.#title.textContent = title;
    this.#texts = { curl: curl(request, base), python: python(request, base) };
    this.#show();
    this.root.showModal();
  }

  #show() {
    const isCurl = this.#choices.curl.checked;
    this.#code.textContent = this.#texts[isCurl ? "curl" : "python"];
    const needs = isCurl ? "" : " pip install openai";
    this.#hint.textContent = `The key is read from OPENAI_API_KEY.${needs && ` It needs:${needs}.`}`;
  }
}

/** Which request: the next one if something is typed or to be asked, else that of the last answer.
 * @param {import("./chat_conversation.js").Message[]} messages @param {string} typed
 * @returns {{messages: import("./chat_conversation.js").Message[], title: string}} */
export function shownAsCode(messages, typed) {
  if (!typed && messages.at(-1)?.role === "assistant") {
    return { messages: messages.slice(0, -1), title: "The last request, with the present settings" };
  }
  const text = typed || (messages.length ? "" : "Hello!");
  return { messages: text ? [...messages, { role: "user", text }] : messages, title: "The next request" };
}
