// The page's frame: views as tabs, the connection, the API key, the theme.
import * as api from "./api.js";
import * as chat from "./chat.js";
import * as cluster from "./cluster.js";
import {byId} from "./dom.js";
import * as theme from "./theme.js";
import * as trace from "./trace.js";

const VIEWS = ["chat", "cluster", "trace"];
const REFRESH_MS = {chat: 5000, cluster: 1000, trace: 2000};
const RETRY_MS_MAX = 15000;
let shown = "chat";
let failures = 0;
let timer = 0;

function select(view, {focus = false} = {}) {
  shown = view;
  for (const each of VIEWS) {
    const tab = byId(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === view));
    tab.tabIndex = each === view ? 0 : -1;
    byId(`panel-${each}`).hidden = each !== view;
  }
  if (focus) byId(`tab-${view}`).focus();
  history.replaceState(null, "", `#${view}`);
  refresh();
}

function startTabs() {
  VIEWS.forEach((view, index) => {
    const tab = byId(`tab-${view}`);
    tab.addEventListener("click", () => select(view));
    tab.addEventListener("keydown", (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (step) select(VIEWS[(index + step + VIEWS.length) % VIEWS.length], {focus: true});
      if (event.key === "Home") select(VIEWS[0], {focus: true});
      if (event.key === "End") select(VIEWS.at(-1), {focus: true});
    });
  });
}

function showState(healthy) {
  const connection = byId("connection");
  const state = healthy === null ? "bad" : healthy ? "good" : "warn";
  const text = {bad: "No connection", good: "Ready", warn: "Not ready"}[state];
  connection.dataset.state = state;
  if (connection.textContent !== text) connection.textContent = text;
}

// Asks again after the view's time, or later and later while the router does not answer.
async function refresh() {
  clearTimeout(timer);
  if (!document.hidden) {
    const healthy = await api.probe();
    showState(healthy);
    failures = healthy === null ? failures + 1 : 0;
    if (healthy !== null && shown === "cluster") await cluster.refresh();
    if (healthy !== null && shown === "trace") await trace.refresh();
  }
  clearTimeout(timer);
  const wait = failures > 0 ? Math.min(RETRY_MS_MAX, 1000 * 2 ** (failures - 1)) : REFRESH_MS[shown];
  timer = setTimeout(refresh, wait);
}

function startConnection() {
  api.on("connection", (connected) => {
    const lost = byId("lost");
    lost.hidden = connected;
    lost.textContent = connected ? "" : "The router cannot be reached. This page tries again by itself.";
    if (connected) chat.showModel();
  });
  document.addEventListener("visibilitychange", refresh);
  window.addEventListener("online", refresh);
}

function startKey() {
  const dialog = byId("key-dialog"), text = byId("key-text");
  const ask = (why) => {
    if (dialog.open) return;
    if (why) byId("key-why").textContent = `This router wants an API key: ${why}. This tab forgets it when it is closed.`;
    text.value = api.key();
    dialog.showModal();
    text.focus();
  };
  let asked = false;  // one refusal opens the dialog; the button does so again
  api.on("unauthorized", (why) => {
    if (!asked) ask(why);
    asked = true;
  });
  byId("key").addEventListener("click", () => ask(""));
  // Enter in the field means the button "Use", not the first button of the form.
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    dialog.close("use");
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "use") return;
    api.setKey(text.value.trim());
    text.value = "";
    asked = false;
    chat.showModel();
    refresh();
  });
}

function openTrace(id) {
  select("trace");
  byId("tab-trace").focus();
  trace.open(id);
}

theme.start();
startTabs();
startKey();
startConnection();
chat.start(openTrace);
trace.start();
const wanted = location.hash.slice(1);
select(VIEWS.includes(wanted) ? wanted : "chat");
if (shown === "chat") byId("prompt").focus();
