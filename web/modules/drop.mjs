// @ts-check
// Policy files that are dropped beside the policy nodes. ComfyUI would load them as workflows, and an extension has no
// hook for that, so this is the pack's one listener on the document.
import { app } from "../../../scripts/app.js";
import { POLICY } from "./chain.mjs";
import { createFrom, fillFrom, pickFile, policyFiles } from "./policy_files.mjs";

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
  const files = policyFiles(event);
  if (event.defaultPrevented || files.length === 0) return;
  const pos = app.clientPosToCanvasPos([event.clientX, event.clientY]);
  const node = app.canvas.graph.getNodeOnPos(pos[0], pos[1]);
  const fills = node?.comfyClass === POLICY;
  // Nodes 2.0 hands the file to the node; LiteGraph would not, where an element such as the panel is in between.
  if (fills && /** @type {any} */ (event.target).closest?.("[data-node-id]")) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  app.dragOverNode = null;
  if (fills) fillFrom(node, files[0]);
  else createFrom(files, pos);
}
