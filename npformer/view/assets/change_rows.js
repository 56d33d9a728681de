// Change view, the second text: replaces rows of the first text by its rows, or adds the direction between the texts.

const patches = el("table", { class: "grid patches" });
const rowsHere = el("section", {}, el("h3", {}, "Text B"));
const otherText = secondField();
const otherProblem = el("p", { class: "problem" });
const direction = { layer: null, slider: el("input", { type: "range", min: -4, max: 4, step: 0.25, "aria-label": "Factor of the direction from text A to text B" }), output: el("output", {}) };
const directionHere = el("div", { class: "field" });
const rowsOfOther = el("div", {}, el("p", { class: "about" }, "Click a cell to replace the row of text A with the row of text B."), scroller(patches), directionHere);
rowsHere.append(otherText, otherProblem, rowsOfOther);

function patchCell({ stage, title }, position, at) {
  const edit = { kind: "patch", stage, position };
  const on = Boolean(madeOf(edit));
  const label = `${title}, token ${position}: ${on ? "the row of text B" : "row of text A"}`;
  const go = () => (on ? drop(edit) : put(edit));
  return el(
    "td",
    {},
    el("button", { type: "button", "data-at": at, "aria-pressed": on, "aria-label": label, title: label, onclick: go }, on ? "B" : ""),
  );
}

function drawPatches() {
  const count = Math.min(meta.tokens.length, meta.others.length);
  const names = (tokens) => Array.from({ length: count }, (_, i) => el("th", { scope: "col" }, placed(tokens, i)));
  patches.replaceChildren(
    el("thead", {}, el("tr", {}, el("th", {}, "A"), ...names(meta.tokens)), el("tr", {}, el("th", {}, "B"), ...names(meta.others))),
    el(
      "tbody",
      {},
      ...meta.layers.map((layer, y) =>
        el("tr", {}, el("th", { scope: "row" }, layer.title), ...Array.from({ length: count }, (_, i) => patchCell(layer, i, `${y + 1000} ${i}`))),
      ),
    ),
  );
}
arrowsMove(patches);

const steered = () => ({ kind: "direction", stage: meta.layers[direction.layer]?.stage });
direction.slider.addEventListener("input", () => {
  const factor = Number(direction.slider.value);
  direction.output.textContent = digits(factor);
  if (factor) put({ ...steered(), factor }, TYPING);
  else drop(steered(), TYPING);
});

function drawDirection() {
  const now = live.state.edits.find(({ kind }) => kind === "direction");
  const at = meta.layers.findIndex(({ stage }) => stage === now?.stage);
  direction.layer = at >= 0 ? at : (direction.layer ?? meta.layers.length >> 1);
  const factor = madeOf(steered())?.factor ?? 0;
  if (document.activeElement !== direction.slider) direction.slider.value = factor;
  direction.output.textContent = digits(factor);
  const choose = (layer) => {
    const before = madeOf(steered());
    direction.layer = Number(layer);
    if (before) update({ edits: [...live.state.edits.filter((each) => each !== before), { ...before, stage: steered().stage }] });
  };
  const layers = select("Add the direction from A to B after", meta.layers.map(({ title }, i) => [i, title]), direction.layer, choose); // prettier-ignore
  if (directionHere.contains(document.activeElement) && document.activeElement === direction.slider) return;
  directionHere.replaceChildren(layers, el("span", {}, "times"), direction.slider, direction.output);
}

function drawRows() {
  rowsOfOther.hidden = !meta.others || !meta.layers.length;
  otherProblem.textContent = meta.problem;
  if (document.activeElement !== otherText) otherText.value = live.state.texts[1]?.[0] ?? "";
  if (rowsOfOther.hidden) return;
  redrawn(patches, drawPatches);
  drawDirection();
}
