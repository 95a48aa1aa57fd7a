/** What stands where nothing has been said yet. Used by chat.js. */

import { EXAMPLE_SAMPLING } from "./chat_choices.js";
import { button, element } from "./dom.js";

const QUESTIONS = [
  "What is the capital of France?",
  "Write a Python function that reverses a string.",
  "Explain in three points what a KV cache is for.",
];

const { temperature, max_tokens } = EXAMPLE_SAMPLING;

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
          "The conversation stays in this browser. An example sets Temperature to " +
          `${temperature} and Max tokens to ${max_tokens} where these are empty: it suits small models, too.`,
      ),
      element("ul", {}, ...choices),
    );
  }
}
