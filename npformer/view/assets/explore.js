// The explorer: the page of all views, for any text and any change of the model. A state is the texts, the changes and
// options; the server computes the parts of the page that are shown. explore_text.js has the fields and tools.

const live = {
  page: Math.random().toString(36).slice(2), // the server computes only the newest state of a page
  state: doc.live.state,
  number: 0, // number of the state
  parts: new Map(), // name -> part of this state
  coming: new Map(), // name -> the promise of a part that was requested
  running: new AbortController(),
};
const TYPING = 80; // milliseconds after the last letter until the page is updated
const PAUSE = 300; // milliseconds without a letter, after which the next letter updates the page at once
const SLOW = 300; // milliseconds until the page says "Computing…"

// ---- Asking ------------------------------------------------------------------------------------------------------

// Shows "Computing…" if a reply takes longer than SLOW milliseconds. Most replies are faster.
const computing = el("p", { class: "computing", role: "status" });
let open = 0; // requests without a reply
let slow = 0;
function count(by) {
  open += by;
  clearTimeout(slow);
  if (!open) computing.replaceChildren();
  else if (!computing.firstChild) slow = setTimeout(() => computing.replaceChildren("Computing\u2026"), SLOW);
}

// Dims the answer and the view of an earlier state until the answer to the current state arrives.
function stale() {
  if (!live.parts.has("answer")) root.dataset.stale = "yes";
}

// Sends a request for this state and reads the reply. Returns null if a newer state replaced this one, or if the
// request failed and the page shows an error.
async function post(route, more, read = (reply) => reply.json()) {
  const { number, page, state } = live;
  const body = JSON.stringify({ page, number, state, ...more });
  count(1);
  try {
    const headers = { "Content-Type": "application/json" };
    const reply = await fetch(route, { method: "POST", headers, body, signal: live.running.signal });
    if (number !== live.number || reply.status === 409) return null;
    if (reply.ok) return await read(reply);
    complain((await reply.json()).error);
    stale();
    drawChips(live.state.edits.map(({ kind }) => String(kind))); // the server may have refused one of these changes
  } catch (error) {
    if (number !== live.number || error.name === "AbortError") return null;
    complain("The server has ended. Start it again, and open the address that it prints.");
    stale();
  } finally {
    count(-1);
  }
  return null;
}

// Loads the parts of this state that are missing. Returns whether this state is still the current one.
async function load(...names) {
  const { number } = live;
  const wanted = names.filter((name) => !live.parts.has(name) && !live.coming.has(name));
  if (wanted.length) {
    const coming = fetchParts(wanted);
    wanted.forEach((name) => live.coming.set(name, coming));
  }
  await Promise.all(names.map((name) => live.coming.get(name)));
  return number === live.number && names.every((name) => live.parts.has(name));
}

async function fetchParts(names) {
  const { number } = live;
  const found = await post("parts", { parts: names });
  if (number !== live.number) return;
  names.forEach((name) => live.coming.delete(name));
  if (found) names.forEach((name) => take(name, found[name]));
}

// Stores a part where the page reads it.
function take(name, part) {
  live.parts.set(name, part);
  const place = doc.texts[0].findIndex(({ kind }) => kind === name);
  if (place >= 0) {
    Object.values(part.view?.arrays ?? {}).forEach((head) => Object.assign(head, { text: part.arrays[head.data] }));
    doc.texts[0][place] = part.view ?? { ...stubs[place], arrays: {}, error: part.error };
  }
  if (name === "step" && live.parts.has("answer")) drawChips(live.parts.get("answer").changes);
  if (name === "answer") {
    delete root.dataset.stale;
    drawChips(part.changes);
    complain(part.error ?? "");
    drawNotes(part.notes ?? []);
  }
  if (name === "answer" && part.error) doc.answers[0] = null; // the previous answer belongs to another text
  if ((name === "answer" || name === "reasons") && !part.error)
    doc.answers[0] = part.answer && { ...part.answer, before: live.parts.get("answer").before, explained: live.parts.get("answer").explained };
}

