// Neuron view, the table: for one query, every key's query × key → score → weight → value, and the output as their sum.
// A strip is a canvas one pixel high, one pixel per dimension, drawn when its row nears the window: 512 rows stay fast.
// neurons.js has the rest of the view.

const load = loader(meta.arrays);
const state = { ...meta.shown };
const part = () => meta.parts[state.part];
const table = el("table", {});
const controls = el("div", { class: "controls-row" });
let arrays = null; // the layer's query, key and value; also scores, weights and context if they differ from `computed`
let computed = null; // the query's row of scores, weights and context

let every = false; // whether a long text shows every key, not only the keys with the largest weights
const opened = new Set(); // keys of folded rows that were opened
const KINDS = { query: "query", key: "key", product: "query × key", value: "value", output: "output" };
const slot = () => part().heads.indexOf(state.head); // index of the head in the arrays
const row = (name, i) => arrays[name]?.row(slot(), i) ?? computed[name];
const round = (value) => (arrays.query.values instanceof Float32Array ? Math.fround(value) : value);
const largest = (...all) =>
  all.reduce((most, values) => values.reduce((m, v) => (Number.isFinite(v) ? Math.max(m, Math.abs(v)) : m), most), 0);

// scores = q K^T / sqrt(d), weights = softmax(scores), context = weights V: the row of the query.
function compute() {
  const query = row("query", state.token);
  const places = Array.from({ length: arrays.key.shape[1] }, (_, k) => k);
  const dot = (a, b) => a.reduce((sum, value, d) => sum + value * b[d], 0);
  computed = {};
  computed.scores = places.map((k) => dot([...query], row("key", k)) / Math.sqrt(query.length));
  const scores = [...row("scores", state.token)];
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = scores.map((score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  computed.weights = powers.map((power) => power / sum);
  const weights = row("weights", state.token);
  computed.context = Array.from(row("value", 0), (_, d) =>
    places.reduce((sum, k) => sum + weights[k] * row("value", k)[d], 0),
  );
}

// The numbers of a strip: `key` is the index of its key, undefined for the query and the output.
function values(kind, key) {
  const query = row("query", state.token);
  if (kind === "query") return query;
  if (kind === "output") return row("context", state.token);
  if (kind === "product") return row("key", key).map((k, d) => round(k * query[d]));
  return row(kind, key);
}

// The largest magnitude of each array in this head, which has the deepest colour.
let limits = {};
function setLimits() {
  const size = (name) => arrays[name].shape[1];
  const all = (name) => largest(...Array.from({ length: size(name) }, (_, i) => row(name, i)));
  const keys = size("key");
  limits = { query: all("query"), key: all("key"), value: all("value"), score: largest(row("scores", state.token)) };
  limits.query = limits.key = Math.max(limits.query, limits.key);
  limits.product = largest(...Array.from({ length: keys }, (_, k) => values("product", k)));
  limits.output = limits.value;
}

// ---- Building ----------------------------------------------------------------------------------------------------

const strip = (kind, key = "") =>
  el("td", { class: "strip", "data-kind": kind, "data-key": key }, el("canvas", { "aria-hidden": true }), el("i", {}));

function build() {
  const { keys, queries } = part();
  const width = arrays.query.shape[2];
  const scores = row("scores", state.token);
  const weights = row("weights", state.token);
  const heading = (text, formula, kind) =>
    el("th", { scope: "col", class: kind }, text, formula ? el("small", {}, formula) : null);
  observer.disconnect();
  const places = [...keys.tokens.keys()];
  const largest = places.length > LONG && !every ? largestOf(places, (k) => weights[k], KEPT) : new Set(places);
  const entries = foldedRows(places, (k) => largest.has(k) || opened.has(k));
  table.style.setProperty("--dims", width);
  table.replaceChildren(
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heading("Token"),
        heading("query, keys", `${width} dimensions`),
        heading("query × key", "element by element"),
        heading("score", `sum / √${width}`, "figure"),
        heading("weight", "softmax", "figure"),
        heading("output, values", "output = sum of weight × value"),
      ),
    ),
    el(
      "tbody",
      { class: "from" },
      el(
        "tr",
        { tabindex: 0, "data-key": "" },
        el(
          "th",
          { scope: "row" },
          el("span", { class: "place" }, String(state.token)),
          placed(queries.tokens, state.token),
        ),
        strip("query"),
        el("td", { class: "caption" }, "attends to"),
        el("td", {}),
        el("td", {}),
        strip("output"),
      ),
    ),
    el(
      "tbody",
      { class: "keys" },
      ...entries.map((k) => (Array.isArray(k) ? folded(k) : keyRow(k, keys.tokens[k], scores[k], weights[k]))),
    ),
  );
  table.querySelectorAll(".score").forEach(colourScore);
  for (const cell of table.querySelectorAll(".strip")) observer.observe(cell);
}

const keyRow = (k, text, score, weight) =>
  el(
    "tr",
    { tabindex: -1, "data-key": k },
    el("th", { scope: "row" }, el("span", { class: "place" }, String(k)), token(text)),
    strip("key", k),
    strip("product", k),
    el("td", { class: "score", "data-key": k }, el("output", {}, fixed(score))),
    el("td", { class: "weight" }, el("output", {}, fixed(weight)), meter(weight)),
    strip("value", k),
  );

// A row for keys with smaller weights, which a click opens.
function folded(keys) {
  const open = () => {
    keys.forEach((k) => opened.add(k));
    build();
  };
  return el(
    "tr",
    { class: "fold" },
    el(
      "td",
      { colspan: 6 },
      el("button", { type: "button", class: "quiet", onclick: open }, `\u22ee ${keys.length} more keys`),
    ),
  );
}

function colourScore(cell) {
  const colour = signedColour(row("scores", state.token)[cell.dataset.key], limits.score);
  cell.style.setProperty("--c", css(colour));
  cell.style.setProperty("--ink", ink(colour));
}

const observer = whenNear(drawStrip);

function drawStrip(cell) {
  const { kind, key } = cell.dataset;
  const numbers = values(kind, Number(key));
  pixels(cell.firstChild, numbers.length, 1, (x) => signedColour(numbers[x], limits[kind]));
  cell.dataset.drawn = "yes";
}

async function show() {
  const names = ["query", "key", "value", "scores", "weights", "context"];
  const stored = names.filter((name) => `${state.part}.${state.layer}.${name}` in meta.arrays);
  const loads = await Promise.all(stored.map((name) => load(`${state.part}.${state.layer}.${name}`)));
  arrays = Object.fromEntries(stored.map((name, i) => [name, loads[i]]));
  compute();
  setLimits();
  build();
  drawScales();
}

