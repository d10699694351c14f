// Formatting of values. External text is limited in length, and its control characters are removed.

export const NOTHING = "–";

const TEXT_LENGTH_MAX = 120;
// Control characters, and the marks that turn the direction of a text around.
const UNPRINTABLE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/gu;

export function shown(value, lengthMax = TEXT_LENGTH_MAX) {
  if (value === null || value === undefined) return NOTHING;
  const text = String(value);
  const cut = text.length > lengthMax ? `${text.slice(0, lengthMax)}…` : text;
  return cut.replace(UNPRINTABLE, "\ufffd");
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const price = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 6 });

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function count(value) {
  return isNumber(value) ? whole.format(value) : NOTHING;
}

export function rate(value) {
  if (!isNumber(value)) return NOTHING;
  return Math.abs(value) >= 10 || value === 0 ? whole.format(value) : fine.format(value);
}

// 12 345 678 → "12.3 M": for narrow places.
export function brief(value) {
  if (!isNumber(value)) return NOTHING;
  for (const [unit, name] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k"],
  ]) {
    if (Math.abs(value) >= unit) return `${fine.format(value / (name === "k" ? 1e3 : unit))} ${name}`;
  }
  return rate(value);
}

export function money(value) {
  return isNumber(value) ? price.format(value) : NOTHING;
}

export function change(value) {
  if (!isNumber(value)) return NOTHING;
  const sign = value > 0 ? "+" : value < 0 ? "−" : "";
  return sign + price.format(Math.abs(value));
}

export function micros(value) {
  if (!isNumber(value) || value === 0) return NOTHING;
  if (value < 1e3) return `${rate(value)} µs`;
  return value < 1e6 ? `${rate(value / 1e3)} ms` : `${rate(value / 1e6)} s`;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

export function clock(milliseconds) {
  const at = new Date(milliseconds);
  return Number.isNaN(at.getTime()) ? NOTHING : at.toLocaleTimeString("en-GB", { hour12: false });
}

const ENTRIES_MAX = 12;
const DEPTH_MAX = 4;

// A field of a message, of any type, in words: "name value, name value" for an object.
export function field(value, depth = 0) {
  if (value !== null && typeof value === "object") {
    if (depth >= DEPTH_MAX) return "…";
    const entries = Object.entries(value).slice(0, ENTRIES_MAX);
    const inWords = ([name, each]) => (Array.isArray(value) ? "" : `${shown(name, 40)} `) + field(each, depth + 1);
    return shown(entries.map(inWords).join(", ")) || NOTHING;
  }
  if (typeof value === "number") return Number.isInteger(value) ? whole.format(value) : price.format(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value === "" ? NOTHING : shown(value);
}
