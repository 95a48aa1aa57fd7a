/** How often what grows is drawn: at most once a frame, and never more than a fifth of the time. Used by chat.js. */

const REST = 4;
/** Of what drawing took. */

export class Pace {
  #draw;
  #timer = 0;
  #frame = 0;
  /** Before which nothing is drawn again. */ #restUntil = 0;

  /** @param {() => void} draw */
  constructor(draw) {
    this.#draw = draw;
  }

  /** There is something new. */
  ask() {
    if (this.#timer || this.#frame) return;
    const rest = this.#restUntil - performance.now();
    if (rest > 0) this.#timer = setTimeout(() => this.#next(), rest);
    else this.#next();
  }

  #next() {
    this.#timer = 0;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      const began = performance.now();
      this.#draw();
      const ended = performance.now();
      this.#restUntil = ended + REST * (ended - began);
    });
  }

  stop() {
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
  }
}
