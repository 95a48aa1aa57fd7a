// The page's frame: key, theme, views, and a reading of the house once a second. Other modules get `api` and listen for
// `house` events on document; none of them knows how a reading is had.

import { announce } from "./announcer.js";
import { start as startCharts } from "./charts.js";
import { start as startChat } from "./chat.js";
import { start as startHouse } from "./house.js";
import { duration } from "./words.js";

const POLL_MILLISECONDS = 1000;
const HURRIED_MILLISECONDS = 300; // while something that is needed is not ready
const POLL_LIMIT_MILLISECONDS = 8000;
const MOST_MILLISECONDS_BETWEEN_TRIES = 5000;
const KEY_NAME = "trillm.key";
const THEME_NAME = "trillm.theme";

/** @param {string} id @returns {HTMLElement} */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

// ---------------------------------------------------------------------- storage, which a browser may refuse

/** @param {"localStorage" | "sessionStorage"} kind @param {string} name */
function stored(kind, name) {
  try {
    return window[kind].getItem(name) ?? "";
  } catch {
    return "";
  }
}

/** @param {"localStorage" | "sessionStorage"} kind @param {string} name @param {string} value */
function store(kind, name, value) {
  try {
    if (value) window[kind].setItem(name, value);
    else window[kind].removeItem(name);
  } catch {
    // It then holds until the page is left.
  }
}

// ---------------------------------------------------------------------- the key

let key = stored("sessionStorage", KEY_NAME);
let needsKey = false;
let isDeclined = false; // the visitor has given none: nobody is asked again until they want to
/** @type {Promise<boolean> | null} */
let asking = null;

const dialog = /** @type {HTMLDialogElement} */ (byId("key-dialog"));
const keyInput = /** @type {HTMLInputElement} */ (byId("key-input"));

/** Has the visitor type a key; whether there is a new one. Who asks meanwhile shares the answer.
 * @param {string} wrong what was wrong with the last one */
function askForKey(wrong) {
  asking ??= new Promise((resolve) => {
    byId("key-wrong").textContent = wrong;
    keyInput.setAttribute("aria-invalid", String(Boolean(wrong)));
    keyInput.value = "";
    dialog.returnValue = "";
    dialog.showModal();
    keyInput.focus();
    dialog.addEventListener(
      "close",
      () => {
        asking = null;
        resolve(dialog.returnValue === "use");
      },
      { once: true },
    );
  });
  return asking;
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = keyInput.value.trim();
  if (!typed) return;
  key = typed;
  store("sessionStorage", KEY_NAME, key);
  keyInput.value = "";
  dialog.close("use");
});
byId("key-cancel").addEventListener("click", () => dialog.close(""));
byId("key-button").addEventListener("click", async () => {
  const isNew = await askForKey("");
  showKeyButton();
  if (isNew) readNow();
});

function showKeyButton() {
  byId("key-button").textContent = key ? "Change key" : "Enter key";
  byId("key-button").hidden = !needsKey && !key;
}

// ---------------------------------------------------------------------- requests

/** @param {string} path relative to the page, as "v1/models" */
const url = (path) => new URL(path.replace(/^\/+/, ""), document.baseURI).href;

/** As `fetch`, with the key. On 401 the visitor is asked for one; the refusal is returned only if there is none.
 * @param {string} path relative to the page @param {RequestInit} [init] @returns {Promise<Response>} */
async function fetchWithKey(path, init = {}) {
  for (;;) {
    const used = key;
    const headers = new Headers(init.headers);
    if (used) headers.set("Authorization", `Bearer ${used}`);
    const response = await fetch(url(path), { ...init, headers });
    if (response.status !== 401) return response;
    needsKey = true;
    showKeyButton();
    if (used !== key) continue; // another request has been given a new one meanwhile
    const wrong = used ? "The server does not know this key. Try another one." : "";
    isDeclined = !(await askForKey(wrong));
    showKeyButton();
    if (isDeclined) return response;
  }
}

/** What the other modules have of this one. */
export const api = Object.freeze({ fetch: fetchWithKey, key: () => key, url });

// ---------------------------------------------------------------------- theme

const THEMES = ["system", "light", "dark"];

function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "system";
  byId("theme-word").textContent = theme;
}

