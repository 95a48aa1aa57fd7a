/** A conversation out of a file, and into one. Used by chat.js. */

import { readChoices } from "./chat_choices.js";
import { readConversation } from "./chat_conversation.js";
import { element, save } from "./dom.js";

/**
 * @typedef {import("./chat_choices.js").Choices} Choices
 * @typedef {import("./chat_conversation.js").Message} Message
 * @typedef {{messages: Message[], system: string | null, choices: Choices | null}} Found null: it has none
 */

export class ConversationFile {
  root = element("input", { type: "file", accept: "application/json,.json", hidden: true });
  #take;
  #complain;
  /** @type {File | null} the one that was chosen last: an earlier one may be read more slowly */ #chosen = null;

  /** @param {(found: Found) => void} take @param {(told: string) => void} complain */
  constructor(take, complain) {
    this.#take = take;
    this.#complain = complain;
    this.root.addEventListener("change", () => this.#read());
  }

  /** Have the visitor choose one. */
  choose() {
    this.root.click();
  }

  async #read() {
    /** @type {File | undefined} */
    const file = this.root.files?.[0];
    this.root.value = ""; // the same one may be chosen again
    if (!file) return;
    this.#chosen = file;
    try {
      const text = await file.text();
      if (this.#chosen === file) this.#take(read(text));
    } catch (error) {
      if (this.#chosen !== file) return;
      this.#complain(`${file.name} cannot be read: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** @param {Choices} choices @param {Message[]} messages */
  save(choices, messages) {
    const kept = { object: "trillm.conversation", version: 1, system: choices.system, choices, messages };
    save("conversation.json", JSON.stringify(kept, null, 2));
  }
}

/** @param {string} text @returns {Found} @throws {Error} saying what is wrong */
function read(text) {
  const given = JSON.parse(text);
  const found = readConversation(given);
  return { ...found, choices: given.choices ? readChoices(given.choices) : null };
}
