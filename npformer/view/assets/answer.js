// The model's answer above the views: each outcome with its probability, the words and heads on which it depends most,
// and, for next words, a slider for the temperature.

const answerHere = el("section", { class: "answer", "aria-label": "Answer" });

// In the explorer, returns a button that makes the words and heads explain outcome `i`; on a saved page, null.
let explaining = () => null;

// `before`: the probability in the unchanged model, if the model is changed. `i`: the rank of an outcome to explain.
const outcomeOf = ([outcome, share, number, note], before, i = null) =>
  el(
    "li",
    {},
    (i !== null && explaining(i, outcome)) || el("bdi", {}, shown(outcome)),
    " ",
    el("span", { class: "number" }, before === undefined ? number : `${fixed(100 * before, 2)}% → ${number}`),
    note ? el("small", {}, note) : null,
    meter(share),
  );

function fillAnswer(answer) {
  answerHere.hidden = !answer;
  if (!answer) return;
  const before = new Map(answer.before ?? []);
  const listed = answer.outcomes.map((each, i) => outcomeOf(each, before.get(each[0]), i));
  const outcomes = el("ol", { class: "outcomes" }, ...listed);
  answerHere.replaceChildren(
    el("h2", {}, answer.about),
    outcomes,
    ...(answer.before ? [beforeOf(answer)] : []),
    ...(answer.next ? [temperature(answer.next, outcomes, before)] : []),
    ...reasons("Words", answer, wordOf),
    ...reasons("Heads", answer, headOf),
    el("p", { class: "units" }, answer.units.join(" ")),
  );
}

// A sentence with the answer before the model was changed, which says whether the answer is still the same.
function beforeOf({ before, outcomes }) {
  const [[name, share]] = before;
  const same = name === outcomes[0][0];
  const verdict = same ? "The answer stays" : "The answer was";
  return el("p", { class: "was" }, `${verdict} `, el("bdi", {}, shown(name)), `, ${fixed(100 * share, 2)}% before the changes.`);
}

// The lists of words or heads that count for the answer and against it; empty if there are none.
function reasons(title, { [title.toLowerCase()]: sides, explained = null }, link) {
  const it = explained === null ? "it" : el("bdi", {}, shown(explained));
  const lists = ["for", "against"].map((side, i) =>
    sides[i].length
      ? el(
          "div",
          { class: "reason" },
          el("p", {}, `${title} ${side} `, it.cloneNode?.(true) ?? it),
          el("ul", { class: side }, ...sides[i].map(([item, number]) => el("li", {}, link(item), ` ${number}`))),
        )
      : null,
  );
  return lists.some(Boolean) ? [el("div", { class: "reasons" }, ...lists)] : [];
}

// A link to a view with selections.
function leading(text, view, choices) {
  const link = el("a", { href: `#${new URLSearchParams({ view, ...choices })}` }, text);
  link.addEventListener("click", (event) => {
    event.preventDefault();
    show({ view, choices }, true);
  });
  return link;
}

// A word, with its position if it occurs more than once in the text.
const wordOf = ([text, place]) => {
  const name = el("bdi", {}, shown(text));
  return leading(place === null ? name : el("span", { class: "placed" }, name, el("sub", {}, String(place))), "attribution", {});
};

function headOf(choices) {
  const known = Object.fromEntries(Object.entries(choices).filter(([, value]) => value != null));
  const link = leading(`layer ${choices.layer}, head ${choices.head}`, "heads", { ...known, head: String(choices.head) });
  link.dataset.head = headKey(choices);
  return link;
}

// Marks the link to the head that is shown.
const headKey = ({ attention, layer, head }) => [attention ?? "", layer, head].join(" ");
function markHead(choices) {
  const key = choices && headKey(choices);
  for (const link of answerHere.querySelectorAll("[data-head]"))
    link.setAttribute("aria-current", link.dataset.head === key);
}

// p_i = exp(l_i / t) / (sum over the listed words + the sum over all others, which is stored for each step).
function sampled({ logits, others }, t, step) {
  const scaled = logits.map((logit) => logit / t);
  const most = Math.max(...scaled, others[step]);
  const powers = [...scaled, others[step]].map((each) => Math.exp(each - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

let chosenStep = null; // the index of the chosen temperature, here and in the Write tab

// Moves the slider above the views to a temperature that was chosen in the Write tab.
function chooseStep(step) {
  chosenStep = step;
  const slider = document.querySelector(".temperature input");
  if (!slider) return;
  slider.value = step;
  slider.dispatchEvent(new Event("input"));
}

// The temperature's slider. It updates the list of words and probabilities, which ends with the rest of the vocabulary.
function temperature(next, outcomes, before) {
  const first = next.temperatures.indexOf(1);
  const number = el("output", {});
  const slider = el("input", { type: "range", min: 0, max: next.temperatures.length - 1, step: 1, "aria-label": "Temperature" });
  const draw = () => {
    const step = Number(slider.value);
    const t = next.temperatures[step];
    const shares = sampled(next, t, step);
    const names = [...next.words, "all other tokens"];
    number.replaceChildren(t.toFixed(1));
    slider.setAttribute("aria-valuetext", `${t.toFixed(1)}: ${names[0]} ${(100 * shares[0]).toFixed(1)}%`);
    chosenStep = step;
    const was = (name) => (t === 1 ? before.get(name) : undefined);
    outcomes.replaceChildren(
      ...names.map((name, i) => outcomeOf([name, shares[i], `${fixed(100 * shares[i], 2)}%`], was(name), i)),
    );
    outcomes.lastChild.classList.add("others");
  };
  slider.value = chosenStep ?? first;
  slider.addEventListener("input", draw);
  draw();
  return el("label", { class: "field temperature" }, el("span", {}, "Temperature"), slider, number);
}

