// Model view: every head of every layer as a small heat map, the exact weight at the pointer, a large head on a click.

const THUMB = 128; // maximum pixels of a thumbnail; a longer text shows the largest weight of each block
const grid = el("div", { class: "grid", role: "grid", "aria-label": "Layers down, heads across" });
const controls = el("div", { class: "controls-row" });
let current = null; // the head shown large: { layer, head, weights, q, k }

// ---- Thumbnails --------------------------------------------------------------------------------------------------

function build() {
  filterRows();
  const { numbers, heads } = stack();
  grid.style.setProperty("--heads", heads);
  grid.replaceChildren(
    el(
      "div",
      { class: "headings", role: "row" },
      el("span", { class: "corner", role: "columnheader" }, "Layer \u2193  Head \u2192"),
      ...Array.from({ length: heads }, (_, h) => el("span", { role: "columnheader" }, String(h))),
    ),
    ...numbers.map((number, layer) =>
      el(
        "div",
        { class: "row", role: "row" },
        el("span", { role: "rowheader" }, String(number)),
        ...Array.from({ length: heads }, (_, head) =>
          el(
            "button",
            {
              type: "button",
              role: "gridcell",
              class: "thumb",
              "data-layer": layer,
              "data-head": head,
              tabindex: layer || head ? -1 : 0,
              "aria-label": `Layer ${number}, head ${head}`,
            },
            el("canvas", { "aria-hidden": true }),
          ),
        ),
      ),
    ),
  );
  observer.disconnect();
  for (const thumb of thumbs()) observer.observe(thumb);
  leisurely(thumbs(), (thumb) => grid.contains(thumb) && !thumb.dataset.drawn && drawThumb(thumb));
}

const thumbs = () => grid.querySelectorAll(".thumb");
const thumbAt = (layer, head) => grid.querySelector(`.thumb[data-layer="${layer}"][data-head="${head}"]`);
const placeOf = (thumb) => [Number(thumb.dataset.layer), Number(thumb.dataset.head)];

// Marks the head that is chosen in all views, and makes it the tab stop.
function markChosen() {
  const layer = Number(place.attention) === state.stack && place.layer !== null ? stack().numbers.indexOf(Number(place.layer)) : -1;
  const chosen = place.head === null ? null : thumbAt(layer, place.head);
  for (const thumb of thumbs()) {
    thumb.setAttribute("aria-current", thumb === chosen);
    if (chosen) thumb.tabIndex = thumb === chosen ? 0 : -1;
  }
}

// A thumbnail is drawn when it comes near the window, or when the browser is idle. The first thumbnail of a layer
// inflates the layer.
const observer = whenNear(drawThumb);

async function drawThumb(thumb) {
  const [layer, head] = placeOf(thumb);
  const weights = await layerWeights(layer);
  if (!grid.contains(thumb)) return; // another stack, filter or form was selected while the layer was inflated
  const height = rows.queries.length;
  const width = rows.keys.length;
  const block = Math.ceil(Math.max(height, width) / THUMB);
  pixels(thumb.firstChild, Math.ceil(width / block), Math.ceil(height / block), (x, y) =>
    weightColour(largest(weights, head, y * block, x * block, block)),
  );
  thumb.dataset.drawn = "yes";
}

function largest(weights, head, row, column, block) {
  let unit = 0;
  const bottom = Math.min(row + block, rows.queries.length);
  const right = Math.min(column + block, rows.keys.length);
  for (let y = row; y < bottom; y++) {
    for (let x = column; x < right; x++) unit = Math.max(unit, weights.unit(head, rows.queries[y], rows.keys[x]));
  }
  return unit / weights.one;
}

const redrawThumbs = () =>
  thumbs().forEach((thumb) => {
    if (thumb.dataset.drawn) drawThumb(thumb);
  });

// The strongest link of a head, announced and shown for keyboard users.
function strongest(weights, head) {
  let best = [rows.queries[0], rows.keys[0]];
  for (const k of rows.keys)
    for (const q of rows.queries) if (weights.unit(head, q, k) > weights.unit(head, ...best)) best = [q, k];
  return best;
}

// The pair of tokens under the pointer, in an element that shows the whole matrix.
function under(event, element) {
  const box = element.getBoundingClientRect();
  const y = Math.floor(((event.clientY - box.top) / box.height) * rows.queries.length);
  const x = Math.floor(((event.clientX - box.left) / box.width) * rows.keys.length);
  return [
    rows.queries[Math.max(0, Math.min(y, rows.queries.length - 1))],
    rows.keys[Math.max(0, Math.min(x, rows.keys.length - 1))],
  ];
}

