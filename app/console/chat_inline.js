/** What stands inside a line of Markdown, as nodes. Pure but for making elements; used by chat_markdown.js. */

import { element } from "./dom.js";

const MARKS = new RegExp(
  [
    // Only from the first of some ticks, and not to the end of everything: ticks without others like them cost little.
    "(?<code>(?<!(?<!\\\\)`)(?<ticks>`+)(?!`)(?<inner>[\\s\\S]{1,5000}?)(?<!`)\\k<ticks>(?!`))",
    "(?<escape>\\\\(?<escaped>[!-/:-@\\[-`{-~]))",
    "(?<strong>(?<two>\\*\\*|__)(?=\\S)(?<bold>(?:(?!\\k<two>)[\\s\\S])+?)(?<=\\S)\\k<two>)",
    "(?<strike>~~(?=\\S)(?<struck>(?:(?!~~)[\\s\\S])+?)(?<=\\S)~~)",
    "(?<em>(?<one>\\*|(?<![\\p{L}\\p{N}])_)(?=\\S)(?<slanted>(?:(?!\\k<one>)[^\\n])+?)(?<=\\S)\\k<one>(?![\\p{L}\\p{N}_*]))",
    "(?<link>\\[(?<label>[^\\[\\]\\n]{1,500})\\]\\((?<url>[^\\s()]{1,2000})\\))",
  ].join("|"),
  "gu",
);

/** Characters of a block beyond which it is shown as it is: nobody reads it, and it would hold up the page. */
const LONGEST = 100_000;
const DEEPEST = 4;

/**
 * @param {string} text
 * @param {number} [depth] of marks within marks
 * @returns {DocumentFragment} as there may be more nodes than a function takes arguments
 */
export function inline(text, depth = 0) {
  const nodes = document.createDocumentFragment();
  const isPlain = depth > DEEPEST || text.length > LONGEST;
  let plain = "";
  let end = 0;
  for (const match of isPlain ? [] : text.matchAll(MARKS)) {
    const made = marked(/** @type {Record<string, string>} */ (match.groups), match[0], depth);
    plain += text.slice(end, match.index);
    end = match.index + match[0].length;
    if (typeof made === "string") plain += made;
    else {
      if (plain) nodes.append(plain);
      nodes.append(made);
      plain = "";
    }
  }
  plain += text.slice(end);
  if (plain) nodes.append(plain);
  return nodes;
}

/** Without the blank at either end that keeps it apart from its marks. @param {string} code */
function unpadded(code) {
  return code.startsWith(" ") && code.endsWith(" ") && code.trim() ? code.slice(1, -1) : code;
}

/** @param {Record<string, string>} groups @param {string} whole @param {number} depth */
function marked(groups, whole, depth) {
  if (groups.code) return element("code", {}, unpadded(groups.inner));
  if (groups.escape) return groups.escaped;
  if (groups.strong) return element("strong", {}, inline(groups.bold, depth + 1));
  if (groups.strike) return element("s", {}, inline(groups.struck, depth + 1));
  if (groups.em) return element("em", {}, inline(groups.slanted, depth + 1));
  if (!/^https?:\/\//i.test(groups.url)) return whole; // no script, no data, nothing of this server's own
  return element(
    "a",
    { href: groups.url, rel: "noopener noreferrer nofollow", target: "_blank" },
    inline(groups.label, depth + 1),
  );
}
