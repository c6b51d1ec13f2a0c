// The modes, in the order of the page.
export const MODES = [
  { id: "naive", name: "naive", sub: "plain cache-aside", about: "Each caller that misses asks the database itself." },
  { id: "local", name: "local", sub: "singleflight", about: "Callers of one process share a load; every process makes one of its own." },
  { id: "lock", name: "lock", sub: "SET NX and poll", about: "One caller takes a lock in the store. The others sleep, look again, and load when the lock’s time is over." },
  { id: "onefill", name: "onefill", sub: "lease and push", about: "One caller in all processes holds a lease, renewed while it loads. Everybody else gets its result." },
];

export const el = (id) => document.getElementById(id);

// make is an element with a class, text and children.
export function make(tag, cls, ...children) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  e.append(...children);
  return e;
}

export const plural = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;

export const ms = (x) => (x >= 9950 ? `${(x / 1000).toFixed(0)} s` : x >= 1000 ? `${(x / 1000).toFixed(1)} s` : `${Math.round(x)} ms`);
