// Step view, places: finds the step of a clicked line, of a place in another run, and of a head's scores.

const said = el("p", { class: "about", role: "status" });
const say = (text) => said.replaceChildren(text);

// The first line of the statement to which a line belongs.
const startOf = (line) => Object.keys(meta.changeable).map(Number).filter((first) => first <= line && endOf(first) >= line).at(-1) ?? line;

// A step that runs a line: in this call if possible, else the next such step, else the previous one; null if the line
// does not run.
function nearest(line) {
  const isHere = (s) => s[LINE] === line && s[FRAME] === step()[FRAME];
  const isThere = (s) => s[LINE] === line;
  return find(at - 1, 1, isHere) ?? find(at, -1, isHere) ?? find(at, 1, isThere) ?? find(at, -1, isThere);
}

// A place that can be found in other runs: the line's number within its function, and how often it has run before.
const firstLine = (name) => meta.source.findIndex((text) => text.startsWith(`def ${name}(`));
function placeOf(i) {
  const line = steps()[i][LINE];
  const name = frameOf(i)[0];
  return { name, line: line - firstLine(name), before: steps().slice(0, i).filter((s) => s[LINE] === line).length };
}
function stepAt(place) {
  if (!place || firstLine(place.name) < 0) return null;
  const line = firstLine(place.name) + place.line;
  const found = [...steps().keys()].filter((i) => steps()[i][LINE] === line);
  return found[Math.min(place.before, found.length - 1)] ?? null;
}

// ---- The scores of a head ----------------------------------------------------------------------------------------

// The steps at which layers begin. An encoder's layers come before a decoder's.
let begun = { of: null, at: [] };
function layerSteps() {
  if (begun.of !== steps()) begun = { of: steps(), at: [...steps().keys()].filter((i) => meta.loops.includes(steps()[i][LINE])) };
  return begun.at;
}

// A choice of layers. Each option has the number of a layer and, if several functions run layers, the function's name.
const layerHere = el("select", { "aria-label": "Layer", onchange: () => go(Number(layerHere.value)) });
function drawLayers() {
  const begins = layerSteps();
  const several = new Set(begins.map((i) => frameOf(i)[0])).size > 1;
  const counts = {};
  const listed = begins.map((i) => {
    const name = frameOf(i)[0];
    counts[name] = (counts[name] ?? -1) + 1;
    return el("option", { value: i }, `${several ? `${name} ` : ""}${counts[name]}`);
  });
  layerHere.replaceChildren(el("option", { value: "", disabled: true }, "\u2013"), ...listed);
  layerHere.value = begins.filter((i) => i <= at).at(-1) ?? "";
}

// The first step of each layer that has a kind of attention. Kind 0 belongs to the first loop over layers.
function beginsOf(attention) {
  const begins = layerSteps();
  const loops = [...new Set(begins.map((i) => steps()[i][LINE]))];
  const loop = loops[Math.min(Number(attention ?? 0), loops.length - 1)];
  return begins.filter((i) => steps()[i][LINE] === loop);
}
const endOfLayer = (begin) => layerSteps().find((i) => i > begin) ?? steps().length;

// The attention and layer of a step or, before the first layer, the last choice of both.
function layerOf(i) {
  const begin = layerSteps().filter((each) => each <= i).at(-1);
  if (begin === undefined) return { attention: place.attention, layer: place.layer };
  const kinds = [place.attention, 0, 1].filter((kind) => beginsOf(kind).includes(begin));
  return { attention: Number(kinds[0]) || null, layer: beginsOf(kinds[0]).indexOf(begin) };
}

// The step of the current line in another layer; if there is none, the step of the head's weights, or the layer's first
// step.
function inLayer({ attention, layer, head }) {
  const begin = beginsOf(attention)[Number(layer)];
  if (begin === undefined) return null;
  const isHere = (from, i) => i >= from && i < endOfLayer(from);
  if (isHere(begin, at)) return at;
  const own = layerSteps().filter((i) => i <= at).at(-1);
  const same = [...steps().keys()].filter((i) => steps()[i][LINE] === step()[LINE]);
  const nth = same.filter((i) => isHere(own, i)).indexOf(at); // -1 before the first layer
  return same.filter((i) => isHere(begin, i))[nth] ?? (head == null ? null : weightsOf({ attention, layer, head })?.to) ?? begin;
}

// The step that computes the weights of a layer's attention.
function weightsOf({ attention, layer, head }) {
  const from = beginsOf(attention)[Number(layer)];
  if (from === undefined) return null;
  const end = endOfLayer(from);
  const found = [...steps().keys()].filter((i) => i >= from && i < end && "weights" in steps()[i][MADE] && typeof steps()[i][MADE].weights === "number");
  const to = found[Number(attention) === 2 ? 1 : 0] ?? null;
  return to === null ? null : { to, head: Number(head) };
}

// Buttons that go to the head on which the answer depends most, and to the head chosen on another tab.
const headsHere = el("span", { class: "to-heads" });
function drawHeads() {
  const [decisive] = [...(doc.answers[0]?.heads ?? []).flat()].map(([head]) => head);
  const chosen = place.layer !== null && place.head !== null ? place : null;
  const listed = [
    [decisive, "largest effect", "The weights of the head whose removal changes the answer most"],
    [chosen, "chosen", "The weights of the chosen head"],
  ];
  const same = chosen && decisive && String(decisive.layer) === chosen.layer && String(decisive.head) === chosen.head;
  headsHere.replaceChildren(
    ...listed.slice(0, same ? 1 : 2).flatMap(([head, what, title]) => {
      const found = head && weightsOf(head);
      const go_ = () => {
        shownHead = found.head;
        go(found.to, "weights");
      };
      return found ? [quiet(`Layer ${head.layer}, head ${head.head}: ${what}`, title, go_)] : [];
    }),
  );
}
