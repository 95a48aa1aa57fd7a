/**
 * One answer as it comes: asks, waits where the server says so, and grows the answer's parts. What is shown is looked up
 * there by chat_answer.js. Used by chat.js.
 *
 * @typedef {import("./chat_conversation.js").Answer} Answer
 * @typedef {import("./chat_request.js").Request} Request
 * @typedef {{api: {fetch: (path: string, init?: RequestInit) => Promise<Response>}, signal: AbortSignal,
 *     changed: () => void, waiting: (told: string, seconds: number) => void}} Listening
 */

import { ChatReader } from "./chat_completion_reader.js";
import { ResponseReader } from "./chat_response_reader.js";
import { BrokenStream, events } from "./chat_sse.js";

const MOST_TRIES = 8;
const MOST_SECONDS = 60;

/** What a server has refused, in its words. */
class Refused extends Error {}

/**
 * Plays the request into the answer. Returns when it has ended, whatever ended it; what went wrong stands in its outcome.
 *
 * @param {Request} request @param {Answer} answer @param {Listening} listening
 */
export async function play(request, answer, listening) {
  const clock = new Clock();
  const reader = request.path === "v1/responses" ? new ResponseReader(answer) : new ChatReader(answer);
  try {
    const response = await ask(request, listening, clock);
    const body = /** @type {ReadableStream<Uint8Array>} */ (response.body);
    for await (const event of events(body, reader.endsWithDone)) {
      if (taken(reader, event)) clock.token();
      listening.changed();
      if (reader.isOver) break;
    }
    if (!reader.isWhole && !answer.outcome.error)
      throw new BrokenStream("The stream ended before the answer was whole.");
  } catch (error) {
    if (listening.signal.aborted) answer.outcome.isStopped = true;
    else answer.outcome.error = inWords(error);
  }
  reader.end();
  clock.tell(answer.outcome);
}

/** @param {ChatReader | ResponseReader} reader @param {any} event @returns {boolean} whether it has brought anything */
function taken(reader, event) {
  try {
    return reader.take(event);
  } catch {
    throw new BrokenStream("The server wrote what does not belong into an answer.");
  }
}

/** @param {unknown} error */
function inWords(error) {
  if (error instanceof Refused || error instanceof BrokenStream) return error.message;
  if (error instanceof SyntaxError) return `The server wrote what is no JSON: ${error.message}`;
  return "The connection to the server was lost.";
}

/** Until there is an answer, or none is to be expected. @param {Request} request @param {Listening} listening
 * @param {Clock} clock @returns {Promise<Response>} */
async function ask(request, listening, clock) {
  const init = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request.body),
    signal: listening.signal,
  };
  for (let tries = 1; ; tries += 1) {
    clock.begin();
    const response = await listening.api.fetch(request.path, init);
    if (response.ok && response.headers.get("Content-Type")?.startsWith("text/html")) {
      throw new Refused("Something before the server has answered with a page, which may ask for a login.");
    }
    if (response.ok && response.body) return response;
    const told = await complaint(response);
    const seconds = Number(response.headers.get("Retry-After") ?? NaN);
    if (response.status !== 503 || !Number.isFinite(seconds) || tries === MOST_TRIES) throw new Refused(told);
    await pause(Math.min(Math.max(seconds, 1), MOST_SECONDS), told, listening);
  }
}

/** @param {Response} response */
async function complaint(response) {
  const text = await response.text();
  try {
    return String(JSON.parse(text).error.message);
  } catch {
    return `The server answered with status ${response.status}${text ? `: ${text.slice(0, 200)}` : "."}`;
  }
}

/** Tells each second how long it takes yet. @param {number} seconds @param {string} told @param {Listening} listening */
async function pause(seconds, told, listening) {
  for (let left = Math.ceil(seconds); left > 0; left -= 1) {
    listening.waiting(told, left);
    await new Promise((resolve, reject) => {
      const timer = setTimeout(done, 1000);
      function done() {
        listening.signal.removeEventListener("abort", stopped);
        resolve(undefined);
      }
      function stopped() {
        clearTimeout(timer);
        reject(listening.signal.reason);
      }
      listening.signal.addEventListener("abort", stopped, { once: true });
    });
  }
  listening.waiting("", 0);
}

/** Times of an answer, by this page's clock. */
class Clock {
  #began = 0;
  #first = 0;
  #last = 0;

  begin() {
    this.#began = performance.now();
  }

  token() {
    this.#last = performance.now();
    this.#first ||= this.#last;
  }

  /** @param {import("./chat_conversation.js").Outcome} outcome */
  tell(outcome) {
    if (!this.#first) return;
    outcome.firstSeconds = (this.#first - this.#began) / 1000;
    const seconds = (this.#last - this.#first) / 1000;
    const tokens = (outcome.usage?.completion ?? 0) - 1;
    if (tokens > 0 && seconds > 0) outcome.rate = tokens / seconds;
  }
}
