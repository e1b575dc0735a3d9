// @ts-check
// Nodes that show what a run said: the Placement Report as bars and in words, what a check of the
// machine found, and the text of a saved policy.
import { addElement, element, keepMounted } from "./dom.mjs";
import { addLive } from "./live.mjs";
import { addView, changedSince, outputOf } from "./outputs.mjs";
import { reportPanel } from "./report_panel.mjs";
import { tableOf } from "./report_table.mjs";
import { reportInLanguage } from "./report_text.mjs";
import { text } from "./strings.mjs";
import { statesOf, suggestionBoxes } from "./suggestions.mjs";
import { timelineButton } from "./timeline.mjs";

const HEIGHT = 240;

/** @param {any} node */
export function addReport(node) {
  let open = false; // the next report is shown as this one is
  const frame = addText(node, text("reportLabel"), text("reportEmpty"), (output) => {
    const report = output.placement_report?.at(-1);
    const said = reportText(output.text.map(reportInLanguage));
    if (!report?.rows.length) return [said];
    const words = element("details", { open }, element("summary", {}, text("details")), reportTable(report), said);
    words.addEventListener("toggle", () => { open = words.open; });
    return [reportPanel(report, changedSince(output)), ...suggestionBoxes(node, output), timelineButton(report.began), words];
  });
  addLive(node, frame);
}

/** @param {any} node */
export function addPolicyText(node) {
  addText(node, text("policyLabel"), text("policyEmpty"), (output) => [reportText(output.text)]);
}

/** @param {any} node */
export function addMachineCheck(node) {
  const words = (/** @type {any} */ output) => [reportText(output.text.map(reportInLanguage))];
  addText(node, text("machineLabel"), text("machineEmpty"), words);
}

/**
 * Add a scrolling area that shows the node's last output.
 * @param {any} node
 * @param {string} label its name for screen readers
 * @param {string} empty what it says before a run
 * @param {(output: any) => HTMLElement[]} parts what it shows of an output, from top to bottom
 * @returns {HTMLElement} what is around it
 */
function addText(node, label, empty, parts) {
  const area = element("div", {
    "class": "lwo-scroll", role: "region", "aria-label": label, tabIndex: 0, "data-capture-wheel": "true",
  });
  // It scrolls inside a frame: a long report must not stretch the node over its neighbours.
  const frame = element("div", { class: "lwo-frame" }, area);
  addElement(node, "layerwise_offload_text", frame, HEIGHT);
  node.setSize([Math.max(node.size[0], 460), Math.max(node.size[1], 320)]);
  /** @type {any[] | null} */
  let painted = null;
  addView(node, () => {
    keepMounted(node, frame);
    const output = outputOf(node);
    const now = [output, Boolean(output?.text) && changedSince(output), statesOf(node, output)];
    if (painted?.every((part, i) => part === now[i])) return; // what is painted keeps its place and selection
    painted = now;
    area.toggleAttribute("data-empty", !output?.text);
    area.replaceChildren(...(output?.text ? parts(output) : [empty]));
  });
  return frame;
}

/** @param {string[]} lines */
function reportText(lines) {
  return element("pre", { class: "lwo-text layerwise-offload-text" }, lines.join("\n"));
}

/** @param {{rows: any[]}} report */
function reportTable(report) {
  const { head, rows } = tableOf(report.rows);
  return element(
    "table",
    { class: "lwo-table" },
    element("caption", {}, text("tableCaption")),
    element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
    element(
      "tbody",
      {},
      ...rows.map(({ cells: [component, asked, applied, why], differs }) =>
        element(
          "tr",
          { "data-differs": differs },
          element("th", { scope: "row" }, component),
          element("td", {}, asked),
          element("td", { class: "lwo-applied" }, applied),
          element("td", {}, why),
        ),
      ),
    ),
  );
}
