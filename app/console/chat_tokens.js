/**
 * An answer token by token, each coloured by how likely it was; pointing at one, or going there by the arrow keys, shows
 * what might have stood in its place. Used by chat_answer.js.
 *
 * @typedef {import("./chat_conversation.js").Token} Token
 */

import { element } from "./dom.js";

const STEPS = [0.9, 0.6, 0.3, 0.1];
/** Of the probability, from class p0 to p4. */
const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity };

/** Text of tokens that come one after the other: a character may be cut between them. */
export class TokenText {
  #decoder = new TextDecoder("utf-8");

  /** @param {Token} token @returns {string} empty for what only the next one makes whole */
  add(token) {
    return token.bytes ? this.#decoder.decode(new Uint8Array(token.bytes), { stream: true }) : token.token;
  }
}

export class TokenView {
  #text = new TokenText();
  /** @type {HTMLElement[]} */ #shown = [];
  /** @type {Token[][]} those of each element: several where they make one character */ #tokens = [];
  /** @type {Token[]} */ #cut = [];
  #current = 0;
  #tip;

  /** @param {Tip} tip */
  constructor(tip) {
    this.#tip = tip;
    this.root = element("div", {
      class: "tokens",
      role: "group",
      "aria-label": "The answer by tokens. The arrow keys go from one to the next.",
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.#move(event),
      onfocusin: (/** @type {FocusEvent} */ event) => this.#point(event.target),
      onfocusout: () => this.#tip.hide(),
      onmouseover: (/** @type {MouseEvent} */ event) => this.#point(event.target),
      onmouseleave: () => this.#tip.hide(),
      onclick: (/** @type {MouseEvent} */ event) => this.#select(this.#shown.indexOf(closest(event.target))),
    });
  }

  /** @param {Token[]} tokens what has come since the last time */
  add(tokens) {
    const fresh = document.createDocumentFragment();
    for (const token of tokens) {
      this.#cut.push(token);
      const text = this.#text.add(token);
      if (text) fresh.append(this.#show(text));
    }
    this.root.append(fresh);
  }

  /** @param {string} text */
  #show(text) {
    const tokens = this.#cut;
    const probability = Math.exp(Math.min(...tokens.map((token) => token.logprob)));
    const shown = element(
      "span",
      { class: `token p${step(probability)}`, role: "button", tabindex: this.#shown.length ? "-1" : "0" },
      text,
    );
    if (!text.trim()) shown.setAttribute("aria-label", spoken(text));
    this.#cut = [];
    this.#shown.push(shown);
    this.#tokens.push(tokens);
    return shown;
  }

  /** Tokens behind the text are the model's own marks. @param {string} text all of it */
  end(text) {
    let length = 0;
    for (const shown of this.#shown) {
      shown.classList.toggle("special", length >= text.length);
      length += (shown.textContent ?? "").length;
    }
  }

  /** @param {KeyboardEvent} event */
  #move(event) {
    const by = MOVES[/** @type {keyof typeof MOVES} */ (event.key)];
    if (event.key === "Escape" && this.#tip.hide()) event.stopPropagation(); // it ends nothing else
    if (by === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.#select(Math.min(Math.max(this.#current + by, 0), this.#shown.length - 1));
  }

  /** @param {number} at */
  #select(at) {
    if (at < 0) return;
    this.#shown[this.#current].tabIndex = -1;
    this.#current = at;
    this.#shown[at].tabIndex = 0;
    this.#shown[at].focus({ preventScroll: false });
  }

  /** @param {EventTarget | null} target */
  #point(target) {
    const shown = closest(target);
    const at = this.#shown.indexOf(shown);
    if (at < 0) return;
    if (shown === document.activeElement && at !== this.#current) this.#select(at);
    this.#tip.show(shown, this.#tokens[at]);
  }
}

/** What the colours say. */
export function legend() {
  const ranges = ["90 % and more", "60 to 90 %", "30 to 60 %", "10 to 30 %", "below 10 %"];
  const marks = ranges.map((range, at) => element("span", { class: `token p${at}` }, range));
  return element("p", { class: "legend" }, "How likely each token was:", ...marks);
}

/** @param {EventTarget | null} target @returns {any} */
function closest(target) {
  return target instanceof Element ? target.closest(".token") : null;
}

/** @param {number} probability */
function step(probability) {
  const at = STEPS.findIndex((least) => probability >= least);
  return at < 0 ? STEPS.length : at;
}

/** The one tooltip of the page. */
export class Tip {
  /** @type {HTMLElement | null} */ #described = null;

  constructor() {
    this.root = element("div", { class: "tip", role: "tooltip", id: "token-tip", hidden: true });
    addEventListener("scroll", () => this.hide(), { passive: true });
  }

  /** @param {HTMLElement} shown @param {Token[]} tokens */
  show(shown, tokens) {
    this.hide();
    this.root.replaceChildren(...tokens.map(alternatives));
    this.root.hidden = false;
    shown.setAttribute("aria-describedby", this.root.id);
    this.#described = shown;
    const at = shown.getClientRects()[0];
    const own = this.root.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - own.width - 8));
    const isRoom = at.bottom + own.height + 12 < innerHeight;
    this.root.style.left = `${left}px`;
    this.root.style.top = `${isRoom ? at.bottom + 6 : at.top - own.height - 6}px`;
  }

  /** @returns {boolean} whether it was shown */
  hide() {
    const wasShown = !this.root.hidden;
    this.#described?.removeAttribute("aria-describedby");
    this.#described = null;
    this.root.hidden = true;
    return wasShown;
  }
}

/** @param {Token} token */
function alternatives(token) {
  const others = token.top.filter((each) => each.token !== token.token);
  const all = [...(others.length === token.top.length ? [token] : []), ...token.top];
  const rows = all.map((each) => {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, Math.exp(each.logprob) * 100)}%`;
    return element(
      "li",
      { class: each.token === token.token ? "chosen" : null },
      bar,
      element("span", { class: "spelled" }, spelled(each.token)),
      element("span", { class: "percent" }, percent(each.logprob)),
    );
  });
  return element("ol", {}, ...rows);
}

/** Blanks and line breaks are seen. @param {string} text */
export function spelled(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(nothing)";
}

/** @param {string} text of blanks */
function spoken(text) {
  return text.includes("\n") ? "line break" : "blank";
}

/** @param {number} logprob */
export function percent(logprob) {
  const share = Math.exp(logprob) * 100;
  if (share > 0 && share < 0.1) return "< 0.1 %";
  return `${share > 99.9 && share < 100 ? "> 99.9" : share.toFixed(1)} %`;
}
