// @ts-check
// What the panel of a Placement Policy node lists: what is set, by which node, and what came of it in the last run.
import { edit, readChain, setWidget } from "./chain.mjs";
import { element } from "./dom.mjs";
import { isSet, outcomes } from "./policy_fields.mjs";
import { text } from "./strings.mjs";

/**
 * @typedef {{key: string, name: string, value: string, by: string, resets: boolean}} SetLine `by` is "" for this node
 * @typedef {{set: SetLine[], run: import("./policy_fields.mjs").Outcome[], stale: boolean, ran: boolean}} Content
 */

const SET = "◆";
const AUTO = "◇";

/**
 * Gather what there is to list.
 * @param {any} node
 * @param {import("./policy_fields.mjs").Field[]} fields the node's own
 * @param {(field: string) => string} nameOf what a field is called on the node
 * @param {import("./policy_fields.mjs").Decided[]} runs
 * @returns {Content}
 */
export function contentOf(node, fields, nameOf, runs) {
  const own = fields
    .filter((field) => field.explicit)
    .map(({ name, said, linked }) => ({ key: name, name: nameOf(name), value: said, by: "", resets: !linked }));
  const stale = runs.length > 0 && fields.some((field) => !field.known);
  return { set: [...own, ...setElsewhere(node)], run: outcomes(runs, fields), stale, ran: runs.length > 0 };
}

/** What other nodes of the chain set, in their order. @param {any} node @returns {SetLine[]} */
function setElsewhere(node) {
  const { nodes, linked } = readChain(node);
  return nodes
    .filter(({ id }) => id !== String(node.id))
    .flatMap(({ id, inputs }) => {
      const by = text("byNode", { title: node.graph.getNodeById(id)?.title, id });
      const values = { ...inputs, ...Object.fromEntries(linked.filter((one) => one.id === id).map((one) => [one.field, text("linked")])) };
      const { component, ...settings } = /** @type {Record<string, unknown>} */ (values);
      const given = Object.entries(settings).filter(([, value]) => isSet(value));
      if ("component" in values && !isSet(component)) return []; // it names nothing, so it sets nothing
      return given.map(([name, value]) => ({
        key: `${id}:${name}`, name: componentName(component, name), value: firstLine(value), by, resets: false,
      }));
    });
}

/** @param {unknown} component @param {string} setting */
function componentName(component, setting) {
  if (component === undefined) return setting;
  return setting === "placement" ? String(component) : `${component}, ${setting}`;
}

/** @param {unknown} value */
function firstLine(value) {
  const [first, ...more] = String(value).trim().split("\n");
  return more.length ? `${first} …` : first;
}

/**
 * Paint a list; whoever had the focus in it has it again, or the nearest that is still there.
 * @param {any} node
 * @param {HTMLElement} list
 * @param {Content} content
 */
export function paintPanel(node, list, content) {
  const focused = /** @type {any} */ (document.activeElement);
  const inside = focused !== list && list.contains(focused);
  const place = buttonsOf(list).indexOf(focused);
  const open = new Set([...list.querySelectorAll("details[open]")].map((one) => /** @type {any} */ (one).dataset.key));
  list.replaceChildren(
    element("h4", {}, text("whatIsSet")),
    content.set.length
      ? element("ul", {}, ...content.set.map((line) => setLine(node, line)))
      : element("p", { class: "lwo-quiet" }, text("nothingSet")),
    element("h4", {}, text("whatCame")),
    ...(content.stale ? [element("p", { class: "lwo-quiet lwo-stale" }, text("stale"))] : []),
    content.run.length
      ? element("ul", {}, ...content.run.map((outcome) => outcomeLine(outcome, open)))
      : element("p", { class: "lwo-quiet" }, text(content.ran ? "nothingPlaced" : "notRun")),
  );
  if (!inside) return;
  const same = focused.dataset.focus && list.querySelector(`[data-focus="${focused.dataset.focus}"]`);
  const left = buttonsOf(list);
  (same || left[Math.min(place, left.length - 1)] || list).focus();
}

/** @param {HTMLElement} list @returns {HTMLElement[]} */
function buttonsOf(list) {
  return [...list.querySelectorAll("button")];
}

/** @param {any} node @param {SetLine} line */
function setLine(node, { key, name, value, by, resets }) {
  const item = element(
    "li",
    { "class": "lwo-field", "data-name": key, "data-explicit": true },
    element("span", { class: "lwo-plain" }, mark(true), `${name}: `, element("span", { class: "lwo-said" }, value), by ? ` (${by})` : ""),
  );
  if (resets) item.append(resetButton(node, key, name));
  return item;
}

/** @param {import("./policy_fields.mjs").Outcome} outcome @param {Set<string>} open */
function outcomeLine({ name, explicit, became, why, differs }, open) {
  const line = [mark(explicit), `${name} → `, element("span", { class: "lwo-said" }, became)];
  return element(
    "li",
    { "class": "lwo-outcome", "data-component": name, "data-explicit": explicit, "data-differs": differs },
    element(
      "details",
      { "title": why, "data-key": name, "open": open.has(name) },
      element("summary", { "data-focus": name }, ...line),
      element("p", { class: "lwo-why" }, why),
    ),
  );
}

/** @param {boolean} explicit */
function mark(explicit) {
  const kind = text(explicit ? "setHere" : "automatic");
  return element("span", { class: "lwo-mark", role: "img", "aria-label": kind, title: kind }, explicit ? SET : AUTO);
}

/** @param {any} node @param {string} field @param {string} name */
function resetButton(node, field, name) {
  const label = text("resetField", { field: name });
  const onclick = () => edit(() => setWidget(node, field, "auto"));
  return element("button", { class: "lwo-button lwo-reset", type: "button", title: label, "aria-label": label, onclick }, text("reset"));
}
