// Has the visitor type a key. Used by requests.js.

import { byId } from "./dom.js";

export class KeyDialog {
  #dialog = /** @type {HTMLDialogElement} */ (byId("key-dialog"));
  #input = /** @type {HTMLInputElement} */ (byId("key-input"));
  /** @type {Promise<string> | null} */
  #asking = null;

  constructor() {
    byId("key-form").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      if (this.#input.value.trim()) this.#dialog.close("use");
    });
    byId("key-cancel").addEventListener("click", () => this.#dialog.close(""));
  }

  /** Who asks while it is open shares the answer.
   * @param {string} wrong what was wrong with the last one @returns {Promise<string>} "": the visitor gave none */
  ask(wrong) {
    this.#asking ??= new Promise((resolve) => {
      byId("key-wrong").textContent = wrong;
      this.#input.setAttribute("aria-invalid", String(Boolean(wrong)));
      this.#dialog.returnValue = "";
      this.#dialog.showModal();
      this.#input.focus();
      this.#dialog.addEventListener("close", () => resolve(this.#typed()), { once: true });
    });
    return this.#asking;
  }

  #typed() {
    const typed = this.#dialog.returnValue === "use" ? this.#input.value.trim() : "";
    this.#input.value = "";
    this.#asking = null;
    return typed;
  }
}
