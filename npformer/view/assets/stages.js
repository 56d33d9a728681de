// Stage view: a walk through the forward pass, with a section for each layer and a card for each stage. In an open
// section, a card reads its array when it is first seen, or when the browser is idle.

const stored = loader(meta.arrays);

// A stage's array. If another stage has the same numbers split into heads, puts these heads side by side.
async function load(i) {
  const { merged } = meta.steps[i];
  const array = await stored(merged ?? i);
  if (merged === null) return array;
  const [heads, rows, width] = array.shape;
  const row = (r) =>
    Float64Array.from({ length: heads * width }, (_, c) => array.row(Math.floor(c / width), r)[c % width]);
  return { shape: [rows, heads * width], decimals: array.decimals, row };
}

let stop = null; // current position: the stage's name or the section's id, and the selected head, for the address
let stopHead = null;
const EDGE = 3; // rows and columns that a table shows from each end, as NumPy prints them
const LINES = 12; // maximum rows, and columns of a small matrix, that a table shows in full
const sections = [];
for (const [i, step] of meta.steps.entries()) {
  if (sections.at(-1)?.title !== step.section) sections.push({ title: step.section, steps: [] });
  sections.at(-1).steps.push(i);
}

// ---- Axes --------------------------------------------------------------------------------------------------------

// The original index of kept index `i` of an axis: EDGE at each end, the others evenly spaced between them.
function placeOf(axis, kept, i) {
  if (kept === axis.size || i < EDGE) return i;
  if (i >= kept - EDGE) return axis.size - kept + i;
  return EDGE + Math.floor(((i - EDGE) * (axis.size - 2 * EDGE - 1)) / (kept - 2 * EDGE - 1));
}
const nameOf = (axis, place) => (axis.tokens ? meta.tokens[axis.tokens][place] : axis.names?.[place]);

// The indices that a table shows: all, or EDGE from each end with null for the gap.
function ends(kept, whole, most) {
  if (kept <= most && kept === whole) return Array.from({ length: kept }, (_, i) => i);
  return [
    ...Array.from({ length: EDGE }, (_, i) => i),
    null,
    ...Array.from({ length: EDGE }, (_, i) => kept - EDGE + i),
  ];
}

// The rows of a table, including the row of the chosen token.
const ofText = (axis) => axis.tokens === meta.sides.at(-1);
function withChosen(down, axis, kept) {
  const chosen = ofText(axis) ? Array.from({ length: kept }, (_, i) => i).findIndex((i) => isChosenToken(placeOf(axis, kept, i))) : -1;
  if (chosen < 0 || down.includes(chosen)) return down;
  const gap = down.indexOf(null);
  const middle = [...(chosen > EDGE ? [null] : []), chosen, ...(chosen < kept - EDGE - 1 ? [null] : [])];
  return [...down.slice(0, gap), ...middle, ...down.slice(gap + 1)];
}

// ---- A stage -----------------------------------------------------------------------------------------------------

// A formula such as `W_h` or `K^T` with its subscripts and superscripts. A name such as `token_type_ids` does not
// change.
const formula = (text) =>
  text
    .split(/(\b[A-Za-z]_\w+|\^\w+)/)
    .flatMap((part) =>
      part[1] === "_"
        ? [part[0], el("sub", {}, part.slice(2))]
        : part[0] === "^"
          ? el("sup", {}, part.slice(1))
          : part,
    );

const card = (i) => {
  const step = meta.steps[i];
  const short = step.name.replace(/^.*layers\.\d+\./, "");
  return el(
    "article",
    { class: "card", tabindex: -1, "data-step": i, "aria-label": `${step.name}, shape ${step.shape}` },
    el(
      "header",
      {},
      el("h3", {}, short),
      el("span", { class: "shape" }, step.shape),
      step.formula ? el("span", { class: "formula" }, ...formula(step.formula)) : null,
      el("span", { class: "function" }, step.function),
    ),
    el("div", { class: "numbers" }),
  );
};

