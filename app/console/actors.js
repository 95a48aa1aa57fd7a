// What actors are and do, in words, and what has happened to them between two readings. Pure.

import { counted, duration } from "./words.js";

const SILENT_SECONDS = 5; // as the server: from then on an actor gets no new requests
const NEWS_SECONDS = 4; // for which it is shown that an actor has just been started again

const WHAT_IT_DOES = {
  app: "HTTP, validation, streams",
  api: "takes connections and answers",
  engine: "scheduler, KV blocks, steps",
  rank: "computes a part of the model",
  output: "detokenising, stop strings",
  weights: "one copy of the checkpoint",
  standby: "becomes the next engine",
  kv: "keeps keys and values",
};

const PHASES = {
  start: "starting",
  import: "importing",
  "compile kernels": "compiling kernels",
  "lay out weights": "laying out weights",
  "wait for weights": "waiting for the weights",
  load: "loading",
  "allocate KV cache": "allocating the KV cache",
  "warm up": "warming up",
  idle: "idle",
  step: "computing",
  serve: "serving",
  wait: "waiting for its engine",
  down: "not running",
  end: "ending",
};

/** @param {any} actor @param {boolean} ownsAll whether other processes take the connections */
export const describe = (actor, ownsAll) =>
  actor.kind === "app" && ownsAll ? "owns all processes" : (WHAT_IT_DOES[actor.kind] ?? actor.kind);

/** What is ready has left these: its next heartbeat says so. */
const ONLY_BEFORE_READY = ["start", "import", "compile kernels", "warm up"];

/** Whether its phase is yet to be told. @param {any} actor */
const hasJustStarted = (actor) => actor.ready && ONLY_BEFORE_READY.includes(actor.phase);

/** @param {any} actor */
export const phaseOf = (actor) => (hasJustStarted(actor) ? "just started" : (PHASES[actor.phase] ?? actor.phase));

/** With how long, for the table. @param {any} actor */
export function phaseSince(actor) {
  const isTimeless = actor.kind === "app" || hasJustStarted(actor);
  return `${phaseOf(actor)}${isTimeless ? "" : ` for ${duration(actor.phase_seconds)}`}`;
}

/** In one word or a few, and how bad that is: ok, busy (on its way), warn, bad or off.
 * @param {any} actor @param {number} [restartedAt] when the page saw that, by `now` @param {number} [now] seconds
 * @returns {{word: string, level: string}} */
export function stateOf(actor, restartedAt = -Infinity, now = 0) {
  if (actor.ready && actor.heartbeat_age > SILENT_SECONDS) {
    return { word: `silent for ${Math.round(actor.heartbeat_age)} s`, level: "warn" };
  }
  if (actor.ready) {
    return now - restartedAt < NEWS_SECONDS ? { word: "restarted", level: "busy" } : { word: "ready", level: "ok" };
  }
  const isAgain = actor.restarts > 0 || actor.last_end !== null;
  const isUnderWay = actor.phase !== "down" && actor.progress > 0 && actor.progress < 1;
  const progress = isUnderWay ? ` ${Math.floor(actor.progress * 100)} %` : "";
  if (!actor.needed && actor.phase === "down") {
    return { word: actor.kind === "standby" || !isAgain ? "comes later" : "not needed now", level: "off" };
  }
  if (isAgain) return { word: `restarting${progress}`, level: "warn" };
  return { word: actor.phase === "down" ? "not started yet" : `starting${progress}`, level: "busy" };
}

/** @param {any} actor */
export function restartsOf(actor) {
  return actor.restarts ? counted(actor.restarts, "restart") : "never restarted";
}

/** Follows the readings and says what has happened, for the list of events. Each process of an actor has an epoch of its
 * own, and a later one a higher: with several API servers a reading may be of before the last one. */
export class Happenings {
  /** @type {any} */
  #before = null;
  /** Names of actors that are down, with the epoch after which they are up again. @type {Map<string, number>} */
  #down = new Map();
  /** The last epoch that was seen of each. @type {Map<string, number>} */
  #epochs = new Map();
  /** @type {Map<string, number>} */
  #restartedAt = new Map();

  /** When the page saw an actor come back, by the server's clock. @param {string} name */
  restartedAt(name) {
    return this.#restartedAt.get(name) ?? -Infinity;
  }

