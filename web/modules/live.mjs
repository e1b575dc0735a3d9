// @ts-check
// What is loaded, streamed and computed while a prompt runs: one line in each Placement Report, until the run is over or
// the node has executed. The server sends it at most ten times a second.
import { api } from "../../../scripts/api.js";
import { element } from "./dom.mjs";
import { size } from "./report_panel.mjs";
import { text } from "./strings.mjs";

/**
 * @typedef {{prompt_id: string | null, component?: string, doing?: "loading" | "streaming" | "computing", bytes?: number,
 *   layer?: number, layers?: number, moved?: number, card?: {used: number, total: number} | null}} Told
 */

const EVENT = "layerwise_offload.progress";
const ENDS = ["execution_success", "execution_error", "execution_interrupted"];

/** @type {Map<any, {line: HTMLElement, frame: HTMLElement}>} node → where it is shown */
const shown = new Map();
/** @type {string | null} the prompt that has ended: what comes of it later is late */
let over = null;

/**
 * Show what runs in a node, as long as it is in a graph.
 * @param {any} node
 * @param {HTMLElement} frame its element
 */
export function addLive(node, frame) {
  const line = element("p", { class: "lwo-live" });
  frame.append(line);
  const { onAdded, onRemoved } = node;
  node.onAdded = function (/** @type {any[]} */ ...args) {
    shown.set(node, { line, frame });
    return onAdded?.apply(this, args);
  };
  node.onRemoved = function (/** @type {any[]} */ ...args) {
    shown.delete(node);
    return onRemoved?.apply(this, args);
  };
}

/** Listen to the server, once. */
export function watchLive() {
  api.addEventListener(EVENT, (/** @type {any} */ { detail }) => {
    if (detail.prompt_id === null || detail.prompt_id !== over) show(liveText(detail));
  });
  for (const end of ENDS) {
    api.addEventListener(end, (/** @type {any} */ { detail }) => {
      over = detail?.prompt_id ?? null;
      show("");
    });
  }
  api.addEventListener("status", (/** @type {any} */ { detail }) => {
    if (detail?.exec_info?.queue_remaining === 0) show(""); // the end was missed: the page had lost the server
  });
  api.addEventListener("executed", (/** @type {any} */ { detail }) => {
    if (detail?.output?.placement_report) show("");
  });
}

/** @param {Told} told */
export function liveText({ component = "", doing, bytes = 0, layer = 0, layers = 0, moved = 0, card }) {
  if (!doing) return "";
  const parts = {
    loading: () => text("liveLoading", { component, size: size(bytes) }),
    streaming: () => text("liveStreaming", { component, layer, layers, moved: size(moved) }),
    computing: () => text("liveComputing", { component }),
  };
  const used = card ? [text("cardPeak", { used: size(card.used), total: size(card.total) })] : [];
  return [parts[doing](), ...used].join(" · ");
}

/** @param {string} said */
function show(said) {
  for (const { line, frame } of shown.values()) {
    if (line.textContent !== said) line.textContent = said;
    frame.toggleAttribute("data-live", said !== "");
  }
}
