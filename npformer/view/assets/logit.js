// Logit view: layers and heads, or words and layers, as tables of coloured numbers that add up to the logit.

const load = loader(meta.arrays);
const controls = el("div", { class: "controls-row" });
const grid = el("table", { class: "grid" });
const about = el("p", { class: "about" });
const panel = el("aside", { class: "panel", "aria-label": "Largest parts" });
let logit = meta.shown; // in a translation, the index of the explained word
let by = "layers";
let word = null; // the token whose contributions are shown for each head

const shownLogit = () => meta.logits[logit];
const limitOf = ({ values, columns, plain }) =>
  values.flat().reduce((most, value, i) => {
    const coloured = value !== null && !plain.includes(columns[i % columns.length]);
    return coloured ? Math.max(most, Math.abs(value)) : most;
  }, 0);

// The selected table. If a word is selected, the table of its contributions through each head.
async function chosen() {
  const { layers } = shownLogit();
  if (by === "words" || word === null) return shownLogit()[by];
  const array = await load(`heads.${logit}`);
  const rows = layers.rows.slice(1, -1);
  const columns = layers.columns.slice(1, meta.heads + 1);
  return {
    rows,
    columns,
    values: rows.map((_, i) => columns.map((_, h) => array.row(i * meta.heads + h)[word])),
    plain: [],
  };
}

const layerOf = (row) => /^layer (\d+)$/.exec(row)?.[1];
const headOf = (column) => /^(head|source) (\d+)$/.exec(column)?.slice(1);

async function draw() {
  const { position, labels } = shownLogit();
  const table = await chosen();
  const limit = limitOf(table);
  const lens = by === "layers" && word === null && labels.length > 0;
  const name = (row, y) => (by === "words" ? [el("span", { class: "place" }, String(y)), token(row)] : [row]);
  about.replaceChildren(shownLogit().about);
  grid.replaceChildren(
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", {}),
        ...table.columns.map((column) => el("th", { scope: "col" }, column)),
        lens ? el("th", { scope: "col", class: "lens" }, "answer at this layer") : null,
      ),
    ),
    el(
      "tbody",
      {},
      ...table.rows.map((row, y) =>
        el(
          "tr",
          { class: by === "words" && y === position ? "read" : null },
          el("th", { scope: "row" }, ...name(row, y)),
          ...table.columns.map((column, x) => cell(table, limit, row, column, table.values[y][x])),
          lens ? el("td", { class: "lens" }, labels[y] === undefined ? "" : token(labels[y])) : null,
        ),
      ),
    ),
  );
  panel.replaceChildren(...largestParts(by === "words" ? "Largest words" : "Largest parts", parts(table)));
}

// The largest parts: words with their sums, or otherwise the cells of the table.
function parts({ rows, columns, values, plain }) {
  if (by === "words")
    return rows.map((_, y) => ({ name: [placed(rows, y)], value: values[y][columns.length - 1] }));
  return rows.flatMap((row, y) =>
    columns.flatMap((column, x) => {
      if (plain.includes(column) || !values[y][x]) return [];
      return [{ name: [`${row}, ${column}`.replace("embeddings, embed", "embeddings")], value: values[y][x], go: lines(row, column) }];
    }),
  );
}

// A function that opens the lines of a head, or null for other parts.
function lines(row, column) {
  const [layer, [kind, head] = []] = [layerOf(row), headOf(column)];
  if (!layer || !head || !page.has("heads")) return null;
  const attention = meta.attention[kind];
  return () => page.open("heads", { attention, layer, head, from: shownLogit().position, tokens: "pieces" });
}

function cell({ plain }, limit, row, column, value) {
  if (value === null) return el("td", {});
  const text = Number(fixed(value, 3)) === 0 ? "0" : fixed(value, 3);
  if (plain.includes(column)) return el("td", { class: text === "0" ? "plain zero" : "plain" }, text);
  const rgb = signedColour(value, limit);
  const look = { "--c": css(rgb), "--ink": ink(rgb) };
  const part = text === "0" ? "part zero" : "part";
  const go = lines(row, column);
  if (!go) return el("td", { class: part, ...look }, text);
  const label = `Layer ${layerOf(row)}, ${column}: ${text}. Show the attention curves`;
  return el(
    "td",
    { class: part, ...look },
    el("button", { type: "button", "aria-label": label, title: label, onclick: go }, text),
  );
}

function buildControls() {
  const explained = select(
    "Logit of",
    meta.logits.map(({ labels, position }, i) => [i, `${position}  ${shown(meta.tokens[position + 1] ?? labels.at(-1))}`]),
    logit,
    (i) => change({ logit: Number(i) }),
  );
  const words = select(
    "Read from",
    [["", "all words"], ...meta.tokens.map((text, i) => [i, `${i}  ${shown(text)}`])],
    word ?? "",
    (i) => change({ word: i === "" ? null : Number(i) }),
  );
  controls.replaceChildren(
    ...(meta.logits.length > 1 ? [explained] : []),
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
  if ("logit" in what) logit = what.logit;
  if ("word" in what) word = what.word;
  if ("by" in what) buildControls();
  page.changed();
  return draw();
}

themed.push(draw);
const among = (text, count) => /^\d+$/.test(text ?? "") && Number(text) < count;
return {
  controls: [controls],
  body: [about, el("div", { class: "split" }, scroller(grid), panel)],
  keys: [
    ["Tab", "next head"],
    ["Enter", "show the head's lines"],
  ],
  read: () => ({
    logit: logit === meta.shown ? null : logit,
    parts: by === "layers" ? null : by,
    from: by === "layers" ? word : null,
  }),
  apply(choices) {
    logit = among(choices.logit, meta.logits.length) ? Number(choices.logit) : meta.shown;
    by = choices.parts === "words" ? "words" : "layers";
    word = by === "layers" && among(choices.from, meta.tokens.length) ? Number(choices.from) : null;
    buildControls();
    return draw();
  },
};
