/** One answer on its way: asked for, drawn as it comes, and read out. Used by chat.js. */

import { textOf } from "./chat_conversation.js";
import { Pace } from "./chat_pace.js";
import { play } from "./chat_stream.js";
import { keepEndInSight } from "./dom.js";

/**
 * @typedef {import("./chat_conversation.js").Answer} Answer
 * @typedef {import("./chat_answer.js").AnswerView} AnswerView
 */

export class Turn {
  #controller = new AbortController();
  #view;
  #announcer;
  #witness;
  #died = async () => "";

  /** @param {AnswerView} view @param {import("./chat_announcer.js").Announcer} announcer
   * @param {import("./chat_witness.js").Witness} witness */
  constructor(view, announcer, witness) {
    this.#view = view;
    this.#announcer = announcer;
    this.#witness = witness;
  }

  stop() {
    this.#controller.abort();
  }

  /** Until the answer has ended, in whatever way. @param {any} api @param {import("./chat_request.js").Request} asked
   * @param {Answer} answer */
  async play(api, asked, answer) {
    this.#announcer.begin();
    this.#died = this.#witness.begin();
    const pace = new Pace(() => {
      keepEndInSight(() => this.#view.sync());
      this.#announcer.grow(textOf(answer));
    });
    await play(asked, answer, {
      api,
      signal: this.#controller.signal,
      changed: () => pace.ask(),
      waiting: (told, seconds) => this.#view.wait(told, seconds),
    });
    pace.stop();
    keepEndInSight(() => this.#view.end());
  }

  /** Whether it went on over a death: asked for when it stands there already. @param {Answer} answer
   * @returns {Promise<boolean>} whether there is more to keep now */
  async tellOfDeaths({ outcome }) {
    if (outcome.error || outcome.isStopped) return false;
    outcome.survived = await this.#died();
    if (outcome.survived) keepEndInSight(() => this.#view.showFacts());
    return outcome.survived !== "";
  }
}
