// The page at /docs: /openapi.json, written out for people.
import {make} from "./dom.js";
import * as theme from "./theme.js";

let description = null;

function resolve(schema) {
  const name = schema?.$ref?.split("/").at(-1);
  return name ? description.components.schemas[name] : schema ?? {};
}

function typeOf(schema) {
  if (schema.anyOf) return schema.anyOf.map((each) => typeOf(each)).filter((type) => type !== "null").join(" or ");
  if (schema.type === undefined) return "any";
  return [schema.type].flat().filter((type) => type !== "null").join(" or ");
}

function rangeOf(schema) {
  const parts = [];
  if (schema.minimum !== undefined) parts.push(`at least ${schema.minimum}`);
  if (schema.exclusiveMinimum !== undefined) parts.push(`above ${schema.exclusiveMinimum}`);
  if (schema.maximum !== undefined) parts.push(`at most ${schema.maximum}`);
  if (schema.default !== undefined) parts.push(`default ${schema.default}`);
  return parts.join(", ");
}

function fields(schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, each]) => {
    const about = [each.description, rangeOf(each)].filter(Boolean).join(" ");
    const needed = (schema.required ?? []).includes(name) ? " (needed)" : "";
    return make("tr", {}, make("td", {}, make("code", {}, name), needed), make("td", {}, typeOf(each)), make("td", {}, about));
  });
  if (rows.length === 0) return "";
  return make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Fields"}, make("table", {},
    make("thead", {}, make("tr", {}, ...["Field", "Type", "Meaning"].map((name) => make("th", {scope: "col"}, name)))),
    make("tbody", {}, ...rows)));
}

function contentOf(part) {
  return Object.entries(part?.content ?? {}).flatMap(([type, {schema}]) => [make("p", {class: "note"}, type), fields(resolve(schema))]);
}

function operation(method, path, about) {
  const body = make("div", {});
  if (about.security) body.append(make("p", {class: "note"}, "Needs an API key: authorization: Bearer KEY."));
  if (about.requestBody) body.append(make("h3", {}, "Body"), ...contentOf(about.requestBody));
  body.append(make("h3", {}, "Answer"), ...contentOf(about.responses["200"]));
  return make("details", {class: "operation", id: about.operationId},
    make("summary", {}, make("span", {class: "method"}, method.toUpperCase()), make("code", {class: "path"}, path),
      make("span", {class: "note"}, about.summary)), body);
}

async function show() {
  const main = document.getElementById("main");
  try {
    const reply = await fetch("openapi.json");
    if (!reply.ok) throw new Error(`the router answered ${reply.status}`);
    description = await reply.json();
  } catch (error) {
    main.replaceChildren(make("p", {class: "empty error", role: "alert"}, `The description cannot be loaded: ${error.message}`));
    return;
  }
  const groups = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const group = about.tags[0];
      if (!groups.has(group)) groups.set(group, [make("h2", {}, group)]);
      groups.get(group).push(operation(method, path, about));
    }
  }
  main.replaceChildren(make("p", {}, description.info.description), ...[...groups.values()].flat());
}

theme.start();
show();
