/** Reads an answer out as it comes, by sentences, to who does not see it. Used by chat.js. */

import { textOf } from "./chat_conversation.js";
import { element } from "./dom.js";

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

  /** @param {import("./chat_conversation.js").Answer} answer */
  end(answer) {
    this.say(`${textOf(answer).slice(this.#said)} ${outcomeInWords(answer)}`);
  }

  /** @param {string} text */
  say(text) {
    if (!text.trim()) return;
    this.root.append(element("p", {}, text.trim()));
    while (this.root.childElementCount > MOST_KEPT) this.root.firstElementChild?.remove();
  }
}

/** @param {import("./chat_conversation.js").Answer} answer */
function outcomeInWords({ outcome, parts }) {
  if (outcome.error) return ""; // it is an alert by itself
  if (outcome.isStopped) return "The answer was stopped.";
  const asks = parts.some((part) => part.kind === "call" || part.kind === "approval");
  return asks ? "The model waits for you." : "The answer is complete.";
}
