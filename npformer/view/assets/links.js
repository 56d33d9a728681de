// Head view, the picture: the visible links and their lines between the two sides. heads.js has the rest of the view.
// Only lines that cross the window are drawn, on one canvas of the window's size, so 512 tokens cost the same as 30.

let rowHeight = 26; // height of a token
const PAPER = 820; // height of the lines on a printed page, in pixels: a canvas cannot be divided between two pages
const { faint: FAINT, fainter: FAINTER } = meta; // smallest weight with a line: for all tokens, and for active tokens
const TOP = 12; // links listed next to the picture
const STEPS = 13; // steps of opacity; lines with the same colour and step are stroked together

let weights = null; // weights of the layer shown

const lists = {
  queries: el("div", {
    class: "tokens from",
    role: "listbox",
    "aria-multiselectable": true,
    "aria-label": "From: queries",
  }),
  keys: el("div", {
    class: "tokens to",
    role: "listbox",
    "aria-multiselectable": true,
    "aria-label": "To: keys",
  }),
};
const canvas = el("canvas", { "aria-hidden": true });
canvas.paths = paths; // for a saved picture: all lines, not only the lines in the window
const hint = el("p", { class: "hint", hidden: true });
const lines = el("div", { class: "lines" }, canvas, hint);

// ---- What is shown -----------------------------------------------------------------------------------------------

const same = (a, b) => a && b && a.side === b.side && a.index === b.index;
const pinned = (item) => state.pins.some((pin) => same(pin, item));
// Tokens with visible lines and numbers: tokens held by a click, and the token at the pointer.
function active(name) {
  const items = state.hover && !pinned(state.hover) ? [...state.pins, state.hover] : state.pins;
  return items.filter((item) => item.side === name && places[name][item.index] >= 0).map((item) => item.index);
}
const shownHeads = () => [...state.heads].sort((a, b) => a - b);

// The head with the largest weight from q to k, among the heads shown.
function strongest(heads, q, k) {
  let best = heads[0];
  for (const h of heads) if (weights.unit(h, q, k) > weights.unit(best, q, k)) best = h;
  return best;
}

// The strongest link at token `index` of one side, from or to the active tokens of the other.
function strongestAt(heads, name, index, others) {
  let link = null;
  for (const other of others) {
    const [q, k] = name === "keys" ? [other, index] : [index, other];
    const h = strongest(heads, q, k);
    if (!link || weights.unit(h, q, k) > weights.unit(link.h, link.q, link.k)) link = { h, q, k };
  }
  return link;
}

// The strongest links among pairs of tokens: at most TOP, with one head for each pair.
function strongestLinks(pairs) {
  const heads = shownHeads();
  const best = [];
  for (const [q, k] of pairs) {
    const h = strongest(heads, q, k);
    const unit = weights.unit(h, q, k);
    if (best.length === TOP && unit <= best[TOP - 1].unit) continue;
    let at = best.length;
    while (at > 0 && best[at - 1].unit < unit) at--;
    best.splice(at, 0, { h, q, k, unit });
    best.length = Math.min(best.length, TOP);
  }
  return best;
}

// The pairs of tokens that may have lines: all pairs or, if tokens are active, only their pairs.
function* pairs() {
  const queries = active("queries");
  const keys = active("keys");
  if (!queries.length && !keys.length) {
    for (const k of drawnKeys()) for (const q of rows.queries) yield [q, k];
    return;
  }
  for (const q of queries) for (const k of rows.keys) yield [q, k];
  for (const k of keys) for (const q of rows.queries) if (!queries.includes(q)) yield [q, k];
}

// ---- Drawing -----------------------------------------------------------------------------------------------------

let printing = false;

function draw() {
  if (!weights) return;
  const { width, height: length } = extent();
  const height = printing ? length : Math.min(length, innerHeight);
  const context = sized(canvas, width, height);
  const scrolled = canvas.getBoundingClientRect().top - lines.getBoundingClientRect().top;
  const found = strands(width, height, scrolled, () => new Path2D());
  hint.textContent = `No weight here reaches ${fixed(least(), 2)}.` + (few() ? "" : " Point at a token for its weights.");
  hint.hidden = found.size > 0 || !state.heads.size;
  for (const [path, { colour, level, thick }] of looks(found)) {
    context.globalAlpha = level;
    context.lineWidth = thick;
    context.strokeStyle = colour;
    context.stroke(path);
  }
}

const extent = () => ({
  width: lines.clientWidth,
  height: Math.max(entries.queries.length, entries.keys.length) * rowHeight,
});
// If no token is active, only large weights have lines, with opacity proportional to the weight. Lines of active tokens
// have opacity proportional to the square root of the weight.
const few = () => active("queries").length + active("keys").length > 0;
const least = () => (few() ? FAINTER : leastOfAll());

// Paths with their styles, faint ones first.
const looks = (found) =>
  [...found.keys()]
    .sort((a, b) => (a % STEPS) - (b % STEPS))
    .map((key) => {
      const level = (key % STEPS) / (STEPS - 1);
      return [found.get(key), { colour: headColour(Math.floor(key / STEPS)), level, thick: 0.75 + 2.5 * level }];
    });

// A drawing context that records SVG paths instead of drawing on a canvas.
class Written {
  constructor() {
    this.d = "";
  }
  moveTo(...at) {
    this.d += `M${at.map(digits).join(" ")}`;
  }
  bezierCurveTo(...at) {
    this.d += `C${at.map(digits).join(" ")}`;
  }
}
function paths() {
  const { width, height } = extent();
  return looks(strands(width, height, 0, () => new Written())).map(([{ d }, { colour, level, thick }]) => ({
    d,
    stroke: colour,
    "stroke-opacity": level,
    "stroke-width": thick,
  }));
}

// The lines that cross the window, as one path for each head and opacity: head * STEPS + opacity -> path.
function strands(width, height, scrolled, newPath) {
  const opacity = few() ? strength : (weight) => Math.min(1, weight * lift());
  const faintest = least();
  const heads = shownHeads();
  const apart = heads.length > 1 ? Math.min(12, 3 * (heads.length - 1)) / (heads.length - 1) : 0;
  const found = new Map();
  for (const [q, k] of pairs()) {
    const start = (places.queries[q] + 0.5) * rowHeight - scrolled;
    const end = (places.keys[k] + 0.5) * rowHeight - scrolled;
    if (Math.max(start, end) < 0 || Math.min(start, end) > height) continue;
    heads.forEach((h, i) => {
      const weight = weights.at(h, q, k);
      if (weight < faintest) return;
      const key = h * STEPS + Math.max(1, Math.round(opacity(weight) * (STEPS - 1)));
      if (!found.has(key)) found.set(key, newPath());
      const shift = (i - (heads.length - 1) / 2) * apart; // lines of several heads are drawn side by side
      found.get(key).moveTo(0, start + shift);
      found.get(key).bezierCurveTo(width * 0.42, start + shift, width * 0.58, end + shift, width, end + shift);
    });
  }
  return found;
}

let drawing = false;
function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}
