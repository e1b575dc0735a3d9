// @ts-check
// Words by which people look for what the pack does. ComfyUI 0.3.75 does not hand a node's own search words on.
import { liteGraph } from "./dom.mjs";
import { text } from "./strings.mjs";

const FOUND = ["LayerwiseOffload_PlacementPolicy", "LayerwiseOffload_Loader"];

/**
 * Let the node search find the pack.
 * @param {any[]} definitions of all nodes, as the search is about to get them
 */
export function addSearchWords(definitions) {
  definitions.forEach((definition, place) => {
    if (!FOUND.includes(definition.name) || definition.search_aliases) return;
    definitions[place] = { ...definition, ...searched(definition) }; // the nodes themselves keep their name
  });
}

/** @param {any} definition */
function searched({ name, display_name }) {
  const known = liteGraph().registered_node_types[name]?.nodeData;
  if (known && "search_aliases" in known) return { search_aliases: text("searchWords").split(", ") };
  // An older frontend looks through names only, and no farther than some thirty letters.
  return { display_name: text("searchName", { name: display_name, words: text("searchWords") }) };
}
