import { MODES, el, make, ms, plural } from "./modes.js";

const count = String, percent = (n) => `${n} %`;
const SLIDERS = [
  { name: "callers", label: "Callers", step: 1, say: count },
  { name: "processes", label: "Processes", step: 1, say: count },
  { name: "load_ms", label: "Load takes", step: 50, say: ms },
  { name: "lease_ms", label: "Lease (and lock) lasts", step: 100, say: ms },
  { name: "ttl_ms", label: "Value lives (TTL)", step: 500, say: ms },
  { name: "jitter_pct", label: "Jitter of the TTL", step: 5, say: percent },
  { name: "failure_pct", label: "Loads that fail", step: 5, say: percent },
];

export const DEFAULTS = {
  modes: MODES.map((m) => m.id), callers: 12, processes: 3, load_ms: 400, lease_ms: 2000, ttl_ms: 4000, jitter_pct: 10, failure_pct: 0, traffic: true,
};

export const SCENES = [
  { id: "plain", title: "The herd", about: "Nothing is wrong; a popular key has just expired.", change: {} },
  { id: "slow", title: "The load outlasts the lock", about: "A load of 3 s, a lock of 1 s. Who still waits then?", change: { load_ms: 3000, lease_ms: 1000 } },
  { id: "down", title: "The store is dead", about: "No cache, no lock, no lease: what protects the database?", change: {}, deeds: ["kill"] },
  { id: "failing", title: "The database fails", about: "Every load is an error. How many does it take to know?", change: {}, deeds: ["fail"] },
];

// Controls keeps the settings and says when they were changed by hand.
export class Controls {
  constructor(onChange, onScene) {
    this.settings = structuredClone(DEFAULTS);
    this.onChange = onChange;
    this.sliders = new Map();
    this.makeModes();
    for (const s of SLIDERS) this.makeSlider(s);
    el("traffic").addEventListener("change", () => this.change({ traffic: el("traffic").checked }));
    el("reset").addEventListener("click", () => { this.change(structuredClone(DEFAULTS)); this.write(); });
    for (const scene of SCENES) {
      const button = make("button", "", make("b", "", scene.title), make("span", "", scene.about));
      button.type = "button";
      button.id = `scene-${scene.id}`;
      button.disabled = true;
      button.addEventListener("click", () => onScene(scene));
      el("scenes").append(button);
    }
    this.write();
  }

  makeModes() {
    const choices = [{ id: "all", name: "All four" }, ...MODES];
    for (const c of choices) {
      const input = make("input");
      Object.assign(input, { type: "radio", name: "mode", value: c.id, id: `mode-${c.id}`, checked: c.id === "all" });
      const label = make("label", "", c.name);
      label.htmlFor = input.id;
      input.addEventListener("change", () => this.change({ modes: c.id === "all" ? [...DEFAULTS.modes] : [c.id] }));
      el("modes").append(input, label);
    }
  }

  makeSlider(s) {
    const input = make("input"), out = make("output"), label = make("label", "", s.label);
    Object.assign(input, { type: "range", id: s.name, step: s.step });
    label.htmlFor = out.htmlFor = s.name;
    out.setAttribute("aria-live", "off"); // the slider itself says its value
    input.addEventListener("input", () => { this.change({ [s.name]: Number(input.value) }); this.write(); });
    el("sliders").append(make("div", "slider", label, out, input));
    this.sliders.set(s.name, { ...s, input, out });
  }

  // bound sets the sliders' ends to what the server takes.
  bound(limits) {
    for (const [name, s] of this.sliders) Object.assign(s.input, { min: limits[name].min, max: limits[name].max });
    this.write();
  }

  change(some) {
    Object.assign(this.settings, some);
    this.onChange();
  }

  // write shows the settings.
  write() {
    for (const [name, s] of this.sliders) {
      s.input.value = this.settings[name];
      s.out.textContent = s.say(this.settings[name]);
      s.input.setAttribute("aria-valuetext", s.say(this.settings[name]));
    }
    el("traffic").checked = this.settings.traffic;
    el(`mode-${this.settings.modes.length === 1 ? this.settings.modes[0] : "all"}`).checked = true;
    const callers = plural(this.settings.callers, "caller");
    el("headline-callers").textContent = callers;
    el("herd-callers").textContent = callers;
  }

  enable(yes, mayKill) {
    for (const b of document.querySelectorAll("#herd, #scenes button, .deeds button")) b.disabled = !yes;
    el("kill").disabled = el("scene-down").disabled = !yes || !mayKill;
    el("kill-hint").hidden = !yes || mayKill;
  }

  // state names the buttons by what they would do.
  state(s) {
    const name = (id, on, text, undo) => {
      const b = el(id), now = on ? undo : text;
      if (b.textContent !== now) b.textContent = now;
      b.classList.toggle("on", on);
    };
    name("pause", s.paused, "Pause the loads", "Resume the loads");
    name("kill", s.store_down, "Kill the store", "Restart the store");
    name("fail", s.failing, "Fail the database", "Heal the database");
  }
}
