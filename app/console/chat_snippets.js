/** A request as a command and as a program that send the very same. Pure; used by chat_code.js. */

/** @typedef {import("./chat_request.js").Request} Request */

const OPENAI = {
  "v1/chat/completions": new Set([
    ...["model", "messages", "temperature", "top_p", "max_tokens", "seed", "stop", "presence_penalty"],
    ...["frequency_penalty", "response_format", "logprobs", "top_logprobs", "tools", "tool_choice", "stream"],
    "stream_options",
  ]),
  "v1/responses": new Set([
    ...["model", "instructions", "input", "temperature", "top_p", "max_output_tokens", "text", "include"],
    ...["top_logprobs", "tools", "tool_choice", "store", "stream"],
  ]),
};

/** @param {Request} request @param {string} base the server's URL, with a slash at its end */
export function curl(request, base) {
  const lines = [
    `curl --no-buffer ${quoted(base + request.path)} \\`,
    `  -H "Authorization: Bearer $OPENAI_API_KEY" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  --data-binary @- <<'JSON'`,
    JSON.stringify(request.body, null, 2), // no line of it is JSON alone: strings have no line breaks
    "JSON",
  ];
  return `${lines.join("\n")}\n`;
}

/** In one word of a shell. @param {string} text */
function quoted(text) {
  return /^[\w:/.,@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** @param {Request} request @param {string} base */
export function python(request, base) {
  const known = OPENAI[request.path];
  const own = Object.entries(request.body).filter(([name]) => known.has(name));
  const extra = Object.entries(request.body).filter(([name]) => !known.has(name));
  const call = request.path === "v1/responses" ? "client.responses.create" : "client.chat.completions.create";
  const fields = own.map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  if (extra.length) fields.push(`    extra_body=${literal(Object.fromEntries(extra), 1)},`);
  return `${[
    "import os",
    "",
    "from openai import OpenAI",
    "",
    "client = OpenAI(",
    `    base_url=${literal(`${base}v1`, 1)},`,
    `    api_key=os.environ.get("OPENAI_API_KEY", "none"),`,
    ")",
    `stream = ${call}(`,
    ...fields,
    ")",
    ...(request.path === "v1/responses" ? READ_RESPONSE : READ_CHAT),
  ].join("\n")}\n`;
}

const READ_CHAT = [
  "for chunk in stream:",
  "    for choice in chunk.choices:",
  `        print(choice.delta.content or "", end="", flush=True)`,
  "        for call in choice.delta.tool_calls or []:",
  `            print(call.function.name or "", call.function.arguments or "", end="", flush=True)`,
  "print()",
];

const READ_RESPONSE = [
  "for event in stream:",
  `    if event.type == "response.output_text.delta":`,
  `        print(event.delta, end="", flush=True)`,
  `    elif event.type == "response.output_item.done" and event.item.type != "message":`,
  "        print(event.item.to_json())",
  "print()",
];

/** @param {any} value of JSON @param {number} depth @returns {string} */
function literal(value, depth) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return JSON.stringify(value); // JSON's escapes are Python's
  if (typeof value !== "object") return String(value);
  const inner = "    ".repeat(depth + 1);
  const isList = Array.isArray(value);
  const entries = isList
    ? value.map((each) => literal(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  const short = `${open}${entries.join(", ")}${close}`;
  if (short.length < 70 && !short.includes("\n")) return short;
  return `${open}\n${entries.map((entry) => `${inner}${entry},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
