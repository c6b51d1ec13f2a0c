// What the pictures draw: bars of the last seconds, and series of the last minute.

const SPAN = 12_000, LONG = 62_000;

export class History {
  constructor() { this.clear(); }

  clear() {
    this.arms = new Map();
    this.offset = null; // performance.now() of the session's time 0
    this.last = null;
  }

  add(frame) {
    const offset = performance.now() - frame.t;
    // Frames come late and never early: the earliest one is the closest to the truth.
    this.offset = this.offset === null ? offset : Math.min(this.offset + 0.5, offset);
    this.last = frame;
    for (const mode of this.arms.keys()) if (!frame.arms[mode]) this.arms.delete(mode);
    for (const [mode, told] of Object.entries(frame.arms)) {
      let arm = this.arms.get(mode);
      if (!arm) this.arms.set(mode, arm = { bars: new Map(), points: [], rows: { flight: [], op: [], lease: [] } });
      const ended = (b) => (b.e ? 0 : 1); // first, so that their rows are free
      for (const b of (told.bars || []).sort((a, b) => ended(a) - ended(b) || a.s - b.s)) arm.bars.set(b.i, this.place(arm, b));
      arm.points.push({ t: frame.t, waiting: told.waiting, running: told.running, p50: told.p50, p99: told.p99 });
      while (arm.points[0].t < frame.t - LONG) arm.points.shift();
      for (const [id, b] of arm.bars) if (b.e && b.e < frame.t - SPAN) arm.bars.delete(id);
    }
  }

  // place gives a bar the first row of its lane that is free where it begins.
  place(arm, b) {
    const known = arm.bars.get(b.i);
    const rows = arm.rows[b.l];
    let row = known ? known.row : rows.findIndex((end) => end !== 0 && end <= b.s);
    if (row < 0) row = rows.length;
    rows[row] = b.e;
    return { ...b, row };
  }

  // now is the session's time, a little behind the frames so that they are there.
  now() { return this.offset === null ? 0 : performance.now() - this.offset - 200; }
}
