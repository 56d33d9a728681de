// Neuron view: pointing at a dimension, the controls, and the view. neuron_rows.js has the table.

// ---- Pointing ----------------------------------------------------------------------------------------------------

// All numbers of one row at dimension `d`, beginning with the kind of number at the pointer.
function chain(key, d, kind) {
  const pick = (name, i) => row(name, i)[d];
  const q = pick("query", state.token);
  const list = [["query", q]];
  if (key !== "") {
    const k = Number(key);
    const weight = row("weights", state.token)[k];
    const value = pick("value", k);
    list.push(
      ["key", pick("key", k)],
      ["product", round(q * pick("key", k))],
      ["value", value],
      ["weight × value", round(weight * value)],
    );
  }
  list.push(["output", pick("context", state.token)]);
  return el(
    "dl",
    { class: "chain" },
    ...list.flatMap(([name, value]) => [
      el("dt", { class: name === kind ? "on" : "" }, KINDS[name] ?? name),
      el("dd", { class: name === kind ? "on" : "", "data-name": name }, fixed(value)),
    ]),
  );
}

const pair = (key) => [
  placed(part().queries.tokens, state.token),
  ...(key === "" ? [] : [el("span", { class: "arrow" }, "→"), placed(part().keys.tokens, key)]),
];

function point(at, key, d, kind) {
  table.style.setProperty("--d", d);
  table.classList.add("pointing");
  showTip(
    at,
    el("div", { class: "link" }, ...pair(key)),
    el("div", { class: "where" }, `dimension ${d}`),
    chain(key, d, kind),
  );
}
function unpoint() {
  table.classList.remove("pointing");
  hideTip();
}

table.addEventListener("pointermove", (event) => {
  const cell = event.target.closest(".strip");
  if (!cell) return unpoint();
  const box = cell.firstChild.getBoundingClientRect();
  const dims = arrays.query.shape[2];
  point(
    event,
    cell.dataset.key,
    Math.max(0, Math.min(dims - 1, Math.floor(((event.clientX - box.left) / box.width) * dims))),
    cell.dataset.kind,
  );
});
table.addEventListener("pointerleave", unpoint);

let dimension = 0; // selected by the keyboard
function pointRow(line) {
  const { key } = line.dataset;
  const kind = key === "" ? "query" : "product";
  const cell = line.querySelector(`[data-kind=${kind}]`);
  const box = cell.getBoundingClientRect();
  const x = box.left + ((dimension + 0.5) / arrays.query.shape[2]) * box.width;
  point({ clientX: x, clientY: box.bottom - 8 }, key, dimension, kind);
  spoken.textContent = `dimension ${dimension}: ${[...tip.querySelectorAll("dt")].map((dt) => `${dt.textContent} ${dt.nextSibling.textContent}`).join(", ")}`;
}
table.addEventListener("keydown", (event) => {
  const line = event.target.closest("tr");
  const lines = [...table.querySelectorAll("tbody tr:not(.fold)")];
  if (!lines.includes(line)) return;
  const last = arrays.query.shape[2] - 1;
  const to = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const sideways = { ArrowRight: 1, ArrowLeft: -1, PageDown: 8, PageUp: -8 }[event.key];
  if (to) {
    const next = lines[lines.indexOf(line) + to] ?? line;
    line.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  } else if (sideways) dimension = Math.max(0, Math.min(last, dimension + sideways));
  else if (event.key === "Home") dimension = 0;
  else if (event.key === "End") dimension = last;
  else if (event.key === "Enter" && meta.parts[state.part].self && line.dataset.key !== "")
    return change({ token: Number(line.dataset.key) });
  else return;
  event.preventDefault();
  pointRow(document.activeElement.closest("tr"));
});
table.addEventListener("focusin", (event) => {
  if (event.target.matches("tr:focus-visible")) pointRow(event.target);
});
table.addEventListener("focusout", unpoint);
table.addEventListener("click", (event) => {
  const line = event.target.closest(".keys th")?.closest("tr");
  if (line && part().self) change({ token: Number(line.dataset.key) });
});
page.on("keydown", (event) => {
  if (event.key === "Escape") unpoint();
});
themed.push(() => {
  table.querySelectorAll("[data-drawn]").forEach(drawStrip);
  table.querySelectorAll(".score").forEach(colourScore);
});
const drawAll = () => table.querySelectorAll(".strip").forEach(drawStrip);
page.on("beforeprint", drawAll);

