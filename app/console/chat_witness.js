/** Tells of an answer that it went on over the death of a process, by what the house counts. Used by chat.js. */

const LIMIT_MILLISECONDS = 5000;

export class Witness {
  #api;
  /** @type {any} the last reading, null: none yet */ #house = null;

  /** @param {any} api */
  constructor(api) {
    this.#api = api;
  }

  /** @param {any} house */
  take(house) {
    this.#house = house;
  }

  /** Call it when an answer begins. @returns {() => Promise<string>} asks when it has ended: what died meanwhile, "" if
   * no request had to be taken up again, or nobody can tell */
  begin() {
    const before = this.#house;
    return async () => (before === null ? "" : survived(before, await this.#now()));
  }

  async #now() {
    try {
      const signal = AbortSignal.timeout(LIMIT_MILLISECONDS);
      const reply = await this.#api.fetch("house", { cache: "no-store", signal });
      return reply.ok ? await reply.json() : this.#house;
    } catch {
      return this.#house; // the answer is whole; that the server is away now is told elsewhere
    }
  }
}

/** What died between two readings, if requests went on over that. @param {any} before @param {any} now */
export function survived(before, now) {
  const isSame = Math.abs(before.started_at - now.started_at) <= 1;
  if (!isSame || now.requests.replayed <= before.requests.replayed) return "";
  const died = now.actors.filter((/** @type {any} */ actor) => {
    const past = before.actors.find((/** @type {any} */ one) => one.name === actor.name);
    const isUsedUp = actor.kind === "standby"; // by each restart
    return past && !isUsedUp && (actor.restarts > past.restarts || actor.deaths > past.deaths);
  });
  return died.map((/** @type {any} */ actor) => actor.name).join(", ") || "a process";
}
