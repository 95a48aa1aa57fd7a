/**
 * Markdown that grows: only its last block is ever made again, so that a long answer costs no more per token than a
 * short one. Code, lists, tables, headings, quotes; made of text nodes. Used by chat_answer.js.
 */

import { element } from "./chat_dom.js";
import { Fence } from "./chat_fence.js";
import { inline } from "./chat_inline.js";
import { table } from "./chat_table.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
/** What a line may still become that is not text. */
const MAY_BE_MARK = /^ {0,3}(?:`[^`]*`{0,2}|`{2,}[^`]*|~+\S*|#{1,6}(?: .*)?|[-*_ \t]+|\d{1,9}[.)]?)$/;
const MAX_DEPTH = 6;

/** @typedef {"paragraph" | "bullets" | "numbers" | "quote" | "table"} Kind */

export class Markdown {
  /** @type {HTMLElement} */ root;
  /** @type {string} the last line, not yet ended */ #line = "";
  /** @type {string[]} whole lines of the block that may still grow */ #lines = [];
  /** @type {Kind | null} */ #kind = null;
  /** @type {HTMLElement | null} that block */ #shown = null;
  /** Items of it, if it is a list, that cannot grow: its lines are only those after them. */ #numFixed = 0;
  /** @type {HTMLElement | null} what the last line looks like by itself, if it does not belong there */ #tail = null;
  /** @type {Fence | null} */ #fence = null;
  #depth;

  /** @param {HTMLElement} root @param {number} [depth] of quotes and items */
  constructor(root, depth = 0) {
    this.root = root;
    this.#depth = depth;
  }

  /** @param {string} text what has come since the last time */
  append(text) {
    this.#tail?.remove();
    this.#tail = null;
    const lines = (this.#line + text.replace(/\r/g, "")).split("\n");
    this.#line = lines.pop() ?? "";
    for (const line of lines) this.#add(line);
    if (this.#fence) this.#fence.show(this.#line);
    else this.#showLast();
  }

  /** The text is whole. */
  end() {
    this.append(this.#line ? "\n" : "");
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
      if (isList(this.#kind)) this.#lines.push("");
      else this.#close();
    } else if (heading) {
      this.#whole(element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])));
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
    this.#lines.push(line);
    if (kind === "paragraph" && this.#lines.length === 2 && this.#lines[0].includes("|") && TABLE_RULE.test(line)) {
      this.#kind = "table";
    }
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
    const isText = this.#line.trim() && !MAY_BE_MARK.test(this.#line) && this.#kind !== "table";
    const kind = isText ? this.#kindOf(this.#line) : null;
    this.#render(kind && kind === this.#kind ? [...this.#lines, this.#line] : this.#lines);
    if (!kind || kind === this.#kind) return;
    this.#tail = BLOCKS[kind]([this.#line], this.#depth);
    this.root.append(this.#tail);
  }

  /** @param {string[]} lines */
  #render(lines) {
    if (!this.#kind) return;
    const block = BLOCKS[this.#kind](lines, this.#depth);
    if (this.#shown && this.#numFixed) {
      while (this.#shown.children.length > this.#numFixed) this.#shown.lastElementChild?.remove();
      this.#shown.append(...block.children);
      return;
    }
    if (this.#shown) this.#shown.replaceWith(block);
    else this.root.append(block);
    this.#shown = block;
  }

  /** Another item begins: those before it are as they will be. */
  #fix() {
    this.#render(this.#lines);
    this.#numFixed = this.#shown?.children.length ?? 0;
    this.#lines = [];
  }

  #close() {
    this.#render(this.#lines);
    this.#lines = [];
    this.#kind = null;
    this.#shown = null;
    this.#numFixed = 0;
  }
}
/** @type {Record<Kind, (lines: string[], depth: number) => HTMLElement>} */
const BLOCKS = { paragraph, bullets: list, numbers: list, quote, table };

/** @param {Kind | null} kind */
function isList(kind) {
  return kind === "bullets" || kind === "numbers";
}

/** Whether it is an item beside the first, and not within it. @param {string} line @param {string} first */
function isNext(line, first) {
  const item = ITEM.exec(line);
  return item !== null && item[1].length <= (ITEM.exec(first)?.[1].length ?? 0) + 1;
}

/** @param {RegExpExecArray} item @returns {Kind} */
function kindOfItem(item) {
  return /\d/.test(item[2]) ? "numbers" : "bullets";
}

/** @param {string[]} lines */
function paragraph(lines) {
  return element("p", {}, ...inline(lines.join("\n").trim()));
}

/** @param {string[]} lines @param {number} depth */
function quote(lines, depth) {
  const made = element("blockquote");
  within(
    made,
    lines.map((line) => line.replace(QUOTE, "")),
    depth,
  );
  return made;
}

/** @param {string[]} lines @param {number} depth */
function list(lines, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[0]));
  const isOrdered = kindOfItem(first) === "numbers";
  const made = element(isOrdered ? "ol" : "ul", isOrdered ? { start: String(parseInt(first[2], 10)) } : {});
  const indent = first[1].length;
  /** @type {string[]} */
  let item = [];
  const put = () => {
    if (!item.length) return;
    const shown = element("li");
    within(shown, item, depth);
    made.append(shown);
  };
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= indent + 1) {
      put();
      item = [match[3]];
    } else {
      item.push(line.slice(Math.min(line.search(/\S|$/), indent + first[2].length + 1)));
    }
  }
  put();
  return made;
}

/** Blocks in a block; one paragraph alone needs none. @param {HTMLElement} parent @param {string[]} lines @param {number} depth */
function within(parent, lines, depth) {
  while (lines.length && !lines.at(-1)?.trim()) lines.pop();
  if (depth >= MAX_DEPTH) {
    parent.append(lines.join("\n"));
    return;
  }
  const inner = new Markdown(parent, depth + 1);
  inner.append(lines.join("\n"));
  inner.end();
  const first = parent.firstElementChild;
  if (parent.tagName === "LI" && first?.tagName === "P" && !parent.querySelector(":scope > p + p")) {
    first.replaceWith(...first.childNodes);
  }
}
