// Renders the little Markdown that models write most: fenced code, `code` and **bold**. Builds
// elements and text nodes only, so nothing in an answer can become markup of the page.
import {make} from "./dom.js";

function inline(text) {
  const nodes = [];
  for (const part of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) {
      nodes.push(make("code", {}, part.slice(1, -1)));
    } else if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) {
      nodes.push(make("strong", {}, part.slice(2, -2)));
    } else if (part) {
      nodes.push(part);
    }
  }
  return nodes;
}

export function render(text, into) {
  const nodes = [];
  // Odd pieces lie between fences; the last may not be closed yet.
  text.split(/^```/m).forEach((piece, index) => {
    if (index % 2 === 0) return nodes.push(...inline(piece));
    const code = piece.replace(/^[^\n]*\n?/, "").replace(/\n$/, "");
    nodes.push(make("pre", {tabindex: "0"}, make("code", {}, code)));
  });
  into.replaceChildren(...nodes);
}
