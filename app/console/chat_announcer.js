/** Reads an answer out as it comes, by sentences, to who does not see it. Used by chat.js. */

import { element } from "./chat_dom.js";

const PAUSE_MILLISECONDS = 1500;
const MOST_KEPT = 12;

export class Announcer {
  root = element("div", { class: "unseen", role: "log", "aria-live": "polite", "aria-label": "Answers as they come" });
  #said = 0;
  #at = 0;

  begin() {
    this.#said = 0;
    this.#at = performance.now();
  }

  /** @param {string} text of the answer so far */
  grow(text) {
    const now = performance.now();
    if (now - this.#at < PAUSE_MILLISECONDS) return;
    const whole = text.slice(this.#said).match(/^[\s\S]*[.!?:;\n](?=\s|$)/);
    if (!whole) return;
    this.#at = now;
    this.#said += whole[0].length;
    this.say(whole[0]);
  }

  /** @param {string} text all of it @param {string} outcome in words */
  end(text, outcome) {
    this.say(`${text.slice(this.#said)} ${outcome}`);
  }

  /** @param {string} text */
  say(text) {
    if (!text.trim()) return;
    this.root.append(element("p", {}, text.trim()));
    while (this.root.childElementCount > MOST_KEPT) this.root.firstElementChild?.remove();
  }
}
