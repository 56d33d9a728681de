// Head view, long texts: only the tokens with the strongest links have a row. The tokens between them are folded into
// rows, which a click opens. Lines to a folded token end at the row that contains it.

const entries = { queries: [], keys: [] }; // rows from top to bottom: the index of a token, or a list of folded ones
const opened = { queries: new Set(), keys: new Set() }; // tokens of rows that were opened
// Whether all rows are shown; the smallest weight with a line (null: see `leastOfAll`); whether lines to the sink are
// drawn.
const chosenRows = { whole: false, least: null, sink: false };
let strongestWeight = 1; // the largest weight of the shown heads
let crowdedWeight = 0; // the smallest weight with a line, if a long text would have too many lines
let sink = null; // the key of a long text that gets much more weight than any other, { key, share }

const foldable = () => Math.max(rows.queries.length, rows.keys.length) > LONG;

// The key with over a twentieth of the total weight and four times the weight of any other key, such as [CLS]; or null.
function findSink() {
  const total = new Float64Array(side("keys").tokens.length);
  for (const h of state.heads)
    for (const k of rows.keys) for (const q of rows.queries) total[k] += weights.at(h, q, k);
  const [first, second] = [...rows.keys].sort((a, b) => total[b] - total[a]);
  const share = total[first] / total.reduce((a, b) => a + b, 0);
  return share > 0.05 && total[first] > 4 * total[second] ? { key: first, share } : null;
}
const drawnKeys = () => (sink && !chosenRows.sink ? rows.keys.filter((k) => k !== sink.key) : rows.keys);

// Returns the largest weight from and to each token in the shown heads. Sets `strongestWeight` and `crowdedWeight`.
function strengths() {
  sink = foldable() ? findSink() : null;
  const most = {
    queries: new Float64Array(side("queries").tokens.length),
    keys: new Float64Array(side("keys").tokens.length),
  };
  const counts = new Uint32Array(weights.one + 2); // number of links for each weight, in units of its last decimal
  for (const h of state.heads)
    for (const k of drawnKeys())
      for (const q of rows.queries) {
        const weight = weights.at(h, q, k);
        counts[weights.unit(h, q, k)]++;
        if (weight > most.queries[q]) most.queries[q] = weight;
        if (weight > most.keys[k]) most.keys[k] = weight;
      }
  strongestWeight = most.queries.reduce((a, b) => Math.max(a, b), 0);
  let unit = weights.one + 1;
  for (let lines = 0; unit > 0 && lines + counts[unit - 1] <= meta.lines; unit--) lines += counts[unit - 1];
  crowdedWeight = unit / weights.one;
  return most;
}

function foldRows() {
  const most = weights ? strengths() : null;
  const folds = most && foldable() && !chosenRows.whole;
  for (const which of ["queries", "keys"]) {
    const largest = folds && largestOf(rows[which], (i) => most[which][i], KEPT);
    const isKept = (i) => !folds || largest.has(i) || opened[which].has(i) || pinned({ side: which, index: i });
    entries[which] = foldedRows(rows[which], isKept);
    entries[which].forEach((entry, row) => [entry].flat().forEach((i) => (places[which][i] = row)));
  }
}

// The smallest weight with a line if no token is active. In a long text with only weak links it is a quarter of the
// largest weight, or more if the browser would otherwise have to draw too many lines.
const leastOfAll = () =>
  chosenRows.least ?? (foldable() ? Math.max(Math.min(FAINT, strongestWeight / 4), crowdedWeight) : FAINT);

// In a long text with only weak links, lines are drawn stronger: the strongest link looks like a weight of 0.6.
const lift = () => (foldable() ? Math.max(1, 0.6 / strongestWeight) : 1);

function foldedRow(which, indices, row) {
  const { tokens } = side(which);
  const label = `Show ${indices.length} tokens, ${shown(tokens[indices[0]])} to ${shown(tokens[indices.at(-1)])}`;
  return el(
    "div",
    { role: "option", class: "fold", tabindex: row ? -1 : 0, "aria-selected": false, "aria-label": label, title: label },
    `\u22ee ${indices.length} more`,
  );
}

function openRow(which, row) {
  for (const i of entries[which][row]) opened[which].add(i);
  build();
  update();
  focusRow(which, row);
}

function closeRows() {
  opened.queries.clear();
  opened.keys.clear();
}

// Controls for a long text: the rows to show, and the smallest weight with a line.
function foldControls(change) {
  if (!foldable()) return [];
  const count = Math.max(rows.queries.length, rows.keys.length);
  return [
    segmented(
      "Rows",
      [
        ["some", `Strongest ${KEPT}`],
        ["all", `All ${count}`],
      ],
      chosenRows.whole ? "all" : "some",
      (key) => change({ whole: key === "all" }),
    ),
    select(
      "Lines from",
      [["", "auto"], ...[0.5, 0.2, 0.1, 0.05, 0.02, 0.01].map((weight) => [weight, String(weight)])],
      chosenRows.least ?? "",
      (value) => change({ least: value === "" ? null : Number(value) }),
    ),
  ];
}
