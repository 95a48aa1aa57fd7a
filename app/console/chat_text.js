/** What a model writes, and what it thinks before, on the page. Used by chat_answer.js. */

import { Markdown } from "./chat_markdown.js";
import { TokenView, legend } from "./chat_tokens.js";
import { element } from "./dom.js";

/** Text of the model: by tokens, as it is, or as Markdown. */
export class TextView {
  root = element("div", { class: "text" });
  #legend = legend();
  #tip;
  #isJson;
  #text = "";
  #shown = 0;
  #shownTokens = 0;
  /** @type {TokenView | null} */ #tokens = null;
  /** @type {Markdown | Plain | null} */ #plain = null;

  /** @param {import("./chat_tokens.js").Tip} tip @param {boolean} isJson */
  constructor(tip, isJson) {
    this.#tip = tip;
    this.#isJson = isJson;
  }

  get hasTokens() {
    return this.#tokens !== null;
  }

  /** @param {import("./chat_conversation.js").Text} part */
  sync(part) {
    this.#text = part.text;
    if (part.tokens.length && !this.#tokens && !this.#plain) {
      this.#tokens = new TokenView(this.#tip);
      this.root.append(this.#tokens.root, this.#legend);
    }
    if (this.#tokens) {
      this.#tokens.add(part.tokens.slice(this.#shownTokens));
      this.#shownTokens = part.tokens.length;
    } else if (part.text.length > this.#shown) {
      this.#plain ??= this.#made();
      this.#plain.append(part.text.slice(this.#shown));
      this.#shown = part.text.length;
    }
  }

  end() {
    this.#plain?.end();
    this.#tokens?.end(this.#text);
  }

  /** @param {boolean} byTokens */
  show(byTokens) {
    if (!this.#tokens) return;
    if (!this.#plain) {
      this.#plain = this.#made();
      this.#plain.append(this.#text);
      this.#plain.end();
    }
    if (byTokens) this.root.replaceChildren(this.#tokens.root, this.#legend);
    else this.root.replaceChildren(this.#plain.root);
  }

  #made() {
    const made = this.#isJson ? new Plain() : new Markdown(element("div", { class: "markdown" }));
    this.root.append(made.root);
    return made;
  }
}

/** Text as it is. */
class Plain {
  #text = document.createTextNode("");
  root = element("pre", { class: "as-is" }, this.#text);

  /** @param {string} text */
  append(text) {
    this.#text.appendData(text);
  }

  end() {}
}

/** What the model thought before it answered: open while nothing else is there. */
export class ThoughtView {
  #text = document.createTextNode("");
  #title = element("summary", {}, "Thinking …");
  root = element("details", { class: "thought" }, this.#title, element("div", {}, this.#text));

  /** @param {boolean} isLive */
  constructor(isLive) {
    this.root.open = isLive;
  }

  /** @param {import("./chat_conversation.js").Thought} part */
  sync(part) {
    this.#text.appendData(part.text.slice(this.#text.length));
  }

  end() {
    if (this.#title.textContent === "Thoughts") return;
    this.#title.textContent = "Thoughts";
    this.root.open = false;
  }
}
