// The explorer's fields for texts, the chips of the changes, and the tools next to them.

const problem = el("p", { class: "problem", role: "alert", hidden: true });
function complain(message) {
  problem.textContent = message;
  problem.hidden = !message;
  if (message) idle();
}

// Notes about the texts, for example that a text was truncated.
const notesHere = el("p", { class: "notice", role: "status", hidden: true });
function drawNotes(notes) {
  notesHere.textContent = notes.join(" ");
  notesHere.hidden = !notes.length;
}

// ---- Fields ------------------------------------------------------------------------------------------------------

const fields = el("div", { class: "texts" });

// Drops the changes of words that are no longer in the text.
function wordsStill(edits, text, part) {
  const words = text.match(/\S+/g) ?? [];
  return edits.filter((edit) => edit.kind !== "word" || (edit.part ?? 0) !== part || words[edit.at] === edit.word);
}

function typed(index, part, text) {
  const texts = live.state.texts.map((parts) => [...parts]);
  texts[index][part] = text;
  if (live.knobs) Object.assign(live.knobs, { ahead: 0, written: [] }); // typing discards appended tokens
  const edits = index === 0 ? wordsStill(live.state.edits, text, part) : live.state.edits;
  update({ texts, edits }, TYPING);
}

function field(index, part, label) {
  const area = el("textarea", {
    rows: 1,
    spellcheck: "false",
    autocomplete: "off",
    "aria-label": label,
    "data-text": `${index} ${part}`,
    oninput: () => typed(index, part, area.value),
    onkeydown: (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      clearTimeout(waiting);
      renew();
    },
  });
  area.value = live.state.texts[index][part];
  return area;
}

// The fields of the first text. A pair has two fields, and the second can be added and removed here.
function drawFields() {
  const [parts] = live.state.texts;
  const areas = [...fields.querySelectorAll("textarea")];
  if (areas.length === parts.length) return parts.forEach((text, i) => (areas[i].value = text));
  const isPair = parts.length > 1;
  fields.replaceChildren(...parts.map((_, part) => field(0, part, isPair ? `Text, part ${part + 1}` : "Text")));
  if (isPair) fields.append(quiet("One text", "Read the first text alone", () => setParts([parts[0]])));
  else if (doc.live.pairs) fields.append(quiet("Add the second text of a pair", "The model reads both together, such as a premise and a hypothesis", () => setParts([parts[0], ""], 1)));
}
function setParts(parts, focus = 0) {
  const edits = live.state.edits.filter(({ kind, part = 0 }) => kind !== "word" || part < parts.length);
  update({ texts: [parts, ...live.state.texts.slice(1)], edits });
  drawFields();
  fields.querySelectorAll("textarea")[focus].focus();
}

// The field of text B, on the two tabs that compare with it or take rows from it.
function secondField() {
  const area = el("textarea", { rows: 1, spellcheck: "false", class: "explore-field", "aria-label": "Text B", "data-text": "1 0", placeholder: "A second text to compare with" });
  area.value = live.state.texts[1]?.[0] ?? "";
  area.addEventListener("input", () => {
    const [first] = live.state.texts;
    if (area.value) return update({ texts: [first, [area.value]] }, TYPING);
    return update({ texts: [first], edits: live.state.edits.filter(({ kind }) => kind !== "patch" && kind !== "direction") }, TYPING);
  });
  return area;
}

// ---- Chips -------------------------------------------------------------------------------------------------------

const chips = el("ul", { class: "applied", "aria-label": "Changes", hidden: true });

const pageOnly = el(
  "p",
  { class: "notice", hidden: true },
  "The changed line affects only the NumPy code in Step. The answer below still comes from the unchanged model. ",
  el("a", { href: "#view=step", onclick: (event) => (event.preventDefault(), show({ view: "step" }, true)) }, "Step's answer"),
);

// After a click on an outcome, the words and heads explain it. A second click, or a click on its chip, returns to the
// model's own answer.
function explain_(number) {
  const { explained, ...options } = live.state.options ?? {};
  update({ options: number === null || number === explained ? options : { ...options, explained: number } });
}
explaining = (i, name) => {
  const { numbers = [], answer } = live.parts.get("answer") ?? {};
  if (numbers.length < 2 || numbers[i] === undefined || answer?.about === "translation") return null;
  const isOn = live.state.options?.explained === numbers[i];
  const title = isOn ? "The words and heads explain this outcome; click for the model's own answer" : "Show the words and heads for and against this outcome";
  return el("button", { type: "button", class: "outcome", "aria-pressed": isOn, title, onclick: () => explain_(numbers[i]) }, el("bdi", {}, shown(name)));
};

