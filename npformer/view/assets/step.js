// Step view: the model's page with a marker at the current line, and next to it the arrays of the line (step_array.js).
// step_edit.js changes a line, step_place.js finds lines and layers.

let at = 0; // index of the current step
let picked = null; // the name whose array is shown; null for the first name that the line assigned
const trail = []; // for the button "Return": the steps at which a name was clicked

const code = el("ol", { class: "code", "aria-label": "The model's page" });
const path = el("p", { class: "path" });
const made_ = el("div", { class: "made" });
const outcomesHere = el("div", { class: "page-answer" });
const slider = el("input", { type: "range", min: 0, step: 1, "aria-label": "Step" });
const counter = el("output", {});

const FRAME = 0, LINE = 1, DEPTH = 2, MADE = 3, RETURNED = 4; // prettier-ignore
const steps = () => meta.steps;
const step = () => steps()[at];
const frameOf = (i) => meta.frames[steps()[i][FRAME]]; // [function, step that called it, parameters]

// ---- Moving ------------------------------------------------------------------------------------------------------

function find(from, by, wanted) {
  for (let i = from + by; i >= 0 && i < steps().length; i += by) if (wanted(steps()[i], i)) return i;
  return null;
}
const moves = {
  next: () => find(at, 1, (s) => s[DEPTH] <= step()[DEPTH]),
  into: () => (steps()[at + 1]?.[DEPTH] > step()[DEPTH] ? at + 1 : moves.next()),
  out: () => find(at, 1, (s) => s[DEPTH] < step()[DEPTH]),
  back: () => find(at, -1, (s) => s[DEPTH] <= step()[DEPTH]),
  layer: () => find(at, 1, (s) => meta.loops.includes(s[LINE])),
};

function go(to, name = null) {
  if (to === null || to === undefined || !steps()[to]) return;
  if (steps()[to][LINE] !== step()[LINE]) editing = null;
  at = to;
  picked = name;
  draw();
  page.changed();
}
const move = (name) => go(moves[name]());

// Where a name's value came from: the last line in this call that assigned it or, for an argument, the calling line.
function origin(name) {
  const frame = step()[FRAME];
  const made = find(at, -1, (s) => s[FRAME] === frame && name in s[MADE]);
  return made ?? (name in frameOf(at)[2] ? frameOf(at)[1] : null);
}
function valueOf(name) {
  const frame = step()[FRAME];
  const made = find(at, -1, (s) => s[FRAME] === frame && name in s[MADE]);
  return made !== null ? steps()[made][MADE][name] : frameOf(at)[2][name];
}
const knows = (name) => name in frameOf(at)[2] || find(at, -1, (s) => s[FRAME] === step()[FRAME] && name in s[MADE]) !== null;

function follow(name) {
  const to = origin(name);
  if (to === null || to < 0) return drawValue(name, valueOf(name)); // the name is an argument of the model
  trail.push(at);
  go(to, name in steps()[to][MADE] ? name : null);
}

// ---- The code ----------------------------------------------------------------------------------------------------

// The last line of the statement that begins at `line`.
function endOf(line) {
  let depth = 0;
  for (let i = line; i <= meta.source.length; i++) {
    for (const c of meta.source[i - 1]) depth += "([{".includes(c) ? 1 : ")]}".includes(c) ? -1 : 0;
    if (depth <= 0) return i;
  }
  return line;
}

