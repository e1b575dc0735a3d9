// @ts-check
// The report as a table: plain values in, plain values out.
import { word } from "./policy_fields.mjs";
import { inLanguage } from "./sentences.mjs";
import { text } from "./strings.mjs";

/**
 * @typedef {{component: string, asked: string, asked_by: string, decided: string, applied: string, how: string,
 *   why: string}} Row
 * @typedef {{head: string[], rows: {cells: string[], differs: boolean}[]}} Table
 */

/**
 * Return the asked / applied / why table of a report.
 * @param {Row[]} rows
 * @returns {Table} a row `differs` where something else is applied than was asked for
 */
export function tableOf(rows) {
  return {
    head: [text("component"), text("asked"), text("applied"), text("why")],
    rows: rows.map((row) => ({
      cells: [row.component, asked(row), applied(row), inLanguage(row.why)],
      differs: row.asked !== "auto" && row.applied !== row.asked,
    })),
  };
}

/** @param {Row} row */
function asked(row) {
  const by = row.asked_by ? ` (${inLanguage(row.asked_by)})` : "";
  const became = row.decided === row.asked ? "" : ` → ${word(row.decided)}`;
  return row.asked + by + became;
}

/** @param {Row} row */
function applied(row) {
  const how = inLanguage(row.how);
  return row.applied === "comfyui" || !row.applied ? how : `${row.applied}: ${how}`;
}
