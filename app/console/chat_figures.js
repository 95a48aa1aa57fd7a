/** How an answer went, in a few words and figures. Pure; used by chat_answer.js. */

const ENDS = {
  length: "cut at the limit of tokens",
  repetition: "ended for repeating itself",
  abort: "ended by an operator",
  content_filter: "cut by a filter",
};

/** @param {import("./chat_conversation.js").Outcome} outcome @returns {string[]} */
export function figures({ usage, firstSeconds, rate, finish, isStopped, survived }) {
  const facts = [];
  if (isStopped) facts.push("stopped");
  if (finish && finish !== "stop" && finish !== "tool_calls") {
    facts.push(ENDS[/** @type {keyof typeof ENDS} */ (finish)] ?? `ended: ${finish}`);
  }
  if (usage) {
    const cached = usage.cached ? ` (${usage.cached} cached)` : "";
    facts.push(`${count(usage.prompt)}${cached} in, ${count(usage.completion)} out`);
  }
  if (firstSeconds !== null) facts.push(`first token ${seconds(firstSeconds)}`);
  if (rate !== null) facts.push(`${rate >= 100 ? rate.toFixed(0) : rate.toFixed(1)} tokens/s`);
  if (survived) facts.push(`went on after ${survived} had died`);
  return facts;
}

/** @param {number} tokens */
function count(tokens) {
  return `${tokens} ${tokens === 1 ? "token" : "tokens"}`;
}

/** @param {number} value */
function seconds(value) {
  return value < 1 ? `${(value * 1000).toFixed(0)} ms` : `${value.toFixed(2)} s`;
}
