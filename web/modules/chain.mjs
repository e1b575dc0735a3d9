// @ts-check
// The nodes of a policy in the graph: made from a file's values, filled with them, and read back.
import { app } from "../../../scripts/app.js";
import { liteGraph } from "./dom.mjs";

/**
 * @typedef {{policy: Record<string, string>, overrides: Record<string, string>[]}} Plan a file as widget values
 * @typedef {{nodes: {class_type: string, id: string, inputs: Record<string, unknown>}[],
 *   linked: {id: string, field: string}[], outside: string | null}} Chain
 */

export const POLICY = "LayerwiseOffload_PlacementPolicy";
export const OVERRIDE = "LayerwiseOffload_SetPlacement";
const LOAD = "LayerwiseOffload_LoadPolicy";
const SKIPPED = [2, 4]; // muted, bypassed
export const GAP = 50;
export const TITLE = 30;
const TALLER = 160; // Nodes 2.0 draws a node that much taller than it is when it is made

/**
 * Change the graph so that one undo takes it all back.
 * @template T
 * @param {() => T} change
 * @param {any[]} [graphs] those that change
 * @returns {T}
 */
export function edit(change, graphs = [app.canvas.graph]) {
  app.canvas.emitBeforeChange();
  try {
    return change();
  } finally {
    // Part of what is saved: left to a later moment, it would be a step of its own.
    for (const graph of graphs) graph.updateExecutionOrder();
    app.canvas.graph.setDirtyCanvas(true, true);
    app.canvas.emitAfterChange();
  }
}

/**
 * Set a widget as a person would.
 * @param {any} node
 * @param {string} name
 * @param {string} value
 */
export function setWidget(node, name, value) {
  const widget = node.widgets?.find((/** @type {any} */ one) => one.name === name);
  if (!widget || widget.value === value) return;
  widget.value = value;
  widget.callback?.(value, app.canvas, node);
}

/**
 * Set fields of a node back to auto, in one step.
 * @param {any} node
 * @param {string[]} fields
 */
export function reset(node, fields) {
  edit(() => fields.forEach((field) => setWidget(node, field, "auto")));
}

/**
 * Make the nodes of a file in the graph that is open.
 * @param {Plan} plan
 * @param {[number, number]} pos where the first one stands, in canvas units
 * @returns {any[]} the nodes, the policy node first
 */
export function createChain(plan, pos) {
  return edit(() => {
    const policy = addNode(app.canvas.graph, POLICY, () => pos);
    const nodes = [policy];
    fillNode(policy, plan.policy);
    for (const override of plan.overrides) nodes.push(insertOverride(nodes.at(-1), override));
    app.canvas.deselectAll?.();
    app.canvas.selectItems?.(nodes);
    return nodes;
  });
}

/**
 * Give a policy node a file's values, and its chain those overrides that the file needs. Overrides of the chain that
 * are for the same component are filled; others stay.
 * @param {any} policy
 * @param {Plan} plan
 * @returns {{kept: any[], linked: {id: string, field: string}[]}} overrides that the file does not know, and values
 *   that it could not give because they are linked
 */
export function fillChain(policy, plan) {
  return edit(() => {
    fillNode(policy, plan.policy);
    const there = overridesOf(policy).filter(counts);
    /** @type {any[]} */
    const filled = [];
    let before = policy;
    for (const override of plan.overrides) {
      // Only what stands behind the last filled one: a wider selector must not come behind a closer one.
      const later = there.slice(there.indexOf(before) + 1);
      const same = later.find((node) => valuesOf(node).inputs.component === override.component);
      if (same) fillNode(same, override);
      else there.splice(there.indexOf(before) + 1, 0, insertOverride(before, override));
      before = same ?? there[there.indexOf(before) + 1];
      filled.push(before);
    }
    const kept = there.filter((node) => !filled.includes(node));
    return { kept, linked: [policy, ...filled].flatMap((node) => valuesOf(node).linked) };
  });
}

/**
 * Take overrides out of the graph, and close the gaps.
 * @param {any[]} overrides of one chain
 */
export function removeOverrides(overrides) {
  edit(() => {
    for (const node of overrides) {
      const { graph } = node;
      const base = linkOf(graph, node.inputs.find((/** @type {any} */ input) => input.name === "base").link);
      const before = graph.getNodeById(base.origin_id);
      const followers = followersOf(node);
      graph.remove(node);
      connectAll(before, followers);
    }
  });
}

/**
 * Return where a chain may stand below another one.
 * @param {any[]} nodes the other one's
 * @returns {number} in canvas units
 */
export function below(nodes) {
  return Math.max(...nodes.map((node) => boxOf(node).bottom)) + GAP + TITLE;
}

/**
 * Read the chain that a policy node stands in, from its first base to its last override.
 * @param {any} policy
 * @returns {Chain}
 */
export function readChain(policy) {
  const bases = [];
  let outside = null;
  for (let node = policy; node; ) {
    const slot = node.inputs?.findIndex((/** @type {any} */ input) => input.name === "base") ?? -1;
    const link = linkOf(node.graph, node.inputs?.[slot]?.link);
    if (!link) break;
    const base = node.graph.getNodeById(link.origin_id);
    if (!isPolicy(base)) outside = String(node.id);
    node = outside === null && !bases.includes(base) ? base : null;
    if (node) bases.unshift(node);
  }
  const nodes = [...bases, policy, ...overridesOf(policy)].filter(counts);
  const read = nodes.map((node) => ({ node, ...valuesOf(node) }));
  return {
    nodes: read.map(({ node, inputs }) => ({ class_type: node.comfyClass, id: String(node.id), inputs })),
    linked: read.flatMap(({ linked }) => linked),
    outside,
  };
}

