/** Blocks of Markdown that are made of lines, as elements. Used by chat_markdown.js. */

import { inline } from "./chat_inline.js";
import { table } from "./chat_table.js";
import { element } from "./dom.js";

export const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)(.*)$/s;
export const QUOTE = /^ {0,3}> ?/;

/** @typedef {"paragraph" | "bullets" | "numbers" | "quote" | "table"} Kind */
/** @typedef {(parent: HTMLElement, lines: string[]) => void} Within puts the blocks of these lines into the parent */

/** @type {Record<Kind, (lines: string[], within: Within) => HTMLElement>} */
export const BLOCKS = { paragraph, bullets: list, numbers: list, quote, table };

/** @param {RegExpExecArray} item @returns {Kind} */
export function kindOfItem(item) {
  return /\d/.test(item[2]) ? "numbers" : "bullets";
}

/** @param {string[]} lines */
function paragraph(lines) {
  return element("p", {}, inline(lines.join("\n").trim()));
}

/** @param {string[]} lines @param {Within} within */
function quote(lines, within) {
  const made = element("blockquote");
  const inner = lines.map((line) => line.replace(QUOTE, ""));
  within(made, inner);
  return made;
}

/** @param {string[]} lines @param {Within} within */
function list(lines, within) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[0]));
  const isOrdered = kindOfItem(first) === "numbers";
  const made = element(isOrdered ? "ol" : "ul", isOrdered ? { start: String(parseInt(first[2], 10)) } : {});
  const indent = first[1].length;
  /** @type {string[]} */
  let item = [];
  const put = () => {
    if (!item.length) return;
    const shown = element("li");
    within(shown, item);
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
