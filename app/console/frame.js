// What stands around the views: which model is served, how the server is, and what a visitor should do about it. Used by
// poll.js.

import { announce } from "./announcer.js";
import { byId, setText } from "./dom.js";
import { duration } from "./words.js";

/** @param {any} house */
export function showHouse(house) {
  const { id, names } = house.model;
  byId("model-name").textContent = byId("base-model").textContent = id;
  byId("model-name").title = names.join(", ");
  document.title = `${id} — trillm`;
  byId("uptime").textContent = `up ${duration(house.now - house.started_at)}, version ${house.version}`;
  byId("banner").hidden = true;
  byId("beneath").hidden = byId("of-model").hidden = false;
  document.body.classList.remove("lost");
  const [state, word, why] = stateOf(house);
  setState(state, word, why);
  const notice = byId("notice");
  notice.hidden = !why;
  setText(notice, why);
}

/** @param {number} lostAt milliseconds @param {string} why "": nobody knows */
export function showLost(lostAt, why) {
  const since = new Date(lostAt).toLocaleTimeString("en-GB");
  warn(`No answer since ${since}. ${why || "The server may be restarting, or the network is down."} Trying again.`);
  document.body.classList.add("lost");
  byId("notice").hidden = true;
  setState("lost", "no answer");
}

/** The visitor is being asked for it. */
export function showKeyWanted() {
  setState("warn", "needs a key");
}

export function showLocked() {
  showKeyWanted();
  document.body.classList.add("lost"); // what is shown was so before
  const nothing = byId("nothing-yet");
  if (nothing) setText(nothing, "It is drawn for who has a key.");
  warn("This server needs a key. Enter it to see how it is, and to chat.");
}

/** @param {string} told */
function warn(told) {
  const banner = byId("banner");
  banner.hidden = false;
  setText(banner, told);
}

/** How bad it is, in a word or two, and what one should know or do. @param {any} house @returns {[string, string, string]} */
function stateOf(house) {
  if (!house.alive) return ["bad", "cannot go on", `${sentence(house.reason)} Only a restart of the service helps; its log says more.`];
  if (!house.ready) return ["warn", "not ready", `${sentence(house.reason)} Requests are refused with status 503 until then.`];
  if (house.run_state.is_sleeping) return ["warn", "asleep", "An operator has put the engines to sleep. Requests wait until POST /wake_up."];
  if (house.run_state.is_paused) return ["warn", "paused", "An operator has paused the engines. Requests wait until POST /resume."];
  if (house.late) return ["warn", "ready, in part", `${sentence(house.late)} The other engines serve.`];
  return ["ok", "ready", ""];
}

/** @param {string} text */
const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

/** @param {string} state @param {string} word @param {string} [why] */
function setState(state, word, why = "") {
  const badge = byId("state");
  if (badge.dataset.state === state && byId("state-word").textContent === word && badge.title === why) return;
  const isNews = badge.dataset.state !== "unknown" && byId("state-word").textContent !== word;
  badge.dataset.state = state;
  badge.title = why;
  byId("state-word").textContent = word;
  if (isNews) announce(`The server: ${word}.${why ? ` ${why}` : ""}`);
}
