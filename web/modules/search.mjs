// @ts-check
// Words by which people look for what the pack does. ComfyUI 0.3.75 does not hand a node's own search words on, and its
// frontend looks through names only; there the words go behind the name, in the search and the node library alone.
import { text } from "./strings.mjs";

const FOUND = ["LayerwiseOffload_PlacementPolicy", "LayerwiseOffload_Loader"];

/**
 * Let the node search find the pack.
 * @param {any[]} definitions of all nodes, as the search is about to get them
 */
export function addSearchWords(definitions) {
  definitions.forEach((definition, place) => {
    if (!FOUND.includes(definition.name) || definition.search_aliases) return;
    const display_name = text("searchName", { name: definition.display_name });
    definitions[place] = { ...definition, display_name }; // the nodes themselves keep their name
  });
}
