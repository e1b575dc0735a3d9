// @ts-check
// What the pack's errors say when they end a run, in the person's language.
import { api } from "../../../scripts/api.js";
import { inLanguage } from "./sentences.mjs";

const OURS = /\boffload_runtime\.errors\.\w+$/;

/**
 * Put the translation above the sentence, which stays as it is for whoever searches or reports it. ComfyUI shows what
 * the event of the failed run says, to all who listen in turn; so this begins to listen before ComfyUI does.
 */
export function translateErrors() {
  api.addEventListener("execution_error", (/** @type {any} */ { detail }) => {
    if (OURS.test(detail?.exception_type ?? "")) detail.exception_message = bothLanguages(detail.exception_message);
  });
}

/** @param {string} english */
function bothLanguages(english) {
  const there = inLanguage(english.trim());
  return there === english.trim() ? english : `${there}\n\n${english}`;
}