async function fill(article) {
  const i = article.dataset.step;
  const step = meta.steps[i];
  const array = await load(i);
  const heads = array.shape.length > 2 ? array.shape[0] : 0;
  const body = article.lastElementChild;
  const draw = (head) => {
    body.querySelector(".plot").replaceWith(plot(step, array, heads ? [head] : []));
  };
  const headHere = () => (stopHead !== null && stopHead < heads ? stopHead : 0);
  article.redraw = () => {
    if (heads) body.querySelector("select").value = headHere();
    draw(headHere());
  };
  const spread = el(
    "dl",
    { class: "spread" },
    ...Object.entries(step.spread).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
  body.replaceChildren(
    ...(heads
      ? [
          select(
            "Head",
            Array.from({ length: heads }, (_, h) => [h, String(h)]),
            headHere(),
            (h) => {
              stand(article, Number(h));
              ofHeads().forEach((each) => each.redraw());
            },
          ),
        ]
      : []),
    el("div", { class: "plot" }),
    el("div", { class: "below" }, spread, el("p", {}, step.elsewhere)),
  );
  draw(headHere());
  article.dataset.filled = "yes";
}

const colourOf = (step) => (value) => (step.weights ? weightColour(value) : signedColour(value, step.limit));

// Whether a table shows all of a matrix, so that a heat map would add nothing.
const whole = (step, height, width) => width === step.columns.size && width <= LINES && height <= LINES;

// The heat map and the table of one matrix.
function plot(step, array, head) {
  const [height, width] = array.shape.slice(-2);
  const rows = Array.from({ length: height }, (_, r) => array.row(...head, r));
  const colour = colourOf(step);
  if (whole(step, height, width)) return el("div", { class: "plot" }, numbers(step, array, rows, colour));
  const canvas = el("canvas", { "aria-hidden": true });
  pixels(canvas, width, height, (x, y) => colour(rows[y][x]));
  canvas.style.height =
    height <= LINES ? `calc(${height} * var(--line-height))` : `${Math.min(200, Math.max(150, 2 * height))}px`;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const y = Math.max(0, Math.min(height - 1, Math.floor(((event.clientY - box.top) / box.height) * height)));
    const x = Math.max(0, Math.min(width - 1, Math.floor(((event.clientX - box.left) / box.width) * width)));
    const where = [
      place(step.rows, placeOf(step.rows, height, y), "row"),
      place(step.columns, placeOf(step.columns, width, x), "column"),
    ];
    showTip(
      event,
      el("div", { class: "where" }, ...where.flatMap((part, n) => (part ? [n && where[0] ? ", " : "", part] : []))),
      el("output", {}, fixed(rows[y][x], array.decimals)),
    );
  });
  canvas.addEventListener("pointerleave", hideTip);
  return el("div", { class: "plot" }, canvas, numbers(step, array, rows, colour));
}

function place(axis, at, what) {
  const name = nameOf(axis, at);
  return name === "" ? null : name === undefined ? `${what} ${at}` : el("span", {}, token(name), ` (${at})`);
}

// The corner numbers, laid out as a printed tensor.
function numbers(step, array, rows, colour) {
  const [height, width] = array.shape.slice(-2);
  const down = withChosen(ends(height, step.rows.size ?? height, LINES), step.rows, height);
  const ofToken = (at) => ({ "data-token": at, class: isChosenToken(at) ? "chosen" : "" });
  const rowOf = (y) => (y === null || !ofText(step.rows) ? {} : ofToken(placeOf(step.rows, height, y)));
  const across = ends(width, step.columns.size, whole(step, height, width) ? LINES : 2 * EDGE);
  const heading = (axis, kept) => (at) => {
    if (at === null) return el("th", {}, "\u2026");
    const where = placeOf(axis, kept, at);
    const name = nameOf(axis, where);
    if (name === undefined) return el("th", { scope: "col" }, String(where));
    return el("th", { scope: "col" }, axis.tokens ? placed(meta.tokens[axis.tokens], where) : token(name));
  };
  return el(
    "div",
    { class: "table" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, el("th", {}), ...across.map(heading(step.columns, width)))),
      el(
        "tbody",
        {},
        ...down.map((y) =>
          el(
            "tr",
            rowOf(y),
            heading(step.rows, height)(y),
            ...across.map((x) =>
              y === null || x === null ? el("td", {}, "\u2026") : cell(rows[y][x], array.decimals, colour),
            ),
          ),
        ),
      ),
    ),
  );
}

function cell(value, decimals, colour) {
  const rgb = colour(value);
  return el("td", { "--c": css(rgb), "--ink": ink(rgb) }, fixed(value, decimals));
}

// ---- The ends of the walk ----------------------------------------------------------------------------------------

