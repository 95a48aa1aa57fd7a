/**
 * What a visitor has chosen about answers, and what of it goes into requests. Pure; chat_controls.js shows it, and it is
 * kept with the conversation.
 *
 * @typedef {{name: string, label: string, least: number, most: number, step: number, neutral: number | null, isWhole: boolean, hint: string}} Field
 * @typedef {{model: string, system: string, sampling: Record<string, number>, stop: string, thinking: "" | "on" | "off",
 *     format: "text" | "json_object" | "json_schema", schema: string, showsLogprobs: boolean, usesTools: boolean,
 *     tools: string, toolChoice: "auto" | "required" | "none", mcp: string[], asksApproval: boolean}} Choices
 * @typedef {{model: string, system: string, sampling: Record<string, any>, format: any, topLogprobs: number | null,
 *     tools: any[], toolChoice: string, mcp: string[], asksApproval: boolean, thinking: boolean | null}} Options
 * @typedef {{model: string, maxLogprobs: number, toolServers: string[], thinks: boolean, readsCalls: boolean}} Served
 *     what /house tells; `readsCalls`: where the model is free to make some
 */

const MOST_STOPS = 16;
const ALTERNATIVES = 5;
const MOST_SEED = Number.MAX_SAFE_INTEGER;

/** @type {Field[]} `neutral`: where its slider stands while the server's default holds; null: it has none */
export const FIELDS = [
  field("temperature", "Temperature", 0, 2, 0.05, 1, "0 always takes the likeliest token."),
  field("top_p", "Top p", 0.01, 1, 0.01, 1, "Only the likeliest tokens that together have this probability."),
  field("min_p", "Min p", 0, 1, 0.01, 0, "Only tokens at least this likely, measured by the likeliest."),
  field("top_k", "Top k", 0, 2 ** 31 - 1, 1, null, "Only so many of the likeliest tokens; 0 is all."),
  field(
    "repetition_penalty",
    "Repetition penalty",
    0.01,
    100,
    0.01,
    1,
    "Above 1, what was said already gets less likely.",
  ),
  field("presence_penalty", "Presence penalty", -2, 2, 0.1, 0, "Taken once from each token that was answered before."),
  field("frequency_penalty", "Frequency penalty", -2, 2, 0.1, 0, "The same, as often as it was."),
  field("max_tokens", "Max tokens", 1, 2 ** 31 - 1, 1, null, "Where the answer is cut at the latest."),
  field("seed", "Seed", 0, MOST_SEED, 1, null, "The same seed and question give the same answer."),
];

/** @param {string} name @param {string} label @param {number} least @param {number} most @param {number} step
 * @param {number | null} neutral @param {string} hint @returns {Field} */
function field(name, label, least, most, step, neutral, hint) {
  return { name, label, least, most, step, neutral, isWhole: step === 1, hint };
}

/** Of examples, whose answers should make sense from any model. @type {Record<string, number>} */
export const EXAMPLE_SAMPLING = { temperature: 0, max_tokens: 256 };

export const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, year: { type: "integer" } },
  required: ["name", "year"],
  additionalProperties: false,
};

