// @ts-check
// A question to the pack's own routes; what goes wrong is told to the person.
import { api } from "../../../scripts/api.js";
import { say } from "./notices.mjs";
import { inLanguage } from "./sentences.mjs";
import { text } from "./strings.mjs";

/**
 * Return the answer, or null when there is none.
 * @param {string} route
 * @param {BodyInit} body
 * @param {"failed" | "failedSave" | "failedPlace"} failure what the notice says then
 */
export async function ask(route, body, failure) {
  try {
    const response = await api.fetchApi(route, { method: "POST", body });
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    const answer = await response.json();
    if (!answer.error) return answer;
    say("error", failure, inLanguage(answer.error.message));
  } catch (cause) {
    say("error", failure, text("unreachable", { cause: /** @type {any} */ (cause).message }));
  }
  return null;
}
