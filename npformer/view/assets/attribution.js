// Attribution view: the text with its words marked, and the same words as a list with bars and numbers.

const controls = el("div", { class: "controls-row" });
const about = el("p", { class: "about" });
const texts = el("div", { class: "texts" });
const list = el("table", { class: "list" });
let explained = 0; // in a translation, the index of the explained outcome: all words, or one word
let method = 0;
const methods = () => meta.explained[explained].methods;
let order = "place";
const opened = new Set(); // words from folded rows that the reader opened

const colour = (m, share) => (m.signed ? signedColour(share, 1) : weightColour(share ** 2 * 0.6));

function word(m, number, text) {
  const share = m.shares[number];
  const rgb = colour(m, share);
  return el(
    "span", // not a button, because a line may break between words that were left out together
    {
      role: "button",
      tabindex: 0,
      class: `word ${share < 0 ? "against" : "for"}`,
      "data-word": number,
      "--c": css(rgb),
      "--ink": ink(rgb),
      "--thick": `${(Math.abs(share) * 4).toFixed(2)}px`,
      "aria-label": `${shown(text)}: ${m.numbers[number]}`,
    },
    el("span", {}, shown(text)), // not <bdi>, because the paragraph's dir="auto" ignores letters inside <bdi>
  );
}

function row(m, number) {
  const share = m.shares[number];
  const rgb = colour(m, share);
  return el(
    "tr",
    { "data-word": number, class: share < 0 ? "against" : "for" },
    el("th", { scope: "row" }, placed(m.words, number, m.places)),
    el(
      "td",
      { class: m.signed ? "bar signed" : "bar", "--w": Math.abs(share), "--c": css(rgb) },
      m.signed ? el("b", {}) : null,
      el("i", {}),
    ),
    el("td", { class: "number" }, el("output", {}, m.numbers[number])),
    m.beside ? el("td", { class: "number" }, m.beside.numbers[number]) : null,
  );
}

const lengthOf = (m) => m.texts.flat().reduce((sum, [text]) => sum + text.length, 0);

// A row that stands for several words with small scores. A click on it shows these words.
function folded(numbers) {
  const open = () => {
    numbers.forEach((number) => opened.add(number));
    draw();
  };
  const button = el("button", { type: "button", class: "quiet", onclick: open }, `\u22ee ${numbers.length} more words`);
  return el("tr", { class: "fold" }, el("td", { colspan: 4 }, button));
}

function draw() {
  const m = methods()[method];
  about.textContent = m.about;
  texts.classList.toggle("long", m.words.length > LONG || m.texts.flat().length > 4 * LONG || lengthOf(m) > 600);
  texts.replaceChildren(
    ...m.texts.map((pieces) =>
      el("p", { dir: "auto" }, ...pieces.map(([text, number]) => (number === null ? text : word(m, number, text)))),
    ),
  );
  const numbers = m.words.map((_, i) => i);
  const size = (number) => Math.abs(m.shares[number]);
  const largest = numbers.length > LONG ? largestOf(numbers, size, KEPT) : new Set(numbers);
  if (order === "size") numbers.sort((a, b) => size(b) - size(a));
  const entries = foldedRows(numbers, (number) => largest.has(number) || opened.has(number));
  list.replaceChildren(
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "word"),
        el("th", {}),
        el("th", { scope: "col", class: "number" }, "score"),
        m.beside ? el("th", { scope: "col", class: "number" }, m.beside.heading) : null,
      ),
    ),
    el("tbody", {}, ...entries.map((entry) => (Array.isArray(entry) ? folded(entry) : row(m, entry)))),
  );
}

// Marks a word both in the text and in the list.
function point(number) {
  document.querySelectorAll("[data-word]").forEach((node) => node.classList.toggle("on", node.dataset.word === number));
}

function tell(event) {
  const node = event.target.closest("[data-word]");
  const m = methods()[method];
  point(node?.dataset.word);
  if (!node || !node.matches(".word")) return hideTip();
  const number = Number(node.dataset.word);
  const box = node.getBoundingClientRect();
  showTip(
    { clientX: box.left - 8, clientY: box.bottom - 10 },
    el("div", {}, placed(m.words, number, m.places), " ", el("output", {}, m.numbers[number])),
    m.beside ? el("div", { class: "where" }, `${m.beside.heading}: ${m.beside.numbers[number]}`) : "",
  );
}
for (const node of [texts, list]) {
  node.addEventListener("pointerover", tell);
  node.addEventListener("focusin", tell);
  node.addEventListener("focusout", () => {
    point();
    hideTip();
  });
  node.addEventListener("pointerleave", () => {
    point();
    hideTip();
  });
}
texts.addEventListener("keydown", (event) => {
  const words = [...texts.querySelectorAll(".word")];
  const at = words.indexOf(event.target);
  const right = getComputedStyle(event.target).direction === "rtl" ? -1 : 1;
  const to = { ArrowRight: at + right, ArrowLeft: at - right, Home: 0, End: words.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  words[to]?.focus();
});

themed.push(draw);
const nameOf = (m) => m.name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
const buildControls = () =>
  controls.replaceChildren(
    ...[
      meta.explained.length > 1 &&
        select(
          "Word of the translation",
          meta.explained.map(({ name }, i) => [i, shown(name)]),
          explained,
          (i) => change({ explained: Number(i) }),
        ),
      methods().length > 1 &&
        segmented(
          "Measure",
          methods().map((m, i) => [i, m.name]),
          method,
          (i) => change({ method: Number(i) }),
        ),
      segmented(
        "Order",
        [
          ["place", "As in the text"],
          ["size", "By size"],
        ],
        order,
        (key) => change({ order: key }),
      ),
    ].filter(Boolean),
  );

function change(what) {
  ({ explained, method, order } = { explained, method, order, ...what });
  if (method >= methods().length) method = 0;
  if (!("order" in what)) opened.clear();
  if ("explained" in what) buildControls();
  draw();
  page.changed();
}

return {
  controls: [controls],
  body: [el("div", {}, texts, about), list],
  keys: [
    ["Tab", "next word"],
    ["← →", "previous or next word"],
  ],
  read: () => ({
    word: explained || null,
    measure: method ? nameOf(methods()[method]) : null,
    order: order === "place" ? null : order,
  }),
  async apply(choices) {
    const word = /^\d+$/.test(choices.word ?? "") ? Number(choices.word) : 0;
    explained = word < meta.explained.length ? word : 0;
    method = Math.max(
      0,
      methods().findIndex((m) => nameOf(m) === choices.measure),
    );
    order = choices.order === "size" ? "size" : "place";
    buildControls();
    draw();
  },
};
