// @ts-check
// The report as bars: the card when the most of it was in use, and for each component where its bytes are, what it moved and
// how long it took. Every number is one that was measured; the words below Details say the rest.
import { element } from "./dom.mjs";
import { word } from "./policy_fields.mjs";
import { inLanguage } from "./sentences.mjs";
import { text } from "./strings.mjs";

/**
 * @typedef {{in_this_run: boolean, calls: number, computing: number, waiting: number, moments: [number, number] | null,
 *   moved_bytes: number, layer_runs: number, peak_bytes: number, predicted?: number | null}} Measured
 * @typedef {{device: string, name: string, total: number, used: number, other: number, models: Record<string, number>,
 *   during: string}} Card
 * @typedef {{component: string, bytes: number, asked: string, decided: string, applied: string, how: string, why: string,
 *   device: string, tiers: Record<string, number>, host_now: {mapped: number, pinned: number, pageable: number} | null,
 *   measured: Measured | null}} Row
 * @typedef {{rows: Row[], began: number, card: Card | null, peaks: Record<string, number>}} Report
 * @typedef {{kind: string, name: string, bytes: number}} Part
 */

const KB = 1024;
const UNITS = ["B", "KB", "MB", "GB", "TB"];
const NOTICEABLE = 0.02; // of the time that a component computes

/**
 * Show a report.
 * @param {Report} report
 * @param {boolean} changed whether the policy has changed since
 * @returns {HTMLElement}
 */
export function reportPanel(report, changed) {
  const largest = Math.max(1, ...report.rows.map((row) => partsOf(row).reduce((sum, { bytes }) => sum + bytes, 0)));
  return element(
    "div",
    { class: "lwo-report" },
    ...head(report, changed),
    element("ul", { class: "lwo-components" }, ...report.rows.map((row) => component(row, largest))),
    ...when(report.rows),
  );
}

/** What of the card, or of memory, was in use at the peak. @param {Report} report @param {boolean} changed */
function head({ card, peaks, began }, changed) {
  const time = began ? text("lastRun", { time: new Date(began * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) }) : "";
  const where = [card ? card.name || card.device : "CPU", time].filter(Boolean).join(" · ");
  const memory = peaks["process memory"] ?? 0;
  const title = card ? text("cardPeak", { used: size(card.used), total: size(card.total) }) : text("memoryPeak", { used: size(memory) });
  return [
    element("p", { class: "lwo-head" }, element("strong", {}, title), element("span", { class: "lwo-quiet" }, where)),
    ...(changed ? [element("p", { class: "lwo-stale" }, text("changedSince"))] : []),
    ...(card ? bar(cardParts(card), card.total, true) : []),
    ...(card && memory ? [element("p", { class: "lwo-quiet" }, text("memoryPeak", { used: size(memory) }))] : []),
  ];
}

/** @param {Card} card @returns {Part[]} */
export function cardParts(card) {
  const models = Object.entries(card.models).map(([name, bytes], i) => ({ kind: `model-${i % 4}`, name, bytes }));
  const computing = Math.max(0, card.used - card.other - models.reduce((sum, { bytes }) => sum + bytes, 0));
  const parts = [
    ...models,
    { kind: "computing", name: card.during ? text("computingOf", { component: card.during }) : text("loadingPart"), bytes: computing },
    { kind: "other", name: text("otherPart"), bytes: card.other },
    { kind: "free", name: text("freePart"), bytes: card.total - card.used },
  ];
  return parts.filter(({ bytes }) => bytes > 0);
}

/** Where the bytes of a component are. @param {Row} row @returns {Part[]} */
export function partsOf({ tiers, host_now: host, device }) {
  const { slot = 0, memory = 0, file = 0, ...devices } = tiers;
  const onHost = host ?? { mapped: file, pinned: 0, pageable: memory };
  const parts = [
    ...Object.entries(devices).map(([name, bytes]) => ({ kind: "model-0", name, bytes })),
    { kind: "slot", name: device === "cpu" ? text("slotPart") : text("slotsPart"), bytes: slot },
    { kind: "pinned", name: text("pinnedPart"), bytes: onHost.pinned },
    { kind: "pageable", name: text("pageablePart"), bytes: onHost.pageable },
    { kind: "file", name: text("filePart"), bytes: onHost.mapped },
  ];
  return parts.filter(({ bytes }) => bytes > 0);
}

/** @param {Row} row @param {number} largest */
function component(row, largest) {
  const differs = row.asked !== "auto" && row.applied !== "" && row.applied !== row.asked;
  return element(
    "li",
    { "class": "lwo-component", "data-component": row.component },
    element(
      "p",
      { class: "lwo-head" },
      element("strong", {}, row.component),
      element("span", { "class": "lwo-chip", "data-differs": differs }, chip(row)),
      element("span", { class: "lwo-size" }, size(row.bytes)),
    ),
    ...bar(partsOf(row), largest, false),
    element("p", { class: "lwo-quiet" }, measuredText(row)),
    ...(differs ? [element("p", { class: "lwo-differs" }, `${inLanguage(row.how)}. ${inLanguage(row.why)}`)] : []),
  );
}

