/** What stands where nothing has been said yet. Used by chat.js. */

import { button, element } from "./dom.js";

const QUESTIONS = [
  "What is the capital of France?",
  "Write a Python function that reverses a string.",
  "Explain in three points what a KV cache is for.",
];

export class Welcome {
  /** @param {(text: string) => void} ask */
  constructor(ask) {
    const choices = QUESTIONS.map((question) =>
      element(
        "li",
        {},
        button(question, () => ask(question)),
      ),
    );
    this.root = element(
      "div",
      { class: "welcome" },
      element("h3", {}, "Talk to the model"),
      element(
        "p",
        { class: "hint" },
        "Everything here goes over the API that your programs use: “As code” shows the request as curl and Python. " +
          "The conversation stays in this browser. An example sets Temperature and Max tokens where they are empty, " +
          "as a small model keeps to the likeliest words best.",
      ),
      element("ul", {}, ...choices),
    );
  }
}
