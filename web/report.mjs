// @ts-check
// The Placement Report node shows its report as text, painted from the executed output alone, so that a cached
// node, a queue from another client and an older history entry all look the same.

const MIN_HEIGHT = 240;
const STYLE_ID = "layerwise-offload-style";
const CSS = `
.layerwise-offload-frame { position: relative; width: 100%; height: 100%; min-height: ${MIN_HEIGHT}px; }
.layerwise-offload-report {
  position: absolute; inset: 0; box-sizing: border-box; margin: 0; padding: 8px; overflow: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; user-select: text; border-radius: 6px;
  font: 12px/1.45 ui-monospace, monospace;
  color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222);
}
.layerwise-offload-report[data-empty] { color: var(--descrip-text, #999); }
`;
const EMPTY = "Run the workflow: the report is taken when everything in front of this node is done.";

/** Add the text area to a Placement Report node and keep it up to date. */
export function addReport(node) {
  addStyle();
  // The text scrolls inside a frame: a long report must not stretch the node over its neighbours.
  const frame = document.createElement("div");
  frame.className = "layerwise-offload-frame";
  const element = document.createElement("pre");
  element.className = "layerwise-offload-report";
  element.dataset.captureWheel = "true";
  element.tabIndex = 0;
  element.setAttribute("role", "region");
  element.setAttribute("aria-label", "Placement report");
  frame.append(element);
  show(element, null);
  const widget = node.addDOMWidget("placement_report_text", "LAYERWISE_OFFLOAD_TEXT", frame, {
    getMinHeight: () => MIN_HEIGHT,
    serialize: false,
  });
  widget.serialize = false;
  const chained = node.onExecuted;
  node.onExecuted = function (output) {
    chained?.apply(this, arguments);
    show(element, output?.text?.join("\n") ?? null);
  };
  node.setSize([Math.max(node.size[0], 460), Math.max(node.size[1], 320)]);
}

function show(element, text) {
  element.textContent = text ?? EMPTY;
  element.toggleAttribute("data-empty", text === null);
}

function addStyle() {
  if (document.getElementById(STYLE_ID)) return;
  const style = document.createElement("style");
  style.id = STYLE_ID;
  style.textContent = CSS;
  document.head.append(style);
}
