/**
 * Keeps the conversation and what was chosen in this browser, by the page's address; never the key. Used by chat.js.
 *
 * The next tab finds what was kept last. A tab whose conversation is replaced by another tab's keeps its own for itself.
 */

import { defaultChoices, readChoices } from "./chat_choices.js";
import { readConversation } from "./chat_conversation.js";
import { store, stored } from "./storage.js";

/** @typedef {{choices: import("./chat_choices.js").Choices, messages: import("./chat_conversation.js").Message[]}} Kept */

/** Of what is typed, not every letter is kept at once. */
const MILLISECONDS = 300;

export class Keeper {
  #name = `trillm.chat ${location.pathname}`;
  #present;
  #tell;
  /** @type {number | undefined} */ #timer;

  /** @param {() => Kept} present what this tab has now @param {(told: string) => void} tell what could not be kept */
  constructor(present, tell) {
    this.#present = present;
    this.#tell = tell;
    addEventListener("storage", (event) => {
      const kept = event.key === this.#name && present();
      if (kept && kept.messages.length) this.#write("sessionStorage", kept);
    });
  }

  /** @returns {Kept} what was kept, as far as it can be read */
  read() {
    try {
      const kept = JSON.parse(stored("sessionStorage", this.#name) || stored("localStorage", this.#name) || "{}");
      const choices = readChoices(kept.choices);
      return { choices, messages: kept.messages ? readConversation(kept).messages : [] };
    } catch {
      return { choices: defaultChoices(), messages: [] }; // of an older page
    }
  }

  /** Whether there is something that is yet to be kept. */
  get isLate() {
    return this.#timer !== undefined;
  }

  soon() {
    this.#timer ??= window.setTimeout(() => this.keep(), MILLISECONDS);
  }

  keep() {
    window.clearTimeout(this.#timer);
    this.#timer = undefined;
    store("sessionStorage", this.#name, "");
    const told = this.#write("localStorage", this.#present());
    if (told) this.#tell(told);
  }

  /** @param {"localStorage" | "sessionStorage"} kind @param {Kept} kept @returns {string} what could not be kept */
  #write(kind, kept) {
    for (const told of ["", "This conversation is too long to be kept with its tokens’ probabilities."]) {
      try {
        window[kind].setItem(this.#name, JSON.stringify(kept, told ? withoutTokens : undefined));
        return told;
      } catch {
        // there is no room: perhaps there is for less
      }
    }
    return "This browser does not keep the conversation: it is gone when the page is left. “Export” keeps it in a file.";
  }
}

/** @param {string} name @param {any} value */
function withoutTokens(name, value) {
  return name === "tokens" ? [] : value;
}
