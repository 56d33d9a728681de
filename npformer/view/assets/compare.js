// Compare view: the answers of two states, the first stage that differs, and the heads that differ most.

let chosen = 0;
const secondText = secondField();
const here = el("div", { class: "compared" });
const choiceHere = el("div", { class: "controls-row" });

const percent = (share) => `${fixed(100 * share, 2)}%`;
const answersOf = (title, outcomes) => [
  el("h3", {}, title),
  outcomes
    ? el("ol", { class: "outcomes" }, ...outcomes.map(([name, share]) => outcomeOf([name, share, percent(share)])))
    : el("p", { class: "about" }, "No single answer."),
];

const small = (number) => (number === 0 ? "0" : number < 1e-3 ? number.toExponential(1) : fixed(number, 3));

function stagesOf({ stages, first, compared: [count, all] }) {
  const where = first === null ? null : stages[first];
  const most = Math.max(...stages.map(([, relative]) => relative));
  return [
    el("h3", {}, "Stages"),
    el(
      "p",
      { class: "about" },
      count === 0
        ? "No stage has the same shape on both sides."
        : where
          ? `The first stage that differs is ${where[0]}, relative difference ${small(where[1])}. ${count} of ${all} stages have the same shape.`
          : `All ${count} stages that have the same shape are equal.`,
    ),
    el(
      "ol",
      { class: "stages" },
      ...stages.map(([name, relative], i) =>
        el(
          "li",
          { class: i === first ? "first" : "", title: `${name}: ${small(relative)}` },
          el("button", { type: "button", class: "part-name", onclick: () => page.open("stages", { stage: name }) }, name),
          el("b", { class: "bar", "--w": relative && strength(relative / most) }, el("i", {})),
          el("output", {}, small(relative)),
        ),
      ),
    ),
  ];
}

function headsOf({ heads }) {
  if (!heads.length) return [];
  const parts = heads.map(({ title, layer, head, apart }) => ({
    name: [title],
    value: apart,
    go: () => page.open("heads", { layer, head: String(head) }),
  }));
  return largestParts("Heads that differ most", parts);
}

function draw() {
  const found = meta.comparisons;
  choiceHere.replaceChildren();
  if (!found.length) {
    here.replaceChildren(
      el("p", { class: "about" }, "Type text B, change the model or a word on the tab Change, or start with two models: npformer explore -m ONE -m TWO."),
    );
    return;
  }
  chosen = Math.min(chosen, found.length - 1);
  const choose = (i) => {
    chosen = Number(i);
    draw();
  };
  choiceHere.append(select("With", found.map(({ title }, i) => [i, title]), chosen, choose)); // prettier-ignore
  const one = found[chosen];
  if (one.problem) return here.replaceChildren(el("p", { class: "about" }, one.problem));
  here.replaceChildren(
    el("div", { class: "answers" }, el("div", {}, ...answersOf("This page", one.outcomes)), el("div", {}, ...answersOf(one.title, one.others))),
    el("div", { class: "apart" }, el("div", {}, ...stagesOf(one)), el("div", {}, ...headsOf(one))),
  );
}

function toFirst() {
  const first = here.querySelector(".first");
  if (first) first.parentElement.scrollTop = first.offsetTop - first.parentElement.offsetTop - 60;
}

themed.push(draw);
return {
  controls: [choiceHere],
  body: [secondText, here],
  keys: [["Enter", "show a stage, or the lines of a head"]],
  read: () => ({}),
  async apply() {
    draw();
    toFirst();
  },
  renew(next) {
    meta = next;
    if (document.activeElement !== secondText) secondText.value = live.state.texts[1]?.[0] ?? "";
    draw();
  },
};
