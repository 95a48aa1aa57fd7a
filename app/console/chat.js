/**
 * The playground: a conversation with the model over the same API that programs use. Loaded by main.js, which hands it
 * `api` (fetch with the key) and tells of the house once a second.
 *
 * What was said and chosen is kept in this browser; the key is not.
 */

import { AnswerView } from "./chat_answer.js";
import { Announcer } from "./chat_announcer.js";
import { defaultChoices, options, readChoices } from "./chat_choices.js";
import { CodeDialog } from "./chat_code.js";
import { Composer } from "./chat_composer.js";
import { Controls } from "./chat_controls.js";
import { awaited, newAnswer, readConversation, textOf } from "./chat_conversation.js";
import { button, element, isAtEnd, save, scrollToEnd } from "./chat_dom.js";
import { Pace } from "./chat_pace.js";
import { Keeper } from "./chat_keeper.js";
import { ModelChooser } from "./chat_models.js";
import { QuestionView } from "./chat_question.js";
import { request } from "./chat_request.js";
import { play } from "./chat_stream.js";
import { Tip } from "./chat_tokens.js";
import { Welcome } from "./chat_welcome.js";

/** @param {any} api what main.js exports */
export function start(api) {
  const section = /** @type {HTMLElement} */ (document.getElementById("chat"));
  new Playground(section, api);
}

