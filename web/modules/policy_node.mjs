// @ts-check
// The Placement Policy node: which values are set, what auto became, and the buttons for policy files.
import { reset } from "./chain.mjs";
import { addElement, element, keepMounted } from "./dom.mjs";
import { addView, decisionsFor, repaint } from "./outputs.mjs";
import { placeWorkflow } from "./placing.mjs";
import { copyYaml, dropOn, fillFrom, pickFile, policyFiles, saveFile } from "./policy_files.mjs";
import { describe, isSet } from "./policy_fields.mjs";
import { contentOf, paintPanel } from "./policy_panel.mjs";
import { saving } from "./saved_values.mjs";
import { text } from "./strings.mjs";

/** @typedef {{name: string, explicit: boolean, known: boolean, became: string, why: string}} Shown */

const HEIGHT = 243;
const SET = "◆";
const AUTO = "◇";
const MARK = /^[◆◇] /;

/**
 * Build the node's panel and mark its widgets.
 * @param {any} node
 */
export function addPolicyPanel(node) {
  const list = element("div", {
    "class": "lwo-fields", "role": "region", "aria-label": text("fields"), "data-capture-wheel": "true", "tabIndex": 0,
  });
  const all = button("resetAll", () => reset(node, fieldsOf(node)));
  const panel = element(
    "div",
    { class: "lwo-panel" },
    element(
      "div",
      { class: "lwo-actions" },
      button("loadFile", async () => fillFrom(node, await pickFile())),
      button("saveFile", () => saveFile(node)),
      button("copyYaml", () => copyYaml(node)),
      all,
      button("placeWorkflow", () => placeWorkflow(node)),
    ),
    list,
  );
  addElement(node, "layerwise_offload_policy", panel, HEIGHT);
  node.setSize([node.size[0], Math.max(node.size[1], node.computeSize()[1])]);
  acceptFiles(node);
  markWidgets(node);
  const show = painter(node);
  let painted = "";
  addView(node, () => {
    keepMounted(node, panel);
    const decided = decisionsFor(node);
    const fields = fieldsOf(node).map((name) => describe(name, groupOf(node, name), given(node, name), decided));
    show(fields);
    const content = contentOf(node, fields, (name) => plainName(widgetOf(node, name)), decided);
    if (JSON.stringify(content) !== painted) paintPanel(node, list, content); // what is open, or focused, stays so
    painted = JSON.stringify(content);
    const settable = content.set.some((line) => line.resets);
    if (!settable && document.activeElement === all) list.focus(); // a button that is off cannot keep it
    all.disabled = !settable;
  });
}

/**
 * Mark which widgets of a node are set, by a sign in front of the name that needs no colour.
 * @param {any} node
 */
function markWidgets(node) {
  const chain = (/** @type {any} */ owner, /** @type {string} */ name) => {
    const chained = owner[name];
    owner[name] = function (/** @type {any[]} */ ...args) {
      const result = chained?.apply(this, args);
      repaint();
      return result;
    };
  };
  for (const widget of node.widgets ?? []) if (widget.type !== "button" && !widget.element) chain(widget, "callback");
  for (const name of ["onConfigure", "onConnectionsChange"]) chain(node, name);
}

/**
 * Show the marks of a node that has no panel.
 * @param {any} node
 */
export function addMarks(node) {
  markWidgets(node);
  const show = painter(node);
  addView(node, () => {
    const fields = (node.widgets ?? []).map((/** @type {any} */ { name }) => {
      const { value, linked } = given(node, name);
      return { name, explicit: linked || isSet(value), known: false, became: "", why: "" };
    });
    show(fields);
  });
}

/**
 * Return what shows fields on a node. It paints only what differs from before: Nodes 2.0 draws a node again for each
 * label that is written.
 * @param {any} node
 * @returns {(fields: Shown[]) => void}
 */
function painter(node) {
  let painted = "";
  return (fields) => {
    const look = () => JSON.stringify([fields, node.widgets?.map((/** @type {any} */ widget) => widget.label)]);
    if (look() === painted) return;
    for (const field of fields) showResult(widgetOf(node, field.name), field);
    painted = look();
  };
}

/** The name of a widget without our mark; a node that was undone or copied comes with it. @param {any} widget */
function plainName(widget) {
  return (widget.label ?? widget.name).replace(MARK, "");
}

/** @param {any} widget @param {Shown} field */
function showResult(widget, { explicit, known, became, why }) {
  if (!widget || widget.element) return;
  const plain = plainName(widget);
  const help = schemaOf(widget.node, widget.name)?.tooltip ?? "";
  widget.tooltip = known && why ? `${why}\n\n${help}`.trim() : undefined; // undefined: ComfyUI's, in the person's language
  if (widget.type === "combo") {
    const label = (/** @type {any} */ value) => (isSet(value) ? value : `auto → ${became}`);
    // Nodes 2.0 draws from a state that it keeps by id, and that comes from a former node after an undo.
    for (const options of new Set([widget.options, widget._state?.options ?? widget.options])) {
      if (became && !explicit) options.getOptionLabel = label;
      else delete options.getOptionLabel;
    }
  }
  // Nodes 2.0 draws a widget again when its label changes, and does not see the option labels.
  widget.label = plain;
  widget.label = `${explicit ? SET : AUTO} ${plain}`;
  widget.node?.graph?.setDirtyCanvas?.(true, false);
}

/** @param {"loadFile" | "saveFile" | "copyYaml" | "resetAll" | "placeWorkflow"} key @param {() => unknown} onclick */
function button(key, onclick) {
  const label = text(key);
  return element("button", { class: "lwo-button", type: "button", "data-action": key, title: label, onclick }, label);
}

/** Dropped policies fill the node; other files are left to whoever was there before. @param {any} node */
function acceptFiles(node) {
  const { onDragOver, onDragDrop } = node;
  node.onDragOver = function (/** @type {DragEvent} */ event) {
    const file = [...(event.dataTransfer?.items ?? [])].some((item) => item.kind === "file");
    return file || Boolean(onDragOver?.call(this, event));
  };
  node.onDragDrop = async function (/** @type {DragEvent} */ event) {
    const files = policyFiles(event, true);
    if (files.length === 0) return Boolean(await onDragDrop?.call(this, event));
    await dropOn(this, files);
    return true;
  };
}

/** @param {any} node @param {string} name */
function widgetOf(node, name) {
  return node.widgets?.find((/** @type {any} */ widget) => widget.name === name);
}

/** The node's fields, in its own order. @param {any} node @returns {string[]} */
function fieldsOf(node) {
  return saving(node).map((widget) => widget.name);
}

/** The group of components that a field places, as the server says. @param {any} node @param {string} name */
function groupOf(node, name) {
  return schemaOf(node, name)?.placement_group;
}

/** What the server says about an input. @param {any} node @param {string} name */
function schemaOf(node, name) {
  return node?.constructor?.nodeData?.inputs?.[name];
}

/** @param {any} node @param {string} name */
function given(node, name) {
  const input = node.inputs?.find((/** @type {any} */ slot) => slot.widget?.name === name);
  return { value: widgetOf(node, name)?.value, linked: input?.link != null };
}
