/**
 * The request of the next turn: a chat completion, or a response where MCP servers take part. Pure; what is sent is what
 * chat_snippets.js shows.
 *
 * Responses get the whole conversation each time and none is stored, so that a server may forget, be another one, or
 * keep none at all.
 *
 * @typedef {import("./chat_conversation.js").Message} Message
 * @typedef {import("./chat_conversation.js").Answer} Answer
 * @typedef {import("./chat_choices.js").Options} Options
 * @typedef {{path: "v1/chat/completions" | "v1/responses", body: Record<string, any>}} Request
 */

import { callsOf, textOf, thoughtsOf } from "./chat_conversation.js";

const LOGPROBS = "message.output_text.logprobs";

/** @param {Message[]} messages @param {Options} given @returns {Request} */
export function request(messages, given) {
  // A call that is required is required once: after its result the model may answer.
  const isResult = ["tool", "decision"].includes(messages.at(-1)?.role ?? "");
  const options = isResult && given.toolChoice === "required" ? { ...given, toolChoice: "auto" } : given;
  return options.mcp.length
    ? { path: "v1/responses", body: responsesBody(messages, options) }
    : { path: "v1/chat/completions", body: chatBody(messages, options) };
}

/** @param {Message[]} messages @param {Options} options */
function chatBody(messages, options) {
  const system = options.system ? [{ role: "system", content: options.system }] : [];
  const { max_tokens, ...sampling } = options.sampling;
  return {
    model: options.model,
    messages: [...system, ...messages.flatMap(chatMessage)],
    ...sampling,
    ...(max_tokens === undefined ? {} : { max_tokens }),
    ...(options.format ? { response_format: options.format } : {}),
    ...(options.topLogprobs === null ? {} : { logprobs: true, top_logprobs: options.topLogprobs }),
    ...(options.tools.length ? { tools: options.tools, tool_choice: options.toolChoice } : {}),
    ...thinking(options),
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** @param {Options} options */
function thinking(options) {
  return options.thinking === null ? {} : { chat_template_kwargs: { enable_thinking: options.thinking } };
}

/** @param {Message} message @returns {any[]} */
function chatMessage(message) {
  switch (message.role) {
    case "user":
      return [{ role: "user", content: message.text }];
    case "tool":
      return [{ role: "tool", tool_call_id: message.id, content: message.text }];
    case "decision":
      return []; // only responses have these
  }
  const calls = callsOf(message);
  const text = textOf(message);
  const thoughts = thoughtsOf(message);
  if (!text && !calls.length) return [];
  return [
    {
      role: "assistant",
      content: text || (calls.length ? null : ""),
      ...(thoughts ? { reasoning: thoughts } : {}),
      ...(calls.length ? { tool_calls: calls.map(chatCall) } : {}),
    },
  ];
}

/** @param {import("./chat_conversation.js").Call} call */
function chatCall(call) {
  return { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } };
}

/** @param {Message[]} messages @param {Options} options */
function responsesBody(messages, options) {
  const { max_tokens, ...sampling } = options.sampling;
  const servers = options.mcp.map((label) => {
    return { type: "mcp", server_label: label, require_approval: options.asksApproval ? "always" : "never" };
  });
  const tools = options.tools.map((tool) => ({ type: "function", ...tool.function }));
  const format =
    options.format?.type === "json_schema" ? { type: "json_schema", ...options.format.json_schema } : options.format;
  return {
    model: options.model,
    ...(options.system ? { instructions: options.system } : {}),
    input: messages.flatMap(items),
    ...sampling,
    ...(max_tokens === undefined ? {} : { max_output_tokens: max_tokens }),
    ...(format ? { text: { format } } : {}),
    ...(options.topLogprobs === null ? {} : { include: [LOGPROBS], top_logprobs: options.topLogprobs }),
    tools: [...servers, ...tools],
    tool_choice: options.toolChoice,
    ...thinking(options),
    store: false,
    stream: true,
  };
}

/** @param {Message} message @returns {any[]} */
function items(message) {
  switch (message.role) {
    case "user":
      return [{ role: "user", content: message.text }];
    case "tool":
      return [{ type: "function_call_output", call_id: message.id, output: message.text }];
    case "decision":
      return [{ type: "mcp_approval_response", approval_request_id: message.id, approve: message.approve }];
  }
  if (message.items) return message.items;
  const text = textOf(message);
  const content = [{ type: "output_text", text }];
  const calls = callsOf(message).map((call) => {
    return { type: "function_call", call_id: call.id, name: call.name, arguments: call.arguments };
  });
  return [...(text ? [{ type: "message", role: "assistant", content }] : []), ...calls];
}
