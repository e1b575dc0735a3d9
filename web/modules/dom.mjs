// @ts-check
// Small DOM helpers, and the one way in which the pack puts an element on a node in both renderers.
import { app } from "../../../scripts/app.js";

/** ComfyUI's graph library, which it keeps in a global. @returns {any} */
export function liteGraph() {
  return /** @type {any} */ (globalThis).LiteGraph;
}

/**
 * Make an element.
 * @param {string} tag
 * @param {Record<string, any>} [properties] properties of the element; `class` and `data-…`, `aria-…` are attributes
 * @param {(Node | string)[]} children
 * @returns {any}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (name === "class" || name.includes("-") || name === "role") made.setAttribute(name, value === true ? "" : value);
    else /** @type {any} */ (made)[name] = value;
  }
  made.append(...children);
  return made;
}

/** Add the stylesheet, once. */
export function addStyle() {
  const id = "layerwise-offload-style";
  if (document.getElementById(id)) return;
  document.head.append(
    element("link", { id, rel: "stylesheet", href: new URL("../style.css", import.meta.url).href }),
  );
}

/**
 * Make a new node wide enough for its name, and for those of its sockets and widgets and what they usually hold.
 * @param {any} node
 * @param {number} width in canvas units
 */
export function widen(node, width) {
  if (node.size[0] < width) node.setSize([width, node.size[1]]);
}

/**
 * Put an element below a node's widgets. It is no part of the workflow and of the prompt.
 * @param {any} node
 * @param {string} name unique on the node
 * @param {HTMLElement} content
 * @param {number} height its least height in canvas units; the style has to say the same, for Nodes 2.0
 */
export function addElement(node, name, content, height) {
  const widget = node.addDOMWidget(name, `LAYERWISE_OFFLOAD_${name.toUpperCase()}`, content, {
    getMinHeight: () => height,
    serialize: false,
  });
  widget.serialize = false;
  content.dataset.layerwiseOffload = name;
  leaveCanvasGestures(content);
}

/**
 * Put a node's element where Nodes 2.0 still shows the one of a former node of this id, as it does after an undo.
 * @param {any} node
 * @param {HTMLElement} content
 */
export function keepMounted(node, content) {
  if (content.isConnected || !liteGraph().vueNodesMode) return;
  const shown = `[data-node-id="${node.id}"] [data-layerwise-offload="${content.dataset.layerwiseOffload}"]`;
  document.querySelector(shown)?.replaceWith(content);
}

/**
 * Leave zooming and panning to the canvas: the wheel scrolls only what was clicked or tabbed into, as it is in
 * Nodes 2.0, where the canvas sees the events anyway.
 * @param {HTMLElement} content
 */
function leaveCanvasGestures(content) {
  content.addEventListener(
    "wheel",
    (event) => {
      const zoom = event.ctrlKey || event.metaKey;
      if (liteGraph().vueNodesMode || (!zoom && scrollsFocused(event.target))) return;
      event.preventDefault();
      app.canvas.processMouseWheel(event);
    },
    { passive: false },
  );
  const middle = { pointerdown: "processMouseDown", pointermove: "processMouseMove", pointerup: "processMouseUp" };
  for (const [type, handler] of Object.entries(middle)) {
    content.addEventListener(type, (/** @type {any} */ event) => {
      const pressed = type === "pointermove" ? event.buttons & 4 : event.button === 1;
      if (pressed) app.canvas[handler](event);
    });
  }
}

/** @param {any} target */
function scrollsFocused(target) {
  const area = target.closest?.("[data-capture-wheel]");
  return area?.contains(document.activeElement) && area.scrollHeight > area.clientHeight;
}
