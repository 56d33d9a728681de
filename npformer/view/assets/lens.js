// Lens view: the largest output after each layer at every token. For a single token the columns are ranks instead.

const grid = el("table", { class: "grid" });
const panel = el("aside", { class: "panel", "aria-label": "One token, layer by layer" });
const about = el("p", { class: "about" });
const last = meta.rows.length - 1;
const one = meta.positions.length === 1;
let row = last;
let column = meta.positions.length - 1;

const percent = (share) => `${fixed(100 * share, share < 0.1 ? 2 : 1)}%`;

function draw() {
  const answer = meta.words[last][column][0];
  about.replaceChildren(
    one ? "The last layer's answer: " : `After token ${meta.positions[column]}, `,
    ...(one ? [] : ["\u201c", token(meta.tokens[column]), "\u201d, the last layer's answer is "]),
    el("bdi", { class: "answer-there" }, shown(answer)),
    ` ${percent(meta.shares[last][column][0])}. ${settled(answer)}`,
  );
  const headings = one
    ? meta.words[0][0].map((_, rank) => [`${rank + 1}.`])
    : meta.tokens.map((text, i) => [el("span", { class: "place" }, String(meta.positions[i])), token(text)]);
  grid.replaceChildren(
    el(
      "thead",
      {},
      el("tr", {}, el("th", {}), ...headings.map((heading) => el("th", { scope: "col" }, ...heading))),
    ),
    el(
      "tbody",
      {},
      ...meta.rows.map((name, y) =>
        el("tr", {}, el("th", { scope: "row" }, name), ...headings.map((_, x) => (one ? cell(y, 0, x) : cell(y, x, 0)))),
      ),
    ),
  );
  panel.replaceChildren(...ranks(), ...through());
}

// A sentence that lists the layers at which the final answer already has the largest output.
function settled(answer) {
  const leads = meta.words.map((row) => row[column][0] === answer);
  const from = leads.lastIndexOf(false) + 1;
  const earlier = meta.rows.filter((_, y) => y < from && leads[y]);
  if (earlier.length) return `This answer leads at ${earlier.join(", ")}, and again from ${meta.rows[from]} on.`;
  return from === last ? "Only the last layer has this answer." : `This answer leads from ${meta.rows[from]} on.`;
}

function cell(y, x, rank) {
  const rgb = weightColour(meta.shares[y][x][rank]);
  const text = meta.words[y][x][rank];
  const share = percent(meta.shares[y][x][rank]);
  const pressed = y === row && x === column && (one ? rank === 0 : true);
  return el(
    "td",
    { class: "part", "--c": css(rgb), "--ink": ink(rgb) },
    el(
      "button",
      {
        type: "button",
        "aria-pressed": pressed,
        "aria-label": `${meta.rows[y]}, ${meta.positions[x]} ${shown(meta.tokens[x])}: ${shown(text)} ${share}`,
        "data-at": `${y} ${one ? rank : x}`,
        onclick: () => choose(y, x),
      },
      token(text),
      one ? el("small", {}, share) : null,
    ),
  );
}

const listed = (name, share, note) =>
  el(
    "li",
    {},
    el("bdi", { class: "name" }, shown(name)),
    el("output", {}, note ?? percent(share)),
    el("i", { class: "share", "--w": share ?? 0 }),
  );

// The largest outputs of the selected row.
const ranks = () => [
  el("h2", {}, meta.rows[row]),
  ...(one ? [] : [el("p", {}, `after ${meta.positions[column]} \u201c`, token(meta.tokens[column]), "\u201d")]),
  el(
    "ol",
    { class: "outcomes" },
    ...meta.words[row][column].map((word, rank) => listed(word, meta.shares[row][column][rank])),
  ),
];

// For each row of the table, the probability and the place of the followed output.
function through() {
  const rows = meta.rows.map((name, y) => {
    const [share, place] = [meta.followedShares[y][column], meta.followedPlaces[y][column]];
    return listed(name, share, place > 1 ? `${percent(share)}, place ${digits(place)}` : null);
  });
  return [
    el("h2", {}, el("bdi", {}, shown(meta.followed[column])), ", layer by layer"),
    el("ol", { class: "outcomes layers" }, ...rows),
  ];
}

function choose(y, x) {
  [row, column] = [y, x];
  redrawn(grid, draw);
  page.changed();
}

arrowsMove(grid);

themed.push(draw);
const box = scroller(grid);
return {
  controls: [],
  body: [about, el("div", { class: "split" }, box, panel)],
  keys: [
    ["Tab", "the grid"],
    ["← → ↑ ↓", "next token or layer"],
    ["Enter", "show the largest outputs of the cell"],
  ],
  read: () => ({
    layer: row === last ? null : meta.rows[row].replace("layer ", ""),
    at: column === meta.positions.length - 1 ? null : meta.positions[column],
  }),
  async apply({ layer, at }) {
    const y = meta.rows.findIndex((name) => name.replace("layer ", "") === layer);
    const x = meta.positions.findIndex((position) => String(position) === at);
    row = y >= 0 ? y : last;
    column = x >= 0 ? x : meta.positions.length - 1;
    draw();
    requestAnimationFrame(() => {
      const [name, ...cells] = grid.querySelector("tbody tr").children;
      box.firstChild.scrollTo({ left: cells[column].offsetLeft - name.offsetWidth });
    });
  },
};
