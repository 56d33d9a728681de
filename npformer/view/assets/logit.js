// Logit view: layers and heads, or words and layers, as tables of coloured numbers that add up to the logit.

const load = loader(meta.arrays);
const controls = el("div", { class: "controls-row" });
const grid = el("table", { class: "grid" });
let by = "layers";
let word = null; // the token whose contributions are shown for each head

const limitOf = ({ values, columns, plain }) =>
  values.flat().reduce((most, value, i) => {
    const coloured = value !== null && !plain.includes(columns[i % columns.length]);
    return coloured ? Math.max(most, Math.abs(value)) : most;
  }, 0);

// The selected table; for a word, the contributions that each head reads from it.
async function chosen() {
  if (by === "words" || word === null) return meta[by];
  const array = await load("heads");
  const rows = meta.layers.rows.slice(1, -1);
  const columns = meta.layers.columns.slice(0, meta.heads);
  return {
    rows,
    columns,
    values: rows.map((_, i) => columns.map((_, h) => array.row(i * meta.heads + h)[word])),
    plain: [],
  };
}

const layerOf = (row) => /^layer (\d+)$/.exec(row)?.[1];
const headOf = (column) => /^head (\d+)$/.exec(column)?.[1];

async function draw() {
  const table = await chosen();
  const limit = limitOf(table);
  const lens = by === "layers" && word === null && meta.labels.length > 0;
  const name = (row, y) => (by === "words" ? [el("span", { class: "place" }, String(y)), token(row)] : [row]);
  grid.replaceChildren(
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", {}),
        ...table.columns.map((column) => el("th", { scope: "col" }, column)),
        lens ? el("th", { scope: "col", class: "lens" }, "answer there") : null,
      ),
    ),
    el(
      "tbody",
      {},
      ...table.rows.map((row, y) =>
        el(
          "tr",
          { class: by === "words" && y === meta.position ? "read" : null },
          el("th", { scope: "row" }, ...name(row, y)),
          ...table.columns.map((column, x) => cell(table, limit, row, column, table.values[y][x])),
          lens ? el("td", { class: "lens" }, meta.labels[y] === undefined ? "" : token(meta.labels[y])) : null,
        ),
      ),
    ),
  );
}

function cell({ plain }, limit, row, column, value) {
  if (value === null) return el("td", {});
  const text = fixed(value, 3);
  if (plain.includes(column)) return el("td", { class: "plain" }, text);
  const rgb = signedColour(value, limit);
  const look = { "--c": css(rgb), "--ink": ink(rgb) };
  const [layer, head] = [layerOf(row), headOf(column)];
  const part = Number(text) === 0 ? "part zero" : "part";
  if (!layer || !head || !page.has("heads")) return el("td", { class: part, ...look }, text);
  const go = () => page.open("heads", { layer, head, from: meta.position, tokens: "pieces" });
  const label = `Layer ${layer}, head ${head}: ${text}. Show its lines`;
  return el(
    "td",
    { class: part, ...look },
    el("button", { type: "button", "aria-label": label, title: label, onclick: go }, text),
  );
}

function buildControls() {
  const words = select(
    "Read from",
    [["", "all words"], ...meta.tokens.map((text, i) => [i, `${i}  ${shown(text)}`])],
    word ?? "",
    (i) => change({ word: i === "" ? null : Number(i) }),
  );
  controls.replaceChildren(
    segmented(
      "Parts",
      [
        ["layers", "Layers and heads"],
        ["words", "Words"],
      ],
      by,
      (key) => change({ by: key }),
    ),
    ...(by === "layers" ? [words] : []),
  );
}

function change(what) {
  if ("by" in what) by = what.by;
  if ("word" in what) word = what.word;
  if ("by" in what) buildControls();
  page.changed();
  return draw();
}

themed.push(draw);
return {
  controls: [controls],
  body: [el("p", { class: "about" }, meta.about), el("div", { class: "scroller" }, grid)],
  keys: [
    ["Tab", "next head"],
    ["Enter", "show the head's lines"],
  ],
  read: () => ({ parts: by === "layers" ? null : by, from: by === "layers" ? word : null }),
  apply({ parts, from }) {
    by = parts === "words" ? "words" : "layers";
    word = by === "layers" && /^\d+$/.test(from ?? "") && Number(from) < meta.tokens.length ? Number(from) : null;
    buildControls();
    return draw();
  },
};
