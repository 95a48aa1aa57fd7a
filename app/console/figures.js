// From readings of the house to the figures that people look at. Pure: counters only grow, so what happened lately is the
// difference of two readings.

const RATE_SECONDS = 3;
const LATENCY_SECONDS = 10;
const LEAST_SAMPLES = 5; // of fewer, where they lie within a bucket is a guess

/** @typedef {{bounds: number[], counts: number[], sum: number}} Histogram */
/** @typedef {{p50: number | null, p95: number | null}} Quantiles */
/**
 * @typedef {object} Figures
 * @property {number} time Unix time in seconds
 * @property {number} running
 * @property {number} waiting
 * @property {number} live
 * @property {number | null} promptRate tokens per second; null until there are two readings
 * @property {number | null} generationRate
 * @property {number | null} kvShare 0 to 1
 * @property {Quantiles} ttft seconds
 * @property {Quantiles} itl seconds
 * @property {number | null} hitShare of the prompt tokens that were looked for, 0 to 1; null if there were none
 * @property {number | null} acceptedShare of guessed tokens
 */

/** Seconds below which so many of the new values lie, taken to be spread evenly within a bucket; null if there are too few.
 * @param {Histogram} before @param {Histogram} now @param {number} share 0 to 1 */
export function quantile(before, now, share) {
  const counts = now.counts.map((count, i) => Math.max(0, count - (before.counts[i] ?? 0)));
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total < LEAST_SAMPLES) return null;
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] && below + counts[i] >= share * total) {
      const low = i ? now.bounds[i - 1] : 0;
      const high = i < now.bounds.length ? now.bounds[i] : low;
      return low + ((share * total - below) / counts[i]) * (high - low);
    }
    below += counts[i];
  }
  return null;
}

/** @param {any} house @param {string} name */
export const sumOf = (house, name) => house.engines.reduce((sum, engine) => sum + engine[name], 0);

/** @param {any} before @param {any} now @param {string} part @param {string} whole */
function shareOf(before, now, part, whole) {
  const of = sumOf(now, whole) - sumOf(before, whole);
  return of > 0 ? Math.min(1, Math.max(0, sumOf(now, part) - sumOf(before, part)) / of) : null;
}

/** Keeps the readings of the last seconds. */
export class Readings {
  /** @type {any[]} */
  #kept = [];

  /** @param {any} house @returns {Figures} */
  take(house) {
    const last = this.#kept.at(-1);
    if (last && (Math.abs(last.started_at - house.started_at) > 1 || last.now > house.now)) this.#kept = [];
    this.#kept.push(house);
    while (this.#kept.length > 2 && house.now - this.#kept[1].now >= LATENCY_SECONDS) this.#kept.shift();
    const lately = this.#before(house, RATE_SECONDS);
    const longAgo = this.#kept[0];
    const seconds = house.now - lately.now;
    const rate = (/** @type {string} */ name) =>
      seconds > 0 ? Math.max(0, sumOf(house, name) - sumOf(lately, name)) / seconds : null;
    const both = (/** @type {"ttft" | "itl"} */ name) => ({
      p50: quantile(longAgo.latency[name], house.latency[name], 0.5),
      p95: quantile(longAgo.latency[name], house.latency[name], 0.95),
    });
    const numBlocks = sumOf(house, "kv_blocks_total");
    return {
      time: house.now,
      running: sumOf(house, "running"),
      waiting: sumOf(house, "waiting"),
      live: house.requests.live,
      promptRate: rate("prompt_tokens"),
      generationRate: rate("generation_tokens"),
      kvShare: numBlocks ? Math.min(1, sumOf(house, "kv_blocks_used") / numBlocks) : null,
      ttft: both("ttft"),
      itl: both("itl"),
      hitShare: shareOf(longAgo, house, "prefix_cache_hits", "prefix_cache_queries"),
      acceptedShare: shareOf(longAgo, house, "accepted", "drafted"),
    };
  }

  /** The last one that is so old, or the oldest. @param {any} house @param {number} seconds */
  #before(house, seconds) {
    return this.#kept.findLast((one) => house.now - one.now >= seconds) ?? this.#kept[0];
  }
}
