// @ts-check
// "Place this workflow": Loaders behind everything that loads weights, in the open graph and its subgraphs, and out
// again. The server says where they belong, with what also places prompts and files; this inserts them.
import { app } from "../../../scripts/app.js";
import { ask } from "./ask.mjs";
import {
  addNode, boxOf, connectAll, counts, edit, endOf, fillNode, followersOf, GAP, isPolicy, linkOf, POLICY, readChain,
  setWidget, TITLE,
} from "./chain.mjs";
import { say } from "./notices.mjs";
import { dump } from "./policy_files.mjs";
import { text } from "./strings.mjs";

/**
 * @typedef {{node: any, slot: number, links: any[]}} Source an output, and its links that are to begin at the Loader
 * @typedef {{graph: string | null, after: {node: any, slot: number} | null, loaders: Loader[]}} Level
 * @typedef {{kind: string, sources: Record<string, Source>}} Loader one that is to be inserted: which, and its sources by socket
 * @typedef {{graph: string | null, id: any, kind: string, cause: string, types: string}} LeftOut
 * @typedef {{class_type: string, inputs: Record<string, any>}} Values what a policy node of a subgraph is filled with
 */

const PLACERS = ["LayerwiseOffload_Loader", "LayerwiseOffload_OtherModels"]; // whose outputs are called as their inputs
const LOAD = "LayerwiseOffload_LoadPolicy";
/** @type {Record<string, any>} */
const WHY = {
  muted: "whyMuted", bypassed: "whyBypassed", unused: "whyUnused", type: "whyType", unknown: "whyUnknown",
};
const DETOUR = 150; // how much farther a place beside a node may be than one above or below it, whose links turn back
const MARK = "layerwise_offload_placed"; // in the properties of what was inserted here, and may be removed

/**
 * Insert what the open workflow needs, in one step, and say what was placed and what not.
 * @param {any} [policy] the Placement Policy node that holds for it
 */
export async function placeWorkflow(policy = null) {
  const lead = policy ? endOf(policy) : onlyPolicy(root());
  const answer = await ask("/layerwise_offload/place", JSON.stringify({ workflow: root().serialize() }), "failedPlace");
  if (!answer) return;
  /** @type {Level[]} */
  const levels = answer.levels;
  const needsCopy = lead && levels.some((level) => graphOf(level) !== lead.graph);
  const values = needsCopy ? await valuesOf(lead) : { class_type: POLICY, inputs: {} };
  if (!values) return;
  const graphs = levels.map(graphOf).filter(Boolean);
  const made = levels.length ? edit(() => levels.flatMap((level) => insert(level, lead, values)), graphs) : [];
  select(made);
  tell(levels, answer.left_out);
}

/** Take out what was inserted, in one step; the rest is as it was before. */
export function removePlacement() {
  const marked = allGraphs().map((graph) => ({ graph, nodes: graph.nodes.filter(isMarked) }));
  const there = marked.filter(({ nodes }) => nodes.length);
  if (!there.length) return say("success", "nothingToRemove");
  const count = edit(
    () => {
      const nodes = there.flatMap((one) => one.nodes);
      const loaders = nodes.filter((node) => PLACERS.includes(node.comfyClass));
      for (const loader of loaders) splice(loader);
      const unused = nodes.filter((node) => !loaders.includes(node) && !isUsed(node));
      for (const node of unused) node.graph.remove(node);
      return loaders.length + unused.length;
    },
    there.map(({ graph }) => graph),
  );
  say("success", "placementRemoved", text("nodesRemoved", { count }));
}

/**
 * Insert what one level needs.
 * @param {Level} level
 * @param {any} lead the last node of the policy that holds, if there is one
 * @param {Values} values what a policy node is filled with where that one cannot be linked
 * @returns {any[]} the new nodes
 */
function insert(level, lead, values) {
  const graph = graphOf(level);
  const made = [];
  const nearTo = (/** @type {Loader} */ { sources }) => graph?.getNodeById(Object.values(sources)[0].node);
  if (!level.loaders.every(nearTo)) return []; // the graph has changed since the server was asked
  let policy = lead?.graph === graph ? lead : onlyPolicy(graph);
  if (!policy) {
    const first = nearTo(level.loaders[0]);
    policy = mark(addNode(graph, values.class_type, (node) => nearestPlace(graph, node, first, true)));
    if (values.class_type === POLICY) fillNode(policy, values.inputs);
    else setWidget(policy, "text", values.inputs.text);
    made.push(policy);
  }
  let after = level.after && { node: graph.getNodeById(level.after.node), slot: level.after.slot };
  for (const one of level.loaders) {
    const loader = mark(addNode(graph, one.kind, (node) => nearestPlace(graph, node, nearTo(one))));
    for (const [socket, source] of Object.entries(one.sources)) redirect(graph, source, loader, socket);
    policy.connect(0, loader, "policy");
    after?.node?.connect(after.slot, loader, "placements");
    after = { node: loader, slot: loader.findOutputSlot("placements") };
    made.push(loader);
  }
  return made;
}

