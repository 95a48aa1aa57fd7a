/** Chunks of a chat completion into the parts of an answer. Pure; used by chat_stream.js. */

/** @typedef {import("./chat_conversation.js").Answer} Answer @typedef {import("./chat_conversation.js").Part} Part */

export class ChatReader {
  endsWithDone = true;
  isWhole = false;
  isOver = false;
  #answer;
  /** @type {Map<number, import("./chat_conversation.js").Call>} */ #calls = new Map();

  /** @param {Answer} answer */
  constructor(answer) {
    this.#answer = answer;
  }

  /** @param {any} chunk @returns {boolean} whether it has brought anything of the answer */
  take(chunk) {
    const { outcome } = this.#answer;
    if (chunk.error) {
      outcome.error = told(chunk.error.message ?? chunk.error, "The server has ended the answer with an error.");
      return false;
    }
    if (chunk.usage) outcome.usage = usage(chunk.usage);
    const choice = chunk.choices?.[0];
    if (!choice) return false;
    const { reasoning, content } = choice.delta ?? {};
    const calls = choice.delta?.tool_calls ?? [];
    if (reasoning) grown(this.#answer, "thought").text += reasoning;
    const isOther = reasoning || calls.length; // whose tokens are not those of the text
    const tokens = isOther ? [] : (choice.logprobs?.content ?? []).map(token);
    if (content || tokens.length) {
      const part = grown(this.#answer, "text");
      part.text += content ?? "";
      part.tokens.push(...tokens);
    }
    for (const call of calls) this.#grow(call);
    if (choice.finish_reason) {
      outcome.finish = String(choice.finish_reason);
      this.isWhole = true;
    }
    return Boolean(reasoning || content || tokens.length || calls.length);
  }

  /** @param {any} delta */
  #grow(delta) {
    let call = this.#calls.get(delta.index);
    if (!call) {
      call = { kind: "call", id: delta.id ?? "", name: "", arguments: "" };
      this.#calls.set(delta.index, call);
      this.#answer.parts.push(call);
    }
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
  }

  /** Nothing more comes: a call that is not whole cannot be answered. */
  end() {
    if (!this.isWhole) this.#answer.parts = this.#answer.parts.filter((part) => part.kind !== "call");
  }
}

/** The last part, if it is of this kind, else a new one.
 * @param {Answer} answer @param {"thought" | "text"} kind @returns {any} */
export function grown(answer, kind) {
  const last = answer.parts.at(-1);
  if (last?.kind === kind) return last;
  /** @type {any} */
  const part = kind === "text" ? { kind, text: "", tokens: [] } : { kind, text: "" };
  answer.parts.push(part);
  return part;
}

/** @param {any} told @returns {import("./chat_conversation.js").Token} */
export function token(told) {
  const candidate = (/** @type {any} */ each) => ({ token: each.token, bytes: each.bytes ?? null, logprob: each.logprob });
  return { ...candidate(told), top: (told.top_logprobs ?? []).map(candidate) };
}

/** @param {any} value @param {string} otherwise if it is no text */
function told(value, otherwise) {
  return typeof value === "string" ? value : otherwise;
}

/** @param {any} told @returns {import("./chat_conversation.js").Usage | null} null: not what the API has */
function usage(told) {
  if (typeof told.prompt_tokens !== "number" || typeof told.completion_tokens !== "number") return null;
  return {
    prompt: told.prompt_tokens,
    cached: told.prompt_tokens_details?.cached_tokens ?? 0,
    completion: told.completion_tokens,
  };
}