// ---- The state ---------------------------------------------------------------------------------------------------

const stubs = doc.texts[0].map((stub) => ({ ...stub }));
const strings = (choices) => Object.fromEntries(choices.map(([name, value]) => [name, String(value)]));

// Dims the page if the new state takes long. Dimming at once would cost time, because the browser then has another
// layer to compose.
let dimming = 0;
function busy(what = "all") {
  if (root.dataset.busy === what) return;
  clearTimeout(dimming);
  root.dataset.busy = what;
  dimming = setTimeout(() => (root.dataset.slow = what), SLOW);
}
function idle() {
  clearTimeout(dimming);
  delete root.dataset.busy;
  delete root.dataset.slow;
}

// Changes the state and shows the new one: after `wait` milliseconds without another change, or at once after a pause.
let waiting = 0;
let changedAt = -PAUSE;
function update(change, wait = 0) {
  const isFirst = performance.now() - changedAt > PAUSE;
  changedAt = performance.now();
  Object.assign(live.state, change);
  live.number += 1;
  live.running.abort();
  live.running = new AbortController();
  live.parts.clear();
  live.coming.clear();
  busy();
  delete root.dataset.settled;
  clearTimeout(waiting);
  if (wait && isFirst) renew();
  else waiting = setTimeout(renew, wait);
}

// Shows the state: first the answer and the open view, then the words and heads on which the answer depends.
async function renew() {
  const { number } = live;
  const shownNow = made.get(`0 ${now.view}`);
  const choices = shownNow ? strings(chosen()) : {};
  if (doc.live.slow.includes(now.view)) {
    if (!(await load("answer"))) return;
    fillAnswer(doc.answers[0]);
    busy("view");
  }
  if (!(await load("answer", now.view))) return;
  const kept = shownNow?.renew && !about(0, now.view).error ? shownNow : null; // keeps the view's selections
  forget(kept);
  doc.texts[0] = doc.texts[0].map((meta, i) => (live.parts.has(meta.kind) ? meta : { ...stubs[i] }));
  idle();
  kept?.renew(about(0, now.view));
  await held(() => show(kept ? {} : { choices }));
  await painted(); // otherwise the server's next computation would slow down the browser's painting
  await explain(number);
}

// Resolves at the end of the next frame, or after SLOW milliseconds, because a hidden page has no frames.
const painted = () =>
  new Promise((done) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(done, SLOW);
  });

// Does work that may move the focus or scroll the page, and then restores both.
async function held(work) {
  const [focus, x, y] = [document.activeElement, scrollX, scrollY];
  await work();
  if (focus?.isConnected) focus.focus({ preventScroll: true });
  scrollTo(x, y);
}

async function explain(number = live.number) {
  if (number !== live.number) return;
  const found = await load("reasons");
  if (number !== live.number) return;
  if (found) {
    fillAnswer(doc.answers[0]);
    shownView()?.explained?.();
  }
  markHead(now.view === "heads" && shownView() ? shownView().read() : null);
  root.dataset.settled = String(live.number);
}

loading = (view) => (live.parts.has("answer") && live.parts.has(view) ? null : load("answer", view));

// ---- The address -------------------------------------------------------------------------------------------------

alsoAddressed = () => [["state", JSON.stringify(live.state)]];
function stateOfAddress() {
  try {
    const state = JSON.parse(new URLSearchParams(location.hash.slice(1)).get("state"));
    if (state.texts[0].every((text) => typeof text === "string") && state.edits.every((edit) => Object(edit) === edit)) return state;
  } catch {
    // the address has no state, or a state that this page did not write
  }
  return live.state;
}
live.state = stateOfAddress();
addEventListener("popstate", () => {
  const state = stateOfAddress();
  if (JSON.stringify(state) === JSON.stringify(live.state)) return;
  update(state);
  drawFields();
});
