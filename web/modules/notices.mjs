// @ts-check
// What the pack tells a person in passing.
import { app } from "../../../scripts/app.js";
import { text } from "./strings.mjs";

/** @param {"success" | "warn" | "error"} severity @param {any} key @param {string} [detail] */
export function say(severity, key, detail) {
  const life = severity === "success" ? 4000 : 15000;
  app.extensionManager.toast.add({ severity, summary: text(key), detail, life });
}
