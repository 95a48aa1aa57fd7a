/** The messages of a conversation, and what is shown of each. Used by chat.js. */

import { AnswerView } from "./chat_answer.js";
import { QuestionView } from "./chat_question.js";
import { Tip } from "./chat_tokens.js";
import { element } from "./dom.js";

/**
 * @typedef {import("./chat_conversation.js").Message} Message
 * @typedef {{resay: (at: number, text: string) => void, again: (at: number) => void, give: (given: Message[]) => boolean}}
 *     Actions with the place of the message: a question is asked otherwise, an answer is wanted again, calls have results
 */

export class Transcript {
  /** @type {Message[]} */ messages = [];
  root = element("div", { class: "messages" });
  tip = new Tip();
  /** @type {(QuestionView | AnswerView | null)[]} one for each message; null for what stands with its call */ #views =
    [];
  #actions;

  /** @param {Actions} actions */
  constructor(actions) {
    this.#actions = actions;
  }

  /** From its beginning. @param {Message[]} messages */
  renew(messages) {
    this.cut(0);
    for (const message of messages) this.add(message);
  }

  /** @param {Message} message */
  add(message) {
    this.messages.push(message);
    this.#show(this.#made(message, this.messages.length - 1));
  }

  /** An answer that is still to come. @param {import("./chat_conversation.js").Answer} answer */
  begin(answer) {
    this.messages.push(answer);
    const view = this.#answerView(answer, this.messages.length - 1, true);
    this.#show(view);
    return view;
  }

  /** @param {QuestionView | AnswerView | null} view */
  #show(view) {
    this.#views.push(view);
    if (view) this.root.append(view.root);
  }

  /** @param {Message} message @param {number} at */
  #made(message, at) {
    if (message.role === "user") return new QuestionView(message.text, (text) => this.#actions.resay(at, text));
    return message.role === "assistant" ? this.#answerView(message, at, false) : null;
  }

  /** @param {import("./chat_conversation.js").Answer} answer @param {number} at @param {boolean} isLive */
  #answerView(answer, at, isLive) {
    const { again, give } = this.#actions;
    return new AnswerView(answer, { tip: this.tip, again: () => again(at), give }, isLive);
  }

  /** This message goes, and all after it. @param {number} at */
  cut(at) {
    for (const view of this.#views.splice(at)) view?.root.remove();
    this.messages.splice(at);
  }

  /** Have each answer's calls show their results, and the last one's ask for them. @param {boolean} isRunning */
  ask(isRunning) {
    this.#views.forEach((view, at) => {
      if (!(view instanceof AnswerView)) return;
      const given = new Map();
      let next = at + 1;
      for (; next < this.messages.length; next += 1) {
        const message = this.messages[next];
        if (message.role !== "tool" && message.role !== "decision") break;
        given.set(message.id, message);
      }
      view.ask(given, next === this.messages.length && !isRunning);
    });
  }

  /** Put the cursor where the last answer asks for something. */
  focus() {
    this.#views.findLast((view) => view instanceof AnswerView)?.focus();
  }
}
