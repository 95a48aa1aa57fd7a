// One chart: a plot with its latest values, or those under the pointer, in words beside its title and as its label. Used by
// charts.js.

import { element } from "./dom.js";

const FIRST_SECONDS = 60; // that are shown before there is more
const HEIGHT = 190;
const GAP_SECONDS = 3.5; // without a reading, from when on a line is broken

/** @typedef {import("./figures.js").Figures} Figures */
/**
 * @typedef {object} Line
 * @property {string} name
 * @property {(figures: Figures) => number | null} value
 * @property {boolean} [isRare] not told of before there is a value
 */
/**
 * @typedef {object} Plan
 * @property {string} title
 * @property {string} unit
 * @property {string} hint
 * @property {(value: number | null) => string} tell
 * @property {number} least what the axis reaches at least
 * @property {number} [most] where the axis ends
 * @property {Line[]} lines
 */

/** @param {string} name */
const property = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Chart {
  #plan;
  #keptSeconds;
  #figure;
  #place;
  /** @type {HTMLElement[]} */
  #values = [];
  /** @type {any} */
  #plot = null;
  /** @type {(number | null)[][]} */
  #data = [[]];
  /** @type {number | null} */
  #at = null;

  /** @param {Plan} plan @param {number} keptSeconds that are shown once there are so many */
  constructor(plan, keptSeconds) {
    this.#plan = plan;
    this.#keptSeconds = keptSeconds;
    const series = plan.lines.map(({ name, isRare }, i) => {
      const value = element("b", {}, "–");
      this.#values.push(value);
      const mark = element("span", { class: "mark" });
      return element("span", { class: `series series-${i + 1}`, hidden: isRare }, mark, element("span", {}, name), value);
    });
    const title = element("h3", {}, plan.title, element("span", { class: "unit" }, ` ${plan.unit}`));
    this.#place = element("div", { class: "plot", role: "img" });
    this.#figure = element(
      "figure",
      { class: "panel chart" },
      element("figcaption", {}, title, element("p", { class: "legend" }, ...series)),
      this.#place,
      element("p", { class: "hint" }, plan.hint),
    );
    new ResizeObserver(() => this.resize()).observe(this.#place);
  }

  get element() {
    return this.#figure;
  }

  /** @param {Figures[]} kept @param {boolean} isSeen */
  show(kept, isSeen) {
    this.#data = columns(kept, this.#plan.lines);
    const latest = this.#data.slice(1).map((values) => values.at(-1) ?? null);
    const told = this.#plan.lines.flatMap(({ name, isRare }, i) => {
      const isShown = !isRare || this.#data[i + 1].some((value) => value !== null);
      /** @type {HTMLElement} */ (this.#values[i].parentElement).hidden = !isShown;
      return isShown ? [`${name} ${this.#plan.tell(latest[i])}`] : [];
    });
    this.#place.setAttribute("aria-label", `${this.#plan.title}, ${this.#plan.unit}, now: ${told.join(", ")}`);
    if (isSeen) this.#draw();
    this.#tell();
  }

  #draw() {
    if (!this.#plot && this.#place.clientWidth > 50) {
      this.#plot = new (/** @type {any} */ (window).uPlot)(this.#options(this.#place.clientWidth), this.#data, this.#place);
    }
    this.#plot?.setData(this.#data);
  }

  /** Values under the pointer, or else the latest. */
  #tell() {
    this.#values.forEach((shown, i) => {
      const values = this.#data[i + 1];
      const text = this.#plan.tell((this.#at === null ? values.at(-1) : values[this.#at]) ?? null);
      if (shown.textContent !== text) shown.textContent = text;
    });
  }

  resize() {
    const width = this.#place.clientWidth;
    if (this.#plot && width > 50 && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
    else if (!this.#plot) this.#draw();
  }

  /** With the colours of now. */
  repaint() {
    this.#plot?.destroy();
    this.#plot = null;
    this.#draw();
  }

  /** @param {number} width */
  #options(width) {
    const plan = this.#plan;
    const [text, grid, font] = [property("--muted"), property("--line"), '12px system-ui, "Segoe UI", Roboto, sans-serif'];
    const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    const tell = plan.tell;
    return {
      width,
      height: HEIGHT,
      padding: [10, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { time: true, range: () => rangeOfTime(this.#data[0], this.#keptSeconds) },
        y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number | null} */ high) => [0, plan.most ?? Math.max(plan.least, (high ?? 0) * 1.12)] },
      },
      axes: [
        { ...axis, size: 28, space: 74, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map(clock) },
        { ...axis, size: 62, space: 34, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((split) => (split ? tell(split) : "0")) },
      ],
      series: [
        {},
        ...plan.lines.map(({ name }, i) => ({
          label: name,
          stroke: property(`--series-${i + 1}`),
          width: 2,
          dash: i ? [6, 4] : undefined,
          fill: i ? undefined : property("--series-1-fill"),
          points: { show: false },
          spanGaps: false,
        })),
      ],
      hooks: {
        setCursor: [
          (/** @type {any} */ plot) => {
            this.#at = plot.cursor.left >= 0 ? (plot.cursor.idx ?? null) : null;
            this.#tell();
          },
        ],
      },
    };
  }
}

/** @param {number} time */
const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: time % 60 ? "2-digit" : undefined });

/** @param {(number | null)[]} times @param {number} most seconds */
function rangeOfTime(times, most) {
  const last = times.at(-1) ?? Date.now() / 1000;
  const first = Math.min(times[0] ?? last, last - FIRST_SECONDS);
  return [Math.max(first, last - most), last];
}

/** A column of times and one for each line; a break where nothing was heard. @param {Figures[]} kept @param {Line[]} lines */
function columns(kept, lines) {
  /** @type {(number | null)[][]} */
  const found = [[], ...lines.map(() => [])];
  kept.forEach((figures, n) => {
    const before = kept[n - 1];
    if (before && figures.time - before.time > GAP_SECONDS) {
      found.forEach((column, i) => column.push(i ? null : before.time + 1));
    }
    found.forEach((column, i) => column.push(i ? lines[i - 1].value(figures) : figures.time));
  });
  return found;
}
