// Draws the house: a box for each actor, an arrow for each link. Built anew only when actors come or go or the width
// changes; else texts and classes are put in their places, so that nothing flickers.

import { describe, heartbeatOf, lifeOf, restartsOf, stateOf } from "./actors.js";
import { setText } from "./dom.js";
import { layout } from "./layout.js";
import { counted, percent } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} name @param {Record<string, string | number>} attributes @param {string} [text] */
function shape(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text) made.textContent = text;
  return made;
}

export class Drawing {
  #place;
  #signature = "";
  /** @type {any} */
  #house = null;
  /** @type {any} */
  #before = null;
  /** @type {(name: string) => number} */
  #restartedAt = () => -Infinity;
  /** @type {Map<string, {group: Element, state: Element, life: Element, more: Element, load: Element | null, bar: Element | null}>} */
  #boxes = new Map();
  /** @type {Map<string, Element>} */
  #ways = new Map();

  /** @param {HTMLElement} place */
  constructor(place) {
    this.#place = place;
    new ResizeObserver(() => this.#draw()).observe(place);
  }

  /** @param {any} house @param {(name: string) => number} restartedAt when it was seen that an actor came back */
  show(house, restartedAt) {
    this.#before = this.#house;
    this.#house = house;
    this.#restartedAt = restartedAt;
    this.#draw();
  }

  #draw() {
    const width = Math.floor(this.#place.clientWidth);
    if (!this.#house || width < 200) return;
    const signature = [width, ...this.#house.actors.map((actor) => actor.name)].join(" ");
    if (signature !== this.#signature) this.#build(width);
    this.#signature = signature;
    for (const actor of this.#house.actors) this.#update(actor);
    this.#flow();
  }

  /** @param {number} width */
  #build(width) {
    const house = this.#house;
    const { boxes, ways, height } = layout(house, width);
    const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": inWords(house) });
    const heads = shape("defs", {});
    for (const id of ["arrow", "arrow-flowing"]) {
      const marker = shape("marker", { id, viewBox: "0 0 8 8", refX: 2, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto", markerUnits: "userSpaceOnUse" });
      marker.append(shape("path", { d: "M0 0L8 4L0 8z" }));
      heads.append(marker);
    }
    svg.append(heads);
    this.#ways.clear();
    this.#boxes.clear();
    for (const way of ways) {
      const path = shape("path", { d: way.path, class: "way" });
      path.append(shape("title", {}, `${way.from} sends ${way.to}: ${way.sends} (${way.socket})`));
      this.#ways.set(way.id, path);
      svg.append(path);
    }
    for (const { label, sends, socket } of ways) {
      if (!label) continue;
      svg.append(shape("text", { x: label.x, y: label.y, "text-anchor": label.anchor, class: "sends" }, sends));
      if (label.anchor === "middle") svg.append(shape("text", { x: label.x, y: label.y + 22, "text-anchor": "middle", class: "socket" }, socket));
    }
    const ownsAll = house.actors.some((actor) => actor.kind === "api");
    for (const actor of house.actors) {
      const box = boxes.get(actor.name);
      if (box) svg.append(this.#box(actor, box, ownsAll));
    }
    this.#place.replaceChildren(svg);
  }

  /** @param {any} actor @param {import("./layout.js").Box} box @param {boolean} ownsAll */
  #box(actor, { x, y, width, height }, ownsAll) {
    const group = shape("g", { class: "actor", transform: `translate(${x} ${y})`, "data-actor": actor.name });
    const state = shape("text", { x: width - 12, y: 23, "text-anchor": "end", class: "word" });
    const life = shape("text", { x: 16, y: 61, class: "fact" });
    const more = shape("text", { x: 16, y: 79, class: "fact" });
    group.append(
      shape("rect", { width, height, rx: 8, class: "frame" }),
      shape("path", { d: `M5 0.5H8V${height - 0.5}H5A4.5 4.5 0 0 1 0.5 ${height - 5}V5A4.5 4.5 0 0 1 5 0.5z`, class: "stripe" }),
      shape("text", { x: 16, y: 23, class: "name" }, actor.name),
      state,
      shape("text", { x: 16, y: 42, class: "does" }, describe(actor, ownsAll)),
      life,
    );
    if (height > 80) group.append(more);
    let load = null;
    let bar = null;
    if (actor.kind === "engine") {
      load = shape("text", { x: 16, y: 99, class: "load" });
      bar = shape("rect", { x: 16, y: 109, width: 0, height: 5, rx: 2.5, class: "bar" });
      group.append(load, shape("rect", { x: 16, y: 109, width: width - 32, height: 5, rx: 2.5, class: "rail" }), bar);
      bar.setAttribute("data-full", String(width - 32));
    }
    this.#boxes.set(actor.name, { group, state, life, more, load, bar });
    return group;
  }

  /** @param {any} actor */
  #update(actor) {
    const drawn = this.#boxes.get(actor.name);
    if (!drawn) return;
    const { word, level } = stateOf(actor, this.#restartedAt(actor.name), this.#house.now);
    drawn.group.setAttribute("class", `actor level-${level}`);
    setText(drawn.state, word);
    setText(drawn.life, lifeOf(actor));
    const heard = heartbeatOf(actor);
    setText(drawn.more, actor.kind === "app" ? counted(this.#house.requests.live, "live sequence") : [heard, restartsOf(actor)].filter(Boolean).join(" · "));
    const engine = this.#house.engines.find((one) => actor.kind === "engine" && one.index === actor.engine_index);
    if (!engine || !drawn.load || !drawn.bar) return;
    const share = engine.kv_blocks_total ? Math.min(1, engine.kv_blocks_used / engine.kv_blocks_total) : null;
    const held = engine.is_sleeping ? "asleep · " : engine.is_paused ? "paused · " : "";
    setText(drawn.load, `${held}${engine.running} running · ${engine.waiting} waiting · KV ${percent(share)}`);
    drawn.bar.setAttribute("width", String(Number(drawn.bar.getAttribute("data-full")) * (share ?? 0)));
  }

  /** Which links carry something now. */
  #flow() {
    const [house, before] = [this.#house, this.#before];
    const busy = new Set();
    for (const engine of house.engines) {
      const past = before?.engines.find((one) => one.index === engine.index);
      const moved = past && (engine.generation_tokens !== past.generation_tokens || engine.prompt_tokens !== past.prompt_tokens);
      if (moved || engine.running) busy.add(engine.index);
    }
    for (const link of house.links) {
      const ends = [link.from, link.to].map((name) => house.actors.find((one) => one.name === name));
      const engine = ends.find((one) => one?.kind === "engine");
      let flows = engine ? busy.has(engine.engine_index) : link.sends === "RequestOutputs" && busy.size > 0;
      if (link.socket === "shared memory") flows = engine?.phase === "load";
      flows = flows && ends.every((one) => one?.ready || link.socket === "shared memory");
      const isCut = ends.some((one) => one && !one.ready && one.pid === null);
      this.#ways.get(`${link.from} ${link.to} ${link.sends}`)?.setAttribute("class", `way${flows ? " flowing" : ""}${isCut ? " cut" : ""}`);
    }
  }
}

/** @param {any} house */
function inWords(house) {
  const names = counted(house.actors.length, "actor");
  const links = house.links.map((link) => `${link.from} sends ${link.sends} to ${link.to}`);
  return `${names}. ${links.join("; ")}. How each of them is stands in the table below.`;
}
