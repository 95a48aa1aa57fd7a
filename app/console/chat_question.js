/** What a visitor has said, which can be said otherwise. Used by chat.js. */

import { button, copyButton, element } from "./dom.js";

export class QuestionView {
  #text;
  #resay;
  #body = element("div", { class: "text" });
  #edit = button("Edit", () => this.#open(), { class: "quiet" });
  root = element(
    "article",
    { class: "message question", "aria-label": "You" },
    element("h3", { class: "who" }, "You"),
    this.#body,
  );

  /** @param {string} text @param {(text: string) => void} resay goes on from another text */
  constructor(text, resay) {
    this.#text = text;
    this.#resay = resay;
    this.#close();
  }

  #close() {
    this.#body.replaceChildren(
      element("p", { class: "said" }, this.#text),
      element(
        "p",
        { class: "actions" },
        copyButton(() => this.#text, "the question"),
        this.#edit,
      ),
    );
  }

  #open() {
    const rows = Math.min(12, this.#text.split("\n").length + 1);
    const field = element("textarea", { rows, value: this.#text, "aria-label": "The question, otherwise" });
    const leave = () => {
      this.#close();
      this.#edit.focus();
    };
    const send = () => {
      if (field.value.trim()) this.#resay(field.value);
    };
    field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        leave();
      }
    });
    const row = element(
      "div",
      { class: "row" },
      button("Cancel", leave),
      button("Ask this", send, { class: "primary" }),
    );
    this.#body.replaceChildren(field, row);
    field.focus();
  }
}
