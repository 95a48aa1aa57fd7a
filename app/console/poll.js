// A reading of the house once a second. Dispatched on document: `house` with each, `house-lost` when there is none any
// more, `house-back` with the seconds that it took. Used by main.js.

import { announce } from "./announcer.js";
import { showHouse, showLocked, showLost } from "./frame.js";

const MILLISECONDS = 1000;
const HIDDEN_MILLISECONDS = 2000; // while nobody sees the page: the charts stay without gaps
const HURRIED_MILLISECONDS = 300; // while something that is needed is not ready
const LIMIT_MILLISECONDS = 8000;
const MOST_MILLISECONDS_BETWEEN_TRIES = 5000;

export class Poll {
  #requests;
  #lostAt = 0;
  #numFailed = 0;
  #isReading = false;
  #isHurried = false;
  /** @type {number | undefined} */
  #timer;

  /** @param {import("./requests.js").Requests} requests */
  constructor(requests) {
    this.#requests = requests;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && !this.#requests.isDeclined) this.now();
    });
  }

  /** Without waiting for the next second. */
  now() {
    window.clearTimeout(this.#timer);
    this.#read();
  }

  async #read() {
    if (this.#isReading) return;
    this.#isReading = true;
    const began = performance.now();
    try {
      const response = await this.#requests.fetch("house", { cache: "no-store" }, LIMIT_MILLISECONDS);
      if (response.ok) this.#take(await response.json());
      else if (response.status === 401) showLocked();
      else this.#lose(await complaint(response));
    } catch (error) {
      this.#lose(error instanceof DOMException && error.name === "TimeoutError" ? "It does not answer in time." : "");
    } finally {
      this.#isReading = false;
      if (!this.#requests.isDeclined) this.#timer = window.setTimeout(() => this.#read(), this.#pause(began));
    }
  }

  /** @param {number} began */
  #pause(began) {
    const usual = document.hidden ? HIDDEN_MILLISECONDS : this.#isHurried ? HURRIED_MILLISECONDS : MILLISECONDS;
    const pause = Math.min(usual * 2 ** Math.max(0, this.#numFailed - 2), MOST_MILLISECONDS_BETWEEN_TRIES);
    return Math.max(0, pause - (performance.now() - began));
  }

  /** @param {any} house */
  #take(house) {
    this.#isHurried = house.actors.some((/** @type {any} */ actor) => actor.needed && !actor.ready);
    if (this.#lostAt) {
      announce("The server answers again.");
      const seconds = (Date.now() - this.#lostAt) / 1000;
      document.dispatchEvent(new CustomEvent("house-back", { detail: { seconds } }));
    }
    this.#lostAt = this.#numFailed = 0;
    showHouse(house);
    document.dispatchEvent(new CustomEvent("house", { detail: house }));
  }

  /** @param {string} why */
  #lose(why) {
    this.#numFailed += 1;
    if (!this.#lostAt) {
      this.#lostAt = Date.now();
      document.dispatchEvent(new CustomEvent("house-lost"));
    }
    showLost(this.#lostAt, why);
  }
}

/** @param {Response} response */
async function complaint(response) {
  try {
    return `It says: ${(await response.json()).error.message}`;
  } catch {
    return `It answers with status ${response.status}.`;
  }
}
