// Requests of the page, with the visitor's key, which is kept for this tab only. `key` is dispatched on document when
// there is another one, or it turns out that one is needed; `key-wanted` when the visitor is asked for one as the server
// has refused a request. Used by main.js.

import { KeyDialog } from "./key_dialog.js";
import { store, stored } from "./storage.js";

const KEY_NAME = "trillm.key";

/** @param {string} path relative to the page, as "v1/models" */
export const url = (path) => new URL(path.replace(/^\/+/, ""), document.baseURI).href;

/** A header holds bytes, each written as one character: those of UTF-8, as the server knows its keys. @param {string} text */
const asBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

export class Requests {
  #dialog = new KeyDialog();
  #key = stored("sessionStorage", KEY_NAME);
  /** Whether the server has refused a request for its key. */ isKeyNeeded = false;
  /** The visitor has given none: nobody asks again until they want to. */ isDeclined = false;

  get hasKey() {
    return this.#key !== "";
  }

  /** What the other modules have of this one. */
  get api() {
    const fetch = (/** @type {string} */ path, /** @type {RequestInit} */ init = {}) => this.fetch(path, init);
    return Object.freeze({ fetch, url });
  }

  /** As `fetch`. On 401 the visitor is asked for a key; the refusal is returned only if there is none.
   * @param {string} path relative to the page @param {RequestInit} [init]
   * @param {number | null} [limit] milliseconds that each try may take; the visitor may take longer @returns {Promise<Response>} */
  async fetch(path, init = {}, limit = null) {
    for (;;) {
      const used = this.#key;
      const headers = new Headers(init.headers);
      if (used) headers.set("Authorization", `Bearer ${asBytes(used)}`);
      const signal = limit === null ? init.signal : AbortSignal.timeout(limit);
      const response = await fetch(url(path), { ...init, headers, signal });
      if (response.status !== 401) return response;
      if (!this.isKeyNeeded) {
        this.isKeyNeeded = true;
        this.#tell();
      }
      if (used !== this.#key) continue; // another request has been given a new one meanwhile
      document.dispatchEvent(new CustomEvent("key-wanted"));
      if (await this.ask(used ? "The server does not know this key. Try another one." : "")) continue;
      this.isDeclined = true;
      return response;
    }
  }

  /** Have the visitor type a key. @param {string} [wrong] what was wrong with the last one
   * @returns {Promise<boolean>} whether there is another one */
  async ask(wrong = "") {
    const typed = await this.#dialog.ask(wrong);
    if (!typed) return false;
    this.#key = typed;
    this.isDeclined = false;
    store("sessionStorage", KEY_NAME, typed);
    this.#tell();
    return true;
  }

  #tell() {
    document.dispatchEvent(new CustomEvent("key"));
  }
}
