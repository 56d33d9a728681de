// Ablation view: how the answer's probability changes when one head is removed. A click on a head shows the new
// answers.

const grid = el("table", { class: "grid" });
const panel = el("aside", { class: "panel", "aria-label": "Answer without the head" });
const about = el("p", { class: "about" });
const cells = meta.changes.flatMap((row, y) =>
  row.flatMap((change, head) => (change === null ? [] : [{ y, head, change }])),
);
const limit = cells.reduce((most, { change }) => Math.max(most, Math.abs(change)), 0);
let off = null; // the ablated head: { y, head, change }

const points = (change) => fixed(100 * change, 2); // percentage points
const percent = (share) => `${fixed(100 * share, 2)}%`;
const nameOf = ({ y, head }) => `${meta.rows[y].title}, head ${head}`;

function draw() {
  about.replaceChildren(
    "Click a head to switch it off. With all heads, the probability of ",
    el("bdi", {}, shown(meta.answer)),
    ` is ${percent(meta.before)}. `,
    ...turning(),
  );
  grid.replaceChildren(
    el(
      "thead",
      {},
      el("tr", {}, el("th", {}), ...meta.changes[0].map((_, h) => el("th", { scope: "col" }, `head ${h}`))),
    ),
    el(
      "tbody",
      {},
      ...meta.rows.map(({ title }, y) =>
        el("tr", {}, el("th", { scope: "row" }, title), ...meta.changes[y].map((change, head) => cell(y, head, change))),
      ),
    ),
  );
  panel.replaceChildren(...comparison(), ...largest());
}

// The heads whose removal changes the model's answer.
const own = (meta.whole[0] ?? [meta.answer])[0]; // the model's answer, which need not be the explained outcome
const turns = ({ y, head }) => meta.outcomes[y][head][0][0] !== own;
function turning() {
  const found = cells.filter(turns);
  const several = () => el("button", { type: "button", class: "part-name", onclick: () => page.open("change", {}) }, "Remove several");
  if (!found.length) return ["No single head changes the answer. ", ...(page.has("change") ? [several(), "."] : [])];
  const links = found.map((each) => el("button", { type: "button", class: "part-name", onclick: () => choose(each) }, nameOf(each)));
  return ["The answer changes without ", ...links.flatMap((link, i) => (i ? [" or without ", link] : [link])), "."];
}

function cell(y, head, change) {
  if (change === null) return el("td", {});
  const rgb = signedColour(-change, limit); // orange for heads that support the answer, as in the lists above the views
  const text = Number(points(change)) === 0 ? "0" : points(change);
  const pressed = off?.y === y && off.head === head;
  const label = `${nameOf({ y, head })}: ${text} percentage points without this head${turns({ y, head }) ? ", and the answer changes" : ""}`;
  return el(
    "td",
    { class: `${text === "0" ? "part zero" : "part"}${turns({ y, head }) ? " turns" : ""}`, "--c": css(rgb), "--ink": ink(rgb) },
    el(
      "button",
      {
        type: "button",
        "aria-pressed": pressed,
        "aria-label": label,
        title: label,
        "data-at": `${y} ${head}`,
        onclick: () => choose(pressed ? null : { y, head, change }),
      },
      text,
    ),
  );
}

// Each outcome's probability with all heads, and without the ablated head if one is selected.
function comparison() {
  const before = new Map(meta.whole);
  if (!off)
    return [
      el("h2", {}, "With all heads"),
      el("ol", { class: "outcomes" }, ...meta.whole.map(([name, share]) => outcome(name, share, null))),
    ];
  const after = new Map(meta.outcomes[off.y][off.head]);
  const names = [...new Set([...after.keys(), ...before.keys()])];
  const first = meta.outcomes[off.y][off.head][0][0];
  const verdict = first === own ? "The answer stays" : "The answer changes to";
  const go = () => {
    const { layer, attention } = meta.rows[off.y];
    page.open("heads", { attention: attention || null, layer, head: String(off.head) });
  };
  return [
    el("h2", {}, `Without ${nameOf(off)}`),
    el("p", { class: "verdict" }, `${verdict} `, el("bdi", {}, shown(first)), "."),
    el("ol", { class: "outcomes" }, ...names.map((name) => outcome(name, before.get(name), after.get(name)))),
    ...(page.has("heads")
      ? [el("button", { type: "button", class: "quiet", "data-opens": "heads", onclick: go }, "Show the attention curves")]
      : []),
  ];
}

// An outcome's name with its probability before and after, or "–" where the outcome is not listed.
function outcome(name, before, after) {
  const number = (share) => (share === undefined ? "–" : percent(share));
  const bar = (share, kind) => el("i", { class: `share ${kind}`, "--w": share ?? 0 });
  return el(
    "li",
    {},
    el("bdi", { class: "name" }, shown(name)),
    el("output", {}, after === null ? number(before) : `${number(before)} → ${number(after)}`),
    bar(before, "before"),
    after === null ? null : bar(after, "after"),
  );
}

function largest() {
  const parts = cells.map((each) => ({ name: [nameOf(each)], value: 100 * each.change, go: () => choose(each) }));
  return largestParts("Largest changes, in points", parts, 2, -1);
}

function choose(head) {
  off = head;
  redrawn(grid, draw);
  page.changed();
}

arrowsMove(grid);

themed.push(draw);
return {
  controls: [],
  body: [about, el("div", { class: "split" }, scroller(grid), panel)],
  keys: [
    ["Tab", "the grid, the list beside it"],
    ["← → ↑ ↓", "next head or layer"],
    ["Enter", "switch a head off, or on again"],
  ],
  read: () =>
    off
      ? { attention: meta.rows[off.y].attention || null, layer: meta.rows[off.y].layer, head: off.head }
      : { attention: null, layer: null, head: null },
  async apply({ attention, layer, head }) {
    const y = meta.rows.findIndex(
      (row) => String(row.layer) === String(layer) && row.attention === Number(attention ?? 0),
    );
    off = cells.find((each) => each.y === y && String(each.head) === String(head)) ?? null;
    draw();
  },
};
