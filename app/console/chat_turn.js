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

  /** @param {AnswerView} view @param {import("./chat_announcer.js").Announcer} announcer */
  constructor(view, announcer) {
    this.#view = view;
    this.#announcer = announcer;
  }

  stop() {
    this.#controller.abort();
  }

  /** Until the answer has ended, in whatever way. @param {any} api @param {import("./chat_request.js").Request} asked
   * @param {Answer} answer */
  async play(api, asked, answer) {
    this.#announcer.begin();
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
}
