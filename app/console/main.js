// Starts the page: its views, its theme, the key's button and the readings. The views get `api` and listen for `house`
// events on document; none of them knows how a reading is had.

import { start as startCharts } from "./charts.js";
import { start as startChat } from "./chat.js";
import { byId } from "./dom.js";
import { showKeyWanted } from "./frame.js";
import { start as startHouse } from "./house.js";
import { Poll } from "./poll.js";
import { Requests, url } from "./requests.js";
import { store } from "./storage.js";

const THEME_NAME = "trillm.theme"; // theme.js reads it
const THEMES = ["system", "light", "dark"];
const VIEWS = ["house", "charts", "chat"];

// ---------------------------------------------------------------------- the key

const requests = new Requests();
const poll = new Poll(requests);

function showKeyButton() {
  byId("key-verb").textContent = requests.hasKey ? "Change" : "Enter";
  byId("key-button").hidden = !requests.isKeyNeeded && !requests.hasKey;
}

byId("key-button").addEventListener("click", () => requests.ask());
document.addEventListener("key-wanted", showKeyWanted);
document.addEventListener("key", () => {
  showKeyButton();
  poll.now();
});

// ---------------------------------------------------------------------- theme

const tellTheme = () => document.dispatchEvent(new CustomEvent("theme"));

function showTheme() {
  byId("theme-word").textContent = document.documentElement.dataset.theme ?? "system";
}

byId("theme-button").addEventListener("click", () => {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  store("localStorage", THEME_NAME, next === "system" ? "" : next);
  showTheme();
  tellTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tellTheme);

// ---------------------------------------------------------------------- views

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

byId("base-url").textContent = url("v1");
showTheme();
showKeyButton();
startHouse();
startCharts();
startChat(requests.api);
showView();
poll.now();
