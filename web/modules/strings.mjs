// @ts-check
// Every text that the pack's own interface shows. English is here; another language is the same keys below
// `layerwiseOffload` in its locales/<language>/main.json, which ComfyUI serves with the rest of /i18n.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { learnSentences } from "./sentences.mjs";

const TEXTS = {
  searchWords: "low VRAM, block swap",
  searchName: "{words}: {name}",
  loadFile: "Load policy file…",
  saveFile: "Save policy file…",
  copyYaml: "Copy as YAML",
  resetAll: "Reset all to auto",
  placeWorkflow: "Place this workflow",
  removePlacement: "Remove placement",
  placed: "Workflow placed",
  placedHow: "Models: {models}. Loaders inserted: {loaders}.",
  nothingToPlace: "Nothing to place",
  leftOut: "Not placed: {kind}, node {id}: {why}.",
  whyMuted: "it is muted",
  whyBypassed: "it is bypassed",
  whyUnused: "nothing that runs uses it",
  whyType: "{types} cannot be placed yet",
  whyUnknown: "unknown node type",
  placementRemoved: "Placement removed",
  nodesRemoved: "Nodes: {count}.",
  nothingToRemove: "Nothing to remove",
  failedPlace: "The workflow cannot be placed",
  reset: "Reset",
  resetField: "Reset {field} to auto",
  fields: "What is set, and what came of it in the last run",
  whatIsSet: "What is set",
  nothingSet: "Nothing: everything is decided automatically.",
  whatCame: "What came of it in the last run",
  nothingPlaced: "No loader has placed a component with this policy.",
  stale: "Values have changed since then.",
  byNode: "{title}, node {id}",
  policyFile: "Placement policy file",
  setHere: "set",
  automatic: "automatic",
  linked: "linked",
  leftToComfyUI: "left to ComfyUI",
  notRun: "Run the workflow to see what auto becomes.",
  notInWorkflow: "The loaders that this policy goes to have no such component.",
  component: "component",
  asked: "asked",
  applied: "applied",
  weights: "weights",
  decided: "decided",
  host: "host",
  why: "why",
  setBy: "Set by {by}.",
  componentWhy: "{component} → {decided}: {why}.",
  componentApplied: "{component} → {decided}: {why}. Applied: {applied}: {how}.",
  modeAuto: "Nobody set a mode: what fits stays, what does not gives way.",
  budgetAuto: "Nobody set a budget: the weights may hold the card, less what sampling needs.",
  strictAuto: "Nobody set strict: as much as the machine can is done, and the report says how far that is.",
  settingAuto: "Nobody set it, so it is decided automatically.",
  noBudget: "no limit",
  partly: "Not all of it is in the file",
  saved: "Policy saved",
  copied: "Policy copied as YAML",
  loaded: "Policy loaded",
  loadedNothing: "The policy file sets nothing",
  loadedNothingHow: "{file} holds no value, so everything is decided automatically.",
  failed: "The policy file cannot be used",
  failedSave: "The policy cannot be saved",
  unreachable: "The server cannot answer: {cause}",
  kept: "Set Placement for {component}, node {id}",
  keptTitle: "Remove earlier Set Placements?",
  keptQuestion: "{file} is loaded. It does not have these nodes, and they still count:",
  keptStays: "Earlier Set Placements still count",
  onlyFirst: "A node takes one policy. Not loaded: {files}.",
  linkWins: "{field} of node {id} is linked, so the link counts, not the file.",
  linkLeftOut: "{field} of node {id} is linked, so its value is not in the file.",
  baseLeftOut: "What comes into node {id} through base is not in the file.",
  otherVersion: "This workflow is of another version of Layerwise Offload",
  fieldUnknown: "{field} of node {id} was {value}; this version has no such field, and leaves it out.",
  reportLabel: "Placement report",
  reportEmpty: "Run the workflow: the report is taken when everything in front of this node is done.",
  machineLabel: "Check of this machine",
  machineEmpty: "Run the workflow: what this machine can do is measured then, in less than a minute.",
  policyLabel: "Placement policy",
  policyEmpty: "Run the workflow: the policy is shown here as a file has it.",
  details: "Details",
  lastRun: "run at {time}",
  cardPeak: "{used} of {total} at the peak",
  memoryPeak: "{used} of memory at the peak of ComfyUI",
  changedSince: "The policy has changed since this run.",
  computingOf: "{component} computing",
  loadingPart: "loading",
  otherPart: "other",
  freePart: "free",
  slotPart: "slot",
  slotsPart: "slots",
  pinnedPart: "pinned memory",
  pageablePart: "memory",
  filePart: "model file",
  notUsed: "not used yet",
  notInRun: "not used in this run; before",
  movedIn: "moved {moved} in {runs} layer runs",
  movedByOperation: "moved {moved} operation by operation",
  notMoved: "not moved by layers",
  computedFor: "computed {time}",
  predictedFor: "predicted {time}",
  computedIn: "computed {time} in {calls} calls",
  peakOf: "{size} of the device in use at the peak",
  waitedFor: "{time} of it waiting for weights",
  didNotWait: "transfers did not hold it up",
  when: "When",
  saveTimeline: "Save timeline",
  saveTimelineHow: "Save what this run loaded, copied and computed when, as a file that ui.perfetto.dev opens",
  savedTimeline: "Timeline saved",
  savedTimelineHow: "{file}: open it at ui.perfetto.dev or chrome://tracing.",
  noTimeline: "There is no timeline",
  liveLoading: "Loading {component} ({size})",
  liveStreaming: "{component}: layer {layer} of {layers}, {moved} copied",
  liveComputing: "{component} computes",
  suggestions: "What would help",
  apply: "Apply",
  suggestionApplied: "Applied",
  applyIn: "Sets {widget} of {node}",
  tableCaption: "What was asked, what the live models do, and why",
};

/** @type {Record<string, string>} */
const texts = { ...TEXTS };

/**
 * Return a text, with `{name}` replaced by the value of that name.
 * @param {keyof typeof TEXTS} key
 * @param {Record<string, unknown>} [values]
 */
export function text(key, values = {}) {
  return texts[key].replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** Read the texts of the person's language; what it does not have stays English. */
export async function loadTexts() {
  const language = app.extensionManager?.setting?.get("Comfy.Locale") ?? "en";
  if (language === "en") return;
  const response = await api.fetchApi("/i18n");
  if (!response.ok) return;
  const there = (await response.json())?.[language];
  learnSentences(there?.layerwiseOffloadSentences ?? {});
  const translated = there?.layerwiseOffload ?? {};
  for (const key of Object.keys(TEXTS)) {
    if (typeof translated[key] === "string") texts[key] = translated[key];
  }
}
