// @ts-check
// A node that shows text (the report, a policy), painted from the executed output alone, so that a cached node, a
// queue from another client and an older history entry all look the same.

const MIN_HEIGHT = 240;
const STYLE_ID = "layerwise-offload-style";
const CSS = `
.layerwise-offload-frame { position: relative; width: 100%; height: 100%; min-height: ${MIN_HEIGHT}px; }
.layerwise-offload-text {
  position: absolute; inset: 0; box-sizing: border-box; margin: 0; padding: 8px; overflow: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; user-select: text; border-radius: 6px;
  font: 12px/1.45 ui-monospace, monospace;
  color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222);
}
.layerwise-offload-text[data-empty] { color: var(--descrip-text, #999); }
`;

/**
 * Add the text area to a node and keep it up to date.
 * @param {object} node the node
 * @param {{label: string, empty: string}} text its name for screen readers, and what it says before a run
 */
export function addText(node, { label, empty }) {
  addStyle();
  // The text scrolls inside a frame: a long report must not stretch the node over its neighbours.
  const frame = document.createElement("div");
  frame.className = "layerwise-offload-frame";
  const element = document.createElement("pre");
  element.className = "layerwise-offload-text";
  element.dataset.captureWheel = "true";
  element.tabIndex = 0;
  element.setAttribute("role", "region");
  element.setAttribute("aria-label", label);
  frame.append(element);
  show(element, null, empty);
  const widget = node.addDOMWidget("layerwise_offload_text", "LAYERWISE_OFFLOAD_TEXT", frame, {
    getMinHeight: () => MIN_HEIGHT,
    serialize: false,
  });
  widget.serialize = false;
  const chained = node.onExecuted;
  node.onExecuted = function (output) {
    chained?.apply(this, arguments);
    show(element, output?.text?.join("\n") ?? null, empty);
  };
  node.setSize([Math.max(node.size[0], 460), Math.max(node.size[1], 320)]);
}

function show(element, text, empty) {
  element.textContent = text ?? empty;
  element.toggleAttribute("data-empty", text === null);
}

function addStyle() {
  if (document.getElementById(STYLE_ID)) return;
  const style = document.createElement("style");
  style.id = STYLE_ID;
  style.textContent = CSS;
  document.head.append(style);
}
