// @ts-check
// Policy files that are dropped beside the policy nodes. ComfyUI would load them as workflows, and an extension has no
// hook for that, so this is the pack's one listener on the document.
import { app } from "../../../scripts/app.js";
import { POLICY } from "./chain.mjs";
import { createFrom, dropOn, pickFile, policyFiles } from "./policy_files.mjs";

/** Take the policy files that are dropped on the canvas or on a policy node; all other drops are left alone. */
export function watchDrops() {
  document.addEventListener("drop", onDrop, true);
}

/** Let the person choose a file, and make its nodes in the middle of the view. */
export async function loadIntoView() {
  const file = await pickFile();
  if (!file) return;
  const { left, top, width, height } = app.canvas.canvas.getBoundingClientRect();
  await createFrom([file], app.clientPosToCanvasPos([left + width / 3, top + height / 3]));
}

/** @param {DragEvent} event */
function onDrop(event) {
  const target = /** @type {any} */ (event.target);
  const pos = app.clientPosToCanvasPos([event.clientX, event.clientY]);
  // What lies over the graph, such as a side bar, hides its nodes.
  const seen = target === app.canvas.canvas || target.closest?.("[data-node-id], [data-layerwise-offload]");
  const node = seen ? app.canvas.graph.getNodeOnPos(pos[0], pos[1]) : null;
  const fills = node?.comfyClass === POLICY;
  const files = policyFiles(event, fills);
  if (event.defaultPrevented || files.length === 0) return;
  // Nodes 2.0 hands the file to the node; LiteGraph would not, where an element such as the panel is in between.
  if (fills && target.closest?.("[data-node-id]")) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  app.dragOverNode = null;
  if (fills) dropOn(node, files);
  else createFrom(files, pos);
}