// A line of the current statement, with the names that have values as buttons.
const lineParts = (text) =>
  text
    .split(/(?<![\w.'"])([A-Za-z_]\w*)/)
    .map((part, i) =>
      i % 2 && knows(part)
        ? el("button", { type: "button", class: "name", title: `Where ${part} came from`, onclick: () => follow(part) }, part)
        : part,
    );

const lineNode = (text, i) => el("li", { "data-line": i + 1 }, el("span", { class: "text" }, text || " "));

// A click on a line goes to the line; a second click opens its editor.
code.addEventListener("click", ({ target, detail }) => {
  const node = target.closest("li");
  if (!node || detail > 1 || target.closest("button, textarea") || getSelection().toString()) return;
  const to = nearest(startOf(Number(node.dataset.line)));
  if (to === null) return say(`Line ${node.dataset.line} is not run for this text.`);
  go(to);
});
code.addEventListener("dblclick", ({ target }) => !target.closest("button, textarea") && edit());

function drawCode() {
  const source = meta.source.join("\n");
  if (code.shown !== source) {
    code.replaceChildren(...meta.source.map(lineNode));
    code.shown = source;
    code.marked = [];
  }
  code.querySelectorAll("li").forEach((node) => {
    const { line } = node.dataset;
    const isChanged = Boolean(lineEdit(Number(line))) && !(line in meta.refused);
    node.classList.toggle("refused", line in meta.refused || draft?.line === Number(line));
    node.classList.toggle("changed", isChanged);
    node.title = isChanged ? "This line is changed." : "";
  });
  for (const node of code.marked) {
    node.classList.remove("on");
    node.removeAttribute("aria-current");
    node.replaceChildren(el("span", { class: "text" }, meta.source[node.dataset.line - 1] || " "));
  }
  const first = step()[LINE];
  code.marked = Array.from({ length: endOf(first) - first + 1 }, (_, i) => code.children[first - 1 + i]);
  code.marked.forEach((node) => {
    node.classList.add("on");
    node.setAttribute("aria-current", "step");
    node.replaceChildren(el("span", { class: "text" }, ...lineParts(meta.source[node.dataset.line - 1])));
  });
  const [top] = code.marked;
  if (editing === first || first in meta.refused || draft?.line === first) top.replaceChildren(...editor(first));
  bringIntoSight();
}

// Scrolls to the current line, unless it is already visible.
function bringIntoSight() {
  const [top] = code.marked;
  const edge = top.getBoundingClientRect().top - code.getBoundingClientRect().top + code.scrollTop;
  const height = Math.max(top.offsetHeight, 80); // 80: the height of an editor with an error below it
  const isAbove = edge < code.scrollTop + 40;
  if (isAbove || edge + height > code.scrollTop + code.clientHeight)
    code.scrollTop = Math.min(edge, edge + Math.max(height - code.clientHeight, -code.clientHeight / 3));
}

// ---- What the line made ------------------------------------------------------------------------------------------

function drawPath() {
  const calls = [];
  for (let i = at; i >= 0; i = frameOf(i)[1]) calls.unshift(i);
  const layers = new Set(meta.loops);
  const before = steps().slice(0, at + 1).filter((s) => layers.has(s[LINE])).length;
  path.replaceChildren(
    ...(before && layers.size < 2 ? [`layer ${before - 1} \u00b7 `] : []),
    ...calls.flatMap((i, n) => [
      ...(n ? [" \u203a "] : []),
      el("button", { type: "button", class: "part-name", onclick: () => go(i) }, frameOf(i)[0]),
    ]),
    ` \u00b7 line ${step()[LINE]}`,
  );
}

function drawMade() {
  const values = Object.entries(step()[MADE]);
  if (step()[RETURNED] !== null) values.push(["returned", step()[RETURNED]]);
  const [name, value] = values.find(([each]) => each === picked) ?? values[0] ?? [null, null];
  const choose = (each) => {
    picked = each;
    drawMade();
  };
  made_.replaceChildren(...(values.length > 1 ? [segmented("Made", values.map(([each]) => [each, each]), name, choose)] : [])); // prettier-ignore
  drawValue(name, value, isPageChanged() ? `was:${at}:${values.findIndex(([each]) => each === name)}` : null);
}

function drawOutcomes() {
  const before = new Map(meta.before ?? []);
  const of = ([name, share]) => outcomeOf([name, share, `${fixed(100 * share, 2)}%`], before.get(name));
  outcomesHere.replaceChildren(
    ...refusals(),
    ...(meta.outcomes ? [el("h3", {}, meta.before ? "Step's answer, before \u2192 after" : "Step's answer"), el("ol", { class: "outcomes" }, ...meta.outcomes.map(of))] : []),
  );
}

const button = (name, text, title) => quiet(text, title, () => move(name));
const back = quiet("Return", "Back to the line whose name was clicked", () => go(trail.pop() ?? null));
const change = quiet("Change the line", "Replace the line with another one, using names of the page and of NumPy (e)", edit);
const buttons = el(
  "div",
  { class: "buttons" },
  button("back", "\u2191 Back", "The line before (p)"),
  button("next", "\u2193 Next line", "The next line of this function (n)"),
  button("into", "\u2192 Into", "Step into the function that the line calls (s)"),
  button("out", "\u2190 Out", "Step out of this function (o)"),
  button("layer", "Next layer", "The next layer (l)"),
  el("label", { class: "field" }, el("span", {}, "Layer"), layerHere),
  el("label", { class: "field" }, el("span", {}, "Token"), tokenHere),
  headsHere,
  back,
  change,
);
slider.addEventListener("input", () => go(Number(slider.value)));

function draw() {
  at = Math.min(at, steps().length - 1);
  slider.max = steps().length - 1;
  slider.value = at;
  counter.textContent = `${at + 1} of ${steps().length}`;
  back.hidden = !trail.length;
  change.disabled = !(step()[LINE] in meta.changeable);
  live.place = placeOf(at);
  say("");
  drawHeads();
  drawLayers();
  drawTokens();
  drawNote();
  drawCode();
  drawPath();
  drawMade();
  drawOutcomes();
}

page.on("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, [role=radio]")) return;
  const arrows = { ArrowDown: "next", ArrowUp: "back", ArrowRight: "into", ArrowLeft: "out" };
  const name = { n: "next", j: "next", s: "into", o: "out", p: "back", k: "back", l: "layer", ...arrows }[event.key];
  if (name) move(name);
  else if (event.key === "e") edit();
  else return;
  event.preventDefault();
});
code.tabIndex = 0;

