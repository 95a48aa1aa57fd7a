/**
 * The playground: a conversation with the model over the same API that programs use. Loaded by main.js, which hands it
 * `api` (fetch with the key) and tells of the house once a second.
 *
 * What was said and chosen is kept in this browser; the key is not.
 */

import { Announcer } from "./chat_announcer.js";
import { options, readChoices } from "./chat_choices.js";
import { CodeDialog } from "./chat_code.js";
import { Composer } from "./chat_composer.js";
import { Controls } from "./chat_controls.js";
import { awaited, newAnswer, readConversation, textOf } from "./chat_conversation.js";
import { button, element, isAtEnd, save, scrollToEnd } from "./chat_dom.js";
import { Keeper } from "./chat_keeper.js";
import { ModelChooser } from "./chat_models.js";
import { Pace } from "./chat_pace.js";
import { request } from "./chat_request.js";
import { play } from "./chat_stream.js";
import { Transcript } from "./chat_transcript.js";
import { Welcome } from "./chat_welcome.js";

/** @param {any} api what main.js exports */
export function start(api) {
  const section = /** @type {HTMLElement} */ (document.getElementById("chat"));
  new Playground(section, api);
}

class Playground {
  #api;
  #keeper = new Keeper();
  /** @type {import("./chat_choices.js").Choices} */ #choices;
  /** @type {import("./chat_choices.js").Served} */ #served = {
    model: "",
    maxLogprobs: 20,
    toolServers: [],
    thinks: false,
  };
  /** @type {AbortController | null} while an answer comes */ #running = null;
  #transcript;
  #announcer = new Announcer();
  #code = new CodeDialog();
  #notice = element("p", { class: "notice", role: "alert", hidden: true });
  #file = element("input", { type: "file", accept: "application/json,.json", hidden: true });

  /** @param {HTMLElement} section @param {any} api */
  constructor(section, api) {
    this.#api = api;
    const kept = this.#keeper.read();
    this.#choices = kept.choices;
    this.controls = new Controls(this.#choices, () => this.#chosen());
    this.models = new ModelChooser(api, (model) => {
      this.#choices.model = model;
      this.#chosen();
    });
    this.composer = new Composer({ send: (text) => this.#send(text), stop: () => this.#stop() });
    this.welcome = new Welcome((text) => this.#send(text));
    this.#transcript = new Transcript({
      resay: (at, text) => this.#run(at, [{ role: "user", text }]),
      again: (at) => this.#run(at, []),
      give: (given) => this.#run(this.#messages.length, given),
    });
    this.#build(section);
    this.#renew(kept.messages);
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
      element(
        "div",
        { class: "talk" },
        tools,
        this.welcome.root,
        this.#transcript.root,
        this.#notice,
        this.composer.root,
      ),
      this.#transcript.tip.root,
      this.#code.root,
      this.#announcer.root,
      this.#file,
    );
    section.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#running && !this.#code.root.open) this.#stop();
    });
  }

  // -------------------------------------------------------------------- what is shown

  get #messages() {
    return this.#transcript.messages;
  }

  /** Show a conversation from its beginning. @param {import("./chat_conversation.js").Message[]} messages */
  #renew(messages) {
    this.#transcript.renew(messages);
    this.#settle();
  }

  #settle() {
    this.#transcript.ask(this.#running !== null);
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
      this.#transcript.focus();
      return false;
    }
    return this.#run(this.#messages.length, [{ role: "user", text }]);
  }

  #stop() {
    this.#running?.abort();
    this.#running = null;
  }

  #clear() {
    if (this.#messages.length && !confirm("Clear this conversation?")) return;
    this.#stop();
    this.#transcript.cut(0);
    this.#tell("");
    this.#settle();
    this.#keep();
    this.composer.focus();
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
    this.#transcript.cut(at);
    for (const message of more) this.#transcript.add(message);
    const answer = newAnswer(asked.body.model, this.#choices.format !== "text");
    this.#follow(asked, answer, this.#transcript.begin(answer));
    this.composer.focus();
    return true;
  }

  /** @param {import("./chat_request.js").Request} asked @param {import("./chat_conversation.js").Answer} answer
   * @param {import("./chat_answer.js").AnswerView} view */
  async #follow(asked, answer, view) {
    const running = new AbortController();
    this.#running = running;
    this.#announcer.begin();
    this.#settle();
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
    if (follows) scrollToEnd();
    if (awaited(this.#messages).length && !this.composer.text) view.focus();
    this.#announcer.end(answer);
    this.#keep();
  }
}
