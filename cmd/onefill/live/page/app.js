import { el } from "./modes.js";
import { RefusedError, control, open } from "./stream.js";
import { History } from "./history.js";
import { Lanes } from "./lanes.js";
import { Plots } from "./plots.js";
import { Scores, counters, set, unanswered, verdict } from "./scores.js";
import { Controls, DEFAULTS } from "./controls.js";
import { readColors, wireTheme } from "./look.js";

const history = new History(), lanes = new Lanes(), plots = new Plots(), scores = new Scores();
const controls = new Controls(settingsChanged, playScene);
let session = null, mayKill = true, frame = null, herdsTold = 0, first = true, colors = readColors();

wireTheme(() => { colors = readColors(); draw(); });

const problem = (text) => set(el("problem"), text);
const say = (text) => { el("spoken").textContent = text; };
const wait = (t) => new Promise((done) => setTimeout(done, t));

// act asks the server for something and says what it answers if that is no.
async function act(what, body) {
  if (!session) return false;
  try {
    await control(session, what, body);
    problem("");
    return true;
  } catch (e) {
    problem(e instanceof RefusedError ? e.message : "The server did not answer.");
    return false;
  }
}

// Settings: what the sliders say goes to the server when they have rested, one request
// at a time, the latest values last.
let resting = 0, sending = null;

function settingsChanged() {
  showModes();
  clearTimeout(resting);
  resting = setTimeout(sendSettings, 250);
}

async function sendSettings() {
  clearTimeout(resting);
  while (sending) await sending;
  sending = act("settings", controls.settings);
  const done = await sending;
  sending = null;
  return done;
}

function showModes() {
  const { modes } = controls.settings;
  lanes.show(modes);
  plots.show(modes);
  scores.show(modes);
}

el("herd").addEventListener("click", async () => { if (await sendSettings()) await act("herd"); });
el("expire").addEventListener("click", () => act("expire"));
toggle("pause", (s) => s.paused, ["pause", "resume"], ["The loads are paused.", "The loads go on."]);
toggle("kill", (s) => s.store_down, ["kill", "restart"], ["The store is down.", "The store is back, empty."]);
toggle("fail", (s) => s.failing, ["fail", "heal"], ["The database fails.", "The database works again."]);

function toggle(id, isOn, [on, off], [saidOn, saidOff]) {
  el(id).addEventListener("click", async () => {
    const undo = isOn(frame.state);
    if (await act(undo ? off : on)) say(undo ? saidOff : saidOn);
  });
}

// A scene begins from a sound state and with the settings of a first visit, but for the modes.
async function playScene(scene) {
  for (const undo of ["resume", "heal", ...(mayKill ? ["restart"] : [])]) if (!await act(undo)) return;
  Object.assign(controls.settings, structuredClone(DEFAULTS), { modes: controls.settings.modes }, scene.change);
  controls.write();
  if (!await sendSettings()) return;
  for (const deed of scene.deeds || []) if (!await act(deed)) return;
  await act("herd");
}

function hello(told) {
  session = told.id;
  mayKill = told.may_kill;
  history.clear();
  herdsTold = 0;
  controls.bound(told.limits);
  controls.enable(true, mayKill);
  set(el("about-store"), told.store);
  set(el("about-processes"), told.processes);
  set(el("about-origin"), told.origin);
  link("live", "live");
  problem("");
  if (first) setTimeout(() => act("herd"), 700); // a first visit shows what the page is for
  first = false;
}

function onFrame(told) {
  history.add(told);
  frame = told;
  controls.state(told.state);
  el("herd").setAttribute("aria-disabled", told.state.herd);
  scores.update(told);
  if (told.state.herds > herdsTold && !told.state.herd) {
    herdsTold = told.state.herds;
    set(el("verdict"), verdict(told));
    say(verdict(told) + unanswered(told));
  }
}

function link(state, text) {
  el("link").dataset.state = state;
  set(el("link-text"), text);
}

// run keeps a session open while somebody may look at the page.
async function run() {
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    await shown();
    const leave = new AbortController();
    const away = hiddenFor(30_000, leave);
    try {
      await open(controls.settings, leave.signal, (told) => { pause = 500; hello(told); }, onFrame);
    } catch (e) {
      if (e instanceof RefusedError) problem(e.message);
      link("lost", leave.signal.aborted ? "paused" : "not connected, trying again");
    }
    away();
    session = null;
    controls.enable(false, mayKill);
    if (!leave.signal.aborted) await wait(pause);
  }
}

// seen: the page is there and not hidden. A page that is left may be kept by the browser, its
// connection as well, for the way back.
let left = false;
const seen = () => !left && !document.hidden;

// changes calls back whenever that may have changed; it returns how to end that.
function changes(look) {
  const names = ["visibilitychange", "pagehide", "pageshow"];
  for (const name of names) addEventListener(name, look);
  return () => { for (const name of names) removeEventListener(name, look); };
}
changes((e) => { if (e.type !== "visibilitychange") left = e.type === "pagehide"; });

const shown = () => new Promise((done) => {
  const end = changes(() => { if (seen()) { end(); done(); } });
  if (seen()) { end(); done(); }
});

// hiddenFor gives the session up when the page has not been seen for so long, and at once when
// it is left.
function hiddenFor(time, leave) {
  let timer = 0;
  const look = () => {
    clearTimeout(timer);
    if (left) leave.abort();
    else if (document.hidden) timer = setTimeout(() => leave.abort(), time);
  };
  const end = changes(look);
  look();
  return () => { clearTimeout(timer); end(); };
}

function draw() {
  lanes.draw(history, colors);
  plots.draw(history, colors);
}

// Pictures move with the screen; for who wants less motion, once a second.
const still = matchMedia("(prefers-reduced-motion: reduce)");
let drawn = 0;
function animate(now) {
  if (now - drawn >= (still.matches ? 1000 : 30)) {
    drawn = now;
    draw();
  }
  requestAnimationFrame(animate);
}
requestAnimationFrame(animate);
setInterval(() => { if (frame && session) { lanes.tell(history); counters(frame); } }, 500);
setInterval(() => plots.tell(history), 3000);
showModes();
run();
