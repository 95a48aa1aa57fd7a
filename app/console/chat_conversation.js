/**
 * What was said, in a form that both APIs' requests are made from (chat_request.js), that is kept, and that is shown
 * (chat_transcript.js). Pure.
 *
 * @typedef {{token: string, bytes: number[] | null, logprob: number}} Candidate
 * @typedef {Candidate & {top: Candidate[]}} Token
 * @typedef {{kind: "thought", text: string}} Thought
 * @typedef {{kind: "text", text: string, tokens: Token[]}} Text
 * @typedef {{kind: "call", id: string, name: string, arguments: string}} Call a function's, which the user answers
 * @typedef {{kind: "list", label: string, tools: string[], error: string}} List the tools of an MCP server
 * @typedef {{kind: "mcp", label: string, name: string, arguments: string, output: string, error: string, status: string}} McpCall
 * @typedef {{kind: "approval", id: string, label: string, name: string, arguments: string}} Approval
 * @typedef {Thought | Text | Call | List | McpCall | Approval} Part
 * @typedef {{prompt: number, cached: number, completion: number}} Usage
 * @typedef {{usage: Usage | null, firstSeconds: number | null, rate: number | null, finish: string, isStopped: boolean, error: string, survived: string}} Outcome
 *     `survived`: what died during it, "" if nothing did
 * @typedef {{role: "user", text: string}} UserMessage
 * @typedef {{role: "assistant", model: string, isJson: boolean, parts: Part[], items: any[] | null, outcome: Outcome}} Answer
 *     `items`: as the Responses API told them, to be sent back; null: from a chat completion, or not whole
 * @typedef {{role: "tool", id: string, text: string}} ToolResult
 * @typedef {{role: "decision", id: string, approve: boolean}} Decision
 * @typedef {UserMessage | Answer | ToolResult | Decision} Message
 */

/** @param {string} model @param {boolean} [isJson] @returns {Answer} */
export function newAnswer(model, isJson = false) {
  const outcome = { usage: null, firstSeconds: null, rate: null, finish: "", isStopped: false, error: "", survived: "" };
  return { role: "assistant", model, isJson, parts: [], items: null, outcome };
}

/** @param {Answer} answer */
export function textOf(answer) {
  return answer.parts.map((part) => (part.kind === "text" ? part.text : "")).join("");
}

/** @param {Answer} answer */
export function thoughtsOf(answer) {
  return answer.parts.map((part) => (part.kind === "thought" ? part.text : "")).join("");
}

/** @param {Answer} answer @returns {Call[]} */
export function callsOf(answer) {
  return /** @type {Call[]} */ (answer.parts.filter((part) => part.kind === "call"));
}

/** What the last answer waits for: calls without a result, and questions without a decision.
 * @param {Message[]} messages @returns {(Call | Approval)[]} */
export function awaited(messages) {
  let at = messages.length - 1;
  const given = new Set();
  for (; at >= 0; at -= 1) {
    const message = messages[at];
    if (message.role !== "tool" && message.role !== "decision") break;
    given.add(message.id);
  }
  const last = messages[at];
  if (last?.role !== "assistant") return [];
  const asked = last.parts.filter((part) => part.kind === "call" || part.kind === "approval");
  return /** @type {(Call | Approval)[]} */ (asked).filter((part) => !given.has(part.id));
}

/** Messages from outside: a file, or what an older page has kept. OpenAI's own form of messages is taken as well.
 * @param {any} given @returns {{system: string | null, messages: Message[]}} @throws {Error} saying what is wrong */
export function readConversation(given) {
  const list = Array.isArray(given) ? given : given?.messages;
  if (!Array.isArray(list)) throw new Error('it has no list of "messages"');
  let system = typeof given.system === "string" ? given.system : null;
  /** @type {Message[]} */
  const messages = [];
  list.forEach((each, at) => {
    if (each?.role === "system" || each?.role === "developer") {
      system = system ? `${system}\n${plain(each.content, at)}` : plain(each.content, at);
    } else messages.push(readMessage(each, at));
  });
  return { system, messages };
}

