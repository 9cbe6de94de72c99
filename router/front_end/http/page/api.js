// Calls of the router's HTTP API. Knows the API key, which lives as long as the tab, and tells the
// page whether the router answers.

const KEY = "tandem-api-key";
const listeners = {connection: [], unauthorized: []};
let connected = null;

export const on = (event, listener) => listeners[event].push(listener);
const tell = (event, value) => listeners[event].forEach((listener) => listener(value));

export const key = () => sessionStorage.getItem(KEY) ?? "";
export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function setConnected(value) {
  if (connected === value) return;
  connected = value;
  tell("connection", value);
}

async function failure(reply) {
  let message = `the router answered ${reply.status}`;
  try {
    message = (await reply.json()).error.message;
  } catch { /* not the router's own error: the number has to do */ }
  if (reply.status === 401) tell("unauthorized", message);
  return new ApiError(reply.status, message);
}

// The reply of a call that succeeded. Throws an ApiError otherwise; its status is 0 when the router
// cannot be reached.
export async function call(path, options = {}) {
  const headers = {accept: "application/json", ...options.headers};
  if (key()) headers.authorization = `Bearer ${key()}`;
  let reply;
  try {
    reply = await fetch(path, {cache: "no-store", ...options, headers});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    setConnected(false);
    throw new ApiError(0, "The router cannot be reached.");
  }
  setConnected(true);
  if (!reply.ok) throw await failure(reply);
  return reply;
}

export const get = async (path) => (await call(path)).json();

// Sends `body` and calls `onEvent` with each server-sent event's object, until the stream ends.
export async function stream(path, body, signal, onEvent) {
  const reply = await call(path, {
    method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(body), signal,
  });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new ApiError(0, "The connection ended before the answer did.");
    pending += value;
    const lines = pending.split("\n");
    pending = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.code ?? 500, event.error.message);
      onEvent(event);
    }
  }
}

// Whether the router is there at all: a probe that needs no key.
export async function probe() {
  try {
    return (await call("health")).ok;
  } catch (error) {
    return error.status !== 0 ? false : null;
  }
}