// Draws the chips of this state's changes, and marks lines that Step refuses. `names`: the names of new changes.
const labels = new WeakMap(); // change -> its name
function drawChips(names = []) {
  const { edits } = live.state;
  names.forEach((name, i) => labels.set(edits[i], name));
  const listed = edits.filter((edit) => labels.has(edit));
  const refused = live.parts.get("step")?.view?.refused ?? {};
  const explained = live.parts.get("answer")?.explained ?? null;
  chips.hidden = !listed.length && explained === null;
  const undo = (edit) => update({ edits: live.state.edits.filter((each) => each !== edit) });
  const isLine = ({ kind }) => kind === "line";
  const isRefused = (edit) => isLine(edit) && refused[edit.line]?.to === edit.to;
  pageOnly.hidden = !listed.some((edit) => isLine(edit) && !isRefused(edit));
  chips.replaceChildren(
    ...listed.map((edit) =>
      el(
        "li",
        {},
        el(
          "button",
          { type: "button", class: isRefused(edit) ? "change refused" : "change", "aria-label": `Undo: ${labels.get(edit)}${isRefused(edit) ? ", refused" : ""}`, title: "Undo this change", onclick: () => undo(edit) },
          el("bdi", {}, shown(labels.get(edit))),
          isLine(edit) ? el("small", {}, isRefused(edit) ? "Refused" : "Step only") : null,
          el("span", { "aria-hidden": true }, "\u00d7"),
        ),
      ),
    ),
    ...(explained === null ? [] : [el("li", {}, explainedChip(explained))]),
    ...(listed.length > 1 ? [el("li", {}, quiet("Undo all", "Undo every change", () => update({ edits: [] })))] : []),
  );
}

const explainedChip = (name) =>
  el(
    "button",
    { type: "button", class: "change explained", title: "Explain the model's own answer again", "aria-label": `Explained: ${name}. Explain the model's own answer again`, onclick: () => explain_(null) },
    "Explained: ",
    el("bdi", {}, shown(name)),
    el("span", { "aria-hidden": true }, "\u00d7"),
  );

// ---- Tools -------------------------------------------------------------------------------------------------------

function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function savePage() {
  const blob = await post("save", {}, (reply) => reply.blob());
  if (blob) download(blob, "npformer.html");
}

const code = el("pre", { tabindex: 0 });
// Copies a text, and confirms this for some seconds. A notebook may forbid copying to the page in its cell.
async function copyText(text, said) {
  const works = await navigator.clipboard.writeText(text).then(() => true, () => false); // prettier-ignore
  said.textContent = works ? "Copied." : "The browser does not let this page copy.";
  setTimeout(() => said.replaceChildren(), 4000);
}

const copied = el("span", { role: "status" });
const copy = quiet("Copy", "Copy the program", () => copyText(code.textContent, copied));
const programHere = el(
  "dialog",
  { class: "program", "aria-label": "As Python" },
  el("header", {}, el("h2", {}, "The same in Python"), copied, copy, quiet("Close", null, () => programHere.close())),
  code,
);

async function showProgram() {
  if (!(await load("python"))) return;
  const { text, error } = live.parts.get("python");
  code.textContent = text ?? error;
  copied.textContent = "";
  programHere.showModal();
}

// The address contains the state, and the secret token that the server requires.
const linkCopied = el("span", { class: "copied", role: "status" });
const copyLink = quiet("Copy link", "Copy the address of this view; it works on this computer while the server runs", () => copyText(location.href, linkCopied));

tools.prepend(
  linkCopied,
  copyLink,
  quiet("As Python", "The Python program that computes this page", showProgram),
  quiet("Save page", "Save the page as one file that needs no network", savePage),
);
const models = select(
  "Model",
  doc.live.models.map((name, i) => [i, name]),
  live.state.options?.model ?? 0,
  (i) => update({ options: { model: Number(i) } }), // drops the explained outcome, which belongs to the previous model
);
models.hidden = doc.live.models.length < 2;
models.classList.add("texts-field");
answerHere.before(models);
title.replaceWith(fields);
answerHere.before(problem, notesHere, chips, pageOnly);
document.body.append(programHere, computing);
drawFields();
load("answer", fromAddress().view).then(() => explain());