export const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a place",
      parameters: {
        type: "object",
        properties: { city: { type: "string" }, unit: { enum: ["celsius", "fahrenheit"] } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];

/** @returns {Choices} */
export function defaultChoices() {
  return {
    ...{ model: "", system: "", sampling: {}, stop: "", thinking: "", format: "text" },
    ...{ schema: JSON.stringify(EXAMPLE_SCHEMA, null, 2), showsLogprobs: false, usesTools: false },
    ...{ tools: JSON.stringify(EXAMPLE_TOOLS, null, 2), toolChoice: "auto", mcp: [], asksApproval: true },
  };
}

/** @type {Record<string, string[]>} */
const ONE_OF = {
  thinking: ["", "on", "off"],
  format: ["text", "json_object", "json_schema"],
  toolChoice: ["auto", "required", "none"],
};

/** What was kept, as far as it is understood. @param {any} given @returns {Choices} */
export function readChoices(given) {
  /** @type {any} */
  const choices = defaultChoices();
  for (const [name, usual] of Object.entries(choices)) {
    const value = given?.[name];
    if (typeof value !== typeof usual || Array.isArray(usual)) continue;
    if (ONE_OF[name]?.includes(value) ?? true) choices[name] = value;
  }
  choices.mcp = Array.isArray(given?.mcp) ? given.mcp.filter((/** @type {any} */ label) => typeof label === "string") : [];
  const sampling = Object.entries(choices.sampling ?? {});
  choices.sampling = Object.fromEntries(sampling.filter(([name, value]) => isKnown(name) && typeof value === "number"));
  return choices;
}

/** @param {string} name */
function isKnown(name) {
  return FIELDS.some((each) => each.name === name);
}

/** What is wrong with a number, "" if nothing. @param {Field} field @param {number} value */
export function complaint(field, value) {
  const isRight = Number.isFinite(value) && value >= field.least && value <= field.most;
  if (isRight && (!field.isWhole || Number.isInteger(value))) return "";
  const most = field.most >= 2 ** 31 - 1 ? `at least ${field.least}` : `from ${field.least} to ${field.most}`;
  return `${field.label} must be ${field.isWhole ? "a whole number, " : ""}${most}.`;
}

/** Strings that end an answer, one a line, in which \n is a line break. @param {string} text */
export function stops(text) {
  const lines = text.split("\n").filter((line) => line !== "");
  /** @type {Record<string, string>} */
  const marks = { n: "\n", t: "\t", "\\": "\\" };
  return lines.map((line) => line.replace(/\\([nt\\])/g, (_, mark) => marks[mark]));
}

/** The tools of a text, each as chat completions have them. @param {string} text
 * @returns {any[]} @throws {Error} saying what is wrong */
export function readTools(text) {
  const given = parsed(text, "The tools");
  if (!Array.isArray(given)) throw new Error("The tools must be a list: [ … ].");
  const names = new Set();
  return given.map((tool, at) => {
    const made = tool?.function ?? tool;
    const name = made?.name;
    if (tool?.type !== undefined && tool.type !== "function") {
      throw new Error(`Tool ${at + 1} is of type ${JSON.stringify(tool.type)}; only functions are taken here.`);
    }
    if (typeof name !== "string" || !name) throw new Error(`Tool ${at + 1} has no name.`);
    if (!/^[\w.-]{1,256}$/.test(name)) throw new Error(`${name} is no name for a tool: letters, digits, _ and - are.`);
    if (names.has(name)) throw new Error(`Two tools are called ${name}.`);
    names.add(name);
    const isSchema = made.parameters === undefined || isObject(made.parameters);
    if (!isSchema) throw new Error(`The parameters of ${name} must be a JSON schema: { … }.`);
    const { type: _, ...rest } = made;
    return { type: "function", function: rest };
  });
}

/** @param {string} text @returns {any} @throws {Error} */
export function readSchema(text) {
  const given = parsed(text, "The schema");
  if (isObject(given)) return given;
  throw new Error("The schema must be an object: { … }.");
}

/** @param {any} value */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** @param {string} text @param {string} name */
function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} must be JSON: ${/** @type {Error} */ (error).message.replace(/\.$/, "")}.`);
  }
}

/** @type {Served} before there is a house */
export const NOTHING_SERVED = { model: "", maxLogprobs: 20, toolServers: [], thinks: false, readsCalls: true };

/** @param {any} house @returns {Served} */
export function servedBy({ model, max_logprobs, tool_servers }) {
  const thinks = Boolean(model.reasoning_parser) && model.reasoning_parser !== "none";
  const readsCalls = model.tool_call_parser !== null;
  return { model: model.id, maxLogprobs: max_logprobs, toolServers: tool_servers, thinks, readsCalls };
}

/** Why what is chosen may not do what it seems to, "" if it does. @param {Choices} choices @param {Served} served */
export function advice(choices, served) {
  const hasTools = choices.usesTools || choices.mcp.some((label) => served.toolServers.includes(label));
  if (!hasTools || served.readsCalls || choices.toolChoice !== "auto") return "";
  return "This model’s template shows it no tools in a form that is known: it calls one only if “Calls are” is “required”.";
}

/** What requests are made from. @param {Choices} choices @param {Served} served
 * @returns {Options} @throws {Error} for what cannot be sent, in words */
export function options(choices, served) {
  /** @type {Record<string, any>} */
  const sampling = {};
  for (const field of FIELDS) {
    const value = choices.sampling[field.name];
    if (value === undefined) continue;
    const wrong = complaint(field, value);
    if (wrong) throw new Error(wrong);
    sampling[field.name] = value;
  }
  const stop = stops(choices.stop);
  if (stop.length > MOST_STOPS)
    throw new Error(`There are ${stop.length} stop strings; at most ${MOST_STOPS} are taken.`);
  if (stop.length) sampling.stop = stop;
  return {
    ...{ model: choices.model || served.model, system: choices.system.trim(), sampling, format: format(choices) },
    topLogprobs: choices.showsLogprobs ? Math.min(ALTERNATIVES, served.maxLogprobs) : null,
    tools: choices.usesTools ? readTools(choices.tools) : [],
    toolChoice: choices.toolChoice,
    mcp: choices.mcp.filter((label) => served.toolServers.includes(label)),
    asksApproval: choices.asksApproval,
    thinking: served.thinks && choices.thinking ? choices.thinking === "on" : null,
  };
}

/** @param {Choices} choices */
function format(choices) {
  if (choices.format === "text") return null;
  if (choices.format === "json_object") return { type: "json_object" };
  return { type: "json_schema", json_schema: { name: "answer", schema: readSchema(choices.schema), strict: true } };
}
