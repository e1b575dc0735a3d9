// @ts-check
// Entry of the pack's web part: ComfyUI imports every .js below web/, so this is the only one.
import { app } from "../../scripts/app.js";
import { addReport } from "./report.mjs";

app.registerExtension({
  name: "LayerwiseOffload",
  nodeCreated(node) {
    if (node.comfyClass === "LayerwiseOffload_PlacementReport") addReport(node);
  },
});
