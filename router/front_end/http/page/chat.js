// The view Chat: a conversation with the served model, streamed, with its settings.
import * as api from "./api.js";
import {byId, count, make, milliseconds} from "./dom.js";
import {render} from "./markdown.js";

const SETTINGS = "tandem-settings";
const FIELDS = ["system", "temperature", "top-p", "max-tokens", "seed"];
let conversation = [];
let running = null;  // the AbortController of the answer that streams
let showTrace = () => {};

function loadSettings() {
  const kept = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
  for (const name of FIELDS) {
    const field = byId(name);
    if (kept[name] !== undefined) field.value = kept[name];
    const shown = byId(`${name}-now`);
    const show = () => { if (shown) shown.textContent = field.value; };
    show();
    field.addEventListener("input", () => {
      show();
      const values = Object.fromEntries(FIELDS.map((each) => [each, byId(each).value]));
      localStorage.setItem(SETTINGS, JSON.stringify(values));
    });
  }
  byId("settings").open = matchMedia("(min-width: 901px)").matches;
}

function requestBody() {
  const system = byId("system").value.trim();
  const body = {
    messages: [...(system ? [{role: "system", content: system}] : []), ...conversation],
    temperature: Number(byId("temperature").value),
    top_p: Number(byId("top-p").value),
    max_tokens: Math.max(1, Math.round(Number(byId("max-tokens").value) || 512)),
    stream: true,
    stream_options: {include_usage: true},
  };
  if (byId("seed").value !== "") body.seed = Math.round(Number(byId("seed").value));
  return body;
}

function addMessage(role, text) {
  const body = make("div", {class: "body"});
  body.textContent = text;
  const message = make("article", {class: `message ${role}`, "aria-label": role === "user" ? "You" : "Answer"}, body);
  byId("welcome")?.setAttribute("hidden", "");
  byId("log").append(message);
  message.scrollIntoView({block: "end"});
  return {message, body};
}

function scrollIfAtEnd(work) {
  const log = byId("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  work();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// One answer while it streams: its text, its times, and where both are shown.
class Answer {
  constructor() {
    ({message: this.message, body: this.body} = addMessage("assistant", ""));
    this.body.classList.add("waiting");
    this.message.setAttribute("aria-busy", "true");
    this.text = "";
    this.began = performance.now();
    this.firstMs = null;
    this.drawing = false;
  }

  take(event) {
    this.id = event.id ?? this.id;
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    if (!choice.delta?.content) return;
    this.firstMs ??= performance.now() - this.began;
    this.text += choice.delta.content;
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      scrollIfAtEnd(() => render(this.text, this.body));
    });
  }

  end(note) {
    const totalMs = performance.now() - this.began;
    this.body.classList.remove("waiting");
    this.message.setAttribute("aria-busy", "false");
    const facts = [];
    if (this.usage) {
      const tokens = this.usage.completion_tokens;
      facts.push(`${count(tokens)} tokens`);
      const after = totalMs - (this.firstMs ?? totalMs);
      if (tokens > 1 && after > 0) facts.push(`${((tokens - 1) / after * 1000).toFixed(1)} tokens/s`);
      const cached = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
      facts.push(`${count(cached)} of ${count(this.usage.prompt_tokens)} prompt tokens cached`);
    }
    if (this.firstMs !== null) facts.push(`first text after ${milliseconds(this.firstMs)}`);
    if (this.reason === "length") facts.push("stopped at the longest answer");
    const meta = make("div", {class: "meta note"}, facts.join(" · "));
    if (note) meta.append(make("span", {class: note.bad ? "error" : "", role: note.bad ? "alert" : null}, note.text));
    if (this.id && this.usage) {
      const button = make("button", {type: "button", class: "quiet"}, "Where the time went");
      button.addEventListener("click", () => showTrace(this.id));
      meta.append(button);
    }
    scrollIfAtEnd(() => {
      render(this.text, this.body);
      this.message.append(meta);
    });
  }
}

function setRunning(controller) {
  running = controller;
  byId("send").textContent = controller ? "Stop" : "Send";
}

async function ask(text) {
  conversation.push({role: "user", content: text});
  addMessage("user", text);
  const answer = new Answer();
  const controller = new AbortController();
  setRunning(controller);
  let note = null;
  try {
    await api.stream("v1/chat/completions", requestBody(), controller.signal, (event) => answer.take(event));
  } catch (error) {
    note = error.name === "AbortError" ? {text: "Stopped."} : {text: error.message, bad: true};
  }
  answer.end(note);
  // A cleared conversation keeps nothing of an answer that was still running.
  if (running === controller) {
    if (answer.text) conversation.push({role: "assistant", content: answer.text});
    else conversation.pop();
    setRunning(null);
  }
}

function submit() {
  if (running) return running.abort();
  const prompt = byId("prompt");
  const text = prompt.value.trim();
  if (!text) return prompt.focus();
  prompt.value = "";
  grow();
  ask(text);
}

function grow() {
  const prompt = byId("prompt");
  prompt.rows = Math.min(12, Math.max(2, prompt.value.split("\n").length));
}

function clear() {
  running?.abort();
  setRunning(null);
  conversation = [];
  byId("log").querySelectorAll(".message").forEach((message) => message.remove());
  byId("welcome").removeAttribute("hidden");
  byId("prompt").focus();
}

export async function showModel() {
  try {
    const model = (await api.get("v1/models")).data[0];
    byId("served").textContent = `${model.id}, with a context of ${count(model.max_model_len)} tokens`;
  } catch (error) {
    byId("served").textContent = error.message;
  }
}

export function start(openTrace) {
  showTrace = openTrace;
  loadSettings();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  byId("prompt").addEventListener("input", grow);
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!running) submit();
    }
  });
  byId("panel-chat").addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("clear").addEventListener("click", clear);
}
