/**
 * The playground: a conversation with the model over the same API that programs use. Loaded by main.js, which hands it
 * `api` (fetch with the key) and tells of the house once a second.
 *
 * What was said and chosen is kept in this browser; the key is not.
 */

import { Announcer } from "./chat_announcer.js";
import { EXAMPLE_SAMPLING, NOTHING_SERVED, advice, options, servedBy } from "./chat_choices.js";
import { CodeDialog, shownAsCode } from "./chat_code.js";
import { Composer } from "./chat_composer.js";
import { Controls } from "./chat_controls.js";
import { awaited, newAnswer } from "./chat_conversation.js";
import { ConversationFile } from "./chat_file.js";
import { Keeper } from "./chat_keeper.js";
import { ModelChooser } from "./chat_models.js";
import { request } from "./chat_request.js";
import { Transcript } from "./chat_transcript.js";
import { Turn } from "./chat_turn.js";
import { Welcome } from "./chat_welcome.js";
import { Witness } from "./chat_witness.js";
import { button, byId, element, keepEndInSight, scrollToEnd } from "./dom.js";

/** @param {any} api what requests.js has for the views */
export function start(api) {
  new Playground(byId("chat"), api);
}

class Playground {
  #api;
  #keeper = new Keeper(
    () => ({ choices: this.#choices, messages: this.#messages }),
    (told) => this.#tell(told),
  );
  /** @type {import("./chat_choices.js").Choices} */ #choices;
  #served = NOTHING_SERVED;
  /** @type {Turn | null} while an answer comes */ #running = null;
  #transcript;
  #witness;
  #announcer = new Announcer();
  #code = new CodeDialog();
  #notice = element("p", { class: "notice", role: "alert", hidden: true });
  #file = new ConversationFile(
    (found) => this.#take(found),
    (told) => this.#tell(told),
  );

  /** @param {HTMLElement} section @param {any} api */
  constructor(section, api) {
    this.#api = api;
    this.#witness = new Witness(api);
    const kept = this.#keeper.read();
    this.#choices = kept.choices;
    this.controls = new Controls(this.#choices, () => this.#chosen());
    this.models = new ModelChooser(
      api,
      () => this.#choices.model,
      (model) => this.#chosen({ model }),
    );
    this.composer = new Composer({ send: (text) => this.#send(text), stop: () => this.#stop() });
    this.welcome = new Welcome((text) => this.#try(text));
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
    const tools = element(
      "div",
      { class: "bar", role: "group", "aria-label": "Conversation" },
      this.models.root,
      button("As code", () => this.#showCode(), { class: "quiet" }),
      button("Export", () => this.#file.save(this.#choices, this.#messages), { class: "quiet" }),
      button("Import", () => this.#file.choose(), { class: "quiet" }),
      button("Clear", () => this.#clear(), { class: "quiet" }),
    );
    const talk = [tools, this.welcome.root, this.#transcript.root, this.#notice, this.composer.root];
    section.append(
      element("div", { class: "side" }, this.controls.root),
      element("div", { class: "talk" }, ...talk),
      this.#transcript.tip.root,
      this.#code.root,
      this.#announcer.root,
      this.#file.root,
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

  #advise() {
    this.composer.advise(advice(this.#choices, this.#served));
  }

  /** @param {any} house */
  #serve(house) {
    this.#witness.take(house);
    this.#served = servedBy(house);
    this.controls.serve(this.#served);
    this.models.serve([...house.model.names, ...house.model.adapters]);
    this.#advise();
  }

  // -------------------------------------------------------------------- what the visitor does

  /** @param {Partial<import("./chat_choices.js").Choices>} [more] than the controls have put there */
  #chosen(more = {}) {
    Object.assign(this.#choices, more);
    this.#tell("");
    this.#advise();
    this.#keeper.soon();
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

  /** An example. What it is sent with is shown in the settings. @param {string} text */
  #try(text) {
    this.#choices.sampling = { ...EXAMPLE_SAMPLING, ...this.#choices.sampling };
    this.controls.renew(this.#choices);
    this.#send(text);
  }

  #stop() {
    this.#running?.stop();
    this.#running = null;
  }

  #clear() {
    if (this.#messages.length && !confirm("Clear this conversation?")) return;
    this.#stop();
    this.#transcript.cut(0);
    this.#tell("");
    this.#settle();
    this.#keeper.keep();
    this.composer.focus();
  }

  #showCode() {
    const { messages, title } = shownAsCode(this.#messages, this.composer.text.trim());
    try {
      this.#code.open(request(messages, options(this.#choices, this.#served)), this.#api.url(""), title);
    } catch (error) {
      this.#tell(/** @type {Error} */ (error).message);
    }
  }

  /** Go on from what a file has. @param {import("./chat_file.js").Found} found */
  #take({ messages, system, choices }) {
    this.#stop();
    if (choices) this.#choices = choices;
    if (system !== null) this.#choices.system = system;
    this.controls.renew(this.#choices);
    this.models.show();
    this.#advise();
    this.#renew(messages);
    this.#tell("");
    this.#keeper.keep();
  }

  /** What has come of an answer is kept, too. */
  #leave() {
    const last = this.#messages.at(-1);
    const isCut = this.#running && last?.role === "assistant";
    if (isCut) last.outcome.isStopped = true;
    if (isCut || this.#keeper.isLate) this.#keeper.keep();
    this.#stop(); // the browser ends it, too, but not as the visitor's own doing
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
    this.#follow(asked, answer);
    this.composer.focus();
    return true;
  }

  /** @param {import("./chat_request.js").Request} asked @param {import("./chat_conversation.js").Answer} answer */
  async #follow(asked, answer) {
    const view = this.#transcript.begin(answer);
    const turn = new Turn(view, this.#announcer, this.#witness);
    this.#running = turn;
    this.#settle();
    scrollToEnd();
    await turn.play(this.#api, asked, answer);
    if (this.#running === turn) this.#running = null;
    if (!this.#messages.includes(answer)) return; // it was taken away meanwhile
    keepEndInSight(() => this.#settle());
    if (awaited(this.#messages).length && !this.composer.text) view.focus();
    this.#announcer.end(answer);
    this.#keeper.keep();
    if (await turn.tellOfDeaths(answer)) this.#keeper.keep();
  }
}