return {
  controls: [el("div", { class: "controls-row" }, buttons, el("label", { class: "field" }, el("span", {}, "Step"), slider, counter))],
  body: [el("div", { class: "split" }, code, el("div", { class: "side" }, path, noteHere, said, outcomesHere, made_, arrayHere))],
  keys: [
    ["n ↓, p ↑", "next, previous line"],
    ["s →, o ←", "into a function, out of it"],
    ["l", "next layer"],
    ["e", "change the line; Enter applies, Escape leaves"],
  ],
  read: () => ({ step: at || null, head: shownHead, token: chosenToken() }),
  where: () => ({ ...layerOf(at), head: shownHead, from: chosenToken() }),
  async apply(choices) {
    takeToken(choices.token, meta.tokens.length);
    shownHead = /^\d+$/.test(choices.head ?? "") ? Number(choices.head) : null;
    const refused = Object.keys(meta.refused)[0];
    if (/^\d+$/.test(choices.step ?? "")) at = Math.min(Number(choices.step), steps().length - 1);
    else at = (refused && nearest(Number(refused))) ?? stepAt(live.place) ?? 0;
    if (choices.layer != null && !refused) at = inLayer(choices) ?? at;
    draw();
  },
  shownAgain: bringIntoSight, // a hidden element loses its scroll position
  explained() {
    drawHeads();
    drawNote();
  },
  renew(next) {
    if (takeRefused(next)) return; // the next run leaves out the refused line
    meta = next;
    at = stepAt(live.place) ?? 0;
    trail.length = 0;
    if (!(editing in meta.refused) && draft?.line !== editing) editing = null;
    draw();
  },
};
