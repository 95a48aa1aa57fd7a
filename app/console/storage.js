// What a browser keeps for this page, which it may refuse: then it holds until the page is left.

/** @typedef {"localStorage" | "sessionStorage"} Kind */

/** @param {Kind} kind @param {string} name @returns {string} "" if nothing is kept */
export function stored(kind, name) {
  try {
    return window[kind].getItem(name) ?? "";
  } catch {
    return "";
  }
}

/** @param {Kind} kind @param {string} name @param {string} value "" takes it away */
export function store(kind, name, value) {
  try {
    if (value) window[kind].setItem(name, value);
    else window[kind].removeItem(name);
  } catch {
    // See above.
  }
}
