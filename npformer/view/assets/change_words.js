// Change view, words: a click on a word opens the tools that change the word.

const words = el("div", { class: "words" });
const wordTools = el("div", { class: "word-tools", hidden: true });
const wordsHere = el("section", {}, el("h3", {}, "Words"), words, wordTools);
let opened = null; // the word whose tools are open

function wordButton(word, at, part) {
  const edit = { kind: "word", at, word, part };
  const now = madeOf(edit);
  const to = now && (now.to === null || now.to === undefined ? "masked" : now.to === "" ? "deleted" : now.to);
  const open = () => {
    opened = opened && same(opened, edit) ? null : edit;
    draw();
    if (opened) wordTools.querySelector("input")?.focus();
  };
  const all = live.state.texts[0][part].match(/\S+/g);
  const number = all.indexOf(word) === all.lastIndexOf(word) ? null : el("sub", {}, String(at + 1));
  return el(
    "button",
    { type: "button", class: "word", "data-at": `word ${part} ${at}`, "aria-expanded": Boolean(opened && same(opened, edit)), "aria-pressed": Boolean(now), onclick: open },
    el("bdi", { class: now ? "old" : "" }, shown(word)),
    number,
    now ? el("em", {}, shown(to)) : null,
  );
}

function drawWords() {
  const parts = live.state.texts[0].map((text, part) =>
    el("p", {}, ...(text.match(/\S+/g) ?? []).flatMap((word, at) => [wordButton(word, at, part), " "])),
  );
  redrawn(words, () => words.replaceChildren(...parts));
  const typing = wordTools.contains(document.activeElement);
  wordTools.hidden = !opened;
  if (!opened || typing) return;
  const { word } = opened;
  const entry = el("input", { type: "text", class: "explore-field", "aria-label": `Replace ${word} by`, maxlength: 100 });
  const change = (to) => {
    const edit = opened;
    opened = null;
    put({ ...edit, to });
    draw();
  };
  entry.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && entry.value.trim()) change(entry.value.trim());
    if (event.key === "Escape") {
      opened = null;
      draw();
    }
  });
  const back = madeOf(opened) && quiet("Put back", `Undo the change of ${word}`, () => {
    const edit = opened;
    opened = null;
    drop(edit);
    draw();
  });
  wordTools.replaceChildren(
    el("span", {}, "Replace \u201c", el("bdi", {}, shown(word)), "\u201d by"),
    entry,
    quiet("Replace", null, () => entry.value.trim() && change(entry.value.trim())),
    ...(meta.masks ? [quiet("Mask", "The model reads a mask token in its place", () => change(null))] : []),
    quiet("Delete", "The model reads the text without it", () => change("")),
    ...(back ? [back] : []),
  );
}