const ids = meta.sides.every((name) => meta.ids[name]?.length);
const chip = (name) => (text, i) => {
  const inside = [placed(meta.tokens[name], i), el("small", {}, String(ids ? meta.ids[name][i] : i))];
  const choice = { type: "button", "data-token": i, "aria-pressed": false, title: "Select this token in all tabs" };
  return el("li", { "data-segment": meta.tokenTypes[i] }, ...(name === meta.sides.at(-1) ? [el("button", choice, ...inside)] : inside));
};
const chips = (name) => el("ol", { class: "chips", "data-side": name }, ...meta.tokens[name].map(chip(name)));
const words = el(
  "section",
  { id: "text", tabindex: -1 },
  el("h2", {}, "Text and tokens"),
  ...meta.texts.map((text) => el("p", { class: "text" }, el("bdi", {}, shown(text)))),
  ...meta.sides.map(chips),
  el("p", { class: "about" }, `Each token with its ${ids ? "id" : "position"}.`),
);

const outcome =
  meta.outcome &&
  el(
    "section",
    { id: "label", tabindex: -1 },
    el("h2", {}, "Label"),
    el(
      "table",
      { class: "outcome" },
      el("thead", {}, el("tr", {}, ...["label", "logit", "probability"].map((t) => el("th", { scope: "col" }, t)))),
      el(
        "tbody",
        {},
        ...meta.outcome.labels.map((label, i) => {
          const share = meta.outcome.probabilities[i];
          const best = share === Math.max(...meta.outcome.probabilities);
          return el(
            "tr",
            { class: best ? "best" : "" },
            el("th", { scope: "row" }, token(label)),
            el("td", {}, meta.outcome.logits[i]),
            el("td", { class: "share" }, fixed(share), meter(share)),
          );
        }),
      ),
    ),
  );

// ---- Building ----------------------------------------------------------------------------------------------------

const isShort = meta.sides.every((name) => meta.tokens[name].length <= LONG); // a long text opens with its first section
const idOf = (title) => title.toLowerCase().replaceAll(" ", "-");
const once = (article) => (article.filled ??= fill(article));
const observer = whenNear(once);

// The cards of a section, made when it is first opened.
function build(block) {
  if (!block.open || block.dataset.built) return;
  block.dataset.built = "yes";
  block.append(...block.steps.map(card));
  const cards = block.querySelectorAll(".card");
  cards.forEach((article) => observer.observe(article));
  leisurely(cards, once);
}

const blocks = sections.map(({ title, steps }, n) => {
  const layer = /layer \d+$/i.test(title);
  const first = sections.findIndex((s) => /layer \d+$/i.test(s.title));
  const block = el(
    "details",
    { id: idOf(title), open: isShort ? !layer || n === first : n === 0 },
    el(
      "summary",
      {},
      el("h2", {}, title),
      el("span", { class: "count" }, steps.length > 1 ? `${steps.length} stages` : "1 stage"),
    ),
  );
  block.steps = steps;
  block.addEventListener("toggle", () => build(block));
  build(block);
  return block;
});

const links = [
  ["text", "Text and tokens"],
  ...sections.map(({ title }) => [idOf(title), title]),
  ...(outcome ? [["label", "Label"]] : []),
];
const nav = el(
  "nav",
  { class: "sections", "aria-label": "Stages" },
  el("ol", {}, ...links.map(([id, title]) => el("li", {}, el("a", { href: `#${id}`, "data-id": id }, title)))),
);

function go(target) {
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    build(target); // now, because the toggle event fires only later
  }
  target.scrollIntoView({ block: "start" });
  (target.querySelector(":scope > summary") ?? target).focus({ preventScroll: true });
  stand(target);
}

// Records the current position.
function stand(target, head = stopHead) {
  stop = meta.steps[target.dataset.step]?.name ?? target.id;
  stopHead = head;
  page.changed();
}
nav.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link) return;
  event.preventDefault();
  go(walkway.querySelector(`[id="${link.dataset.id}"]`));
});

// Goes to the stage before or after the one in focus, and opens its section.
function walk(by) {
  const focus = document.activeElement.closest("article, details, section");
  const stops = [words, ...blocks, ...(outcome ? [outcome] : [])].flatMap((block) =>
    block instanceof HTMLDetailsElement && block.open ? [block, ...block.querySelectorAll(".card")] : [block],
  );
  const at = stops.indexOf(focus);
  go(stops[at + by] ?? stops[Math.max(0, at)]);
}
page.on("keydown", (event) => {
  if (event.target.closest("select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = { j: 1, n: 1, k: -1, p: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  walk(by);
});

const watch = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting)
        nav.querySelectorAll("a").forEach((a) => a.setAttribute("aria-current", a.dataset.id === target.id));
    }
  },
  { rootMargin: "-10% 0px -80% 0px" },
);

