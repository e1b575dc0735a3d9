// @ts-check
// The timeline of a run as a file: what was loaded, copied and computed when. Perfetto and chrome://tracing open it.
import { api } from "../../../scripts/api.js";
import { element } from "./dom.mjs";
import { say } from "./notices.mjs";
import { inLanguage } from "./sentences.mjs";
import { text } from "./strings.mjs";

const ROUTE = "/layerwise_offload/timeline";
const NAME = /filename="([^"]+)"/;

/**
 * A button that saves the timeline of the run that a report is of.
 * @param {number} began when that run began
 * @returns {HTMLElement}
 */
export function timelineButton(began) {
  const button = element(
    "button",
    { class: "lwo-button", type: "button", title: text("saveTimelineHow"), "data-action": "saveTimeline" },
    text("saveTimeline"),
  );
  button.addEventListener("click", async () => {
    button.disabled = true; // a second click would save it twice
    await saveTimeline(began);
    button.disabled = false;
  });
  return element("p", {}, button);
}

/** @param {number} began */
async function saveTimeline(began) {
  try {
    const response = await api.fetchApi(`${ROUTE}?began=${began}`);
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    const name = NAME.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
    if (name === undefined) {
      say("warn", "noTimeline", inLanguage((await response.json()).error.message));
      return;
    }
    const href = URL.createObjectURL(await response.blob());
    element("a", { href, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
    say("success", "savedTimeline", text("savedTimelineHow", { file: name }));
  } catch (cause) {
    say("error", "noTimeline", text("unreachable", { cause: /** @type {any} */ (cause).message }));
  }
}