  /** @param {any} house @returns {{level: string, text: string}[]} the oldest first */
  take(house) {
    const before = this.#before;
    this.#before = house;
    if (before === null) return this.#already(house);
    if (Math.abs(before.started_at - house.started_at) > 1) {
      this.#down.clear();
      this.#epochs = epochsOf(house);
      return [{ level: "warn", text: "the server was started again" }];
    }
    const events = house.actors.flatMap((actor) => this.#ofActor(before, actor, house.now));
    return [...withThoseThatWentOn(events, house.requests.replayed - before.requests.replayed), ...ofServer(before, house)];
  }

  /** @param {any} house */
  #already(house) {
    const died = house.actors.filter((actor) => actor.deaths > 0);
    this.#epochs = epochsOf(house);
    for (const actor of house.actors) {
      if (!actor.ready && actor.kind !== "standby") this.#down.set(actor.name, actor.epoch - 1);
    }
    return died.map((actor) => ({
      level: "off",
      text: `before this page was opened, ${actor.name} had ended ${actor.deaths === 1 ? "once" : `${actor.deaths} times`}${because(actor)}`,
    }));
  }

  /** @param {any} before @param {any} actor @param {number} now */
  #ofActor(before, actor, now) {
    const past = before.actors.find((one) => one.name === actor.name);
    if (!past || actor.kind === "standby") return []; // a standby is used up by each restart
    const known = this.#epochs.get(actor.name) ?? actor.epoch;
    if (actor.epoch < known) return []; // it was told of already
    this.#epochs.set(actor.name, actor.epoch);
    const events = [];
    const isAnother = actor.epoch > known && actor.last_end !== null;
    const isTold = (this.#down.get(actor.name) ?? -Infinity) >= known;
    if ((isAnother || (past.pid !== null && actor.pid === null)) && !isTold) {
      events.push({ level: "bad", text: `${actor.name} ended${because(actor)}` });
      this.#down.set(actor.name, known);
    }
    if (actor.ready && actor.epoch > (this.#down.get(actor.name) ?? Infinity)) {
      this.#down.delete(actor.name);
      const isAgain = actor.restarts > 0 || past.last_end !== null;
      if (isAgain) this.#restartedAt.set(actor.name, now);
      events.push({ level: "ok", text: `${actor.name} is ready${isAgain ? " again" : ""}` });
    }
    return events;
  }
}

/** @param {any} house @returns {Map<string, number>} */
const epochsOf = (house) => new Map(house.actors.map((actor) => [actor.name, actor.epoch]));

/** @param {any} actor */
const because = (actor) => (actor.last_end ? `: ${actor.last_end}` : "");

/** They may go on in another engine before the one that ended is back.
 * @param {{level: string, text: string}[]} events @param {number} number */
function withThoseThatWentOn(events, number) {
  if (number <= 0) return events;
  const wentOn = `${counted(number, "request")} went on`;
  const last = events.at(-1);
  if (last?.level !== "ok") return [...events, { level: "ok", text: wentOn }];
  return [...events.slice(0, -1), { ...last, text: `${last.text}; ${wentOn}` }];
}

/** @param {any} before @param {any} house */
function ofServer(before, house) {
  const events = [];
  const condemned = house.requests.condemned - before.requests.condemned;
  if (condemned > 0) events.push({ level: "bad", text: `${counted(condemned, "request")} ended as the cause of several deaths` });
  const held = (/** @type {any} */ one) => (one.run_state.is_sleeping ? "put to sleep" : one.run_state.is_paused ? "paused" : "");
  if (held(house) && held(house) !== held(before)) events.push({ level: "warn", text: `the engines were ${held(house)} by an operator` });
  if (held(before) && !held(house)) events.push({ level: "ok", text: "the engines go on" });
  if (before.alive && !house.alive) events.push({ level: "bad", text: `the service cannot go on: ${house.reason}` });
  return events;
}

/** A line for the drawing. @param {any} actor */
export function lifeOf(actor) {
  if (actor.kind === "app") return `up ${duration(actor.phase_seconds)} · pid ${actor.pid}`;
  if (actor.pid === null) return phaseOf(actor);
  return `${phaseOf(actor)} · pid ${actor.pid}`;
}

/** @param {any} actor */
export function heartbeatOf(actor) {
  if (actor.kind === "app" || actor.kind === "standby" || actor.pid === null) return "";
  return `heard ${actor.heartbeat_age < 1 ? "just now" : `${Math.round(actor.heartbeat_age)} s ago`}`;
}