/** Tell whether a node hands out a policy. @param {any} node */
export function isPolicy(node) {
  return [POLICY, OVERRIDE, LOAD].includes(node?.comfyClass);
}

/** The node of a chain behind which nothing is added to its policy. @param {any} node */
export function endOf(node) {
  const seen = [node];
  for (;;) {
    const last = seen[seen.length - 1];
    const nodes = followersOf(last).map(({ target_id }) => node.graph.getNodeById(target_id));
    const further = nodes.find((one) => isPolicy(one) && !seen.includes(one));
    if (!further) return last;
    seen.push(further);
  }
}

/** Tell whether a node takes part in a run. @param {any} node */
export function counts(node) {
  return !SKIPPED.includes(node.mode);
}

/** @param {any} graph @param {string} type @param {(node: any) => [number, number]} place */
export function addNode(graph, type, place) {
  const node = liteGraph().createNode(type);
  node.pos = place(node); // before it is added: Nodes 2.0 may miss a move right after
  graph.add(node);
  return node;
}

/**
 * Return the next place down where a node covers no other.
 * @param {any} graph
 * @param {{size: [number, number]}} node
 * @param {[number, number]} pos
 * @returns {[number, number]}
 */
function freePlace(graph, { size }, [x, y]) {
  const boxes = graph.nodes.map(boxOf);
  const covered = () => {
    const { left, top, right, bottom } = boxOf({ pos: [x, y], size });
    return boxes.find(
      (/** @type {any} */ box) => left < box.right && box.left < right && top < box.bottom && box.top < bottom,
    );
  };
  for (let box = covered(); box; box = covered()) y = box.bottom + GAP + TITLE;
  return [x, y];
}

/** What a node covers, with its title. @param {any} node */
export function boxOf({ pos: [left, y], size: [width, height] }) {
  const taller = liteGraph().vueNodesMode ? TALLER : 0;
  return { left, top: y - TITLE, right: left + width, bottom: y + height + taller };
}

/** Set what is given, and everything else to auto. @param {any} node @param {Record<string, string>} values */
export function fillNode(node, values) {
  for (const name of Object.keys(valuesOf(node).inputs)) setWidget(node, name, values[name] ?? "auto");
}

/**
 * Put an override, or another policy node, behind a node, and in front of all that follows.
 * @param {any} before @param {any} values @param {string} [type]
 */
export function insertOverride(before, values, type = OVERRIDE) {
  const followers = followersOf(before);
  const { graph, pos, size } = before;
  const node = addNode(graph, type, (made) => freePlace(graph, made, [pos[0] + size[0] + GAP, pos[1]]));
  fillNode(node, values);
  connectAll(node, followers);
  before.connect(0, node, "base");
  return node;
}

/**
 * The inputs that an output goes to.
 * @param {any} node
 * @param {number} [slot] the output's place
 * @returns {{target_id: any, target_slot: number, parentId?: any}[]}
 */
export function followersOf({ graph, outputs }, slot = 0) {
  return (outputs[slot].links ?? []).map((/** @type {any} */ id) => ({ ...linkOf(graph, id) }));
}

/**
 * Connect an output to inputs, through the reroutes that led to them.
 * @param {any} node
 * @param {{target_id: any, target_slot: number, parentId?: any}[]} followers
 * @param {number} [slot] the output's place
 */
export function connectAll(node, followers, slot = 0) {
  for (const { target_id, target_slot, parentId } of followers) {
    const target = node.graph.getNodeById(target_id);
    if (target) node.connect(slot, target, target_slot, parentId);
    else node.graph.outputNode?.slots[target_slot]?.connect(node.outputs[slot], node, parentId);
  }
}

/** The Set Placement nodes behind a node, as long as they follow each other. @param {any} node */
function overridesOf(node) {
  /** @type {any[]} */
  const found = [];
  for (let last = node; last; ) {
    const followers = (last.outputs?.[0]?.links ?? [])
      .map((/** @type {any} */ id) => node.graph.getNodeById(linkOf(node.graph, id)?.target_id))
      .filter((/** @type {any} */ one) => one?.comfyClass === OVERRIDE);
    last = followers.length === 1 && !found.includes(followers[0]) ? followers[0] : null;
    if (last) found.push(last);
  }
  return found;
}

/** @param {any} node */
function valuesOf(node) {
  /** @type {Record<string, unknown>} */
  const inputs = {};
  const linked = [];
  for (const widget of node.widgets ?? []) {
    if (widget.serialize === false || widget.type === "button") continue;
    const input = node.inputs?.find((/** @type {any} */ slot) => slot.widget?.name === widget.name);
    if (input?.link != null) linked.push({ id: String(node.id), field: widget.name });
    else inputs[widget.name] = widget.value;
  }
  return { inputs, linked };
}

/** @param {any} graph @param {any} id */
export function linkOf(graph, id) {
  return id == null ? null : (graph.getLink?.(id) ?? graph.links?.[id] ?? null);
}
