// @ts-check
// What a Placement Policy node says field by field, and what auto became: plain values in, plain values out.
import { inLanguage } from "./sentences.mjs";
import { text } from "./strings.mjs";

/**
 * @typedef {{component: string, group: string, asked: string, asked_by: string, decided: string, applied: string,
 *   how: string, why: string}} Row
 * @typedef {{ran: Record<string, unknown>, settings: Record<string, {value: string, asked_by: string}>, rows: Row[]}} Decided
 *   what came of a node's values; `ran` are those that it ran with
 * @typedef {{value: unknown, linked: boolean}} Given
 * @typedef {{name: string, explicit: boolean, said: string, linked: boolean, known: boolean, became: string,
 *   why: string}} Field
 * @typedef {{name: string, explicit: boolean, became: string, why: string, differs: boolean}} Outcome
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
  const common = { name, explicit, said, linked: given.linked, known };
  if (!known) return { ...common, became: "", why: explicit ? "" : text("notRun") };
  const { became, why } = group ? placed(group, decided) : settled(name, explicit, decided);
  return { ...common, became: became === said ? "" : became, why };
}

/**
 * Tell what came of a policy: each component that was placed, and the settings that another place than the node sets.
 * @param {Decided[]} runs
 * @param {Field[]} fields the node's own
 * @returns {Outcome[]}
 */
export function outcomes(runs, fields) {
  const own = new Map(fields.map((field) => [field.name, field.said]));
  const settings = Object.entries(Object.assign({}, ...runs.map((one) => one.settings)))
    .filter(([name, { value }]) => own.get(name) !== value)
    .map(([name, { value, asked_by }]) => ({
      name, explicit: true, became: value, why: text("setBy", { by: inLanguage(asked_by) }), differs: false,
    }));
  const rows = rowsOf(runs).map((row) => ({
    name: row.component, explicit: isSet(row.asked), became: word(row.decided), why: sentence(row), differs: differs(row),
  }));
  return [...rows, ...settings];
}

/** The rows of some runs; a report's also says what is applied, so it stands for a loader's. @param {Decided[]} runs */
function rowsOf(runs) {
  /** @type {Map<string, Row>} */
  const rows = new Map();
  for (const row of runs.flatMap((one) => one.rows)) {
    if (row.applied || !rows.has(row.component)) rows.set(row.component, row);
  }
  return [...rows.values()];
}

/** @param {string} group @param {Decided[]} decided */
function placed(group, decided) {
  const all = rowsOf(decided).filter((row) => row.group === group);
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
  const [why, how] = [row.why.replace(/\.$/, ""), row.how].map(inLanguage);
  const values = { ...row, decided: word(row.decided), applied: word(row.applied), why, how };
  return text(differs(row) ? "componentApplied" : "componentWhy", values);
}

/** Whether something else is applied than was decided. @param {Row} row */
function differs(row) {
  return Boolean(row.applied) && word(row.applied) !== word(row.decided);
}

/** @param {string} name @param {boolean} explicit @param {Decided[]} decided */
function settled(name, explicit, decided) {
  const won = decided.map((one) => one.settings[name]).find(Boolean);
  if (won) return { became: won.value, why: text("setBy", { by: inLanguage(won.asked_by) }) };
  if (explicit) return { became: "", why: "" };
  return { became: SETTINGS[name]?.became() ?? "", why: text(SETTINGS[name]?.why ?? "settingAuto") };
}
