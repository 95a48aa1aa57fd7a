/**
 * One answer on the page. While it grows, `sync` adds what its parts have more than is shown; it never makes again what
 * stands there. Used by chat.js.
 *
 * @typedef {import("./chat_conversation.js").Answer} Answer
 * @typedef {import("./chat_conversation.js").Part} Part
 * @typedef {import("./chat_conversation.js").ToolResult | import("./chat_conversation.js").Decision} Given
 * @typedef {{tip: import("./chat_tokens.js").Tip, again: () => void, give: (given: Given[]) => boolean}} Actions
 *     `give`: whether it was taken
 */

import { ApprovalView, CallView, ListView, McpView } from "./chat_calls.js";
import { textOf } from "./chat_conversation.js";
import { figures } from "./chat_figures.js";
import { TextView, ThoughtView } from "./chat_text.js";
import { button, copyButton, element } from "./dom.js";

export class AnswerView {
  #answer;
  #actions;
  #isLive;
  /** @type {{sync: (part: any) => void, end?: () => void}[]} one for each part */ #views = [];
  #parts = element("div", { class: "parts" });
  #waiting = element("p", { class: "waiting", hidden: true });
  #facts = element("p", { class: "facts" });
  #foot = element("footer", { hidden: true });

  /** @param {Answer} answer @param {Actions} actions @param {boolean} isLive whether it is still to come */
  constructor(answer, actions, isLive) {
    this.#answer = answer;
    this.#actions = actions;
    this.#isLive = isLive;
    const head = element("h3", { class: "who" }, answer.model || "Answer");
    this.root = element(
      "article",
      { class: "message answer", "aria-label": "Answer" },
      head,
      this.#parts,
      this.#waiting,
      this.#foot,
    );
    if (isLive) this.#parts.append(element("p", { class: "pulse" }, "…"));
    this.sync();
    if (!isLive) this.end();
  }

  /** Show what has come. */
  sync() {
    const { parts } = this.#answer;
    if (parts.length && !this.#views.length) this.#parts.replaceChildren();
    parts.forEach((part, at) => {
      if (at === this.#views.length) {
        this.#views.at(-1)?.end?.();
        this.#views.push(this.#view(part));
      }
      if (at >= this.#views.length - 2) this.#views[at].sync(part);
    });
  }

  /** @param {Part} part @returns {any} */
  #view(part) {
    const view = this.#made(part);
    this.#parts.append(view.root);
    return view;
  }

  /** @param {Part} part */
  #made(part) {
    switch (part.kind) {
      case "thought":
        return new ThoughtView(this.#isLive);
      case "text":
        return new TextView(this.#actions.tip, this.#answer.isJson);
      case "call":
        return new CallView();
      case "list":
        return new ListView();
      case "mcp":
        return new McpView();
      case "approval":
        return new ApprovalView();
    }
  }

  /** @param {string} told why nothing comes yet @param {number} seconds until it is tried again */
  wait(told, seconds) {
    this.#waiting.hidden = !told;
    this.#waiting.textContent = told && `${told} Trying again in ${seconds} s.`;
  }

  /** It is whole, or nothing more comes of it. */
  end() {
    this.#isLive = false;
    this.#waiting.hidden = true;
    if (this.#views.length > this.#answer.parts.length) this.#again();
    else this.sync();
    for (const view of this.#views) view.end?.();
    if (!this.#answer.parts.length) this.#parts.replaceChildren();
    this.#showFoot();
  }

  /** Of an answer that was cut off, some parts went with that. */
  #again() {
    this.#views = [];
    this.#parts.replaceChildren();
    for (const part of this.#answer.parts) {
      const view = this.#view(part);
      view.sync(part);
      this.#views.push(view);
    }
  }

  #showFoot() {
    const { outcome } = this.#answer;
    const texts = this.#views.filter((view) => view instanceof TextView);
    this.showFacts();
    const actions = element("p", { class: "actions" });
    const text = textOf(this.#answer);
    if (text) actions.append(copyButton(() => text, "the answer"));
    if (texts.some((view) => view.hasTokens)) actions.append(plainButton(texts));
    if (!outcome.error) actions.append(button("Answer again", this.#actions.again, { class: "quiet" }));
    if (outcome.error) {
      const retry = button("Retry", this.#actions.again, { class: "quiet" });
      this.#foot.append(element("p", { class: "error", role: "alert" }, element("span", {}, outcome.error), retry));
    }
    this.#foot.append(this.#facts, actions);
    this.#foot.hidden = false;
  }

  /** How it went: some of it is known a little later. */
  showFacts() {
    this.#facts.replaceChildren(...figures(this.#answer.outcome).map((fact) => element("span", {}, fact)));
  }

  /** Fields for what it waits for, and what was given. @param {Map<string, Given>} given by the ids of calls
   * @param {boolean} isLast whether it can still be given */
  ask(given, isLast) {
    for (const view of this.#asking) view.ask(given.get(view.id) ?? null, isLast, () => this.#give());
  }

  /** @returns {(CallView | ApprovalView)[]} */
  get #asking() {
    return /** @type {any[]} */ (
      this.#views.filter((view) => view instanceof CallView || view instanceof ApprovalView)
    );
  }

  /** Go on once nothing is missing. */
  #give() {
    const missing = this.#asking.find((view) => view.given === null);
    if (missing) missing.focus();
    else if (!this.#actions.give(this.#asking.map((view) => /** @type {Given} */ (view.given)))) this.#askAgain();
  }

  #askAgain() {
    for (const view of this.#asking) view.reopen(() => this.#give());
  }

  /** Put the cursor where something is asked for. */
  focus() {
    this.#asking.find((view) => view.given === null)?.focus();
  }
}

/** @param {TextView[]} texts */
function plainButton(texts) {
  const shown = button(
    "Show as text",
    () => {
      const byTokens = shown.textContent === "Show tokens";
      for (const view of texts) view.show(byTokens);
      shown.textContent = byTokens ? "Show as text" : "Show tokens";
    },
    { class: "quiet" },
  );
  return shown;
}