class Playground {
  #api;
  #keeper = new Keeper();
  /** @type {import("./chat_conversation.js").Message[]} */ #messages = [];
  /** @type {import("./chat_choices.js").Choices} */ #choices;
  /** @type {import("./chat_choices.js").Served} */ #served = {
    model: "",
    maxLogprobs: 20,
    toolServers: [],
    thinks: false,
  };
  /** @type {(QuestionView | AnswerView | null)[]} one for each message; null for what answers calls */ #views = [];
  /** @type {AbortController | null} while an answer comes */ #running = null;
  #tip = new Tip();
  #announcer = new Announcer();
  #code = new CodeDialog();
  #list = element("div", { class: "messages" });
  #notice = element("p", { class: "notice", role: "alert", hidden: true });
  #file = element("input", { type: "file", accept: "application/json,.json", hidden: true });

  /** @param {HTMLElement} section @param {any} api */
  constructor(section, api) {
    this.#api = api;
    const kept = this.#keeper.read();
    this.#choices = kept.choices;
    this.#messages = kept.messages;
    this.controls = new Controls(this.#choices, () => this.#chosen());
    this.models = new ModelChooser(api, (model) => {
      this.#choices.model = model;
      this.#chosen();
    });
    this.composer = new Composer({ send: (text) => this.#send(text), stop: () => this.#stop() });
    this.welcome = new Welcome((text) => this.#send(text));
    this.#build(section);
    this.#renew(this.#messages);
    addEventListener("pagehide", () => this.#leave());
    document.addEventListener("house", (event) => this.#serve(/** @type {CustomEvent} */ (event).detail));
  }

  /** @param {HTMLElement} section */
  #build(section) {
    const wide = matchMedia("(min-width: 60rem)");
    const settings = element(
      "details",
      { class: "settings panel", open: wide.matches },
      element("summary", {}, "Settings"),
    );
    wide.addEventListener("change", () => (settings.open = wide.matches));
    settings.append(this.controls.root);
    const tools = element(
      "div",
      { class: "bar", role: "group", "aria-label": "Conversation" },
      this.models.root,
      button("As code", () => this.#showCode(), { class: "quiet" }),
      button("Export", () => this.#export(), { class: "quiet" }),
      button("Import", () => this.#file.click(), { class: "quiet" }),
      button("Clear", () => this.#clear(), { class: "quiet" }),
    );
    this.#file.addEventListener("change", () => this.#import());
    section.append(
      element("div", { class: "side" }, settings),
      element("div", { class: "talk" }, tools, this.welcome.root, this.#list, this.#notice, this.composer.root),
      this.#tip.root,
      this.#code.root,
      this.#announcer.root,
      this.#file,
    );
    section.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#running && !this.#code.root.open) this.#stop();
    });
  }

  // -------------------------------------------------------------------- what is shown

  /** Show a conversation from its beginning. @param {import("./chat_conversation.js").Message[]} messages */
  #renew(messages) {
    this.#messages = messages;
    this.#views = [];
    this.#list.replaceChildren();
    for (let at = 0; at < messages.length; at += 1) this.#show(at);
    this.#ask();
    this.#settle();
  }

  /** @param {number} at @param {boolean} [isLive] whether it is an answer that is still to come */
  #show(at, isLive = false) {
    const view = this.#made(at, isLive);
    this.#views[at] = view;
    if (view) this.#list.append(view.root);
    return view;
  }

  /** @param {number} at @param {boolean} isLive @returns {QuestionView | AnswerView | null} */
  #made(at, isLive) {
    const message = this.#messages[at];
    if (message.role === "user") {
      return new QuestionView(message.text, (text) => this.#resay(at, text));
    }
    if (message.role !== "assistant") return null; // stands with the call
    const actions = {
      tip: this.#tip,
      again: () => this.#answerAgain(at),
      give: (/** @type {import("./chat_conversation.js").Message[]} */ given) => this.#give(given),
    };
    return new AnswerView(message, actions, isLive);
  }

  /** Have each answer's calls show their results, and the last one's ask for them. */
  #ask() {
    this.#views.forEach((view, at) => {
      if (!(view instanceof AnswerView)) return;
      const given = new Map();
      let next = at + 1;
      for (; next < this.#messages.length; next += 1) {
        const message = this.#messages[next];
        if (message.role !== "tool" && message.role !== "decision") break;
        given.set(message.id, message);
      }
      view.ask(given, next === this.#messages.length && !this.#running);
    });
  }

  #settle() {
    this.welcome.root.hidden = this.#messages.length > 0;
    this.composer.isRunning = this.#running !== null;
  }

  /** @param {string} text "" takes it away */
  #tell(text) {
    this.#notice.hidden = !text;
    this.#notice.textContent = text;
  }

  /** @param {any} house */
  #serve(house) {
    const { model } = house;
    this.#served = {
      model: model.id,
      maxLogprobs: house.max_logprobs,
      toolServers: house.tool_servers,
      thinks: Boolean(model.reasoning_parser) && model.reasoning_parser !== "none",
    };
    this.controls.serve(this.#served);
    this.models.serve([...model.names, ...model.adapters], this.#choices.model);
  }

  // -------------------------------------------------------------------- what the visitor does

  #chosen() {
    this.#tell("");
    this.#keep();
  }

  /** @param {string} text @returns {boolean} whether it was taken */
  #send(text) {
    if (this.#running || !text.trim()) return false;
    const missing = awaited(this.#messages);
    if (missing.length) {
      this.#tell(`First give what ${missing.map((part) => part.name).join(", ")} is waited for, or answer again.`);
      this.#views.findLast((view) => view instanceof AnswerView)?.focus();
      return false;
    }
    const taken = this.#run(this.#messages.length, [{ role: "user", text }]);
    if (taken) this.composer.focus();
    return taken;
  }

  /** @param {import("./chat_conversation.js").Message[]} given */
  #give(given) {
    this.#run(this.#messages.length, given);
    this.composer.focus();
  }

  /** A question is asked otherwise. @param {number} at @param {string} text */
  #resay(at, text) {
    if (this.#run(at, [{ role: "user", text }])) this.composer.focus();
  }

  /** @param {number} at of the answer */
  #answerAgain(at) {
    if (this.#run(at, [])) this.composer.focus();
  }

  #stop() {
    this.#running?.abort();
    this.#running = null;
  }

  #clear() {
    if (this.#messages.length && !confirm("Clear this conversation?")) return;
    this.#stop();
    this.#cut(0);
    this.#tell("");
    this.#settle();
    this.#keep();
    this.composer.focus();
  }

  /** What comes after goes. @param {number} at */
  #cut(at) {
    for (const view of this.#views.splice(at)) view?.root.remove();
    this.#messages.splice(at);
  }

  #showCode() {
    const typed = this.composer.text.trim();
    const last = this.#messages.at(-1);
    const isLast = !typed && last?.role === "assistant";
    const before = isLast ? this.#messages.slice(0, -1) : this.#messages;
    const question = typed || (before.length ? "" : "Hello!");
    const messages = question ? [...before, /** @type {const} */ ({ role: "user", text: question })] : before;
    try {
      const asked = request(messages, options(this.#choices, this.#served));
      this.#code.open(
        asked,
        this.#api.url(""),
        isLast ? "The last request, with the present settings" : "The next request",
      );
    } catch (error) {
      this.#tell(/** @type {Error} */ (error).message);
    }
  }

  #export() {
    const { system } = this.#choices;
    const kept = {
      object: "trillm.conversation",
      version: 1,
      system,
      choices: this.#choices,
      messages: this.#messages,
    };
    save("conversation.json", JSON.stringify(kept, null, 2));
  }

  async #import() {
    const [file] = this.#file.files ?? [];
    this.#file.value = "";
    if (!file) return;
    try {
      const given = JSON.parse(await file.text());
      const { system, messages } = readConversation(given);
      this.#stop();
      if (given.choices) this.#choices = readChoices(given.choices);
      if (system !== null) this.#choices.system = system;
      this.controls.renew(this.#choices);
      this.controls.serve(this.#served);
      this.models.choose(this.#choices.model);
      this.#renew(messages);
      this.#tell("");
      this.#keep();
    } catch (error) {
      this.#tell(`${file.name} cannot be read: ${/** @type {Error} */ (error).message}`);
    }
  }

  #keep() {
    const told = this.#keeper.keep({ choices: this.#choices, messages: this.#messages });
    if (told) this.#tell(told);
  }

  /** What has come of an answer is kept, too. */
  #leave() {
    const last = this.#messages.at(-1);
    if (!this.#running || last?.role !== "assistant") return;
    last.outcome.isStopped = true;
    this.#keep();
  }

  // -------------------------------------------------------------------- an answer

  /** Ask with these in the place of what stands there. @param {number} at
   * @param {import("./chat_conversation.js").Message[]} more @returns {boolean} whether it could be asked */
  #run(at, more) {
    const messages = [...this.#messages.slice(0, at), ...more];
    let asked;
    try {
      asked = request(messages, options(this.#choices, this.#served));
    } catch (error) {
      this.#tell(`${/** @type {Error} */ (error).message} See the settings.`);
      return false;
    }
    this.#tell("");
    this.#stop();
    this.#cut(at);
    for (const message of more) {
      this.#messages.push(message);
      this.#show(this.#messages.length - 1);
    }
    const answer = newAnswer(asked.body.model, this.#choices.format !== "text");
    this.#messages.push(answer);
    const view = /** @type {AnswerView} */ (this.#show(this.#messages.length - 1, true));
    this.#follow(asked, answer, view);
    return true;
  }

  /** @param {import("./chat_request.js").Request} asked @param {import("./chat_conversation.js").Answer} answer
   * @param {AnswerView} view */
  async #follow(asked, answer, view) {
    const running = new AbortController();
    this.#running = running;
    this.#announcer.begin();
    this.#settle();
    this.#ask();
    scrollToEnd();
    const pace = new Pace(() => {
      const follows = isAtEnd();
      view.sync();
      if (follows) scrollToEnd();
      this.#announcer.grow(textOf(answer));
    });
    await play(asked, answer, {
      api: this.#api,
      signal: running.signal,
      changed: () => pace.ask(),
      waiting: (told, seconds) => view.wait(told, seconds),
    });
    pace.stop();
    const follows = isAtEnd();
    view.end();
    if (this.#running === running) this.#running = null;
    if (!this.#messages.includes(answer)) return; // it was taken away meanwhile
    this.#settle();
    this.#ask();
    if (follows) scrollToEnd();
    if (awaited(this.#messages).length && !this.composer.text) view.focus();
    this.#announcer.end(textOf(answer), outcomeInWords(answer));
    this.#keep();
  }
}

/** @param {import("./chat_conversation.js").Answer} answer */
function outcomeInWords({ outcome, parts }) {
  if (outcome.error) return ""; // it is an alert by itself
  if (outcome.isStopped) return "The answer was stopped.";
  const asks = parts.some((part) => part.kind === "call" || part.kind === "approval");
  return asks ? "The model waits for you." : "The answer is complete.";
}
