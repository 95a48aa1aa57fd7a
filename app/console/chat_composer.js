/** Where a visitor types: Enter sends, Shift+Enter begins a line. Used by chat.js. */

import { button, element, setText } from "./dom.js";

const MOST_ROWS = 10;

export class Composer {
  #field = element("textarea", {
    ...{ id: "chat-input", rows: "1", placeholder: "Ask something", enterkeyhint: "send", autocomplete: "off" },
    "aria-describedby": "chat-keys",
  });
  #advice = element("p", { class: "advice", role: "status" });
  #send;
  #stop;

  /** @param {{send: (text: string) => boolean, stop: () => void}} actions `send`: whether it was taken */
  constructor({ send, stop }) {
    const submit = () => {
      if (!send(this.#field.value)) return;
      this.#field.value = "";
      this.#fit();
    };
    this.#send = button("Send", submit, { class: "primary" });
    this.#stop = button(
      "Stop",
      () => {
        stop();
        this.focus();
      },
      { class: "stop", hidden: true },
    );
    this.#field.addEventListener("input", () => this.#fit());
    this.#field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    });
    this.root = element(
      "div",
      { class: "composer" },
      element("label", { for: "chat-input", class: "unseen" }, "Message"),
      element("div", { class: "entry" }, this.#field, this.#send, this.#stop),
      element("p", { class: "hint", id: "chat-keys" }, "Enter sends, Shift+Enter begins a line, Esc stops an answer."),
      this.#advice,
    );
  }

  get text() {
    return this.#field.value;
  }

  /** Below the box. @param {string} text "": nothing */
  advise(text) {
    setText(this.#advice, text);
  }

  focus() {
    this.#field.focus();
  }

  /** @param {boolean} is whether an answer comes */
  set isRunning(is) {
    this.#send.hidden = is;
    this.#stop.hidden = !is;
  }

  /** As high as its text. */
  #fit() {
    this.#field.rows = Math.min(MOST_ROWS, this.#field.value.split("\n").length);
  }
}
