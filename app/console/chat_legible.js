/**
 * What a model or a tool has written as JSON, so that people can judge it: a line for each member, and nothing else is
 * changed. Read and written again, 12345678901234567890 would be another number, and one of two members with the same
 * name would be gone. Pure; used by chat_calls.js.
 */

const TOKENS = /"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g;
/** What is not seen, or turns the order in which the rest is seen. Joiners are not: writing and emoji need them. */
const UNSEEN = /[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const DEEPEST = 20;

/** With escapes for what would not be seen, as JSON's strings may have it. @param {string} text */
export function seen(text) {
  return text.replace(UNSEEN, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** @param {string} text JSON, or not @returns {string} indented if it is JSON */
export function legible(text) {
  try {
    JSON.parse(text);
  } catch {
    return seen(text); // not whole yet, or a slip
  }
  return seen(indented(text.match(TOKENS) ?? []));
}

/** @param {string[]} tokens */
function indented(tokens) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, DEEPEST))}`;
  const shown = tokens.map((token, at) => {
    switch (token) {
      case "{":
      case "[":
        depth += 1;
        return isClosing(tokens[at + 1]) ? token : token + line();
      case "}":
      case "]":
        depth -= 1;
        return isOpening(tokens[at - 1]) ? token : line() + token;
      case ",":
        return token + line();
      case ":":
        return ": ";
    }
    return token;
  });
  return shown.join("");
}

/** @param {string} token */
const isOpening = (token) => token === "{" || token === "[";

/** @param {string} token */
const isClosing = (token) => token === "}" || token === "]";
