/**
 * Keeps the conversation and what was chosen in this browser, by the page's address; never the key. Used by chat.js.
 *
 * The next tab finds what was kept last. A tab whose conversation is replaced by another tab's keeps its own for itself.
 */

import { defaultChoices, readChoices } from "./chat_choices.js";
import { readConversation } from "./chat_conversation.js";
import { store, stored } from "./storage.js";

/** @typedef {{choices: import("./chat_choices.js").Choices, messages: import("./chat_conversation.js").Message[]}} Kept */

export class Keeper {
  #name = `trillm.chat ${location.pathname}`;

  /** @param {() => Kept} present what this tab has now */
  constructor(present) {
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

  /** @param {Kept} kept @returns {string} what could not be kept, in words */
  keep(kept) {
    store("sessionStorage", this.#name, "");
    return this.#write("localStorage", kept);
  }

  /** @param {"localStorage" | "sessionStorage"} kind @param {Kept} kept */
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