const where = (layer, head) => `Layer ${stack().numbers[layer]}, head ${head}`;
const reading = (weights, head, q, k) => [
  el("div", { class: "link" }, ...linkNodes(q, k)),
  el("output", {}, weights.text(head, q, k)),
];

async function hover(event) {
  const thumb = event.target.closest(".thumb");
  if (!thumb) return hideTip();
  const [layer, head] = placeOf(thumb);
  const weights = await layerWeights(layer);
  if (thumb.matches(":hover"))
    showTip(
      event,
      el("div", { class: "where" }, where(layer, head)),
      ...reading(weights, head, ...under(event, thumb.firstChild)),
    );
}

async function focused(event) {
  const thumb = event.target.closest(".thumb");
  if (!thumb || !thumb.matches(":focus-visible")) return;
  const [layer, head] = placeOf(thumb);
  const weights = await layerWeights(layer);
  const [q, k] = strongest(weights, head);
  const box = thumb.getBoundingClientRect();
  showTip(
    { clientX: box.right - 10, clientY: box.bottom - 14 },
    el("div", { class: "where" }, `${where(layer, head)}, strongest`),
    ...reading(weights, head, q, k),
  );
  spoken.textContent = `${where(layer, head)}. Strongest: ${linkText(q, k)}, ${weights.text(head, q, k)}`;
}

function moveFocus(event) {
  const thumb = event.target.closest(".thumb");
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!thumb || !step) return;
  event.preventDefault();
  const [layer, head] = placeOf(thumb);
  const next = thumbAt(layer + step[0], head + step[1]);
  if (!next) return;
  thumb.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

grid.addEventListener("pointermove", hover);
grid.addEventListener("pointerleave", hideTip);
grid.addEventListener("focusin", focused);
grid.addEventListener("focusout", hideTip);
grid.addEventListener("keydown", moveFocus);
grid.addEventListener("click", (event) => {
  const thumb = event.target.closest(".thumb");
  if (thumb) open(...placeOf(thumb));
});

// ---- One head, large ---------------------------------------------------------------------------------------------

const title = el("h2", { id: "detail-title" });
const readout = el("p", { class: "reading", role: "status" });
const picture = el("canvas", { tabindex: 0, role: "img", "aria-labelledby": "detail-title" });
const names = { queries: el("div", { class: "names down" }), keys: el("div", { class: "names across" }) };
const step = (text, label, layers, heads) =>
  el(
    "button",
    { type: "button", class: "quiet", "aria-label": label, title: label, onclick: () => stepTo(layers, heads) },
    text,
  );
// A button that opens another view at the enlarged head and the marked token.
function opener(view, text) {
  if (!page.has(view)) return null;
  const go = () => {
    const { to, ...choices } = chosen();
    detail.close();
    page.open(view, { ...readStack(), ...choices });
  };
  return el("button", { type: "button", class: "quiet", "data-opens": view, onclick: go }, text);
}

const detail = el(
  "dialog",
  { class: "detail", "aria-labelledby": "detail-title" },
  el(
    "header",
    {},
    title,
    el(
      "div",
      { class: "steps" },
      step("\u2190", "Previous head", 0, -1),
      step("\u2192", "Next head", 0, 1),
      step("\u2191", "Previous layer", -1, 0),
      step("\u2193", "Next layer", 1, 0),
    ),
    el("button", { type: "button", class: "quiet", onclick: () => detail.close() }, "Close"),
  ),
  el(
    "div",
    { class: "links" },
    opener("heads", "Show the attention curves"),
    opener("neurons", "Neuron by neuron"),
    ...page.savers(),
  ),
  el("div", { class: "matrix" }, names.keys, names.queries, picture),
  readout,
);

async function open(layer, head) {
  hideTip();
  const weights = await layerWeights(layer);
  const [q, k] = strongest(weights, head);
  current = { layer, head, weights, q, k };
  if (!detail.open) detail.showModal();
  title.textContent = where(layer, head);
  drawDetail();
  picture.focus();
  page.changed();
}

function stepTo(layers, heads) {
  const layer = current.layer + layers;
  const head = current.head + heads;
  if (thumbAt(layer, head)) open(layer, head);
}

// The side of a cell: as large as the window allows, in whole pixels if these fit.
function cellSize() {
  const room = Math.min(innerWidth - (innerWidth < 480 ? 150 : 190), innerHeight - 310);
  const size = room / Math.max(rows.queries.length, rows.keys.length);
  return size >= 1 ? Math.floor(Math.min(size, 48)) : size;
}

