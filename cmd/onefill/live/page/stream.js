// A session lasts as long as its stream: one request, answered by a line of JSON for what the
// session is and then one for each frame.

export class RefusedError extends Error {
  constructor(text, field, status) { super(text); this.field = field; this.status = status; }
}

const post = (url, body, signal) => fetch(url, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal, cache: "no-store",
});

async function check(response) {
  if (response.ok) return;
  let told = {};
  try { told = await response.json(); } catch { /* not ours */ }
  throw new RefusedError(told.error || `the server answered ${response.status}`, told.field, response.status);
}

// open runs a session until it ends, which is an error unless signal ended it.
export async function open(settings, signal, onHello, onFrame) {
  const response = await post("session", settings, signal);
  await check(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", first = true;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream ended");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const told = JSON.parse(line);
      if (told.end) throw new Error(told.end);
      if (first) onHello(told); else onFrame(told);
      first = false;
    }
  }
}

export const control = async (session, what, body = {}) => check(await post(`session/${session}/${what}`, body));
