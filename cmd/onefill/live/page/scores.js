import { MODES, el, make, ms, plural } from "./modes.js";

// Scores are the loads of the latest herd, a card for each mode.
export class Scores {
  constructor() {
    this.cards = new Map();
    for (const m of MODES) {
      const loads = make("output", "", "–"), unit = make("span", "unit", "loads"), wait = make("p", "wait", " "), errors = make("p", "errors");
      loads.id = `loads-${m.id}`;
      loads.setAttribute("aria-live", "off"); // the sentence at a herd's end is what is read out
      const title = make("h3", `tag ${m.id}`, m.name, " ");
      title.append(make("small", "", m.sub));
      const card = make("article", `score ${m.id}`, title, make("p", "big", loads, " ", unit), wait, errors, make("p", "about", m.about));
      card.dataset.mode = m.id;
      el("scores").append(card);
      this.cards.set(m.id, { card, loads, unit, wait, errors });
    }
  }

  show(modes) {
    for (const [mode, c] of this.cards) c.card.hidden = !modes.includes(mode);
    el("scores").dataset.count = modes.length;
  }

  update(frame) {
    for (const [mode, c] of this.cards) {
      const h = frame.arms[mode]?.herd;
      c.card.dataset.state = h ? (h.done ? "done" : "runs") : "none";
      set(c.loads, h ? h.loads : "–");
      set(c.unit, h?.loads === 1 ? "load" : "loads");
      set(c.wait, !h ? " " : h.done ? `median wait ${ms(h.p50_ms)}, p99 ${ms(h.p99_ms)}` : "running");
      set(c.errors, h?.errors ? `${h.errors} of ${h.callers} got no answer` : "");
    }
  }
}

// set writes only what has changed.
export function set(e, text) {
  text = String(text);
  if (e.textContent !== text) e.textContent = text;
}

const times = (n) => (n === 0 ? "not at all" : n === 1 ? "once" : n === 2 ? "twice" : `${n} times`);

// verdict is a herd in a sentence; unanswered says who got nothing.
export function verdict(frame) {
  const parts = [];
  let callers = 0;
  for (const m of MODES) {
    const h = frame.arms[m.id]?.herd;
    if (!h) continue;
    callers = h.callers;
    parts.push(`${m.name} ${parts.length ? "" : "asked the database "}${times(h.loads)}`);
  }
  return parts.length ? `For ${plural(callers, "caller")}, ${listed(parts)}.` : "";
}

export function unanswered(frame) {
  const failed = MODES.filter((m) => frame.arms[m.id]?.herd?.errors).map((m) => `${m.name} ${frame.arms[m.id].herd.errors}`);
  return failed.length ? ` Callers without an answer: ${failed.join(", ")}.` : "";
}

const listed = (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`);

const COLUMNS = ["calls", "local", "stored", "flights", "coalesced", "waits", "loads", "stale", "errors"];

// counters fills the table.
export function counters(frame) {
  const body = el("counters").tBodies[0];
  for (const m of MODES) {
    const told = frame.arms[m.id];
    let row = body.querySelector(`[data-mode=${m.id}]`);
    if (!told) { row?.remove(); continue; }
    if (!row) {
      const head = make("th", `tag ${m.id}`, m.name);
      head.scope = "row";
      row = make("tr", "", head);
      row.dataset.mode = m.id;
      for (const name of [...COLUMNS, "p50", "p99"]) {
        const cell = make("td", name === "loads" ? "main" : "");
        cell.dataset.counter = name;
        row.append(cell);
      }
      body.append(row);
    }
    for (const [i, name] of COLUMNS.entries()) set(row.cells[i + 1], told.n[name]);
    set(row.cells[10], told.p50 === undefined ? "–" : Math.round(told.p50));
    set(row.cells[11], told.p99 === undefined ? "–" : Math.round(told.p99));
  }
}
