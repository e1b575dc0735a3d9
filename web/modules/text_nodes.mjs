// @ts-check
// Nodes that show what a run said: the Placement Report as a table and as text, and the text of a saved policy.
import { addElement, element, keepMounted } from "./dom.mjs";
import { addView, outputOf } from "./outputs.mjs";
import { reportInLanguage } from "./report_text.mjs";
import { tableOf } from "./report_table.mjs";
import { text } from "./strings.mjs";

const HEIGHT = 240;

/** @param {any} node */
export function addReport(node) {
  addText(node, text("reportLabel"), text("reportEmpty"), (output) => {
    const report = output.placement_report?.at(-1);
    // Later parts of the report, such as bars and a timeline, are further elements of this list.
    return [report?.rows.length ? reportTable(report) : null, reportText(output.text.map(reportInLanguage))];
  });
}

/** @param {any} node */
export function addPolicyText(node) {
  addText(node, text("policyLabel"), text("policyEmpty"), (output) => [reportText(output.text)]);
}

/**
 * Add a scrolling area that shows the node's last output.
 * @param {any} node
 * @param {string} label its name for screen readers
 * @param {string} empty what it says before a run
 * @param {(output: any) => (HTMLElement | null)[]} parts what it shows of an output, from top to bottom
 */
function addText(node, label, empty, parts) {
  const area = element("div", {
    "class": "lwo-scroll", role: "region", "aria-label": label, tabIndex: 0, "data-capture-wheel": "true",
  });
  // It scrolls inside a frame: a long report must not stretch the node over its neighbours.
  const frame = element("div", { class: "lwo-frame" }, area);
  addElement(node, "layerwise_offload_text", frame, HEIGHT);
  node.setSize([Math.max(node.size[0], 460), Math.max(node.size[1], 320)]);
  /** @type {any} */
  let painted = null;
  addView(node, () => {
    keepMounted(node, frame);
    const output = outputOf(node);
    if (painted !== null && painted === output) return; // what is painted keeps its place and selection
    painted = output;
    area.toggleAttribute("data-empty", !output?.text);
    area.replaceChildren(...(output?.text ? parts(output).filter((part) => part !== null) : [empty]));
  });
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
