// The view Cluster: nodes with their KV blocks and queues, and the KV that moves between them. Asks
// for the status each second while it is shown.
import * as api from "./api.js";
import {byId, bytes, count, make, milliseconds} from "./dom.js";

const NODES_SHOWN = 200;  // of each kind; a page of thousands of cards is of no use
const WIRES_SHOWN = 400;
// Nodes report their totals about each REPORT_EVERY seconds, so two answers may hold the same report, or be two
// reports apart. A node's rate is one between the reports of the last WINDOW seconds, and stands for STANDS_FOR.
const REPORT_EVERY = 1, WINDOW = 5, STANDS_FOR = 2.5;
let last = null;  // the status before, and when it came
let meters = new Map();  // by node: its last reports and its rate

const number = (text) => Number(text ?? 0);  // 64-bit numbers come as texts

function rate(now, before, seconds) {
  return before === undefined || seconds <= 0 ? 0 : Math.max(0, (now - before) / seconds);
}

// What the node does each second. `at`: when the answer came, in seconds.
function measure(node, at) {
  const report = {at, generated: number(node.counters?.generated_tokens), prompt: number(node.counters?.prompt_tokens?.computed)};
  const meter = meters.get(node.node_id);
  const newest = meter?.reports.at(-1);
  if (!meter || meter.incarnation !== node.incarnation || report.generated < newest.generated || report.prompt < newest.prompt) {
    // The report may have come any time before this answer.
    return {incarnation: node.incarnation, seen: at, generated: 0, prompt: 0, reports: [{...report, older: true}]};
  }
  const idle = at - newest.at > STANDS_FOR;
  if (report.generated === newest.generated && report.prompt === newest.prompt) {
    return {...meter, seen: at, ...(idle ? {generated: 0, prompt: 0} : {})};
  }
  const reports = [...(idle ? [{...newest, at: meter.seen, older: true}] : meter.reports), report];
  while (reports.length > 2 && (reports[0].older || at - reports[1].at >= WINDOW)) reports.shift();
  const seconds = Math.max(at - reports[0].at, reports[0].older ? REPORT_EVERY : 0);
  const each = (name) => rate(report[name], reports[0][name], seconds);
  return {...meter, seen: at, reports, generated: each("generated"), prompt: each("prompt")};
}

