// The view #house: figures of now, the actors drawn and as a table, and what has happened since the page was opened.

import { Happenings, heartbeatOf, phaseSince, stateOf } from "./actors.js";
import { announce } from "./announcer.js";
import { byId, element, setText } from "./dom.js";
import { Drawing } from "./drawing.js";
import { Readings } from "./figures.js";
import { latency, percent, rate } from "./words.js";

const MOST_EVENTS = 200;

// ---------------------------------------------------------------------- figures

/** Label, value and what it is made of. @param {any} house @param {import("./figures.js").Figures} figures */
function tilesOf(house, figures) {
  const tokens = house.engines.reduce((sum, engine) => sum + engine.kv_blocks_total * engine.block_size, 0);
  return [
    ["Running", figures.running.toLocaleString("en"), `${house.requests.live.toLocaleString("en")} live`],
    ["Waiting", figures.waiting.toLocaleString("en"), "in the queue"],
    ["Generated", rate(figures.generationRate), "tokens/s"],
    ["Prompts", rate(figures.promptRate), "tokens/s"],
    ["KV cache in use", percent(figures.kvShare), kvOf(tokens)],
    ["First token", latency(figures.ttft.p50), medianOf(figures.ttft)],
    ["Between tokens", latency(figures.itl.p50), medianOf(figures.itl)],
  ];
}

/** @param {import("./figures.js").Quantiles} found */
const medianOf = ({ p50 }) => (p50 === null ? "fewer than 5 in 10 s" : "median of 10 s");

/** @param {number} tokens */
function kvOf(tokens) {
  if (!tokens) return "not known yet";
  const told = tokens < 1e6 ? tokens.toLocaleString("en") : `${(tokens / 1e6).toFixed(1)} M`;
  return `of ${told} tokens`;
}

/** @param {HTMLElement} list @param {string[][]} tiles */
function showTiles(list, tiles) {
  if (!list.children.length) {
    for (const [label] of tiles) {
      list.append(element("div", {}, element("dt", {}, label), element("dd", {}, "–"), element("dd", { class: "about" })));
    }
  }
  tiles.forEach(([, value, about], i) => {
    const [, shown, small] = list.children[i].children;
    setText(shown, value);
    setText(small, about);
  });
}

// ---------------------------------------------------------------------- table

const COLUMNS = ["Actor", "State", "Does", "Pid", "Heartbeat", "Restarts", "Ended before"];

function makeTable() {
  const head = COLUMNS.map((column) => element("th", { scope: "col" }, column));
  const caption = element("caption", {}, "Every process of the server, as it says of itself");
  return element("table", {}, caption, element("thead", {}, element("tr", {}, ...head)), element("tbody"));
}

/** @param {HTMLTableElement} table @param {any} house @param {Happenings} happenings */
function showTable(table, house, happenings) {
  const body = table.tBodies[0];
  while (body.rows.length > house.actors.length) body.deleteRow(-1);
  house.actors.forEach((actor, i) => {
    const row = body.rows[i] ?? body.insertRow();
    const state = stateOf(actor, happenings.restartedAt(actor.name), house.now);
    const texts = [
      actor.name,
      state.word,
      phaseSince(actor),
      actor.pid === null ? "–" : String(actor.pid),
      heartbeatOf(actor).replace("heard ", "") || "–",
      String(actor.restarts),
      actor.last_end ?? "–",
    ];
    texts.forEach((text, column) => {
      setText(row.cells[column] ?? row.appendChild(column ? element("td") : element("th", { scope: "row" })), text);
    });
    row.cells[1].className = `level-${state.level}`;
  });
}

// ---------------------------------------------------------------------- events

/** @param {string} level @param {string} text */
function tell(level, text) {
  const list = byId("events");
  const now = new Date();
  const time = element("time", { datetime: now.toISOString() }, now.toLocaleTimeString("en-GB"));
  list.prepend(element("li", { class: `level-${level}` }, time, element("span", {}, text)));
  while (list.children.length > MOST_EVENTS) list.lastChild?.remove();
  byId("events-hint").hidden = true;
  if (level !== "off") announce(text);
}

export function start() {
  const readings = new Readings();
  const happenings = new Happenings();
  const drawing = new Drawing(byId("drawing"));
  const table = makeTable();
  byId("actors").append(table);
  document.addEventListener("house", (event) => {
    const house = /** @type {CustomEvent} */ (event).detail;
    for (const { level, text } of happenings.take(house)) tell(level, text);
    showTiles(byId("tiles"), tilesOf(house, readings.take(house)));
    drawing.show(house, (name) => happenings.restartedAt(name));
    showTable(table, house, happenings);
  });
  document.addEventListener("house-lost", () => {
    tell("bad", "the server does not answer");
  });
  document.addEventListener("house-back", (event) => {
    tell("ok", `the server answers again, after ${Math.round(/** @type {CustomEvent} */ (event).detail.seconds)} s`);
  });
}
