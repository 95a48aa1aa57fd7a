/** A block of code in an answer. Used by chat_markdown.js. */

import { copyButton, element } from "./dom.js";

/** A block of code, whose text only grows. */
export class Fence {
  #mark;
  #indent;
  #text = document.createTextNode("");
  #isEmpty = true;
  /** Characters of the last line that are shown; -1: it is not begun. */ #shownOfLine = -1;

  /** @param {string} mark @param {number} indent @param {string} info */
  constructor(mark, indent, info) {
    this.#mark = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}[ \t]*$`);
    this.#indent = new RegExp(`^ {0,${indent}}`);
    const language = info.trim().split(/\s/)[0].slice(0, 40);
    const copy = copyButton(() => this.#text.data, "code");
    this.shown = element(
      "figure",
      { class: "code" },
      element("figcaption", {}, element("span", {}, language || "text"), copy),
      element(
        "pre",
        { tabindex: "0", role: "group", "aria-label": language ? `Code in ${language}` : "Code" },
        element("code", {}, this.#text),
      ),
    );
  }

  /** @param {string} line a whole one @returns {boolean} whether there may be more */
  add(line) {
    if (this.#mark.test(line)) return false;
    this.#grow(line);
    this.#shownOfLine = -1;
    return true;
  }

  /** @param {string} line that has not ended */
  show(line) {
    if (line && !/^ {0,3}[`~]*$/.test(line)) this.#grow(line); // else it may be the end
  }

  /** @param {string} line */
  #grow(line) {
    if (this.#shownOfLine < 0) {
      if (!this.#isEmpty) this.#text.appendData("\n");
      this.#isEmpty = false;
      this.#shownOfLine = 0;
    }
    const text = line.replace(this.#indent, "");
    this.#text.appendData(text.slice(this.#shownOfLine));
    this.#shownOfLine = text.length;
  }
}
