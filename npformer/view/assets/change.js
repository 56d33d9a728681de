// Change view: heads, attention and FFN of each layer as a grid. A click on a cell removes the part, and a drag or the
// slider scales it. change_words.js has the words, change_rows.js the second text with its rows and its direction.

const grid = el("table", { class: "grid" });
const panel = el("aside", { class: "panel", "aria-label": "Scale" });
const STEP = 0.05; // factor per pixel of a drag
const MOST = 4;
let chosen = null; // the change that the slider scales
let dragged = null; // { cell, edit, x, factor, moved }

const headOf = ({ attention }, head) => ({ kind: "head", attention, head });
const blockOf = (stage) => ({ kind: "stage", stage });
function factorOf(edit) {
  const now = madeOf(edit);
  return now ? (now.factor ?? 0) : 1;
}
const rounded = (factor) => Math.round(Math.max(0, Math.min(MOST, factor)) * 20) / 20;

// Sets a factor; 1 is the unchanged model.
function scaleTo(edit, factor, wait = 0) {
  if (factor === 1) drop(edit, wait);
  else put({ ...edit, factor }, wait);
}

// ---- The grid ----------------------------------------------------------------------------------------------------

function cell(edit, name, at) {
  const factor = factorOf(edit);
  const text = factor === 1 ? "" : factor === 0 ? "off" : `\u00d7${digits(factor)}`;
  const isChosen = chosen && same(chosen.edit, edit);
  const label = `${name}${factor === 1 ? "" : factor === 0 ? ": removed" : `: times ${digits(factor)}`}`;
  const button = el(
    "button",
    { type: "button", "data-at": at, "aria-pressed": factor === 0, "aria-label": label, title: label, class: isChosen ? "on" : "" },
    el("span", {}, text),
    meter(Math.min(factor, 1)),
  );
  button.edit = edit;
  button.name = name;
  return el("td", {}, button);
}

function drawGrid() {
  const most = Math.max(...meta.rows.map(({ heads }) => heads));
  const columns = [...Array.from({ length: most }, (_, h) => `${h}`), "Attention", "FFN"];
  grid.replaceChildren(
    el("thead", {}, el("tr", {}, el("th", {}, "Head"), ...columns.map((name) => el("th", { scope: "col" }, name)))),
    el(
      "tbody",
      {},
      ...meta.rows.map((row, y) => {
        const heads = Array.from({ length: most }, (_, h) =>
          h < row.heads ? cell(headOf(row, h), `${row.title}, head ${h}`, `${y} ${h}`) : el("td", {}),
        );
        const blocks = [[row.whole, "attention"], [row.ffn, "FFN"]].map(([stage, what], i) =>
          stage ? cell(blockOf(stage), `${row.title}, ${what}`, `${y} ${most + i}`) : el("td", {}),
        ); // prettier-ignore
        return el("tr", {}, el("th", { scope: "row" }, row.title), ...heads, ...blocks);
      }),
    ),
  );
}

grid.addEventListener("pointerdown", (event) => {
  const button = event.target.closest("button");
  if (!button || event.button) return;
  dragged = { button, edit: button.edit, x: event.clientX, first: factorOf(button.edit), factor: null };
  button.setPointerCapture(event.pointerId);
});
grid.addEventListener("pointermove", (event) => {
  if (!dragged || (dragged.factor === null && Math.abs(event.clientX - dragged.x) < 5)) return;
  dragged.factor = rounded(dragged.first + STEP * (event.clientX - dragged.x));
  dragged.button.firstChild.textContent = `\u00d7${digits(dragged.factor)}`;
});
grid.addEventListener("pointercancel", () => {
  dragged = null;
  draw();
});
grid.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  const { edit, factor = null } = dragged ?? button ?? {};
  const name = (dragged?.button ?? button)?.name;
  dragged = null;
  if (!edit) return;
  chosen = { edit, name };
  scaleTo(edit, factor ?? (factorOf(edit) === 1 ? 0 : 1));
  draw();
  page.changed();
});
arrowsMove(grid);

// A head's place in the form that other tabs use: the kind of attention in order of computation, the layer, the head.
const kinds = [...new Set(meta.rows.map(({ attention }) => attention.replace(/\.\d+\./, ".")))];
const isAt = (row, attention, layer) => {
  const at = placeOf(headOf(row, 0));
  return at.layer === String(layer) && at.attention === (Number(attention) || null);
};
function placeOf({ attention, head }) {
  const layer = /\.(\d+)\./.exec(attention)[1];
  return { attention: kinds.indexOf(attention.replace(/\.\d+\./, ".")) || null, layer, head: String(head) };
}

// ---- The slider --------------------------------------------------------------------------------------------------

const slider = el("input", { type: "range", min: 0, max: MOST, step: 0.05, "aria-label": "Factor" });
const factorText = el("output", {});
const chosenText = el("h2", {});
slider.addEventListener("input", () => {
  const factor = Number(slider.value);
  factorText.textContent = `\u00d7 ${digits(factor)}`;
  scaleTo(chosen.edit, factor, TYPING);
});
const hint = el("p", {}, "Click a head, an attention block or an FFN to remove it, and again to put it back. Drag it sideways to scale it.");
const scaled = el("div", { class: "scaled" }, chosenText, slider, factorText);
panel.append(el("div", { class: "verdict" }), scaled, hint);

function drawPanel() {
  scaled.hidden = !chosen;
  if (chosen) {
    chosenText.textContent = chosen.name;
    if (document.activeElement !== slider) slider.value = factorOf(chosen.edit);
    factorText.textContent = `\u00d7 ${digits(factorOf(chosen.edit))}`;
  }
  panel.firstChild.replaceChildren(...verdict());
}

// The answer before and after the changes, next to the controls.
function verdict() {
  const answer = doc.answers[0];
  if (!answer) return [];
  const before = new Map(answer.before ?? []);
  return [
    el("h2", {}, answer.before ? "Before \u2192 after" : "Answer"),
    el("ol", { class: "outcomes" }, ...answer.outcomes.slice(0, 5).map((each) => outcomeOf(each, before.get(each[0])))),
  ];
}

function draw() {
  if (!dragged) redrawn(grid, drawGrid);
  drawPanel();
  drawWords();
  drawRows();
}

return {
  controls: [],
  body: [
    el(
      "div",
      { class: "split" },
      el("div", { class: "changes" }, wordsHere, el("section", {}, el("h3", {}, "Heads and blocks"), scroller(grid)), rowsHere),
      panel,
    ),
  ],
  keys: [
    ["Tab", "next word, grid or control"],
    ["← → ↑ ↓", "next head or layer; the slider scales the last change"],
    ["Enter", "remove a head, or put it back"],
  ],
  read: () => (chosen?.edit.kind === "head" ? placeOf(chosen.edit) : {}),
  async apply({ attention, layer, head }) {
    const row = meta.rows.find((each) => isAt(each, attention, layer));
    const isHead = row && /^\d+$/.test(head ?? "") && Number(head) < row.heads;
    if (isHead) chosen = { edit: headOf(row, Number(head)), name: `${row.title}, head ${head}` };
    draw();
  },
  renew(next) {
    meta = next;
    draw();
  },
};
