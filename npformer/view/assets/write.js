// Write view: the next tokens, with bars that follow the sliders, or a translator's beams. A click appends a token.

const knobs = (live.knobs ??= { k: 0, p: 1, ahead: 0, written: [] }); // kept when tokens are added

const bars = el("ol", { class: "bars" });
const status = el("p", { class: "about" });

const stepHere = () => chosenStep ?? meta.temperatures.indexOf(1);

// The shares of the tokens after temperature, top-k and top-p, and of all others together; null for excluded tokens.
function kept() {
  const step = stepHere();
  const t = meta.temperatures[step];
  const shares = sampled(meta, t, step);
  let others = shares.pop();
  let words = shares.map((share) => share);
  if (knobs.k) {
    words = words.map((share, i) => (i < knobs.k ? share : null));
    others = 0;
  }
  const total = words.reduce((sum, share) => sum + (share ?? 0), others);
  let larger = 0;
  words = words.map((share) => {
    if (share === null) return null;
    const keep = larger < knobs.p * total || larger === 0;
    larger += share;
    return keep ? share : null;
  });
  if (knobs.p < 1 && larger >= knobs.p * total) others = 0;
  const sum = words.reduce((a, share) => a + (share ?? 0), others);
  return { words: words.map((share) => (share === null ? null : share / sum)), others: others / sum };
}

function append(i) {
  const [[text, ...rest], ...texts] = live.state.texts;
  update({ texts: [[text + meta.append[i], ...rest], ...texts] });
  drawFields();
}
// The text before each click, for "Take back".
const remember = () => knobs.written.push(live.state.texts[0][0]);
function takeBack() {
  const [[, ...rest], ...texts] = live.state.texts;
  knobs.ahead = 0;
  update({ texts: [[knobs.written.pop(), ...rest], ...texts] });
  drawFields();
}

// A random token from the list, drawn with the probabilities shown.
function sample() {
  const { words } = kept();
  let left = Math.random() * words.reduce((a, share) => a + (share ?? 0), 0);
  const i = words.findIndex((share) => share !== null && (left -= share) <= 0);
  append(Math.max(0, i));
}
function writeTokens(count) {
  remember();
  knobs.ahead = count - 1;
  sample();
}

const knob = (label, attributes, text, set) => {
  const output = el("output", {}, text());
  const slider = el("input", { type: "range", "aria-label": label, ...attributes });
  slider.value = attributes.value;
  slider.addEventListener("input", () => {
    set(Number(slider.value));
    output.textContent = text();
    draw();
  });
  return el("label", { class: "field" }, el("span", {}, label), slider, output);
};

const knobsHere = el("div", { class: "controls-row" });
function drawKnobs() {
  knobsHere.replaceChildren(
    knob("Temperature", { min: 0, max: meta.temperatures.length - 1, value: stepHere() }, () => meta.temperatures[stepHere()].toFixed(1), chooseStep),
    knob("Top-k", { min: 0, max: meta.words.length, value: knobs.k }, () => (knobs.k ? String(knobs.k) : "all"), (v) => (knobs.k = v)),
    knob("Top-p", { min: 0.05, max: 1, step: 0.05, value: knobs.p }, () => knobs.p.toFixed(2), (v) => (knobs.p = v)),
    ...writers,
    backButton,
  ); // prettier-ignore
  writers.forEach((button) => (button.disabled = !meta.room));
}
const writers = [
  quiet("Write a token", "A random token, drawn with the probabilities below: a word, or a piece of a word", () => writeTokens(1)),
  quiet("Write 10", "Ten random tokens", () => writeTokens(10)),
];
const backButton = quiet("Take back", "Remove the tokens that were added last", takeBack);
const full = el("p", { class: "notice", role: "status" }, "The text has the maximum length for the model or this page, so no token can follow. Shorten the text to continue.");

function draw() {
  const { words, others } = kept();
  const bar = (name, share, go) =>
    el(
      "li",
      { class: share === null ? "out" : "" },
      go ? el("button", { type: "button", class: "part-name", "aria-label": `Append ${shown(name)}`, disabled: !meta.room, onclick: go }, token(name)) : el("span", {}, name),
      el("b", { class: "bar", "--w": share ?? 0 }, el("i", {})),
      el("output", {}, share === null ? "\u2013" : `${fixed(100 * share, 2)}%`),
    );
  const add = (i) => {
    remember();
    append(i);
  };
  const rows = meta.words.slice(0, 20).map((name, i) => bar(name, words[i], () => add(i)));
  bars.replaceChildren(...rows, bar("other listed tokens", words.slice(20).reduce((a, share) => a + (share ?? 0), 0)), bar("all other tokens", others));
  const { tokens, token: bytes, what } = meta.cache;
  status.textContent = `Cache: ${tokens} tokens × ${digits(bytes / 1000)} kB (${what}) = ${digits((tokens * bytes) / 1000)} kB.`;
  backButton.hidden = !knobs.written.length;
  full.hidden = meta.room > 0;
}

function start() {
  if (meta.beams) return;
  drawKnobs();
  draw();
  knobs.ahead = Math.min(knobs.ahead, meta.room);
  if (knobs.ahead > 0) {
    knobs.ahead -= 1;
    setTimeout(sample, 60);
  }
}

return {
  controls: meta.beams ? [] : [knobsHere],
  body: meta.beams ? beamsOf(meta.beams) : [full, status, bars],
  keys: meta.beams ? [] : [["Tab", "next slider or token"], ["Enter", "append the token"]],
  read: () => ({}),
  async apply() {
    start();
  },
};
