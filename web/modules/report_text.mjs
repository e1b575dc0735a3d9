// @ts-check
// The report's text in the person's language: plain text in, plain text out. It is made in English, of blocks with an
// empty line between: a table of aligned columns, or lines, of which long ones go on in the next, further in.
import { inLanguage } from "./sentences.mjs";
import { text } from "./strings.mjs";

/** @type {Record<string, () => string>} */
const HEADS = {
  "component": () => text("component"),
  "weights": () => text("weights"),
  "asked": () => text("asked"),
  "decided": () => text("decided"),
  "applied": () => text("applied"),
  "host": () => text("host"),
};
const GOES_ON = /\n {10,}/g;
const GAP = "  ";
const WIDE = /[\u2e80-\ua4ff\uf900-\ufaff\uff00-\uff60]/g;
const WIDER = 2 / 3; // by how much of a letter one of those is wider than one, in fonts for code

/**
 * Return a report's text in the person's language.
 * @param {string} english
 */
export function reportInLanguage(english) {
  const there = english.split("\n\n").map((block) => (block.includes(`component${GAP}`) ? table(block) : lines(block)));
  return there.join("\n\n");
}

/** @param {string} block */
function lines(block) {
  return block.replace(GOES_ON, " ").split("\n").map(line).join("\n");
}

/** What a line lists is told one by one. @param {string} english */
function line(english) {
  return english.split(" · ").map(inLanguage).join(" · ");
}

/** @param {string} block */
function table(block) {
  const [head, ...others] = block.split("\n").map((row) => row.split(/ {2,}/));
  const rows = [head.map((name) => HEADS[name]?.() ?? inLanguage(name)), ...others.map((row) => row.map(inLanguage))];
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => width(row[column] ?? ""))));
  const padded = (/** @type {string} */ cell, /** @type {number} */ column) =>
    cell + " ".repeat(Math.round(widths[column] - width(cell)));
  return rows.map((row) => row.map(padded).join(GAP).trimEnd()).join("\n");
}

/** How many letters of a font for code a text is wide. @param {string} shown */
function width(shown) {
  return shown.length + (shown.match(WIDE)?.length ?? 0) * WIDER;
}