/** @param {any} given @param {number} at @returns {Message} */
function readMessage(given, at) {
  switch (given?.role) {
    case "user":
      return { role: "user", text: words(given, at) };
    case "tool": {
      const id = given.id ?? given.tool_call_id;
      return { role: "tool", id: string(id, at), text: words(given, at) };
    }
    case "decision":
      return { role: "decision", id: string(given.id, at), approve: given.approve === true };
    case "assistant":
      return readAnswer(given, at);
  }
  throw new Error(`messages[${at}] has none of the roles system, user, assistant and tool`);
}

/** @param {any} given @param {number} at @returns {Answer} */
function readAnswer(given, at) {
  const answer = newAnswer(typeof given.model === "string" ? given.model : "", given.isJson === true);
  if (!Array.isArray(given.parts)) {
    if (given.reasoning) answer.parts.push({ kind: "thought", text: string(given.reasoning, at) });
    if (given.content) answer.parts.push({ kind: "text", text: plain(given.content, at), tokens: [] });
    for (const call of list(given.tool_calls, at)) {
      const { name, arguments: sent } = call?.function ?? {};
      answer.parts.push({
        kind: "call",
        id: string(call?.id, at),
        name: string(name, at),
        arguments: string(sent, at),
      });
    }
    return answer;
  }
  answer.parts = given.parts.map((/** @type {any} */ part) => readPart(part, at));
  answer.items = Array.isArray(given.items) ? given.items : null;
  const { usage, firstSeconds, rate, finish, isStopped, error, survived } = given.outcome ?? {};
  const isUsage = ["prompt", "cached", "completion"].every((name) => typeof usage?.[name] === "number");
  const number = (/** @type {any} */ value) => (typeof value === "number" ? value : null);
  answer.outcome = {
    usage: isUsage ? usage : null,
    firstSeconds: number(firstSeconds),
    rate: number(rate),
    finish: typeof finish === "string" ? finish : "",
    isStopped: isStopped === true,
    error: typeof error === "string" ? error : "",
    survived: typeof survived === "string" ? survived : "",
  };
  return answer;
}

const FIELDS = {
  thought: ["text"],
  text: ["text"],
  call: ["id", "name", "arguments"],
  list: ["label", "error"],
  mcp: ["label", "name", "arguments", "output", "error", "status"],
  approval: ["id", "label", "name", "arguments"],
};

/** @param {any} given @param {number} at @returns {Part} */
function readPart(given, at) {
  const names = Object.hasOwn(FIELDS, given?.kind) && FIELDS[/** @type {keyof typeof FIELDS} */ (given.kind)];
  if (!names) throw new Error(`messages[${at}] has a part of no known kind`);
  /** @type {any} */
  const part = { kind: given.kind };
  for (const name of names) part[name] = string(given[name], at);
  if (part.kind === "list") part.tools = list(given.tools, at).map((tool) => string(tool, at));
  if (part.kind === "text") {
    part.tokens = Array.isArray(given.tokens) && given.tokens.every(isToken) ? given.tokens : [];
  }
  return part;
}

/** @param {any} given */
function isToken(given) {
  return isCandidate(given) && Array.isArray(given.top) && given.top.every(isCandidate);
}

/** @param {any} given */
function isCandidate(given) {
  const isByte = (/** @type {any} */ value) => Number.isInteger(value) && value >= 0 && value < 256;
  const hasBytes = given?.bytes === null || (Array.isArray(given?.bytes) && given.bytes.every(isByte));
  return hasBytes && typeof given.token === "string" && typeof given.logprob === "number";
}

/** Of ours or of OpenAI's messages. @param {any} given @param {number} at */
function words(given, at) {
  return given.text === undefined ? plain(given.content, at) : string(given.text, at);
}

/** @param {any} value @param {number} at */
function string(value, at) {
  if (typeof value === "string") return value;
  throw new Error(`messages[${at}] has no text where one belongs`);
}

/** @param {any} value @param {number} at @returns {any[]} */
function list(value, at) {
  if (value === undefined || value === null) return [];
  if (Array.isArray(value)) return value;
  throw new Error(`messages[${at}] has no list where one belongs`);
}

/** Text, or text in parts. @param {any} content @param {number} at */
function plain(content, at) {
  if (Array.isArray(content)) return content.map((part) => string(part?.text ?? part, at)).join("");
  return content === null ? "" : string(content, at);
}
