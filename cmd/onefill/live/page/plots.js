import { MODES, el, make, ms } from "./modes.js";
import { FONT, context } from "./lanes.js";

const SPAN = 60_000, HEIGHT = 150;

export class Plots {
  constructor() {
    for (const m of MODES) {
      const item = make("li", `tag ${m.id}`, m.name);
      item.dataset.mode = m.id;
      el("legend").append(item);
    }
  }

  show(modes) { for (const item of el("legend").children) item.hidden = !modes.includes(item.dataset.mode); }

  draw(history, colors) {
    line(el("plot-operations"), history, colors, String, [{ of: (p) => p.running, steps: true }], 4);
    line(el("plot-waits"), history, colors, ms, [{ of: (p) => p.p50, dash: [1.5, 3] }, { of: (p) => p.p99 }], 100);
  }

  tell(history) {
    const say = (id, what) => {
      const parts = [...history.arms].map(([mode, arm]) => `${mode} ${what(arm.points)}`);
      el(id).setAttribute("aria-label", `${el(id).parentElement.querySelector("figcaption").textContent}. Most in the last minute: ${parts.join(", ") || "nothing yet"}`);
    };
    say("plot-operations", (points) => Math.max(0, ...points.map((p) => p.running)));
    say("plot-waits", (points) => ms(Math.max(0, ...points.map((p) => p.p99 || 0))));
  }
}

// ceiling is the next number of 1, 2, 5 times a power of ten.
function ceiling(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].map((f) => f * power).find((c) => c >= n);
}

function line(canvas, history, colors, label, series, least) {
  const g = context(canvas, HEIGHT);
  if (!g) return;
  const left = 54, right = canvas.clientWidth - 2, top = 10, bottom = HEIGHT - 20, now = history.now();
  const all = [...history.arms.values()].flatMap((arm) => arm.points.flatMap((p) => series.map((s) => s.of(p) ?? 0)));
  const most = ceiling(Math.max(least, ...all));
  const x = (t) => left + ((t - now + SPAN) / SPAN) * (right - left), y = (n) => bottom - (n / most) * (bottom - top);
  g.font = FONT;
  g.textBaseline = "middle";
  for (const part of [0, 0.5, 1]) {
    g.strokeStyle = colors.rule;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(left, Math.round(y(most * part)) + 0.5);
    g.lineTo(right, Math.round(y(most * part)) + 0.5);
    g.stroke();
    g.fillStyle = colors.soft;
    g.textAlign = "right";
    g.fillText(label(most * part), left - 6, y(most * part));
  }
  for (const s of [60, 30, 0]) {
    g.textAlign = s === 60 ? "left" : s === 0 ? "right" : "center";
    g.fillText(s ? `−${s} s` : "now", x(now - s * 1000), HEIGHT - 8);
  }
  g.save();
  g.beginPath();
  g.rect(left, 0, right - left, HEIGHT);
  g.clip();
  for (const m of MODES) {
    const arm = history.arms.get(m.id);
    if (!arm) continue;
    for (const s of series) {
      g.strokeStyle = colors[m.id].strong;
      g.lineWidth = m.id === "onefill" ? 2.25 : 1.5;
      g.lineJoin = "round";
      g.setLineDash(s.dash || []);
      trace(g, arm.points, s, x, y);
    }
  }
  g.restore();
}

function trace(g, points, series, x, y) {
  let down = false, last = 0;
  g.beginPath();
  for (const p of points) {
    const n = series.of(p);
    if (n === undefined || n === null) { down = false; continue; }
    if (!down) g.moveTo(x(p.t), y(n));
    else if (series.steps && n !== last) { g.lineTo(x(p.t), y(last)); g.lineTo(x(p.t), y(n)); }
    else g.lineTo(x(p.t), y(n));
    down = true;
    last = n;
  }
  g.stroke();
}