/** What was asked for, and what it became. @param {Row} row */
function chip({ asked, decided, applied }) {
  const steps = [asked, ...(decided === asked && asked !== "auto" ? [] : [word(decided)])];
  if (applied && word(applied) !== word(decided)) steps.push(word(applied));
  return `${asked === "auto" ? "◇" : "◆"} ${steps.join(" → ")}`;
}

/** @param {Row} row */
export function measuredText({ measured }) {
  if (!measured) return text("notUsed");
  const { calls, computing, waiting, moments, predicted = null, moved_bytes: moved, layer_runs: runs, peak_bytes: peak } = measured;
  const parts = measured.in_this_run ? [] : [text("notInRun")];
  parts.push(movedText(moved, runs));
  if (moments) parts.push(text(calls === 1 ? "computedFor" : "computedIn", { time: seconds(computing), calls }));
  if (moments && moved) {
    parts.push(waiting > NOTICEABLE * computing ? text("waitedFor", { time: seconds(waiting) }) : text("didNotWait"));
  }
  if (moments && predicted !== null) parts.push(text("predictedFor", { time: seconds(predicted) }));
  if (peak) parts.push(text("peakOf", { size: size(peak) }));
  return parts.join(" · ");
}

/** @param {number} moved @param {number} runs: none where layers are copied operation by operation */
function movedText(moved, runs) {
  if (runs) return text("movedIn", { moved: size(moved), runs });
  return moved ? text("movedByOperation", { moved: size(moved) }) : text("notMoved");
}

/**
 * A bar with a legend; one that only has its parts as tooltips when there is little room.
 * @param {Part[]} parts @param {number} whole @param {boolean} legend
 */
function bar(parts, whole, legend) {
  const named = parts.map(({ name, bytes }) => `${name} ${size(bytes)}`);
  const drawn = element(
    "div",
    { "class": legend ? "lwo-bar lwo-card" : "lwo-bar", "role": "img", "aria-label": named.join(", "), "title": named.join("\n") },
    ...parts.map(({ kind, bytes }) => {
      const part = element("span", { "data-kind": kind, "data-bytes": String(bytes) });
      part.style.width = `${(100 * bytes) / whole}%`;
      return part;
    }),
  );
  if (!legend) return [drawn];
  const items = parts.map(({ kind }, i) => element("li", {}, element("span", { "class": "lwo-key", "data-kind": kind }), named[i]));
  return [drawn, element("ul", { class: "lwo-legend" }, ...items)];
}

/** When each component computed. @param {Row[]} rows */
function when(rows) {
  const ran = rows.filter(({ measured }) => measured?.in_this_run && measured.moments);
  if (!ran.length) return [];
  ran.sort((one, other) => /** @type {any} */ (one.measured).moments[0] - /** @type {any} */ (other.measured).moments[0]);
  const end = Math.max(...ran.map(({ measured }) => /** @type {any} */ (measured).moments[1]));
  if (!(end > 0)) return [];
  return [
    element("h4", {}, text("when")),
    element(
      "ul",
      { class: "lwo-when" },
      ...ran.map(({ component: name, measured }) => {
        const [from, to] = /** @type {[number, number]} */ (/** @type {any} */ (measured).moments);
        const said = `${seconds(from)} – ${seconds(to)}`;
        const span = element("span", { "data-kind": "model-0" });
        span.style.marginInlineStart = `${(100 * from) / end}%`;
        span.style.width = `${(100 * (to - from)) / end}%`;
        return element("li", { title: said }, element("span", { class: "lwo-name" }, name), element("div", { "class": "lwo-bar", "role": "img", "aria-label": said }, span));
      }),
    ),
    element("p", { class: "lwo-axis lwo-quiet" }, element("span", {}, "0 s"), element("span", {}, seconds(end))),
  ];
}

/** As the server spells it. @param {number} bytes */
export function size(bytes) {
  const power = Math.min(UNITS.length - 1, Math.max(0, Math.floor(Math.log(Math.max(1, bytes)) / Math.log(KB))));
  return `${(bytes / KB ** power).toFixed(power > 2 ? 2 : 0)} ${UNITS[power]}`;
}

/** @param {number} time */
export function seconds(time) {
  if (time < 0.9995) return `${Math.round(time * 1000)} ms`;
  if (time < 59.95) return `${time.toFixed(1)} s`;
  const whole = Math.round(time);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}
