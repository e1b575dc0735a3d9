// @ts-check
// Policy files between the person's disk and the graph. The server reads and writes them, so that a file means here
// what it means to the nodes, and its mistakes are told with their line.
import { app } from "../../../scripts/app.js";
import { ask } from "./ask.mjs";
import { below, createChain, fillChain, readChain, removeOverrides } from "./chain.mjs";
import { element } from "./dom.mjs";
import { say } from "./notices.mjs";
import { text } from "./strings.mjs";

// Ours by name, also when the browser or the system has written a number or a word such as "copy" behind it.
const NAME = /\.offload([\W_][^.]*)?\.(ya?ml|json)$/i;
const READABLE = /\.(ya?ml|json)$/i;
const ROUTE = "/layerwise_offload/policy";

/**
 * Return the policy files that are dropped, or none when any of the files is something else.
 * @param {DragEvent} event
 * @param {boolean} [onNode] whether they are dropped on a policy node: then a file of any name may be one
 * @returns {File[]}
 */
export function policyFiles(event, onNode = false) {
  const files = [...(event.dataTransfer?.files ?? [])];
  return files.every((file) => (onNode ? READABLE : NAME).test(file.name)) ? files : [];
}

/** Let the person choose a file. @returns {Promise<File | null>} */
export function pickFile() {
  return new Promise((resolve) => {
    const input = element("input", { type: "file", accept: ".yaml,.yml,.json", "aria-label": text("policyFile") });
    input.addEventListener("change", () => resolve(input.files[0] ?? null));
    input.addEventListener("cancel", () => resolve(null));
    input.click();
  });
}

/**
 * Make the nodes of some files, one chain below the other.
 * @param {File[]} files
 * @param {[number, number]} pos in canvas units
 */
export async function createFrom(files, pos) {
  let [x, y] = pos;
  for (const file of files) {
    const plan = await parse(file);
    if (!plan) continue;
    const nodes = createChain(plan, [x, y]);
    y = below(nodes);
    tellLoaded(file, plan);
  }
}

/**
 * Fill a policy node with the first policy among files that are dropped on it; workflows are ComfyUI's.
 * @param {any} node
 * @param {File[]} files
 */
export async function dropOn(node, files) {
  for (const file of files) {
    if (!(await isWorkflow(file))) return fillFrom(node, file, files.filter((other) => other !== file));
  }
  // The event is over by now, and ComfyUI would find no files in it.
  for (const file of files) await app.handleFile(file);
}

/**
 * Fill a policy node, and what belongs to its chain, with a file's values.
 * @param {any} node
 * @param {File | null} file
 * @param {File[]} [others] files that came with it, and do not count
 */
export async function fillFrom(node, file, others = []) {
  const plan = file && (await parse(file));
  if (!plan) return;
  const { kept, linked } = fillChain(node, plan);
  const notes = linked.map((one) => text("linkWins", one));
  if (others.length) notes.push(text("onlyFirst", { files: others.map((other) => other.name).join(", ") }));
  tellLoaded(file, plan, notes);
  if (kept.length) await offerRemoval(file, kept);
}

/**
 * Say what came of a file; one that sets nothing may be the wrong one.
 * @param {File} file
 * @param {import("./chain.mjs").Plan} plan
 * @param {string[]} [notes]
 */
function tellLoaded(file, plan, notes = []) {
  const empty = !plan.overrides.length && !Object.keys(plan.policy).length;
  const first = empty ? text("loadedNothingHow", { file: file.name }) : file.name;
  say(empty || notes.length ? "warn" : "success", empty ? "loadedNothing" : "loaded", [first, ...notes].join("\n"));
}

/** @param {File} file @param {any[]} overrides those that the file does not have */
async function offerRemoval(file, overrides) {
  const names = overrides.map((one) => text("kept", { component: valueOf(one, "component"), id: one.id }));
  const removes = await app.extensionManager.dialog.confirm({
    title: text("keptTitle"),
    message: text("keptQuestion", { file: file.name }),
    itemList: names,
    type: "delete",
  });
  if (removes) removeOverrides(overrides);
  else say("warn", "keptStays", names.join("\n"));
}

/** Tell whether a file without our suffix is a workflow, in either of ComfyUI's formats. @param {File} file */
async function isWorkflow(file) {
  if (NAME.test(file.name)) return false;
  try {
    const content = JSON.parse(await file.text());
    return Array.isArray(content.nodes) || Object.values(content).some((one) => one?.class_type);
  } catch {
    return false; // then it is YAML, or has a mistake that the server names
  }
}

/** Save the chain of a policy node as a file. @param {any} node */
export async function saveFile(node) {
  const yaml = await dump(node);
  if (yaml === null) return;
  const name = `${workflowName()}.offload.yaml`;
  const href = URL.createObjectURL(new Blob([yaml], { type: "application/yaml" }));
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
  say("success", "saved", name);
}

/** The name of the open workflow, without what its file or ours has behind it. */
function workflowName() {
  const name = app.extensionManager.workflow.activeWorkflow?.filename;
  return name?.replace(/\.offload$/i, "") || "policy";
}

/** Copy the chain of a policy node as the text of a file. @param {any} node */
export async function copyYaml(node) {
  const yaml = await dump(node);
  if (yaml !== null) await copyText(yaml);
}

/** Copy what a policy file may hold. @param {string} yaml */
export async function copyText(yaml) {
  try {
    await navigator.clipboard.writeText(yaml);
  } catch {
    copyBySelection(yaml); // a page that came over plain HTTP has no clipboard
  }
  say("success", "copied");
}

/** @param {string} yaml */
function copyBySelection(yaml) {
  const area = element("textarea", { value: yaml, readOnly: true, "aria-hidden": "true" });
  const focused = /** @type {any} */ (document.activeElement);
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus?.();
}

/** @param {File} file @returns {Promise<import("./chain.mjs").Plan | null>} */
async function parse(file) {
  return ask(`${ROUTE}/parse?name=${encodeURIComponent(file.name)}`, file, "failed");
}

/** The text of a node's chain, from the server; null when it cannot be had. @param {any} node @returns {Promise<string | null>} */
export async function dump(node) {
  const { nodes, linked, outside } = readChain(node);
  const answer = await ask(`${ROUTE}/dump`, JSON.stringify({ nodes }), "failedSave");
  if (!answer) return null;
  const notes = linked.map((one) => text("linkLeftOut", one));
  if (outside !== null) notes.push(text("baseLeftOut", { id: outside }));
  if (notes.length) say("warn", "partly", notes.join("\n"));
  return answer.text;
}

/** @param {any} node @param {string} name */
function valueOf(node, name) {
  return node.widgets.find((/** @type {any} */ widget) => widget.name === name)?.value;
}
