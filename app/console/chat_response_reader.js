/** Events of the Responses API into the parts of an answer. Pure; used by chat_stream.js. */

import { token } from "./chat_completion_reader.js";

/** @typedef {import("./chat_conversation.js").Answer} Answer @typedef {import("./chat_conversation.js").Part} Part */

const ENDS = new Set(["response.completed", "response.incomplete", "response.failed", "error"]);

export class ResponseReader {
  endsWithDone = false;
  isWhole = false;
  isOver = false;
  #answer;
  /** @type {Map<number, any>} parts by the place of their item */ #parts = new Map();

  /** @param {Answer} answer */
  constructor(answer) {
    this.#answer = answer;
  }

  /** @param {any} event @returns {boolean} whether it has brought anything of the answer */
  take(event) {
    this.isOver = ENDS.has(event.type);
    switch (event.type) {
      case "response.output_item.added":
        return this.#begin(event.output_index, event.item);
      case "response.output_item.done":
        this.#begin(event.output_index, event.item);
        return this.#renew(event.output_index, event.item);
      case "response.reasoning_text.delta":
        this.#parts.get(event.output_index).text += event.delta;
        return true;
      case "response.output_text.delta": {
        const part = this.#parts.get(event.output_index);
        part.text += event.delta;
        part.tokens.push(...(event.logprobs ?? []).map(token));
        return true;
      }
      case "response.function_call_arguments.delta":
      case "response.mcp_call_arguments.delta":
        this.#parts.get(event.output_index).arguments += event.delta;
        return true;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        this.#close(event.response);
        return false;
      case "error":
        this.#answer.outcome.error = String(event.message ?? event.error?.message ?? "The response has failed.");
        return false;
    }
    return false;
  }

  /** @param {number} at @param {any} item */
  #begin(at, item) {
    if (this.#parts.has(at)) return false;
    const part = newPart(item);
    if (!part) return false;
    this.#parts.set(at, part);
    this.#answer.parts.push(part);
    return false;
  }

  /** @param {number} at @param {any} item as it ended */
  #renew(at, item) {
    const part = this.#parts.get(at);
    const ended = newPart(item);
    if (!part || !ended) return false;
    if (part.kind === "text" || part.kind === "thought") return false; // its deltas were all of it
    Object.assign(part, ended);
    return true;
  }

  /** @param {any} response */
  #close(response) {
    const { outcome } = this.#answer;
    if (response.usage) {
      outcome.usage = {
        prompt: response.usage.input_tokens,
        cached: response.usage.input_tokens_details?.cached_tokens ?? 0,
        completion: response.usage.output_tokens,
      };
    }
    if (response.status === "failed") {
      outcome.error = String(response.error?.message ?? "The response has failed.");
      return;
    }
    const isCut = response.incomplete_details?.reason === "max_output_tokens";
    outcome.finish = response.status === "completed" ? "stop" : isCut ? "length" : response.incomplete_details?.reason;
    this.#answer.items = response.output;
    this.isWhole = true;
  }

  /** Nothing more comes: without its items, calls and questions cannot be answered. */
  end() {
    if (this.isWhole) return;
    this.#answer.parts = this.#answer.parts.filter((part) => part.kind !== "call" && part.kind !== "approval");
  }
}

/** @param {any} item @returns {Part | null} */
function newPart(item) {
  switch (item.type) {
    case "message":
      return { kind: "text", text: "", tokens: [] };
    case "reasoning":
      return { kind: "thought", text: "" };
    case "function_call":
      return { kind: "call", id: item.call_id, name: item.name, arguments: item.arguments };
    case "mcp_list_tools":
      return {
        kind: "list",
        label: item.server_label,
        tools: (item.tools ?? []).map((/** @type {any} */ tool) => tool.name),
        error: item.error ?? "",
      };
    case "mcp_call":
      return {
        kind: "mcp",
        ...{ label: item.server_label, name: item.name, arguments: item.arguments },
        ...{ output: item.output ?? "", error: errorText(item.error), status: item.status },
      };
    case "mcp_approval_request":
      return { kind: "approval", id: item.id, label: item.server_label, name: item.name, arguments: item.arguments };
  }
  return null;
}

/** @param {any} error */
function errorText(error) {
  if (!error) return "";
  return error.message ?? (error.content ?? []).map((/** @type {any} */ part) => part.text ?? "").join("\n");
}