/**
 * Let links begin at a Loader instead.
 * @param {any} graph
 * @param {Source} source
 * @param {any} loader
 * @param {string} socket
 */
function redirect(graph, source, loader, socket) {
  const node = graph.getNodeById(source.node);
  if (!node) return;
  const links = source.links.map((id) => linkOf(graph, id));
  const followers = links.filter((link) => link && graph.getNodeById(link.origin_id) === node).map((link) => ({ ...link }));
  node.connect(source.slot, loader, socket);
  connectAll(loader, followers, loader.findOutputSlot(socket.toUpperCase()));
}

/** Take a Loader out; what came in goes to those that used what it handed on. @param {any} loader */
function splice(loader) {
  const { graph } = loader;
  loader.outputs.forEach((/** @type {any} */ output, /** @type {number} */ slot) => {
    const input = loader.inputs.find((/** @type {any} */ one) => one.name === output.name.toLowerCase());
    const link = linkOf(graph, input?.link);
    const source = link && graph.getNodeById(link.origin_id);
    if (source) connectAll(source, followersOf(loader, slot), link.origin_slot);
  });
  graph.remove(loader);
}

/** What a policy node of another level is filled with. @param {any} lead @returns {Promise<Values | null>} */
async function valuesOf(lead) {
  const { nodes, linked } = readChain(lead);
  if (nodes.length === 1 && !linked.length && nodes[0].class_type === POLICY) return nodes[0];
  const yaml = await dump(lead);
  return yaml === null ? null : { class_type: LOAD, inputs: { text: yaml } };
}

/** @param {Level[]} levels @param {LeftOut[]} leftOut */
function tell(levels, leftOut) {
  const loaders = levels.flatMap((level) => level.loaders);
  const models = loaders.reduce((sum, loader) => sum + Object.keys(loader.sources).length, 0);
  const lines = leftOut.map((one) => text("leftOut", { ...one, why: text(WHY[one.cause], one) }));
  if (models) lines.unshift(text("placedHow", { models, loaders: loaders.length }));
  say(leftOut.length ? "warn" : "success", models ? "placed" : "nothingToPlace", lines.join("\n"));
}

/** Select new nodes, as far as they are seen. @param {any[]} made */
function select(made) {
  const seen = made.filter((node) => node.graph === app.canvas.graph);
  if (!seen.length) return;
  app.canvas.deselectAll?.();
  app.canvas.selectItems?.(seen);
}

/** The last node of the one policy of a graph, or null where it has none, or several. @param {any} graph */
function onlyPolicy(graph) {
  const ends = graph.nodes.filter((/** @type {any} */ node) => isPolicy(node) && counts(node) && endOf(node) === node);
  return ends.length === 1 ? ends[0] : null;
}

/**
 * The place beside a node that is the nearest to it, and where a new one covers no other.
 * @param {any} graph
 * @param {any} node
 * @param {any} near
 * @param {boolean} [before] to its left, as for what leads to it; otherwise to its right
 * @returns {[number, number]}
 */
function nearestPlace(graph, node, near, before = false) {
  const boxes = graph.nodes.map(boxOf);
  const from = boxOf(near);
  const mine = boxOf({ pos: [0, 0], size: node.size });
  const [width, height] = [mine.right - mine.left, mine.bottom - mine.top];
  const beside = before ? from.left - width - 2 * GAP : from.right + 2 * GAP;
  const places = [{ left: beside, detour: 0 }, { left: from.left, detour: DETOUR }].flatMap(({ left, detour }) => {
    const column = boxes.filter((/** @type {any} */ box) => box.left < left + width + GAP && left < box.right + GAP);
    const free = (/** @type {number} */ top) =>
      !column.some((/** @type {any} */ box) => box.top < top + height + GAP && top < box.bottom + GAP);
    const tops = column.flatMap((/** @type {any} */ box) => [box.bottom + GAP + 1, box.top - height - GAP - 1]);
    return [from.top, ...tops].filter(free).map((top) => ({ left, top, far: Math.abs(top - from.top) + detour }));
  });
  const { left, top } = places.reduce((best, one) => (one.far < best.far ? one : best));
  return [Math.round(left), Math.round(top + TITLE)];
}

/** @param {any} node */
function mark(node) {
  node.properties[MARK] = true;
  return node;
}

/** @param {any} node */
function isMarked(node) {
  return MARK in (node.properties ?? {});
}

/** @param {any} node */
function isUsed(node) {
  return node.outputs.some((/** @type {any} */ output) => output.links?.length);
}

/** @param {Level} level */
function graphOf({ graph }) {
  return graph === null ? root() : root().subgraphs?.get(graph);
}

function allGraphs() {
  return [root(), ...(root().subgraphs?.values() ?? [])];
}

function root() {
  return app.rootGraph ?? app.graph;
}
