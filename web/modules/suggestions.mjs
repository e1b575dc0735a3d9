// @ts-check
// What a run suggests, below its report: the value to set, what is to be expected of it, and a button that sets it.
import { app } from "../../../scripts/app.js";
import { addNode, boxOf, counts, edit, endOf, fillNode, followersOf, GAP, insertOverride, isPolicy, linkOf, OVERRIDE, POLICY, setWidget } from "./chain.mjs";
import { element } from "./dom.mjs";
import { nodeAt, repaint } from "./outputs.mjs";
import { copyText } from "./policy_files.mjs";
import { inLanguage } from "./sentences.mjs";
import { text } from "./strings.mjs";

/**
 * @typedef {{kind: string, component: string, selector: string, node: string, widget: string, value: string, line: string,
 *   yaml: string, effect: string, why: string}} Suggestion
 * @typedef {{applied: boolean, apply: () => void}} Way how a suggestion gets into the graph
 */

/**
 * Show what a run suggests.
 * @param {any} report the node that shows it
 * @param {any} output
 * @returns {HTMLElement[]}
 */
export function suggestionBoxes(report, output) {
  const boxes = suggestionsIn(output).map((one) => box(one, wayOf(one, report, output)));
  return boxes.length ? [element("section", { "aria-label": text("suggestions") }, ...boxes)] : [];
}

/** Which of them are applied: what differs is painted again. @param {any} report @param {any} output */
export function statesOf(report, output) {
  return suggestionsIn(output)
    .map((one) => wayOf(one, report, output)?.applied)
    .join();
}

/** @param {any} output @returns {Suggestion[]} */
function suggestionsIn(output) {
  return output?.placement_report?.at(-1)?.suggestions ?? [];
}

/** @param {Suggestion} one @param {Way | null} way */
function box(one, way) {
  const button = way
    ? action(way.applied ? "suggestionApplied" : "apply", text("applyIn", one), way.applied, way.apply)
    : action("copyYaml", one.yaml, false, () => copyText(one.yaml));
  return element(
    "div",
    { "class": "lwo-suggestion", "data-suggestion": one.component },
    element(
      "div",
      {},
      element("p", {}, element("strong", {}, one.line), ` ${inLanguage(one.effect)}`),
      element("p", { class: "lwo-quiet" }, inLanguage(one.why)),
    ),
    button,
  );
}

/** @param {"apply" | "suggestionApplied" | "copyYaml"} key @param {string} title @param {boolean} disabled @param {() => unknown} onclick */
function action(key, title, disabled, onclick) {
  return element("button", { "class": "lwo-button", "type": "button", "data-action": key, title, disabled, onclick }, text(key));
}

/**
 * How a suggestion gets into the graph, or null where only a file can say it.
 * @param {Suggestion} one @param {any} report @param {any} output
 * @returns {Way | null}
 */
function wayOf(one, report, output) {
  const last = lastPolicy(output);
  const end = last ? endOf(last) : endOfLoaders(report);
  if (one.node === "Placement Policy" && last && !isLinked(last, one.widget)) return setting(last, one);
  if (one.selector !== "all" && end) {
    const same = end.comfyClass === OVERRIDE && valueOf(end, "component") === one.selector && !isLinked(end, key(one));
    const values = { component: one.selector, [key(one)]: one.value };
    return same ? setting(end, { ...one, widget: key(one) }) : changing(() => insertOverride(end, values), end.graph);
  }
  if (end) return last ? null : changing(() => insertOverride(end, { [one.widget]: one.value }, POLICY), end.graph);
  const loaders = loadersBefore(report);
  const bare = loaders.length > 0 && loaders.every((loader) => !originOf(loader, "policy"));
  return bare ? changing(() => addPolicy(loaders, one), report.graph) : null;
}

/** The widget of Set Placement. @param {Suggestion} one */
function key({ widget, selector, node }) {
  return node === "Placement Policy" && selector !== "all" ? "placement" : widget;
}

/** @param {any} node @param {Suggestion} one @returns {Way} */
function setting(node, { widget, value }) {
  return { ...changing(() => setWidget(node, widget, value), node.graph), applied: valueOf(node, widget) === value };
}

/** @param {() => void} change @param {any} graph @returns {Way} */
function changing(change, graph) {
  const apply = () => {
    edit(change, [...new Set([graph, app.canvas.graph])]);
    repaint();
  };
  return { applied: false, apply };
}

/** The Placement Policy node of a run whose values win over those of the others, or null. @param {any} output */
function lastPolicy(output) {
  const ids = (output?.placement_decisions ?? []).flatMap((/** @type {any} */ one) => Object.keys(one.policy_nodes));
  const nodes = ids.map(nodeAt).filter((/** @type {any} */ node) => node?.comfyClass === POLICY);
  return nodes.find((/** @type {any} */ node) => !behind(node).some((one) => one.comfyClass === POLICY)) ?? null;
}

/** The policy nodes behind a policy node. @param {any} node @returns {any[]} */
function behind(node) {
  const seen = [node];
  for (const one of seen) {
    const next = followersOf(one).map(({ target_id }) => node.graph.getNodeById(target_id));
    seen.push(...next.filter((other) => isPolicy(other) && !seen.includes(other)));
  }
  return seen.slice(1);
}

/** The Loaders in front of a report, as far as they are in its graph. @param {any} report @returns {any[]} */
function loadersBefore(report) {
  const found = [];
  let node = originOf(report, "placements");
  for (; node?.graph && !found.includes(node); node = originOf(node, "placements")) found.push(node);
  return found.filter(counts);
}

/** The last node of the one policy that goes to the Loaders in front of a report. @param {any} report */
function endOfLoaders(report) {
  const ends = new Set(loadersBefore(report).map((loader) => originOf(loader, "policy")));
  const [end] = ends;
  return ends.size === 1 && isPolicy(end) ? end : null;
}

/** Make a policy for Loaders that have none. @param {any[]} loaders @param {Suggestion} one */
function addPolicy(loaders, one) {
  const first = /** @type {any} */ (loaders.at(-1));
  const type = one.node === "Placement Policy" ? POLICY : OVERRIDE;
  const { left, top } = boxOf(first);
  const policy = addNode(first.graph, type, ({ size }) => [left - size[0] - 2 * GAP, top + GAP]);
  fillNode(policy, type === POLICY ? { [one.widget]: one.value } : { component: one.selector, [one.widget]: one.value });
  for (const loader of loaders) policy.connect(0, loader, "policy");
}

/** The node that an input comes from, or its link where that is in another graph. @param {any} node @param {string} name */
function originOf(node, name) {
  const link = linkOf(node.graph, node.inputs?.find((/** @type {any} */ input) => input.name === name)?.link);
  return link && (node.graph.getNodeById(link.origin_id) ?? link);
}

/** @param {any} node @param {string} name */
function isLinked(node, name) {
  return node.inputs?.find((/** @type {any} */ slot) => slot.widget?.name === name)?.link != null;
}

/** @param {any} node @param {string} name */
function valueOf(node, name) {
  return node.widgets?.find((/** @type {any} */ widget) => widget.name === name)?.value;
}
