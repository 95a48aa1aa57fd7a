// The view #charts: the last five minutes, one point a second, kept in this page only.

import { Chart } from "./chart.js";
import { byId } from "./dom.js";
import { Readings } from "./figures.js";
import { latency, percent, rate } from "./words.js";

const KEPT_SECONDS = 300;

/** @typedef {import("./figures.js").Figures} Figures */

const whole = (/** @type {number | null} */ value) => (value === null ? "–" : Math.round(value).toLocaleString("en"));

/** @type {import("./chart.js").Plan[]} */
const PLANS = [
  {
    title: "Requests",
    unit: "sequences",
    hint: "In a batch, and waiting for a place in one.",
    tell: whole,
    least: 4,
    lines: [
      { name: "running", value: (f) => f.running },
      { name: "waiting", value: (f) => f.waiting },
    ],
  },
  {
    title: "Tokens",
    unit: "per second",
    hint: "Generated, and of prompts; over 3 seconds.",
    tell: rate,
    least: 10,
    lines: [
      { name: "generated", value: (f) => f.generationRate },
      { name: "prompt", value: (f) => f.promptRate },
    ],
  },
  {
    title: "Time to first token",
    unit: "over 10 s",
    hint: "From admission to the first token; estimated within the histogram's buckets, from 5 requests on.",
    tell: latency,
    least: 0.01,
    lines: [
      { name: "p50", value: (f) => f.ttft.p50 },
      { name: "p95", value: (f) => f.ttft.p95 },
    ],
  },
  {
    title: "Time between tokens",
    unit: "over 10 s",
    hint: "Of one sequence, after its first token.",
    tell: latency,
    least: 0.005,
    lines: [
      { name: "p50", value: (f) => f.itl.p50 },
      { name: "p95", value: (f) => f.itl.p95 },
    ],
  },
  {
    title: "KV cache",
    unit: "of its blocks",
    hint: "Blocks that sequences hold. When all are in use, some wait or are computed again.",
    tell: percent,
    least: 1,
    most: 1,
    lines: [{ name: "in use", value: (f) => f.kvShare }],
  },
  {
    title: "Prefix cache",
    unit: "over 10 s",
    hint: "Prompt tokens that need not be computed, as they were found.",
    tell: percent,
    least: 1,
    most: 1,
    lines: [
      { name: "found", value: (f) => f.hitShare },
      { name: "guesses right", value: (f) => f.acceptedShare, isRare: true },
    ],
  },
];

export function start() {
  const readings = new Readings();
  /** @type {Figures[]} */
  const kept = [];
  const charts = PLANS.map((plan) => new Chart(plan, KEPT_SECONDS));
  const view = byId("charts");
  byId("chart-grid").append(...charts.map((chart) => chart.element));
  const showAll = () => charts.forEach((chart) => chart.show(kept, !view.hidden));
  document.addEventListener("house", (event) => {
    const figures = readings.take(/** @type {CustomEvent} */ (event).detail);
    const last = kept.at(-1);
    if (last && last.time > figures.time) kept.length = 0; // the server's clock was set back
    if (last && figures.time - last.time < 0.7) return; // it is read more often while something restarts
    kept.push(figures);
    while (kept.length && kept[0].time < figures.time - KEPT_SECONDS) kept.shift();
    showAll();
  });
  document.addEventListener("theme", () => charts.forEach((chart) => chart.repaint()));
  document.addEventListener("view", (event) => {
    if (/** @type {CustomEvent} */ (event).detail === "charts") showAll();
  });
}
