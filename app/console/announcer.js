// Says to those who do not see the page what has changed. Several things may at once, and none takes another's place.

import { byId, element } from "./dom.js";

const MOST = 6;

/** @param {string} text */
export function announce(text) {
  const log = byId("announcer");
  log.append(element("p", {}, text));
  while (log.children.length > MOST) log.firstChild?.remove();
}
