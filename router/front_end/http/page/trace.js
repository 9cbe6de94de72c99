// The view Requests: the last finished requests, and one request's waterfall.
import * as api from "./api.js";
import {byId, bytes, count, make, milliseconds} from "./dom.js";

let chosen = null;

// The steps of one sequence, as times from its arrival.
function steps(sequence) {
  const timing = sequence.timing ?? {}, route = sequence.route ?? {};
  // The times up to the first token are those of the attempt that gave it, the route is the last attempt's. Of one
  // attempt they belong together.
  const oneAttempt = (route.attempts ?? 0) <= 1;
  const first = timing.first_token_ms ?? 0;
  const before = Math.max(0, first - timing.queue_ms - timing.reserve_ms - timing.prefill_ms);
  const list = [];
  let at = 0;
  const add = (name, kind, ms, note) => {
    if (ms > 0) list.push({name, kind, from: at, ms, note});
    at += Math.max(0, ms);
  };
  add("Router", "router", before, "reading, tokenizing, delivering");
  add("Queue", "queue", timing.queue_ms, "waiting for room");
  add("Reserve", "reserve", timing.reserve_ms, "blocks on the decode node");
  add("Prefill", "prefill", timing.prefill_ms, oneAttempt ? `on ${route.prefill_node || route.decode_node || "no node"}` : "");
  const installed = first + (timing.install_ms ?? 0);
  if (oneAttempt && route.kv_transfer_ms > 0) {
    list.push({name: "KV transfer", kind: "kv", from: Math.max(0, installed - route.kv_transfer_ms), ms: route.kv_transfer_ms,
      note: `${bytes(Number(route.kv_bytes_moved))} over ${route.transport}, beside the prefill`});
  }
  at = first;
  add("Install", "install", timing.install_ms, "the rest of the KV, after the first token");
  add("Decode", "decode", timing.total_ms - at, `on ${route.decode_node || "no node"}`);
  return list;
}

function waterfall(sequence, total) {
  const rows = make("div", {class: "waterfall", role: "list"});
  for (const step of steps(sequence)) {
    const bar = make("div", {class: `bar ${step.kind}`});
    bar.style.left = `${100 * step.from / total}%`;
    bar.style.width = `${Math.min(100 - 100 * step.from / total, 100 * step.ms / total)}%`;
    rows.append(make("div", {class: "row", role: "listitem", title: step.note},
      make("span", {}, step.name), make("div", {class: "rail", "aria-hidden": "true"}, bar),
      make("span", {class: "number"}, milliseconds(step.ms)), make("span", {class: "hidden"}, step.note)));
  }
  return rows;
}

function tokens(sources) {
  const brought = [["from_host_memory", "from host memory"], ["from_disk", "from disk"], ["fetched", "fetched"]]
    .filter(([field]) => Number(sources?.[field]) > 0).map(([field, name]) => `${count(Number(sources[field]))} ${name}`);
  return `${count(sources?.computed ?? 0)} computed, ${count(sources?.received ?? 0)} received, ${count(sources?.cached ?? 0)} cached`
    + (brought.length > 0 ? ` (${brought.join(", ")})` : "");
}

function details(sequence) {
  const route = sequence.route ?? {}, usage = sequence.usage ?? {}, timing = sequence.timing ?? {};
  const rows = [
    ["Ended by", String(sequence.reason ?? "").replace("FINISH_REASON_", "").toLowerCase()],
    ["Prompt", `${count(usage.prompt_tokens ?? 0)} tokens, ${count(usage.cached_tokens ?? 0)} of them cached`],
    ["Answer", `${count(usage.output_tokens ?? 0)} tokens`],
    ["First token", `after ${milliseconds(timing.first_token_ms ?? 0)}`],
    ["Prefill node", route.prefill_node ? `${route.prefill_node}: ${tokens(route.prefill_tokens)}` : "none: the decode node read the prompt"],
    ["Decode node", route.decode_node ? `${route.decode_node}: ${tokens(route.decode_tokens)}` : "none"],
    ["KV moved", Number(route.kv_bytes_moved) > 0 ? `${bytes(Number(route.kv_bytes_moved))} over ${route.transport}` : "nothing"],
    ["Attempts", count(route.attempts ?? 0)],
  ];
  return make("table", {}, make("tbody", {}, ...rows.map(([name, value]) =>
    make("tr", {}, make("th", {scope: "row"}, name), make("td", {}, value)))));
}

