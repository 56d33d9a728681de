// Shared by the head view and the model view: the stack, the tokens (pieces or words), the part of a pair.

const state = { ...meta.shown, heads: new Set(meta.shown.heads), filter: "all", pins: [], hover: null };
const load = loader(meta.arrays);
const headColour = (h) => meta.colours[theme()][h];
const stack = () => meta.stacks[state.stack];
const side = (name) => stack().forms[state.form][name];
const rows = { queries: [], keys: [] }; // token indices that pass the filter, top to bottom
const places = { queries: [], keys: [] }; // for each token, the row that shows it, or -1

// Which tokens pass the pair filter: "01" is A→B, from segment 0 to segment 1.
function filterRows() {
  const [from, to] = state.filter === "all" ? [null, null] : [...state.filter].map(Number);
  for (const [name, segment] of [
    ["queries", from],
    ["keys", to],
  ]) {
    const { tokens, tokenTypes } = side(name);
    rows[name] = tokens.map((_, i) => i).filter((i) => segment === null || tokenTypes[i] === segment);
    places[name] = tokens.map(() => -1);
    rows[name].forEach((i, row) => {
      places[name][i] = row;
    });
  }
}

const layerWeights = (layer) => load(`${state.stack}.${layer}.${state.form}`);

// A link as words: "flies → time".
const linkNodes = (q, k) => [
  placed(side("queries").tokens, q),
  el("span", { class: "arrow" }, "→"),
  placed(side("keys").tokens, k),
];
const linkText = (q, k) => `${shown(side("queries").tokens[q])} to ${shown(side("keys").tokens[k])}`;

// Controls for the stack, the part of a pair, and pieces or words, if there is a choice. `change` receives the change.
function stackControls(change) {
  const { forms } = stack();
  const pair = side("queries").tokenTypes.length && side("keys").tokenTypes.length;
  return [
    meta.stacks.length > 1 &&
      segmented(
        "Attention",
        meta.stacks.map((s, i) => [i, s.title]),
        state.stack,
        (i) =>
          change({
            stack: i,
            layer: state.layer < meta.stacks[i].numbers.length ? state.layer : 0,
            filter: "all",
            form: meta.stacks[i].forms[state.form] ? state.form : Object.keys(meta.stacks[i].forms)[0],
            heads:
              meta.stacks[i].heads === stack().heads
                ? state.heads
                : new Set(Array.from({ length: meta.stacks[i].heads }, (_, h) => h)),
          }),
      ),
    pair &&
      segmented(
        "Show",
        [
          ["all", "All"],
          ["00", "A→A"],
          ["01", "A→B"],
          ["10", "B→A"],
          ["11", "B→B"],
        ],
        state.filter,
        (filter) => change({ filter }),
      ),
    forms.pieces &&
      forms.words &&
      segmented(
        "Tokens",
        [
          ["pieces", "Pieces"],
          ["words", "Whole words"],
        ],
        state.form,
        (form) => change({ form }),
      ),
  ].filter(Boolean);
}

// ---- The address -------------------------------------------------------------------------------------------------

const whole = (text, most) => (/^\d+$/.test(text ?? "") && Number(text) < most ? Number(text) : null);

// The selections of both views in the page's address, without defaults.
const readStack = () => ({
  attention: state.stack || null,
  layer: stack().numbers[state.layer],
  show: state.filter === "all" ? null : state.filter,
  tokens: state.form === meta.shown.form ? null : state.form,
});

// Reads the selections from an address; invalid values are ignored.
function applyStack({ attention, layer, show, tokens }) {
  state.stack = whole(attention, meta.stacks.length) ?? meta.shown.stack;
  const at = stack().numbers.indexOf(Number(layer ?? NaN));
  state.layer = at >= 0 ? at : Math.min(meta.shown.layer, stack().numbers.length - 1);
  state.form = stack().forms[tokens] ? tokens : stack().forms[meta.shown.form] ? meta.shown.form : "pieces";
  const pair = side("queries").tokenTypes.length && side("keys").tokenTypes.length;
  state.filter = pair && /^[01]{2}$/.test(show ?? "") ? show : "all";
}
