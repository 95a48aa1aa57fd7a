// Figures as people read them. Pure.

/** @param {number} seconds */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600), Math.floor((whole % 3600) / 60)];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  if (minutes) return `${minutes} min ${whole % 60} s`;
  return `${whole} s`;
}

/** With a unit that fits: milliseconds below one second. @param {number | null} seconds */
export function latency(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 10 ? `${seconds.toFixed(2)} s` : `${Math.round(seconds)} s`;
}

/** @param {number | null} value */
export function rate(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value > 0 && value < 10) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}

/** @param {number | null} share 0 to 1 */
export function percent(share) {
  if (share === null || !Number.isFinite(share)) return "–";
  return `${share > 0 && share < 0.0995 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`;
}

/** @param {number} number @param {string} one @param {string} [more] */
export const counted = (number, one, more = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : more}`;
