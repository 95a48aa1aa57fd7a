/** Which model answers: the served one under its names, and its adapters. Used by chat.js. */

import { element } from "./dom.js";

export class ModelChooser {
  #api;
  #wanted;
  #chosen;
  #select = element("select", { id: "chat-model" });
  root = element(
    "div",
    { class: "field model-choice" },
    element("label", { for: "chat-model" }, "Model"),
    this.#select,
  );
  /** What was listed for. */ #told = "";

  /** @param {any} api @param {() => string} wanted "": the first @param {(model: string) => void} chosen */
  constructor(api, wanted, chosen) {
    this.#api = api;
    this.#wanted = wanted;
    this.#chosen = chosen;
    this.#select.addEventListener("change", () => chosen(this.#select.value));
  }

  /** Ask for the list again if it may be another. @param {string[]} names that the house tells of */
  async serve(names) {
    const told = JSON.stringify(names);
    if (told === this.#told) return;
    this.#told = told;
    const ids = await this.#listed(names);
    if (this.#told !== told) return; // there was a newer one meanwhile
    this.#select.replaceChildren(...ids.map((id) => element("option", { value: id }, id)));
    this.show();
  }

  /** What is wanted. */
  show() {
    const model = this.#wanted();
    const ids = [...this.#select.options].map((option) => option.value);
    this.#select.value = ids.includes(model) ? model : (ids[0] ?? "");
    if (model && ids.length && !ids.includes(model)) this.#chosen(""); // it is not there any more
  }

  /** @param {string[]} names @returns {Promise<string[]>} */
  async #listed(names) {
    try {
      const reply = await this.#api.fetch("v1/models");
      if (reply.ok) return (await reply.json()).data.map((/** @type {any} */ model) => model.id);
    } catch {
      // the house has told the same
    }
    return names;
  }
}