byId("theme-button").addEventListener("click", () => {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  store("localStorage", THEME_NAME, next === "system" ? "" : next);
  showTheme();
  document.dispatchEvent(new CustomEvent("theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  document.dispatchEvent(new CustomEvent("theme")),
);

// ---------------------------------------------------------------------- views

const VIEWS = ["house", "charts", "chat"];

function showView() {
  const asked = location.hash.slice(1);
  const view = VIEWS.includes(asked) ? asked : VIEWS[0];
  for (const name of VIEWS) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.getAttribute("data-view") === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  byId("foot").hidden = view === "chat"; // which fills the screen, and shows the same as code
  window.scrollTo(0, 0);
  document.dispatchEvent(new CustomEvent("view", { detail: view }));
}

addEventListener("hashchange", showView);
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the view's
  byId("main").focus();
});

// ---------------------------------------------------------------------- readings

let lostAt = 0;
let numFailed = 0;
/** @type {number | undefined} */
let timer;
let isReading = false;
let isRestarting = false;

async function read() {
  if (isReading) return;
  isReading = true;
  const began = performance.now();
  try {
    const response = await fetchWithKey("house", { cache: "no-store", signal: AbortSignal.timeout(POLL_LIMIT_MILLISECONDS) });
    if (response.ok) take(await response.json());
    else if (response.status === 401) showThatItIsLocked();
    else lose(await complaint(response));
  } catch (error) {
    lose(error instanceof DOMException && error.name === "TimeoutError" ? "It does not answer in time." : "");
  } finally {
    isReading = false;
    const spent = performance.now() - began;
    const usual = isRestarting ? HURRIED_MILLISECONDS : POLL_MILLISECONDS;
    const pause = Math.min(usual * 2 ** Math.max(0, numFailed - 2), MOST_MILLISECONDS_BETWEEN_TRIES);
    if (!isDeclined) timer = window.setTimeout(read, Math.max(0, pause - spent));
  }
}

function readNow() {
  isDeclined = false;
  window.clearTimeout(timer);
  read();
}

function showThatItIsLocked() {
  setState("warn", "locked");
  const banner = byId("banner");
  banner.textContent = "This server needs a key. Enter it to see how it is, and to chat.";
  banner.hidden = false;
}

/** @param {Response} response */
async function complaint(response) {
  try {
    return `It says: ${(await response.json()).error.message}`;
  } catch {
    return `It answers with status ${response.status}.`;
  }
}

/** @param {object} house as /house tells it */
function take(house) {
  if (lostAt) {
    announce("The server answers again.");
    document.dispatchEvent(new CustomEvent("house-back", { detail: { seconds: (Date.now() - lostAt) / 1000 } }));
  }
  lostAt = numFailed = 0;
  byId("banner").hidden = true;
  document.body.classList.remove("lost");
  isRestarting = house.actors.some((/** @type {any} */ actor) => actor.needed && !actor.ready);
  showState(house);
  document.dispatchEvent(new CustomEvent("house", { detail: house }));
}

/** @param {string} why */
function lose(why) {
  numFailed += 1;
  if (!lostAt) {
    lostAt = Date.now();
    document.dispatchEvent(new CustomEvent("house-lost"));
  }
  const since = new Date(lostAt).toLocaleTimeString("en-GB");
  const text = why || "The server may be restarting, or the network is down.";
  const banner = byId("banner");
  banner.hidden = false;
  const told = `No answer since ${since}. ${text} Trying again.`;
  if (banner.textContent !== told) banner.textContent = told;
  document.body.classList.add("lost");
  byId("notice").hidden = true;
  setState("lost", "no answer");
}

/** @param {any} house */
function showState(house) {
  byId("model-name").textContent = house.model.id;
  byId("model-name").title = house.model.names.join(", ");
  document.title = `${house.model.id} — trillm`;
  byId("base-model").textContent = house.model.id;
  const [state, word, why] = stateOf(house);
  setState(state, word, why);
  const notice = byId("notice");
  notice.hidden = !why;
  if (notice.textContent !== why) notice.textContent = why;
  byId("uptime").textContent = `up ${duration(house.now - house.started_at)}, version ${house.version}`;
  showKeyButton();
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
  if (isNews) announce(`The server is ${word}.${why ? ` ${why}` : ""}`);
}

byId("base-url").textContent = url("v1");
showTheme();
showKeyButton();
startHouse();
startCharts();
startChat(api);
showView();
read();
