// @ts-check
// The server's sentences in the person's language. They arrive in English; a template such as "{0} was set by {1}" knows
// one again, and what is in its places is translated in turn. What no template knows stays as it is.

const JOINT = 7; // letters that a joint, such as a comma, has at most
const BRACKETS = "\\((?:[^()]|\\([^()]*\\))*\\)"; // whole ones, as often as one is inside of another
const ANY = `((?:[^()]|${BRACKETS})*?)`;
const ONE = `((?:(?! less |;)[^()]|${BRACKETS})*?)`; // no sum, and no second sentence, but in brackets

/**
 * @typedef {{pattern: RegExp, places: string[], there: string, joint: boolean, own: number}} Template
 * @type {Template[]} those of the person's language: the longest first, and joints last, as they come
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
  const all = Object.entries(templates).map(([english, there]) => template(english, there));
  known = all.sort((one, other) => Number(one.joint) - Number(other.joint) || (one.joint ? 0 : other.own - one.own));
}

/** @param {string} english @param {string} there */
function template(english, there) {
  const parts = english.split(/\{\d\}/);
  const own = parts.join("").length;
  const joint = own < JOINT;
  const literal = parts.map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const pattern = new RegExp(`^${literal.join(joint || english.includes(";") ? ANY : ONE)}$`);
  return { own, joint, pattern, places: english.match(/\{\d\}/g) ?? [], there };
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
  for (const { pattern, places, there, joint } of known) {
    const parts = pattern.exec(english)?.slice(1);
    if (!parts) continue;
    const inside = parts.map(inLanguage);
    // A joint is in sentences too that no template knows.
    if (joint && String(inside) === String(parts)) continue;
    return there.replace(/\{\d\}/g, (place) => inside[places.indexOf(place)]);
  }
  return english;
}
