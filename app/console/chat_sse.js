/**
 * Server-sent events out of a stream of bytes, as the API writes them. Pure; used by chat_stream.js.
 *
 * Characters and line ends may be cut anywhere between two pieces.
 */

const DONE = "[DONE]";

/** What a stream's end is told by: anything else that ends it has broken it off. */
export class BrokenStream extends Error {}

/** Lines of a text that comes in pieces, ended by LF, CR or both. */
export class Lines {
  #rest = "";
  #endedWithReturn = false;

  /**
   * @param {string} text
   * @returns {string[]} the lines that are whole now
   */
  add(text) {
    if (this.#endedWithReturn && text.startsWith("\n")) text = text.slice(1);
    if (text) this.#endedWithReturn = text.endsWith("\r");
    const lines = (this.#rest + text).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() ?? "";
    return lines;
  }
}

/**
 * The data of each event, up to [DONE].
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {boolean} endsWithDone whether a stream without [DONE] is broken off
 * @returns {AsyncGenerator<any>} decoded JSON
 */
export async function* events(body, endsWithDone) {
  const decoder = new TextDecoder(); // it skips a byte order mark
  const lines = new Lines();
  /** @type {string[]} */
  let data = [];
  const reader = body.getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      for (const line of lines.add(done ? decoder.decode() : decoder.decode(value, { stream: true }))) {
        if (line === "") {
          if (data.length) {
            const whole = data.join("\n");
            data = [];
            if (whole === DONE) return;
            yield JSON.parse(whole);
          }
        } else if (line === "data" || line.startsWith("data:")) {
          data.push(line.slice(5).replace(/^ /, ""));
        } // names of events are their data's `type`; comments keep the connection open
      }
      if (done) break;
    }
  } finally {
    reader.cancel().catch(() => {}); // of a stream that is over or broken there is nothing to cancel
  }
  if (endsWithDone) throw new BrokenStream("The connection broke before the answer was whole.");
}
