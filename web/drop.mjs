// @ts-check
// Policy files that are dropped beside the policy nodes. ComfyUI would load them as workflows, and an extension has no
// hook for that, so this is the pack's one listener on the document.
import { app } from "../../scripts/app.js";
import { POLICY } from "./chain.mjs";
import { createFrom, pickFile, policyFiles } from "./policy_files.mjs";

/** Make policy nodes of the files that are dropped on the canvas; all other drops are left alone. */
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
  if (app.canvas.graph.getNodeOnPos(pos[0], pos[1])?.comfyClass === POLICY) return; // it takes the file itself
  event.preventDefault();
  event.stopImmediatePropagation();
  app.dragOverNode = null;
  createFrom(files, pos);
}
