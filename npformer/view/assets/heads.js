// Head view: tokens on two sides, lines between them (links.js), exact weights (strongest.js), a square per head.

const squares = el("div", { class: "squares", role: "group", "aria-label": "Heads" });
const controls = el("div", { class: "controls-row" });

// ---- Building ----------------------------------------------------------------------------------------------------

function build() {
  filterRows();
  foldRows();
  for (const which of ["queries", "keys"]) {
    const { tokens, tokenTypes } = side(which);
    const row = (entry, at) =>
      Array.isArray(entry) ? foldedRow(which, entry, at) : option(which, entry, at, tokens[entry], tokenTypes);
    lists[which].replaceChildren(...entries[which].map(row));
  }
  const most = Math.max(entries.queries.length, entries.keys.length);
  const rem = parseFloat(getComputedStyle(root).fontSize);
  rowHeight = Math.round(rem * (most <= 10 ? 2.25 : most <= 20 ? 1.875 : 1.625));
  root.style.setProperty("--row", `${rowHeight}px`);
  root.style.setProperty("--names", `${Math.min(11, Math.max(...["queries", "keys"].map(widest)) / rem)}rem`);
}

// The width, in pixels, of the widest token on a side. With it, the browser can lay out only the rows in the window.
function widest(which) {
  const context = canvas.getContext("2d");
  context.font = `650 ${getComputedStyle(document.body).fontSize} ${getComputedStyle(document.body).fontFamily}`;
  return Math.max(0, ...rows[which].map((i) => context.measureText(shown(side(which).tokens[i])).width)) + 2;
}

const letter = (tokenTypes, index) => (tokenTypes.length ? String.fromCharCode(65 + tokenTypes[index]) : "");

function option(which, index, row, text, tokenTypes) {
  const starts = tokenTypes.length && (index === 0 || tokenTypes[index] !== tokenTypes[index - 1]);
  return el(
    "div",
    {
      class: starts && row ? "starts" : "",
      role: "option",
      tabindex: row ? -1 : 0,
      "aria-selected": false,
      "data-index": index,
    },
    el("span", { class: "place" }, `${letter(tokenTypes, index)}${index}`),
    token(text),
    el("span", { class: "number" }),
  );
}

function buildSquares() {
  squares.replaceChildren(
    ...Array.from({ length: stack().heads }, (_, h) =>
      el(
        "button",
        {
          type: "button",
          class: "square",
          "data-head": h,
          title: `Head ${h}: click to toggle, double-click to show only this head`,
          "aria-label": `Head ${h}`,
          onclick: () => toggle(h),
          ondblclick: () => isolate(h),
        },
        String(h),
      ),
    ),
  );
  colourSquares();
}

function colourSquares() {
  for (const square of squares.children) {
    const h = Number(square.dataset.head);
    square.style.setProperty("--c", headColour(h));
    square.style.setProperty("--ink", ink(channels(headColour(h))));
    square.setAttribute("aria-pressed", state.heads.has(h));
  }
}

async function show() {
  weights = await layerWeights(state.layer);
  if (foldable()) build(); // different weights may need different rows
  update();
}

// ---- Interaction -------------------------------------------------------------------------------------------------

function setHeads(heads) {
  state.heads = new Set(heads);
  colourSquares();
  if (foldable()) build();
  update();
  page.changed();
}
function toggle(h) {
  const heads = new Set(state.heads);
  if (!heads.delete(h)) heads.add(h);
  setHeads(heads);
}
// Shows only this head; a second call for the same head shows all heads again.
let alone = null;
function isolate(h) {
  const again = alone === h && state.heads.size === 1 && state.heads.has(h);
  alone = again ? null : h;
  setHeads(again ? everyHead() : [h]);
}

function pin(item) {
  state.pins = pinned(item) ? state.pins.filter((other) => !same(other, item)) : [...state.pins, item];
  update();
  page.changed();
}
function point(item) {
  if (same(item, state.hover) || item === state.hover) return;
  state.hover = item;
  update();
}
function clear() {
  state.pins = [];
  state.hover = null;
  update();
  page.changed();
}

const itemOf = (event) => {
  const element = event.target.closest("[data-index]");
  return (
    element && {
      side: element.parentElement === lists.queries ? "queries" : "keys",
      index: Number(element.dataset.index),
    }
  );
};

function focusRow(which, row) {
  const options = lists[which].children;
  if (!options.length) return;
  const target = options[Math.max(0, Math.min(row, options.length - 1))];
  for (const option of options) option.tabIndex = option === target ? 0 : -1;
  target.focus();
}

function onKey(event) {
  const which = event.currentTarget === lists.queries ? "queries" : "keys";
  const row = [...event.currentTarget.children].indexOf(event.target.closest("[role=option]"));
  if (row < 0) return;
  const item = itemOf(event);
  const other = which === "queries" ? "keys" : "queries";
  const move = { ArrowDown: row + 1, ArrowUp: row - 1, Home: 0, End: entries[which].length - 1 }[event.key];
  if (move !== undefined) focusRow(which, move);
  else if ((event.key === "ArrowRight") === (which === "queries") && event.key.startsWith("Arrow"))
    focusRow(other, row);
  else if (event.key !== " " && event.key !== "Enter") return;
  else if (item) pin(item);
  else openRow(which, row);
  event.preventDefault();
}

