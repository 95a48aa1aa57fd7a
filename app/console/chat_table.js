/** A table in an answer. Used by chat_markdown.js. */

import { inline } from "./chat_inline.js";
import { element } from "./dom.js";

/** @param {string[]} lines */
export function table(lines) {
  const [head, rule, ...rows] = lines.map(cells);
  const sides = rule.map((cell) => (/^:-+:$/.test(cell) ? "middle" : /^-+:$/.test(cell) ? "right" : null));
  /** @param {string} tag @param {string[]} row */
  const shown = (tag, row) => {
    const made = element("tr");
    head.forEach((_, at) => made.append(element(tag, { class: sides[at] }, inline(row[at] ?? ""))));
    return made;
  };
  return element(
    "div",
    { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    element(
      "table",
      {},
      element("thead", {}, shown("th", head)),
      element("tbody", {}, ...rows.map((row) => shown("td", row))),
    ),
  );
}

/** @param {string} line */
function cells(line) {
  return line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));
}
