// @ts-check
// What the last run left behind for the pack's nodes, and when to paint it again. Views paint from the executed
// output alone, so a cached node, another client's run, a history entry and a reloaded page all look the same.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { counts, followersOf, isPolicy } from "./chain.mjs";

const KEYS = ["placement_decisions", "placement_report"];
const NEWEST = 12;

/** @type {Map<any, () => void>} node → how it is painted */
const views = new Map();
/** @type {Map<string, Record<string, any>>} workflow id → outputs by locator, from the history of the server */
const remembered = new Map();
let waiting = false;

/**
 * Paint a node whenever outputs change, as long as it is in a graph.
 * @param {any} node
 * @param {() => void} paint
 */
export function addView(node, paint) {
  const { onRemoved, onAdded } = node;
  node.onAdded = function (/** @type {any[]} */ ...args) {
    views.set(node, paint);
    repaint();
    return onAdded?.apply(this, args);
  };
  node.onRemoved = function (/** @type {any[]} */ ...args) {
    views.delete(node);
    return onRemoved?.apply(this, args);
  };
}

/** Paint all nodes, once, when whatever is going on is done. */
export function repaint() {
  if (waiting) return;
  waiting = true;
  setTimeout(() => {
    waiting = false;
    for (const paint of views.values()) paint();
  });
}

/**
 * Return the output of a node in the last run, or undefined.
 * @param {any} node
 */
export function outputOf(node) {
  const locator = locatorOf(node);
  return app.nodeOutputs?.[locator] ?? remembered.get(root().id)?.[locator];
}

/**
 * Return what came of a policy node's values, from every loader and report that ran with it.
 * @param {any} node
 * @returns {import("./policy_fields.mjs").Decided[]}
 */
export function decisionsFor(node) {
  const outputs = { ...remembered.get(root().id), ...app.nodeOutputs };
  return Object.values(outputs)
    .flatMap((output) => output?.placement_decisions ?? [])
    .flatMap((decided) => {
      const id = Object.keys(decided.policy_nodes).find((one) => nodeAt(one) === node);
      return id === undefined ? [] : [{ ...decided, ran: decided.policy_nodes[id] }];
    });
}

/**
 * Tell whether the policy nodes that took part in a run show other values by now, are gone, or are not all there are.
 * @param {any} output what the run left behind for a node
 */
export function changedSince(output) {
  return (output?.placement_decisions ?? []).some((/** @type {any} */ { policy_nodes, chain = policy_nodes }) => {
    const nodes = Object.keys(chain).map(nodeAt);
    return Object.values(chain).some((values, i) => !nodes[i]?.widgets || differs(nodes[i], values) || grew(nodes[i], nodes));
  });
}

/** @param {any} node @param {Record<string, unknown>} values those that it ran with */
function differs({ widgets }, values) {
  return Object.entries(values).some(([name, value]) => {
    const widget = widgets.find((/** @type {any} */ one) => one.name === name);
    return widget !== undefined && String(widget.value) !== String(value);
  });
}

/** Tell whether a policy node follows one of those that ran, and has not run. @param {any} node @param {any[]} ran */
function grew(node, ran) {
  const next = followersOf(node).map(({ target_id }) => node.graph.getNodeById(target_id));
  return next.some((one) => isPolicy(one) && counts(one) && !ran.includes(one));
}

/** Paint again when a node of the pack has run, and when the graph has changed in whatever way. */
export function watchChanges() {
  api.addEventListener("graphChanged", repaint);
  api.addEventListener("executed", (/** @type {any} */ { detail }) => {
    if (KEYS.some((key) => detail?.output?.[key]) || detail?.output?.text) repaint();
  });
}

/** Fetch the last run of this workflow, which the server still knows when the page was reloaded. */
export async function rememberLastRun() {
  const workflow = root()?.id;
  if (!workflow || remembered.has(workflow) || views.size === 0) return;
  remembered.set(workflow, {});
  const response = await api.fetchApi(`/history?max_items=${NEWEST}`).catch(() => null);
  if (!response?.ok) return; // then there is nothing to remember
  const runs = Object.values(await response.json());
  const last = runs.filter((run) => run.prompt?.[3]?.extra_pnginfo?.workflow?.id === workflow).at(-1);
  for (const [id, output] of Object.entries(last?.outputs ?? {})) {
    const node = nodeAt(id);
    if (node) /** @type {any} */ (remembered.get(workflow))[locatorOf(node)] = output;
  }
  repaint();
}

function root() {
  return app.rootGraph ?? app.graph;
}

/** @param {any} node */
function locatorOf(node) {
  return node.graph === root() ? String(node.id) : `${node.graph.id}:${node.id}`;
}

/**
 * Find the node of an execution id: `12:5` is node 5 of the subgraph that node 12 stands for.
 * @param {string} id
 */
export function nodeAt(id) {
  let graph = root();
  const path = id.split(":");
  for (const part of path.slice(0, -1)) graph = graph?.getNodeById(part)?.subgraph;
  return graph?.getNodeById(path.at(-1)) ?? null;
}