for (const which of Object.values(lists)) {
  which.addEventListener("pointerover", (event) => point(itemOf(event)));
  which.addEventListener("pointerleave", () => point(null));
  which.addEventListener("focusin", (event) => {
    if (event.target.matches(":focus-visible")) point(itemOf(event));
  });
  which.addEventListener("focusout", () => point(null));
  which.addEventListener("click", (event) => {
    const item = itemOf(event);
    const fold = event.target.closest(".fold");
    if (item) pin(item);
    else if (fold) openRow(lists.queries === fold.parentElement ? "queries" : "keys", [...fold.parentElement.children].indexOf(fold));
  });
  which.addEventListener("keydown", onKey);
}
squares.addEventListener("keydown", (event) => {
  const h = Number(event.target.dataset.head);
  const last = stack().heads - 1;
  const to = { ArrowRight: h + 1, ArrowLeft: h - 1, Home: 0, End: last }[event.key];
  if (to !== undefined) squares.children[Math.max(0, Math.min(to, last))].focus();
  else if (event.key === "o") isolate(h);
  else return;
  event.preventDefault();
});
page.on("keydown", (event) => {
  if (event.key === "Escape") clear();
});
page.on("scroll", redraw, { passive: true });
page.on("resize", redraw);
page.on("beforeprint", () => {
  printing = true;
  lines.parentElement.style.setProperty("--fit", Math.min(1, Math.max(PAPER / extent().height, 0.25)));
  draw();
});
page.on("afterprint", () => {
  printing = false;
  draw();
});
new ResizeObserver(redraw).observe(lines);
themed.push(() => {
  colourSquares();
  update();
});

// ---- Controls ----------------------------------------------------------------------------------------------------

function change(part) {
  closeRows();
  Object.assign(state, part);
  if ("stack" in part || "form" in part) {
    state.pins = [];
    state.hover = null;
  }
  if ("stack" in part) {
    buildSquares();
    buildControls();
  }
  if (!("layer" in part) || "stack" in part) build();
  page.changed();
  return show();
}

function changeRows(part) {
  closeRows();
  Object.assign(chosenRows, part);
  build();
  update();
  page.changed();
}

function buildControls() {
  filterRows();
  controls.replaceChildren(
    select(
      "Layer",
      stack().numbers.map((number, i) => [i, String(number)]),
      state.layer,
      (i) => change({ layer: Number(i) }),
    ),
    ...stackControls(change),
    ...foldControls(changeRows),
    el(
      "div",
      { class: "field heads" },
      el("span", {}, "Heads"),
      squares,
      el("button", { type: "button", class: "quiet", onclick: () => setHeads(everyHead()) }, "All"),
      el("button", { type: "button", class: "quiet", onclick: () => setHeads([]) }, "None"),
    ),
    kept,
  );
}

// ---- The view ----------------------------------------------------------------------------------------------------

const everyHead = () => Array.from({ length: stack().heads }, (_, h) => h);
const several = (items) => items.join(" ") || null;

return {
  controls: [controls],
  body: [
    el(
      "div",
      { class: "sides" },
      el("h2", { class: "from" }, "From (query)"),
      el("h2", { class: "to" }, "To (key)"),
      lists.queries,
      lines,
      lists.keys,
    ),
    panel,
  ],
  keys: [
    ["Tab", "next control or list"],
    ["↑ ↓", "next token: shows its lines and weights"],
    ["← →", "other side; next head"],
    ["Space", "keep or release a token; toggle a head"],
    ["o", "only this head, or all again"],
    ["Esc", "release all tokens"],
  ],
  read() {
    const pins = (name) => several(state.pins.filter((pin) => pin.side === name).map((pin) => pin.index));
    const first = meta.shown.heads.length === stack().heads ? null : "all";
    const head = state.heads.size === stack().heads ? first : (several(shownHeads()) ?? "none");
    const long = foldable() ? { rows: chosenRows.whole ? "all" : null, least: chosenRows.least, sink: chosenRows.sink ? "shown" : null } : {};
    return { ...readStack(), head, ...long, from: pins("queries"), to: pins("keys") };
  },
  apply(choices) {
    applyStack(choices);
    const numbers = (text, most) =>
      (text ?? "")
        .toString()
        .split(" ")
        .filter((each) => whole(each, most) !== null)
        .map(Number);
    const heads = choices.head === "all" ? everyHead() : numbers(choices.head, stack().heads);
    const first = meta.shown.heads.filter((h) => h < stack().heads);
    state.heads = new Set(choices.head === "none" ? [] : heads.length ? heads : first);
    state.pins = [
      ["queries", choices.from],
      ["keys", choices.to],
    ].flatMap(([name, text]) => numbers(text, side(name).tokens.length).map((index) => ({ side: name, index })));
    state.hover = null;
    closeRows();
    chosenRows.whole = choices.rows === "all";
    chosenRows.sink = choices.sink === "shown";
    chosenRows.least = /^0\.\d+$/.test(choices.least ?? "") ? Number(choices.least) : null;
    buildSquares();
    buildControls();
    build();
    return show();
  },
};
