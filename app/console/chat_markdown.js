/**
 * Markdown that grows: only its last block is ever made again, so that a long answer costs no more per token than a
 * short one; and a long block not for every token. Code, lists, tables, headings, quotes; made of text nodes. Used by
 * chat_text.js.
 */

import { BLOCKS, ITEM, QUOTE, kindOfItem } from "./chat_blocks.js";
import { Fence } from "./chat_fence.js";
import { inline } from "./chat_inline.js";
import { element } from "./dom.js";

// Each character of a line can be taken in one way only: a model may write a line of a million blanks.
const FENCE = /^( {0,3})(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/s;
const CLOSING = /(?<![ \t])[ \t]+#+$/;
/** Of a heading. */
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*(?:\|[ \t]*)?$/;
/** What a line may still become that is not text. */
const MAY_BE_MARK = /^ {0,3}(?:`[^`]*`{0,2}|`{2,}[^`]*|~\S*|#{1,6}(?: .*)?|[-*_ \t]+|\d{1,9}[.)]?)$/;
const MAX_DEPTH = 6;
const LONG = 2000;
/** Characters of a block from which on what comes stands there as plain text, until there is so much more of it. */
const MORE = 1.25;

/** @typedef {import("./chat_blocks.js").Kind} Kind */

export class Markdown {
  /** @type {HTMLElement} */ root;
  /** @type {string} the last line, not yet ended */ #line = "";
  /** @type {string[]} whole lines of the block that may still grow */ #lines = [];
  /** @type {Kind | null} */ #kind = null;
  /** @type {HTMLElement | null} that block */ #shown = null;
  /** Whether it is a list with items that cannot grow: its lines are only those after them. */ #isBegun = false;
  /** @type {Element[]} items after those */ #items = [];
  /** @type {HTMLElement | null} what the last line looks like by itself, if it does not belong there */ #tail = null;
  /** Characters of the lines. */ #size = 0;
  /** @type {Text | null} what has come of a long block since it was made */ #rest = null;
  /** Characters of which it is made again. */ #due = 0;
  /** @type {Fence | null} */ #fence = null;
  #depth;

  /** @param {HTMLElement} root @param {number} [depth] of quotes and items */
  constructor(root, depth = 0) {
    this.root = root;
    this.#depth = depth;
  }

  /** @param {string} text what has come since the last time */
  append(text) {
    const fresh = text.replaceAll("\r", "");
    const lines = (this.#line + fresh).split("\n");
    this.#line = lines.pop() ?? "";
    for (const line of lines) this.#add(line);
    if (this.#fence) this.#fence.show(this.#line);
    else if (this.#rest && this.#size + this.#line.length < this.#due) this.#rest.appendData(fresh);
    else this.#showLast();
  }

  /** The text is whole. */
  end() {
    this.put(this.#line ? [this.#line] : []);
    this.#line = "";
  }

  /** Whole lines, after which nothing comes. @param {string[]} lines */
  put(lines) {
    for (const line of lines) this.#add(line);
    this.#close();
    this.#fence = null;
  }

  /** @param {string} line a whole one */
  #add(line) {
    if (this.#fence) {
      if (!this.#fence.add(line)) this.#fence = null;
      return;
    }
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (fence) {
      this.#fence = new Fence(fence[2], fence[1].length, fence[3]);
      this.#whole(this.#fence.shown);
    } else if (!line.trim()) {
      if (isList(this.#kind)) this.#push("");
      else this.#close();
    } else if (heading) {
      this.#whole(element(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2].trimEnd().replace(CLOSING, ""))));
    } else if (RULE.test(line)) {
      this.#whole(element("hr"));
    } else {
      this.#grow(line);
    }
  }

  /** @param {HTMLElement} block */
  #whole(block) {
    this.#close();
    this.root.append(block);
  }

  /** @param {string} line of text */
  #grow(line) {
    const kind = this.#kindOf(line);
    if (kind !== this.#kind) this.#close();
    else if (isList(kind) && isNext(line, this.#lines[0])) this.#fix();
    this.#kind = kind;
    this.#push(line);
    if (kind === "paragraph" && this.#lines.length === 2 && this.#lines[0].includes("|") && TABLE_RULE.test(line)) {
      this.#kind = "table";
    }
  }

  /** @param {string} line */
  #push(line) {
    this.#lines.push(line);
    this.#size += line.length + 1;
  }

  /** @param {string} line @returns {Kind} */
  #kindOf(line) {
    if (QUOTE.test(line)) return "quote";
    const item = ITEM.exec(line);
    if (isList(this.#kind)) {
      const isWithin = item ? item[1].length > 1 : /^[ \t]{2,}/.test(line) || this.#lines.at(-1) !== "";
      if (isWithin) return this.#kind;
    }
    // A sentence may go on in the next line with a year and a full stop.
    if (item && (this.#kind !== "paragraph" || /^[-*+]$|^1[.)]$/.test(item[2]))) return kindOfItem(item);
    return this.#kind === "table" && line.includes("|") ? "table" : "paragraph";
  }

  /** Show the block that may still grow, and the line that has not ended: within it if it looks like that. */
  #showLast() {
    this.#clear();
    const isText = this.#line.trim() && !MAY_BE_MARK.test(this.#line) && this.#kind !== "table";
    const kind = isText ? this.#kindOf(this.#line) : null;
    const isWithin = kind !== null && kind === this.#kind;
    this.#render(isWithin ? [...this.#lines, this.#line] : this.#lines);
    if (kind && !isWithin) {
      this.#tail = this.#block(kind, [this.#line]);
      this.root.append(this.#tail);
    }
    if (this.#size + this.#line.length >= LONG) this.#leave(kind === null);
  }

  /** Have the rest of a long block come as plain text for a while. @param {boolean} isLineMissing */
  #leave(isLineMissing) {
    const last = this.#tail ?? this.#shown;
    const isParagraph = last?.tagName === "P";
    const before = isParagraph && this.#lines.length ? "\n" : "";
    const blanks = this.#line.slice(this.#line.trimEnd().length); // which the paragraph has lost
    this.#rest = document.createTextNode(isLineMissing ? before + this.#line : blanks);
    (isParagraph ? last : this.root).append(element("span", { class: "rest" }, this.#rest));
    this.#due = MORE * (this.#size + this.#line.length);
  }

  /** Take away what stands there only until there is more. */
  #clear() {
    this.#tail?.remove();
    this.#rest?.parentElement?.remove();
    this.#tail = this.#rest = null;
  }

  /** @param {string[]} lines */
  #render(lines) {
    if (!this.#kind) return;
    const block = this.#block(this.#kind, lines);
    for (const item of this.#items) item.remove();
    this.#items = isList(this.#kind) ? [...block.children] : [];
    if (this.#shown && this.#isBegun) {
      for (const item of this.#items) this.#shown.append(item);
      return;
    }
    if (this.#shown) this.#shown.replaceWith(block);
    else this.root.append(block);
    this.#shown = block;
  }

  /** Another item begins: those before it are as they will be. */
  #fix() {
    this.#clear();
    this.#render(this.#lines);
    this.#isBegun = true;
    this.#items = [];
    this.#lines = [];
    this.#size = 0;
  }

  #close() {
    this.#clear();
    this.#render(this.#lines);
    this.#lines = [];
    this.#size = 0;
    this.#kind = null;
    this.#shown = null;
    this.#isBegun = false;
    this.#items = [];
  }

  /** @param {Kind} kind @param {string[]} lines */
  #block(kind, lines) {
    return BLOCKS[kind](lines, (parent, inner) => this.#within(parent, inner));
  }

  /** Blocks in a block; one paragraph alone needs none. @param {HTMLElement} parent @param {string[]} lines */
  #within(parent, lines) {
    while (lines.length && !lines.at(-1)?.trim()) lines.pop();
    if (this.#depth >= MAX_DEPTH) {
      parent.append(lines.join("\n"));
      return;
    }
    new Markdown(parent, this.#depth + 1).put(lines);
    const first = parent.firstElementChild;
    if (parent.tagName === "LI" && first?.tagName === "P" && !parent.querySelector(":scope > p + p")) {
      for (const node of [...first.childNodes]) parent.insertBefore(node, first);
      first.remove();
    }
  }
}

/** @param {Kind | null} kind */
function isList(kind) {
  return kind === "bullets" || kind === "numbers";
}

/** Whether it is an item beside the first, and not within it. @param {string} line @param {string} first */
function isNext(line, first) {
  const item = ITEM.exec(line);
  return item !== null && item[1].length <= (ITEM.exec(first)?.[1].length ?? 0) + 1;
}
