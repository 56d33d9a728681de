// Head view, the numbers: next to the tokens at the pointer, and the strongest links in the panel.

const panel = el("aside", { class: "panel", "aria-label": "Exact weights" });

// Shows numbers next to the tokens, and marks the active tokens.
function mark() {
  const some = { queries: active("queries"), keys: active("keys") };
  const heads = shownHeads();
  for (const [name, other] of [
    ["queries", "keys"],
    ["keys", "queries"],
  ]) {
    for (const option of lists[name].querySelectorAll("[data-index]")) {
      const index = Number(option.dataset.index);
      const item = { side: name, index };
      option.setAttribute("aria-selected", pinned(item));
      option.classList.toggle("on", some[name].includes(index));
      const link = some[other].length && heads.length ? strongestAt(heads, name, index, some[other]) : null;
      option.lastElementChild.replaceChildren(...(link ? number(link) : []));
      option.style.setProperty("--tint", link ? css(weightColour(weights.at(link.h, link.q, link.k))) : "transparent");
      option.style.setProperty("--ink", link ? ink(weightColour(weights.at(link.h, link.q, link.k))) : "inherit");
    }
  }
}

// The selections that show this head in the neuron view, for the token chosen here.
const inNeurons = (head) => ({ ...readStack(), head, from: active("queries")[0] ?? null });

const chip = (h) =>
  el("span", { class: "chip", "--c": headColour(h), "--ink": ink(channels(headColour(h))) }, String(h));
const number = ({ h, q, k }) => [...(state.heads.size > 1 ? [chip(h)] : []), el("output", {}, weights.text(h, q, k))];

function list() {
  const queries = active("queries");
  const keys = active("keys");
  const one = queries.length === 1 && keys.length === 1; // for a single pair, the weight of every head is listed
  let links = [];
  if (one) links = shownHeads().map((h) => ({ h, q: queries[0], k: keys[0] }));
  else if (state.heads.size) links = strongestLinks(pairs());
  const title = queries.length || keys.length ? "Strongest of these" : "Strongest links";
  panel.replaceChildren(
    el("h2", {}, one ? "Every head for this pair" : title),
    el("p", {}, ...caption(queries, keys, one)),
    ...(queries.length || keys.length ? [] : [...sinkNote(), ...writesNote()]),
    el("ol", {}, ...links.map(listed)),
  );
  const [only] = shownHeads();
  if (state.heads.size === 1 && page.has("neurons") && state.form === "pieces")
    panel.append(
      el(
        "button",
        { type: "button", class: "quiet", id: "to-neurons", onclick: () => page.open("neurons", inNeurons(only)) },
        `Head ${only}, neuron by neuron`,
      ),
    );
  if (state.heads.size === 1 && page.has("ablation"))
    panel.append(
      " ",
      el(
        "button",
        { type: "button", class: "quiet", id: "to-ablation", onclick: () => page.open("ablation", { ...readStack(), head: only }) },
        `Answer without head ${only}`,
      ),
    );
  if (state.hover && links.length) {
    const link = links[0];
    spoken.textContent = `${linkText(link.q, link.k)}: ${weights.text(link.h, link.q, link.k)}, head ${link.h}`;
  }
}

function listed({ h, q, k }) {
  const link = el("span", { class: "link" }, ...linkNodes(q, k));
  const figure = el("span", { class: "number" }, ...number({ h, q, k }));
  return el("li", {}, link, figure, meter(weights.at(h, q, k), headColour(h)));
}

function caption(queries, keys, one) {
  const several = state.heads.size > 1 && !one ? ", the strongest head for each pair" : "";
  if (!state.heads.size) return ["No head is selected."];
  if (!queries.length && !keys.length) {
    return [`Layer ${stack().numbers[state.layer]}${several}. Point at a token for its weights.`];
  }
  const to = queries.length ? " to " : "To ";
  return [...named("From ", queries, "queries"), ...named(to, keys, "keys"), `${several}.`];
}

// In a long text, a note about the key that gets much more weight than any other, with a button for its lines.
function sinkNote() {
  if (!sink) return [];
  const name = placed(side("keys").tokens, sink.key);
  const [told, label] = chosenRows.sink ? ["", "Hide its lines"] : ["; its lines are not drawn", "Draw its lines"];
  const act = () => changeRows({ sink: !chosenRows.sink });
  return [
    el("p", { class: "sink" }, name, ` gets ${fixed(100 * sink.share, 0)}% of the weight${told}.`),
    el("button", { type: "button", class: "quiet", id: "sink", onclick: act }, label),
  ];
}

// A note for decoders: a row belongs to a token that the decoder has read, and its output is the next token.
function writesNote() {
  const { tokens } = side("queries");
  if (meta.stacks.length < 2 || stack().title.startsWith("Encoder") || tokens.length < 2) return [];
  return [el("p", { class: "writes" }, "A row writes the next word: ", token(tokens[0]), " writes ", token(tokens[1]), ".")];
}

// "From time (1), flies (2)"; empty if there are no tokens. <bdi> isolates each token, because its script may run right
// to left.
const named = (lead, indices, which) =>
  indices.flatMap((i, n) => [n ? ", " : lead, el("bdi", {}, shown(side(which).tokens[i])), ` (${i})`]);

// The tokens that were chosen by clicks, each with a button that releases it. If none is chosen, a note that all tokens
// have lines.
const kept = el("div", { class: "field kept", role: "status" });
function drawKept() {
  const key = JSON.stringify([state.pins, state.stack, state.form]);
  if (kept.dataset.pins === key) return;
  kept.dataset.pins = key;
  const name = ({ side: which, index }) => [which === "queries" ? "from " : "to ", placed(side(which).tokens, index)];
  const release = (item) => () => {
    pin(item);
    const next = kept.querySelector("button");
    if (next) next.focus();
    else focusRow(item.side, places[item.side][item.index]);
  };
  const one = (item) => el("button", { type: "button", class: "quiet", title: "Release this token", onclick: release(item) }, ...name(item), el("span", { "aria-hidden": true }, " \u00d7"));
  kept.replaceChildren(
    el("span", {}, "Lines of"),
    ...(state.pins.length
      ? [...state.pins.map(one), el("button", { type: "button", class: "quiet", title: "Release every token (Esc)", onclick: () => (clear(), focusRow("queries", 0)) }, "All tokens")]
      : [el("span", { class: "all" }, "all tokens. Click a token to choose it.")]),
  );
}

function update() {
  if (!weights) return; // the first layer is not yet inflated, but the pointer is already over a token
  drawKept();
  mark();
  list();
  redraw();
}

