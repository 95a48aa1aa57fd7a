// The playground.

/** @param {object} api what main.js exports */
export function start(api) {}
