// @ts-check
// What a Placement Policy node says field by field, and what auto became: plain values in, plain values out.
import { text } from "./strings.mjs";

/**
 * @typedef {{component: string, group: string, asked: string, asked_by: string, decided: string, applied: string,
 *   how: string, why: string}} Row
 * @typedef {{ran: Record<string, unknown>, settings: Record<string, {value: string, asked_by: string}>, rows: Row[]}} Decided
 *   what came of a node's values; `ran` are those that it ran with
 * @typedef {{value: unknown, linked: boolean}} Given
 * @typedef {{name: string, explicit: boolean, said: string, known: boolean, became: string, why: string}} Field
 */

/** @type {Record<string, {why: "modeAuto" | "budgetAuto" | "strictAuto", became: () => string}>} field → more to say of it */
const SETTINGS = {
  mode: { why: "modeAuto", became: () => "" },
  vram_budget: { why: "budgetAuto", became: () => text("noBudget") },
  strict: { why: "strictAuto", became: () => "off" },
};

/**
 * Tell whether a value is explicit, as the server does.
 * @param {unknown} value
 */
export function isSet(value) {
  return value != null && !["", "auto"].includes(String(value).trim().toLowerCase());
}

/**
 * Describe a field.
 * @param {string} name
 * @param {string | undefined} group the group of components that it places; undefined where it is for the workflow
 * @param {Given} given what its widget holds
 * @param {Decided[]} runs what came of the node's values; empty before a run
 * @returns {Field} `known` after a run; `became` is "" where nothing is known or the value itself says it all
 */
export function describe(name, group, given, runs) {
  const explicit = given.linked || isSet(given.value);
  const said = given.linked ? text("linked") : String(explicit ? given.value : "auto");
  const decided = runs.filter(({ ran }) => given.linked || String(ran[name] ?? "auto") === String(given.value));
  const known = decided.length > 0;
  if (!known) return { name, explicit, said, known, became: "", why: explicit ? "" : text("notRun") };
  const { became, why } = group ? placed(group, decided) : settled(name, explicit, decided);
  return { name, explicit, said, known, became: became === said ? "" : became, why };
}

/** @param {string} group @param {Decided[]} decided */
function placed(group, decided) {
  /** @type {Map<string, Row>} a report's row also says what is applied, so it stands for a loader's */
  const rows = new Map();
  for (const row of decided.flatMap((one) => one.rows)) {
    if (row.group === group && (row.applied || !rows.has(row.component))) rows.set(row.component, row);
  }
  const all = [...rows.values()];
  const words = new Set(all.map((row) => word(row.decided)));
  return {
    became: [...words].join(" / "),
    why: all.length ? all.map(sentence).join("\n") : text("notInWorkflow"),
  };
}

/** @param {string} decided */
export function word(decided) {
  return decided === "auto" || decided === "comfyui" ? text("leftToComfyUI") : decided;
}

/** @param {Row} row */
function sentence(row) {
  const differs = row.applied && word(row.applied) !== word(row.decided);
  const values = { ...row, decided: word(row.decided), applied: word(row.applied), why: row.why.replace(/\.$/, "") };
  return text(differs ? "componentApplied" : "componentWhy", values);
}

/** @param {string} name @param {boolean} explicit @param {Decided[]} decided */
function settled(name, explicit, decided) {
  const won = decided.map((one) => one.settings[name]).find(Boolean);
  if (won) return { became: won.value, why: text("setBy", { by: won.asked_by }) };
  if (explicit) return { became: "", why: "" };
  return { became: SETTINGS[name]?.became() ?? "", why: text(SETTINGS[name]?.why ?? "settingAuto") };
}