function figures(status) {
  const router = status.router ?? {};
  const generated = [...meters.values()].reduce((sum, meter) => sum + meter.generated, 0);
  const shown = [
    ["Running", count(number(router.requests_running))],
    ["Waiting", count(number(router.requests_queued))],
    ["Finished", count(number(router.requests_finished))],
    ["Failed", count(number(router.requests_failed))],
    ["Refused", count(number(router.requests_refused))],
    ["Tokens each second", count(generated)],
  ];
  byId("figures").replaceChildren(...shown.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function blocksBar(load) {
  const total = Math.max(1, number(load.blocks_total));
  const parts = [["used", load.blocks_used], ["cached", load.blocks_cached], ["quarantined", load.blocks_quarantined]];
  const bar = make("div", {class: "blocks", role: "img",
    "aria-label": `KV blocks: ${[...parts, ["free", load.blocks_free]].map(([name, n]) => `${count(number(n))} ${name}`).join(", ")}`});
  for (const [name, n] of parts) {
    const part = make("i", {class: name});
    part.style.width = `${100 * number(n) / total}%`;
    bar.append(part);
  }
  return bar;
}

function fact(name, value) {
  return make("span", {}, make("b", {}, value), ` ${name}`);
}

function nodeCard(node) {
  const load = node.load ?? {}, meter = meters.get(node.node_id);
  const used = number(load.blocks_used), total = number(load.blocks_total);
  const card = make("li", {class: "node", id: `node-${node.node_id}`},
    make("header", {}, make("h4", {}, node.node_id), make("span", {class: `badge ${node.state}`}, node.state)),
    blocksBar(load),
    make("p", {class: "note"}, `${count(used)} of ${count(total)} KV blocks used, ${count(number(load.blocks_cached))} cached`));
  const facts = make("div", {class: "facts"},
    fact("running", count(number(load.sequences_running))),
    fact("waiting", count(number(load.sequences_waiting))),
    node.role === "decode" ? fact("tokens/s", count(meter.generated)) : fact("prompt tokens/s", count(meter.prompt)));
  if (number(load.prefill_tokens_waiting)) facts.append(fact("prompt tokens wait", count(number(load.prefill_tokens_waiting))));
  if (number(load.leases)) facts.append(fact("leases", count(number(load.leases))));
  if (node.state === "lost" || node.last_heard_ms > 2000) facts.append(fact("since it spoke", milliseconds(node.last_heard_ms)));
  card.append(facts);
  return card;
}

function showNodes(status) {
  for (const role of ["prefill", "decode"]) {
    const nodes = status.nodes.filter((node) => node.role === role);
    const cards = nodes.slice(0, NODES_SHOWN).map(nodeCard);
    if (nodes.length > NODES_SHOWN) cards.push(make("li", {class: "note"}, `and ${count(nodes.length - NODES_SHOWN)} more`));
    if (nodes.length === 0) {
      cards.push(make("li", {class: "empty"}, role === "prefill"
        ? "None. Decode nodes compute prompts themselves." : "None has joined. Nothing can be answered."));
    }
    byId(role).replaceChildren(...cards);
  }
}

function showLinks(links) {
  byId("no-links").hidden = links.length > 0;
  byId("links").parentElement.hidden = links.length === 0;
  byId("links").replaceChildren(...links.slice(0, WIRES_SHOWN).map((link) => make("tr", {},
    make("td", {}, link.from_node), make("td", {}, link.to_node), make("td", {}, link.transport || "–"),
    make("td", {class: "number"}, count(number(link.kv_transfers))),
    make("td", {class: "number"}, bytes(number(link.kv_bytes))),
    make("td", {class: "number"}, link.now > 0 ? `${bytes(link.now)}/s` : "–"),
    make("td", {class: "number"}, milliseconds(link.last_transfer_ms)))));
}

// A curve from each sender's card to its receiver's, thicker with more bytes, moving while KV moves.
function drawWires(links) {
  const wires = byId("wires"), frame = byId("map").getBoundingClientRect();
  const most = Math.max(1, ...links.map((link) => number(link.kv_bytes)));
  const paths = [];
  for (const link of links.slice(0, WIRES_SHOWN)) {
    const from = byId(`node-${link.from_node}`), to = byId(`node-${link.to_node}`);
    if (!from || !to) continue;
    const a = from.getBoundingClientRect(), b = to.getBoundingClientRect();
    const forward = a.left < b.left;
    const x1 = (forward ? a.right : a.left) - frame.left, x2 = (forward ? b.left : b.right) - frame.left;
    const y1 = a.top + a.height / 2 - frame.top, y2 = b.top + b.height / 2 - frame.top;
    const bend = a.left === b.left ? x1 + 30 : (x1 + x2) / 2;
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", `M${x1} ${y1} C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`);
    path.setAttribute("stroke-width", String(1.5 + 4 * number(link.kv_bytes) / most));
    if (link.now > 0) path.setAttribute("class", "flows");
    paths.push(path);
  }
  wires.replaceChildren(...paths);
}

function show(status) {
  const at = performance.now(), seconds = last ? (at - last.at) / 1000 : 0;
  meters = new Map(status.nodes.map((node) => [node.node_id, measure(node, at / 1000)]));
  figures(status);
  showNodes(status);
  const links = (status.links ?? []).map((link) => ({...link,
    now: rate(number(link.kv_bytes), last?.links.get(`${link.from_node} ${link.to_node}`), seconds)}));
  showLinks(links);
  drawWires(links);
  last = {at,
    links: new Map(links.map((link) => [`${link.from_node} ${link.to_node}`, number(link.kv_bytes)]))};
}

export async function refresh() {
  try {
    show(await api.get("status"));
  } catch (error) {
    if (error.status === 0) return;  // the page says so above every view
    byId("figures").replaceChildren(make("div", {class: "error", role: "alert"}, error.message));
  }
}
