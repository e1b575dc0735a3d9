// @ts-check
// The server's sentences in the person's language. They arrive in English; a template such as "{0} was set by {1}" knows
// one again, and what is in its places is translated in turn. What no template knows stays as it is.

const JOINT = 7; // letters that a joint, such as a comma, has at most
const BRACKETS = "\\((?:[^()]|\\([^()]*\\))*\\)"; // whole ones, as often as one is inside of another
const ANY = `((?:[^()]|${BRACKETS})*?)`;
const ONE = `((?:(?! less |;|: )[^()]|${BRACKETS})*?)`; // no sum, no second sentence, but in brackets, and nobody's
const MORE = /;|^ {2}/; // templates that take more
const MORE_AFTER = /: $/; // and their places that do: what follows a colon may be several sentences
const QUOTED = "(.*?)"; // what a person wrote

/**
 * @typedef {{pattern: RegExp, places: string[], quoted: boolean[], there: string, joint: boolean,
 *   turn: number, own: number}} Template `quoted` are the places that stay as they are
 * @type {Template[]} those of the person's language: labels of lines first, then the longest, and joints last, as they come
 */
let known = [];
/** @type {Map<string, string>} */
const before = new Map();

/**
 * Take the templates of a language.
 * @param {Record<string, string>} templates English → translated
 */
export function learnSentences(templates) {
  before.clear();
  const all = Object.entries(templates).flatMap(([english, there]) => {
    const whole = template(english, there);
    // A refusal lists notes without their full stop.
    return english.endsWith(".") ? [whole, template(english.slice(0, -1), there.replace(/[。.]$/, ""))] : [whole];
  });
  known = all.sort((one, other) => one.turn - other.turn || (one.joint ? 0 : other.own - one.own));
}

/** @param {string} english @param {string} there */
function template(english, there) {
  const parts = english.split(/\{\d\}/);
  const own = parts.join("").length;
  const joint = own < JOINT && /^(?:\{| )/.test(english);
  const literal = parts.map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const quoted = parts.map((part) => part.endsWith("“"));
  const more = joint || MORE.test(english);
  const place = (/** @type {string} */ before) => (more || MORE_AFTER.test(before) ? ANY : ONE);
  const pattern = literal.reduce((all, part, i) => all + (quoted[i - 1] ? QUOTED : place(parts[i - 1])) + part);
  const turn = joint ? 2 : Number(!english.startsWith("  "));
  return { own, joint, turn, quoted, pattern: new RegExp(`^${pattern}$`), places: english.match(/\{\d\}/g) ?? [], there };
}

/**
 * Return a sentence of the server in the person's language.
 * @param {string} english
 * @returns {string}
 */
export function inLanguage(english) {
  if (!before.has(english)) before.set(english, translated(english));
  return /** @type {string} */ (before.get(english));
}

/** @param {string} english */
function translated(english) {
  for (const { pattern, places, quoted, there, joint } of known) {
    const parts = pattern.exec(english)?.slice(1);
    if (!parts) continue;
    const inside = parts.map((part, i) => (quoted[i] ? part : inLanguage(part)));
    // A joint is in sentences too that no template knows.
    if (joint && String(inside) === String(parts)) continue;
    return there.replace(/\{\d\}/g, (place) => inside[places.indexOf(place)]);
  }
  return english;
}
