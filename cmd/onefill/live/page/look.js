import { MODES, el } from "./modes.js";

// readColors takes the canvas's colours from the style sheet, so that they are in one place.
export function readColors() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const colors = { ink: of("ink"), soft: of("soft"), rule: of("rule"), lane: of("lane"), on: of("on") };
  for (const m of MODES) colors[m.id] = { strong: of(m.id), mid: of(`${m.id}-mid`), pale: of(`${m.id}-pale`) };
  return colors;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => document.documentElement.dataset.theme === "dark";

// wireTheme makes the button that changes the theme, and calls back when it has changed.
export function wireTheme(changed) {
  const name = () => { el("theme").textContent = isDark() ? "Light theme" : "Dark theme"; };
  el("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("onefill-theme", document.documentElement.dataset.theme); } catch { /* storage may be off */ }
    name();
    changed();
  });
  dark.addEventListener("change", () => { name(); changed(); });
  name();
}
