// Says to those who do not see the page what has changed. Several things may at once, and none takes another's place.

const MOST = 6;

/** @param {string} text */
export function announce(text) {
  const log = /** @type {HTMLElement} */ (document.getElementById("announcer"));
  const said = document.createElement("p");
  said.textContent = text;
  log.append(said);
  while (log.children.length > MOST) log.firstChild?.remove();
}
