// Light, dark, or as the system has it; remembered in this browser.
import {byId} from "./dom.js";

const THEME = "tandem-theme";
const NAMES = ["system", "light", "dark"];

function apply(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = `Theme: ${name}`;
}

export function start() {
  let name = localStorage.getItem(THEME);
  if (!NAMES.includes(name)) name = "system";
  apply(name);
  byId("theme").addEventListener("click", () => {
    name = NAMES[(NAMES.indexOf(name) + 1) % NAMES.length];
    localStorage.setItem(THEME, name);
    apply(name);
  });
}