// The nodes that a placement weighed, best first, with what each score came from.
function candidates(role, list) {
  const names = [...new Set(list.flatMap((node) => node.scores.map((score) => score.name)))];
  const rows = list.map((node) => {
    const of = new Map(node.scores.map((score) => [score.name, score]));
    return make("tr", {class: node.chosen ? "chosen" : null},
      make("th", {scope: "row"}, node.node_id, node.chosen ? make("span", {class: "badge ready"}, "chosen") : ""),
      make("td", {class: "number"}, count(Number(node.cached_tokens))),
      ...names.map((name) => make("td", {class: "number"}, of.has(name) ? of.get(name).score.toFixed(2) : "–")),
      make("td", {class: "number"}, node.scores.length > 0 ? node.score.toFixed(3) : "–"));
  });
  const weight = (name) => list.flatMap((node) => node.scores).find((score) => score.name === name).weight;
  // The policy `cost` gives milliseconds and no weights.
  const heading = (name) => name.replaceAll("_", " ") + (weight(name) ? ` × ${weight(name)}` : " (ms)");
  return make("table", {}, make("caption", {}, role), make("thead", {}, make("tr", {},
    make("th", {scope: "col"}, "Node"), make("th", {scope: "col", class: "number"}, "Cached tokens"),
    ...names.map((name) => make("th", {scope: "col", class: "number"}, heading(name))),
    make("th", {scope: "col", class: "number"}, "Score"))), make("tbody", {}, ...rows));
}

function decision(placement) {
  const about = `${placement.policy}, after ${milliseconds(placement.at_ms)}: `;
  const what = placement.beside ? "the decode node of the request's other answers was free"
    : placement.prefill_nodes.length > 0 ? `${count(Number(placement.prompt_tokens))} tokens to read and then to answer`
      : "the decode node reads the prompt itself";
  const parts = [make("p", {class: "note"}, about + what)];
  for (const [role, list] of [["Decode nodes", placement.decode_nodes], ["Prefill nodes", placement.prefill_nodes]]) {
    if (list.length > 0) parts.push(make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": role}, candidates(role, list)));
  }
  return parts;
}

function why(placements) {
  if (placements.length === 0) return [];
  return [make("details", {class: "why"}, make("summary", {}, "Why these nodes"), ...placements.flatMap(decision))];
}

function show(trace) {
  const sequences = trace.sequences ?? [];
  const total = Math.max(0.001, ...sequences.map((one) => one.timing?.total_ms ?? 0));
  const parts = [make("h2", {class: "trace-id"}, trace.request_id),
    make("p", {class: "note"}, `${new Date(trace.submitted_s * 1000).toLocaleString("en-GB")}, ${milliseconds(total)} in all`)];
  if (trace.error) parts.push(make("p", {class: "error"}, trace.error));
  for (const sequence of sequences) {
    if (sequences.length > 1) parts.push(make("h3", {}, `Answer ${sequence.sequence_index ?? 0}`));
    const placements = (trace.placements ?? []).filter((each) => each.sequence_index === (sequence.sequence_index ?? 0));
    parts.push(waterfall(sequence, total), details(sequence), ...why(placements));
  }
  byId("trace").replaceChildren(...parts);
}

function mark() {
  for (const button of byId("recent").querySelectorAll("button")) {
    button.setAttribute("aria-current", String(button.dataset.id === chosen));
  }
}

export async function open(id) {
  chosen = id;
  mark();
  byId("trace").replaceChildren(make("p", {class: "empty"}, "Loading…"));
  try {
    const trace = await api.get(`traces/${encodeURIComponent(id)}`);
    if (chosen === id) show(trace);
  } catch (error) {
    if (chosen === id) byId("trace").replaceChildren(make("p", {class: "empty error"}, error.message));
  }
}

function item(trace) {
  const button = make("button", {type: "button", "data-id": trace.request_id},
    make("span", {class: "id"}, trace.request_id),
    make("span", {class: trace.failed ? "note error" : "note number"}, trace.failed ? "failed" : milliseconds(trace.total_ms)),
    make("span", {class: "note"}, `${new Date(trace.submitted_s * 1000).toLocaleTimeString("en-GB")} · ${count(trace.output_tokens)} tokens`));
  button.addEventListener("click", () => open(trace.request_id));
  return make("li", {}, button);
}

export async function refresh() {
  try {
    const {traces} = await api.get("traces");
    byId("no-recent").hidden = traces.length > 0;
    // The list is built anew only when it has changed, so that the keyboard's place stays.
    const ids = traces.map((trace) => trace.request_id).join("\n");
    if (byId("recent").dataset.ids === ids) return;
    byId("recent").dataset.ids = ids;
    byId("recent").replaceChildren(...traces.map(item));
    mark();
  } catch (error) {
    if (error.status === 0) return;
    byId("no-recent").hidden = false;
    byId("no-recent").textContent = error.message;
  }
}

export function start() {
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = byId("find-id").value.trim();
    if (id) open(id);
  });
}
