// @ts-check
// Entry of the pack's web part: ComfyUI imports every .js below web/, so this is the only one.
// The helpers are in a folder of their own: browsers have older ones, which came without a cache header, by other names.
import { app } from "../../scripts/app.js";
import { addStyle, widen } from "./modules/dom.mjs";
import { loadIntoView, watchDrops } from "./modules/drop.mjs";
import { translateErrors } from "./modules/errors.mjs";
import { watchLive } from "./modules/live.mjs";
import { rememberLastRun, repaint, watchChanges } from "./modules/outputs.mjs";
import { placeWorkflow, removePlacement } from "./modules/placing.mjs";
import { addMarks, addPolicyPanel } from "./modules/policy_node.mjs";
import { addSearchWords } from "./modules/search.mjs";
import { keepValuesByName } from "./modules/saved_values.mjs";
import { loadTexts, text } from "./modules/strings.mjs";
import { addMachineCheck, addPolicyText, addReport } from "./modules/text_nodes.mjs";

const PREFIX = "LayerwiseOffload_";
/** @type {Record<string, (node: any) => void>} */
const NODES = {
  LayerwiseOffload_PlacementPolicy: addPolicyPanel,
  LayerwiseOffload_SetPlacement: addMarks,
  LayerwiseOffload_PlacementReport: addReport,
  LayerwiseOffload_SavePolicy: addPolicyText,
  LayerwiseOffload_CheckMachine: addMachineCheck,
};

/** How wide a new node is, at least; the names of the last ones are long. @type {Record<string, number>} */
const WIDTHS = { LayerwiseOffload_Loader: 300, LayerwiseOffload_SetPlacement: 400, LayerwiseOffload_OtherModels: 430 };
const WIDTH = 380;

translateErrors(); // ComfyUI begins to listen when all extensions are loaded, and before it calls any of them

app.registerExtension({
  name: "LayerwiseOffload",
  commands: [
    {
      id: "LayerwiseOffload.LoadPolicyFile",
      label: "Layerwise Offload: load a policy file",
      icon: "pi pi-file-import",
      function: loadIntoView,
    },
    {
      id: "LayerwiseOffload.PlaceWorkflow",
      label: "Layerwise Offload: place this workflow",
      icon: "pi pi-plus-circle",
      function: () => placeWorkflow(),
    },
    {
      id: "LayerwiseOffload.RemovePlacement",
      label: "Layerwise Offload: remove placement",
      icon: "pi pi-minus-circle",
      function: removePlacement,
    },
  ],
  settings: [
    {
      id: "LayerwiseOffload.Placement.EveryPrompt", // the server reads it: nodes/every_prompt.py
      category: ["Layerwise Offload", "Placement", "EveryPrompt"],
      name: "Apply my default policy to every workflow",
      tooltip:
        "Places the models of every workflow that is queued, also by other programs, unless it has nodes of Layerwise " +
        "Offload. The policy is default.offload.yaml in your folder; without one everything is decided automatically.",
      type: "boolean",
      defaultValue: false,
    },
  ],
  getCanvasMenuItems() {
    return [
      null, // a line
      { content: text("placeWorkflow"), callback: () => placeWorkflow() },
      { content: text("removePlacement"), callback: removePlacement },
    ];
  },
  init: loadTexts,
  beforeRegisterVueAppNodeDefs: addSearchWords,
  setup() {
    addStyle();
    watchDrops();
    watchChanges();
    watchLive();
  },
  nodeCreated(/** @type {any} */ node) {
    if (!node.comfyClass?.startsWith(PREFIX)) return;
    keepValuesByName(node);
    widen(node, WIDTHS[node.comfyClass] ?? WIDTH);
    NODES[node.comfyClass]?.(node);
  },
  afterConfigureGraph() {
    rememberLastRun(); // ComfyUI would wait for it before it shows the workflow
  },
  onNodeOutputsUpdated: repaint,
});
