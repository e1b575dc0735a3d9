// @ts-check
// Entry of the pack's web part: ComfyUI imports every .js below web/, so this is the only one.
import { app } from "../../scripts/app.js";
import { addText } from "./text.mjs";

const TEXTS = {
  LayerwiseOffload_PlacementReport: {
    label: "Placement report",
    empty: "Run the workflow: the report is taken when everything in front of this node is done.",
  },
  LayerwiseOffload_SavePolicy: {
    label: "Placement policy",
    empty: "Run the workflow: the policy is shown here as a file has it.",
  },
};

app.registerExtension({
  name: "LayerwiseOffload",
  nodeCreated(node) {
    const text = TEXTS[node.comfyClass];
    if (text) addText(node, text);
  },
});