// ---- Controls ----------------------------------------------------------------------------------------------------

let selects = {};

function buildControls() {
  const { numbers, heads, queries } = part();
  const choose = (name) => (value) => change({ [name]: Number(value) });
  selects = {
    layer: select(
      "Layer",
      numbers.map((number, i) => [i, String(number)]),
      state.layer,
      choose("layer"),
    ),
    head: select(
      "Head",
      heads.map((head) => [head, String(head)]),
      state.head,
      choose("head"),
    ),
    token: select(
      "From",
      queries.tokens.map((text, i) => [i, `${i}  ${shown(text)}`]),
      state.token,
      choose("token"),
    ),
  };
  const which = segmented(
    "Attention",
    meta.parts.map((p, i) => [i, p.title]),
    state.part,
    choose("part"),
  );
  const lines = el(
    "button",
    {
      type: "button",
      class: "quiet",
      "data-opens": "heads",
      onclick: () => page.open("heads", { ...view.read(), tokens: "pieces" }),
    },
    "Show the attention curves",
  );
  const count = part().keys.tokens.length;
  const rows = segmented(
    "Rows",
    [
      ["some", `Strongest ${KEPT}`],
      ["all", `All ${count}`],
    ],
    every ? "all" : "some",
    (rows) => {
      every = rows === "all";
      change({});
    },
  );
  controls.replaceChildren(
    ...(meta.parts.length > 1 ? [which] : []),
    ...Object.values(selects),
    ...(count > LONG ? [rows] : []),
    ...(page.has("heads") ? [lines] : []),
  );
}

async function change(what) {
  opened.clear();
  const key = document.activeElement.closest("tr")?.dataset.key;
  Object.assign(state, what);
  if ("part" in what) {
    const { numbers, heads } = part();
    const layer = state.layer < numbers.length ? state.layer : 0;
    Object.assign(state, { layer, head: heads.includes(state.head) ? state.head : heads[0], token: 0 });
    buildControls();
  }
  for (const [name, field] of Object.entries(selects)) field.lastChild.value = state[name];
  await show();
  page.changed();
  if (key !== undefined) table.querySelector(`tr[data-key="${key}"]`)?.focus();
}

const scales = el("div", { class: "scales" });
function drawScales() {
  scales.replaceChildren(
    ...[
      ["query, key", limits.key],
      ["query × key", limits.product],
      ["value, output", limits.value],
    ].map(([name, limit]) =>
      el(
        "div",
        {},
        el("span", {}, name),
        scaleBar(
          [
            [0, fixed(-limit, 2)],
            [0.25, fixed(-limit / 4, 2)],
            [0.5, "0"],
            [0.75, fixed(limit / 4, 2)],
            [1, fixed(limit, 2)],
          ],
          (x) => {
            const s = 2 * x - 1;
            return signedColour(Math.sign(s) * s * s * limit, limit);
          },
        ),
      ),
    ),
  );
}

const view = {
  controls: [controls],
  body: [scroller(table), scales],
  keys: [
    ["Tab", "to the controls, then the table"],
    ["↑ ↓", "the key token"],
    ["← →", "the dimension; Page keys by eight"],
    ...(meta.parts.some((p) => p.self) ? [["Enter", "use this token as the query, like a click on its name"]] : []),
  ],
  read: () => ({
    attention: state.part || null,
    layer: part().numbers[state.layer],
    head: state.head,
    from: state.token,
    rows: every && part().keys.tokens.length > LONG ? "all" : null,
  }),
  apply({ attention, layer, head, from, rows }) {
    every = rows === "all";
    const number = (text, choices) =>
      /^\d+$/.test(text ?? "") && choices.includes(Number(text)) ? Number(text) : null;
    state.part = number(attention, [...meta.parts.keys()]) ?? meta.shown.part;
    const { numbers, heads, queries } = part();
    state.layer = numbers.indexOf(number(layer, numbers) ?? numbers[meta.shown.layer] ?? numbers[0]);
    state.head = number(head, heads) ?? (heads.includes(meta.shown.head) ? meta.shown.head : heads[0]);
    state.token = number(from, [...queries.tokens.keys()]) ?? Math.min(meta.shown.token, queries.tokens.length - 1);
    buildControls();
    return show();
  },
  whole: drawAll,
};
return view;