const walkway = el("div", { class: "walk" }, words, ...blocks, outcome);
const cards = (selector = ".card") => [...walkway.querySelectorAll(selector)];
const ofHeads = () => cards("[data-filled]").filter((article) => meta.steps[article.dataset.step].heads);
themed.push(() => cards("[data-filled]").forEach(fill));
const choose = (at) => (chooseToken(at), markToken(), page.changed());
function markToken() {
  words.querySelectorAll("[data-token]").forEach((each) => each.setAttribute("aria-pressed", isChosenToken(each.dataset.token)));
  cards("[data-filled]").forEach((article) => ofText(meta.steps[article.dataset.step].rows) && article.redraw());
}
walkway.addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-token]");
  if (chosen) choose(chosen.dataset.token);
  const article = event.target.closest(".card");
  if (article && !event.target.closest("select")) stand(article);
});
[words, ...blocks, ...(outcome ? [outcome] : [])].forEach((block) => watch.observe(block));

// ---- Layers ------------------------------------------------------------------------------------------------------

// Kinds of attention in order of computation, such as `decoder.cross_attention`, and the parts of a stage's name.
const inBlock = (name) => /^(.*)layers\.(\d+)\.(?:(\w*attention)\.)?/.exec(name)?.slice(1);
const attentionOf = ([before, , block]) => block && before + block;
const kinds = [...new Set(meta.steps.flatMap(({ name }) => (inBlock(name) && attentionOf(inBlock(name))) || []))];

// The attention and layer of the current position or, outside the layers, the last choice of both.
function layerHere() {
  const first = blocks.find(({ id }) => id === stop)?.steps[0];
  const found = inBlock(first === undefined ? (stop ?? "") : meta.steps[first].name);
  if (!found) return { attention: place.attention, layer: place.layer };
  const kind = kinds.indexOf(attentionOf(found));
  return { attention: (kind < 0 ? kinds.findIndex((each) => each.startsWith(found[0])) : kind) || null, layer: found[1] };
}

// The current stage in another layer; if there is none, the weights of the head, or the section of the layer.
function inLayer({ attention, layer, head }) {
  const here = layerHere();
  if (here.layer === layer && Number(here.attention) === Number(attention)) return stop;
  const [, before, block] = /^(.*?)(\w+)$/.exec(kinds[Number(attention)] ?? "") ?? [];
  const has = (name) => meta.steps.some((step) => step.name === name);
  const same = inBlock(stop ?? "") && stop.replace(/^.*layers\.\d+/, `${before}layers.${layer}`);
  const weights = `${before}layers.${layer}.${block}.weights`;
  const section = blocks.find(({ steps }) => meta.steps[steps[0]].name.startsWith(`${before}layers.${layer}.`));
  return same && has(same) ? same : head != null && has(weights) ? weights : section?.id;
}

return {
  controls: [],
  body: [nav, walkway],
  keys: [
    ["j or n", "next stage, opening its layer"],
    ["k or p", "previous stage"],
    ["Enter", "open or close a section"],
  ],
  read: () => ({ stage: stop, head: stopHead, token: chosenToken() }),
  where: () => ({ ...layerHere(), head: stopHead, from: chosenToken() }),
  async apply({ stage: last, attention, layer, head, token }) {
    takeToken(token, meta.tokens[meta.sides.at(-1)].length);
    markToken();
    stop = last ?? null;
    const stage = layer == null ? last : inLayer({ attention, layer: String(layer), head });
    const i = meta.steps.findIndex(({ name }) => name === stage);
    const known = i >= 0 || links.some(([id]) => id === stage);
    stop = known ? stage : null;
    const before = stopHead;
    stopHead = known && /^\d+$/.test(head ?? "") && meta.steps.some(({ heads }) => heads > Number(head)) ? Number(head) : null;
    if (stopHead !== before) ofHeads().forEach((article) => article.redraw());
    const block = blocks.find(({ id, steps }) => id === stage || steps.includes(i));
    if (block) {
      block.open = true;
      build(block);
      const first = i >= 0 ? i : block.steps[0];
      // fills the cards above first; if they were filled later, they would move this card
      await Promise.all(cards().filter((each) => Number(each.dataset.step) < first).map(once));
      const article = cards().find((each) => Number(each.dataset.step) === first);
      await (article.filled = fill(article));
      (i >= 0 ? article : block).scrollIntoView({ block: "start" });
    } else if (known) walkway.querySelector(`[id="${stage}"]`).scrollIntoView({ block: "start" });
    if (cards().length) await once(cards()[0]);
  },
  whole: () => Promise.all(cards().map(once)),
  // The current stage or section, or the whole walk.
  part: () =>
    cards().find((each) => meta.steps[each.dataset.step].name === stop) ??
    (stop ? walkway.querySelector(`[id="${stop}"]`) : walkway),
};
