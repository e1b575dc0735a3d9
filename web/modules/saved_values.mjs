// @ts-check
// A node's values in a workflow, by name. ComfyUI reads them by position, so that in a workflow of a version with a
// widget more, or one less, the values behind it would go to other widgets.
import { say } from "./notices.mjs";
import { isSet } from "./policy_fields.mjs";
import { text } from "./strings.mjs";

/** @typedef {Record<string, unknown>} Values */

const PROPERTY = "layerwise_offload_values";

/**
 * Save the values of a node by name too, and read them so where the positions are those of another version.
 * @param {any} node
 */
export function keepValuesByName(node) {
  const initial = valuesOf(node);
  const { onSerialize, onConfigure } = node;
  node.onSerialize = function (/** @type {any} */ data) {
    data.properties = { ...data.properties, [PROPERTY]: valuesOf(this) };
    onSerialize?.call(this, data);
  };
  node.onConfigure = function (/** @type {any} */ data) {
    const saved = data.properties?.[PROPERTY] ?? data.widgets_values_named; // the latter is ComfyUI's own, of late
    if (saved && !fits(saved, data.widgets_values, Object.keys(initial))) restore(this, { ...initial, ...saved });
    return onConfigure?.call(this, data);
  };
}

/**
 * Tell whether positions mean what they do here. Then they count, as a tool or a person may have changed a value there.
 * @param {Values} saved
 * @param {unknown[] | undefined} positions
 * @param {string[]} names
 */
function fits(saved, positions, names) {
  return positions?.length === names.length && Object.keys(saved).join() === names.join();
}

/** @param {any} node @param {Values} values */
function restore(node, values) {
  for (const widget of saving(node)) {
    widget.value = values[widget.name];
    delete values[widget.name];
  }
  const lost = Object.entries(values).filter(([, value]) => isSet(value));
  const notes = lost.map(([field, value]) => text("fieldUnknown", { field, id: node.id, value }));
  if (notes.length) say("warn", "otherVersion", notes.join("\n"));
}

/** @param {any} node @returns {Values} */
function valuesOf(node) {
  return Object.fromEntries(saving(node).map((widget) => [widget.name, widget.value]));
}

/** The widgets whose values are part of the workflow. @param {any} node @returns {any[]} */
export function saving(node) {
  return (node.widgets ?? []).filter((/** @type {any} */ widget) => widget.serialize !== false);
}
