/** A number that may be left to the server: in digits, and by a slider where it has bounds. Used by chat_controls.js. */

import { complaint } from "./chat_choices.js";
import { element } from "./dom.js";

const MOST_OF_SLIDERS = 2;

/** @typedef {import("./chat_choices.js").Field} Field */

export class NumberField {
  #field;
  #changed;
  #input;
  #slider;
  #wrong;

  /** @param {Field} field @param {(value: number | null) => void} changed null: it is the server's to choose */
  constructor(field, changed) {
    const id = `choice-${field.name}`;
    this.#field = field;
    this.#changed = changed;
    this.#wrong = element("p", { class: "wrong", id: `${id}-wrong` });
    const hint = element("p", { class: "unseen", id: `${id}-hint` }, field.hint);
    this.#input = element("input", {
      ...{ id, type: "number", placeholder: "default", inputmode: field.isWhole ? "numeric" : "decimal" },
      ...{ min: field.least, step: field.isWhole ? 1 : "any", title: field.hint },
      "aria-describedby": `${hint.id} ${this.#wrong.id}`,
      oninput: () => this.#take(),
    });
    this.#slider = field.neutral === null ? null : this.#newSlider();
    const label = element("label", { for: id, title: field.hint }, field.label);
    const kind = this.#slider ? "field number" : "field number wide";
    this.root = element("div", { class: kind }, label, this.#slider, this.#input, hint, this.#wrong);
  }

  #newSlider() {
    const { label, least: min, most, step } = this.#field;
    const oninput = () => {
      this.#input.value = this.#slider.value;
      this.#take();
    };
    const bounds = { min, max: Math.min(most, MOST_OF_SLIDERS), step };
    return element("input", { type: "range", ...bounds, "aria-label": `${label}, slider`, oninput });
  }

  #take() {
    const isBad = this.#input.validity.badInput;
    const value = this.#input.value === "" && !isBad ? null : isBad ? NaN : Number(this.#input.value);
    this.#judge(value);
    this.#changed(value);
  }

  /** @param {number | null} value */
  show(value) {
    this.#input.value = value ?? "";
    this.#judge(value);
  }

  /** @param {number | null} value */
  #judge(value) {
    judged(this.#input, this.#wrong, value === null ? "" : complaint(this.#field, value));
    if (!this.#slider) return;
    this.#slider.value = String(value ?? this.#field.neutral);
    this.#slider.classList.toggle("unset", value === null);
  }
}

/** Say beside a field what is wrong with it. @param {HTMLElement} field @param {HTMLElement} wrong
 * @param {string} told "": nothing is */
export function judged(field, wrong, told) {
  wrong.textContent = told;
  if (told) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
}
