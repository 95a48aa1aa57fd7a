/** Elements made of text nodes only: nothing that a server or a model writes is ever read as HTML. Used by all that draw. */

/** @param {string} id of what the page has from its beginning @returns {any} */
export const byId = (id) => document.getElementById(id);

/** Nothing is touched, and so read out or laid out again, that is as it should be. @param {Node} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * @param {string} tag
 * @param {Record<string, any>} [attributes] `on…` are listeners, `class` and the like attributes; false and null: none
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function element(tag, attributes = {}, ...children) {
  /** @type {any} */
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/**
 * @param {string} label
 * @param {() => void} onclick
 * @param {Record<string, any>} [attributes]
 * @returns {HTMLButtonElement}
 */
export function button(label, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, label);
}

/**
 * A button that copies what it is given, and says so on itself for a moment.
 *
 * @param {() => string} text
 * @param {string} [name] what is copied, for who does not see where the button stands
 */
export function copyButton(text, name = "") {
  const label = name ? `Copy ${name}` : null;
  const made = button(
    "Copy",
    async () => {
      made.textContent = (await copied(text())) ? "Copied" : "Not copied";
      setTimeout(() => (made.textContent = "Copy"), 1500);
    },
    { class: "quiet copy", "aria-label": label },
  );
  return made;
}

/** @param {string} text */
async function copied(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed: the older way may be
    }
  }
  // Pages over plain HTTP from another host have no clipboard. Beside an open dialog nothing can be selected.
  const field = element("textarea", { class: "unseen", value: text, "aria-hidden": "true" });
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const worked = document.execCommand("copy");
  field.remove();
  before?.focus();
  return worked;
}

/** Text for a file that the browser saves. @param {string} name @param {string} text */
export function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = element("a", { href: url, download: name });
  link.click();
  URL.revokeObjectURL(url);
}

/** Draw, and have the page's end still in sight if it was. @param {() => void} draw */
export function keepEndInSight(draw) {
  const page = document.documentElement;
  const isAtEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 48;
  draw();
  if (isAtEnd) scrollToEnd();
}

/** Show the page's end. */
export function scrollToEnd() {
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
}