function drawDetail() {
  const { weights, head } = current;
  const cell = cellSize();
  const context = sized(picture, cell * rows.keys.length, cell * rows.queries.length);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  rows.queries.forEach((q, y) =>
    rows.keys.forEach((k, x) => {
      const colour = weightColour(weights.at(head, q, k));
      context.fillStyle = css(colour);
      context.fillRect(x * cell, y * cell, Math.max(cell, 1), Math.max(cell, 1));
      if (cell < 40) return;
      context.fillStyle = ink(colour);
      context.fillText(weights.text(head, q, k), (x + 0.5) * cell, (y + 0.5) * cell);
    }),
  );
  const { q, k } = current;
  context.strokeStyle = getComputedStyle(root).getPropertyValue("--mark");
  context.lineWidth = 2;
  const out = cell < 6 ? 2 : -1; // the frame is outside a small cell, and inside a large one
  context.strokeRect(places.keys[k] * cell - out, places.queries[q] * cell - out, cell + 2 * out, cell + 2 * out);
  label("queries", q, cell);
  label("keys", k, cell);
  readout.replaceChildren(...reading(weights, head, q, k));
}

// Every token next to its cells if there is room; else only the marked one.
function label(which, marked, cell) {
  names[which].style.setProperty("--cell", `${cell}px`);
  const all = cell >= 15;
  const longest = Math.min(13, Math.max(...side(which).tokens.map((text) => text.length)));
  names[which].style.setProperty(which === "keys" ? "--height" : "--width", `${0.5 * longest + 1.25}rem`);
  names[which].replaceChildren(
    ...(all ? rows[which] : [marked]).map((i) => {
      const name = placed(side(which).tokens, i);
      name.classList.add("name");
      name.classList.toggle("on", i === marked);
      name.style.setProperty("--at", `${(places[which][i] + 0.5) * cell}px`);
      return name;
    }),
  );
}

function mark(q, k) {
  if (q === current.q && k === current.k) return;
  Object.assign(current, { q, k });
  drawDetail();
  page.changed();
}

picture.addEventListener("pointermove", (event) => mark(...under(event, picture)));
detail.addEventListener("keydown", (event) => {
  const near = (which, i, by) => rows[which][Math.max(0, Math.min(places[which][i] + by, rows[which].length - 1))];
  const moves = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
  const jumps = { n: [0, 1], p: [0, -1], d: [1, 0], u: [-1, 0] }[event.key];
  if (moves && event.target === picture) mark(near("queries", current.q, moves[0]), near("keys", current.k, moves[1]));
  else if (jumps) stepTo(...jumps);
  else return;
  event.preventDefault();
});
detail.addEventListener("close", () => {
  const thumb = thumbAt(current.layer, current.head);
  current = null;
  markChosen();
  thumb?.focus();
  page.changed();
});
page.on("resize", () => {
  if (current) drawDetail();
});
themed.push(() => {
  redrawThumbs();
  if (current) drawDetail();
});

// ---- Controls ----------------------------------------------------------------------------------------------------

function change(part) {
  Object.assign(state, part);
  if ("stack" in part) controls.replaceChildren(...stackControls(change), legend);
  build();
  page.changed();
}

const legend = weightScale();

// The enlarged head, and the pair of tokens that is marked in it.
const chosen = () => ({ layer: stack().numbers[current.layer], head: current.head, from: current.q, to: current.k });

return {
  controls: [controls],
  body: [grid, detail],
  keys: [
    ["← → ↑ ↓", "next head or layer; in a large map, next cell"],
    ["Enter", "show a head large"],
    ["n p", "large map: next, previous head"],
    ["d u", "large map: a layer down, up"],
    ["Esc", "close the large map"],
  ],
  read: () => ({ ...readStack(), layer: null, ...(current ? chosen() : {}) }),
  // the chosen head, even while no head is enlarged
  where: () => (current ? { ...readStack(), ...chosen() } : { ...place, from: place.token }),
  async apply(choices) {
    applyStack(choices);
    controls.replaceChildren(...stackControls(change), legend);
    build();
    const head = whole(choices.head, stack().heads);
    if (head === null || choices.layer === undefined) {
      if (detail.open) detail.close();
      markChosen();
      return drawThumb(thumbAt(0, 0));
    }
    await open(state.layer, head);
    const marked = [whole(choices.from, side("queries").tokens.length), whole(choices.to, side("keys").tokens.length)];
    if (!marked.includes(null)) mark(...marked);
  },
  whole: () => Promise.all([...thumbs()].map((thumb) => thumb.dataset.drawn || drawThumb(thumb))),
  part: () => (detail.open ? detail : null),
};
