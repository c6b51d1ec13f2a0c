import { MODES, el, make, plural } from "./modes.js";

const SPAN = 10_000;
const LANES = [
  { id: "waiting", label: "waiting", height: 38 },
  { id: "flight", label: "flights", height: 40 },
  { id: "lease", label: "lease", height: 15 },
  { id: "op", label: "database", height: 52 },
];
const NO_LEASE = ["naive", "local"];
const GAP = 9, TOP = 4, AXIS = 16;
const HEIGHT = TOP + LANES.reduce((h, l) => h + l.height + GAP, 0) + AXIS - GAP;

export class Lanes {
  constructor() {
    this.panels = new Map();
    for (const m of MODES) {
      const canvas = make("canvas");
      canvas.setAttribute("role", "img");
      const status = make("p", "status");
      const panel = make("article", "lane", make("header", "", make("h3", `tag ${m.id}`, m.name), status), canvas);
      panel.dataset.mode = m.id;
      el("lanes").append(panel);
      this.panels.set(m.id, { panel, canvas, status });
    }
  }

  show(modes) {
    for (const [mode, p] of this.panels) p.panel.hidden = !modes.includes(mode);
    el("lanes").dataset.count = modes.length;
  }

  draw(history, colors) {
    for (const [mode, p] of this.panels) {
      if (p.panel.hidden) continue;
      const g = context(p.canvas, HEIGHT);
      if (g) picture(g, p.canvas.clientWidth, mode, history.arms.get(mode), history.now(), colors, colors[mode]);
    }
  }

  // tell writes what the picture shows.
  tell(history) {
    for (const [mode, p] of this.panels) {
      const arm = history.arms.get(mode), told = history.last?.arms[mode];
      if (!arm || !told) continue;
      const live = [...arm.bars.values()].filter((b) => !b.e);
      const flights = live.filter((b) => b.l === "flight").length, lease = live.find((b) => b.l === "lease");
      const held = mode === "lock" ? "lock" : "lease";
      const parts = [`${told.waiting_now} waiting`, plural(flights, "flight")];
      if (mode === "lock" || mode === "onefill") parts.push(lease ? `${held} with P${lease.p + 1}` : `no ${held}`);
      parts.push(`${told.running_now} in the database`);
      p.status.textContent = parts.join(" · ");
      p.canvas.setAttribute("aria-label", `${mode}, now: ${parts.join(", ")}`);
    }
  }
}

// context sizes a canvas to what it has on the screen.
export function context(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (!width) return null;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

export const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

function picture(g, width, mode, arm, now, colors, color) {
  const left = 62, right = width - 2, scale = (right - left) / SPAN;
  const x = (t) => left + (t - now + SPAN) * scale;
  g.font = FONT;
  let y = TOP;
  for (const lane of LANES) {
    g.fillStyle = colors.lane;
    g.fillRect(left, y, right - left, lane.height);
    g.fillStyle = colors.soft;
    g.textBaseline = "middle";
    g.textAlign = "left";
    g.fillText(lane.label, 0, y + lane.height / 2);
    if (lane.id === "lease" && NO_LEASE.includes(mode)) {
      g.fillText("none in this mode", left + 7, y + lane.height / 2 + 0.5);
    } else if (arm) {
      g.save();
      g.beginPath();
      g.rect(left, y, right - left, lane.height);
      g.clip();
      if (lane.id === "waiting") waiting(g, arm, x, y, lane.height, colors, color);
      else bars(g, arm, lane, x, y, now, colors, color);
      g.restore();
    }
    y += lane.height + GAP;
  }
  g.fillStyle = colors.soft;
  g.textBaseline = "alphabetic";
  for (let s = 10; s >= 0; s -= 5) {
    g.textAlign = s === 10 ? "left" : s === 0 ? "right" : "center";
    g.fillText(s ? `−${s} s` : "now", left + (10 - s) * 1000 * scale, y - GAP + AXIS - 3);
  }
}

function waiting(g, arm, x, y, height, colors, color) {
  const most = Math.max(4, ...arm.points.slice(-110).map((p) => p.waiting));
  const at = (n) => y + height - (n / most) * (height - 12);
  const points = arm.points.slice(-110);
  if (!points.length) return;
  g.beginPath();
  g.moveTo(x(points[0].t), y + height);
  for (const [i, p] of points.entries()) {
    const begin = i ? points[i - 1].t : p.t;
    g.lineTo(x(begin), at(p.waiting));
    g.lineTo(x(p.t), at(p.waiting));
  }
  g.lineTo(x(points.at(-1).t), y + height);
  g.closePath();
  g.fillStyle = color.pale;
  g.fill();
  g.strokeStyle = color.mid;
  g.lineWidth = 1;
  g.stroke();
  // The height of each hill, once.
  g.fillStyle = colors.ink;
  g.textAlign = "center";
  g.textBaseline = "alphabetic";
  let hill = null, free = 0;
  for (const p of [...points, { waiting: 0 }]) {
    if (p.waiting && (!hill || p.waiting > hill.waiting)) hill = { ...p, from: hill ? hill.from : p.t };
    else if (!p.waiting && hill) {
      const middle = Math.max(x(hill.t), 70);
      if (hill.waiting > 1 && middle >= free) {
        g.fillText(hill.waiting, middle, at(hill.waiting) - 2);
        free = middle + 20;
      }
      hill = null;
    }
  }
}

function bars(g, arm, lane, x, y, now, colors, color) {
  const list = [...arm.bars.values()].filter((b) => b.l === lane.id && (!b.e || b.e > now - SPAN));
  const rows = Math.max(lane.id === "lease" ? 1 : 3, ...list.map((b) => b.row + 1));
  const step = lane.height / rows, thick = Math.max(step - (step > 6 ? 2 : step > 3 ? 1 : 0), 0.75);
  for (const b of list) {
    const from = x(b.s), to = x(b.e || now + 400), top = y + b.row * step + (step - thick) / 2;
    const w = Math.max(to - from, 2);
    g.fillStyle = lane.id === "op" ? color.strong : lane.id === "lease" || thick <= 3 ? color.mid : color.pale;
    if (b.f) g.fillStyle = hatch(g, color, colors);
    g.beginPath();
    if (thick > 5) g.roundRect(from, top, w, thick, 2.5); else g.rect(from, top, w, thick);
    g.fill();
    if (lane.id === "flight" && thick > 3 || b.f) {
      g.strokeStyle = color.mid;
      g.lineWidth = 1;
      g.stroke();
    }
    if (thick >= 10 && w > 22) {
      g.fillStyle = b.f || lane.id === "flight" ? colors.ink : colors.on;
      g.textAlign = "left";
      g.textBaseline = "middle";
      g.fillText(`P${b.p + 1}`, Math.max(from, 62) + 4, top + thick / 2 + 0.5);
    }
  }
}

const hatches = new Map();

// hatch is the pattern of what has failed: not told by its colour alone.
function hatch(g, color, colors) {
  const name = color.strong + colors.lane;
  if (!hatches.has(name)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const t = tile.getContext("2d");
    t.fillStyle = colors.lane;
    t.fillRect(0, 0, 6, 6);
    t.strokeStyle = color.strong;
    t.lineWidth = 1.8;
    t.beginPath();
    for (const d of [-6, 0, 6]) { t.moveTo(d - 1, 7); t.lineTo(d + 7, -1); }
    t.stroke();
    hatches.set(name, g.createPattern(tile, "repeat"));
  }
  return hatches.get(name);
}
