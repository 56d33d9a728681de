// The explorer's fields for texts, the chips of the changes, and the tools beside them.

const problem = el("p", { class: "problem", role: "alert", hidden: true });
function complain(message) {
  problem.textContent = message;
  problem.hidden = !message;
  if (message) delete root.dataset.busy;
}

// ---- Fields ------------------------------------------------------------------------------------------------------

const fields = el("div", { class: "texts" });

// Words that were changed stay changed only while they are in the text.
function wordsStill(edits, text, part) {
  const words = text.match(/\S+/g) ?? [];
  return edits.filter((edit) => edit.kind !== "word" || (edit.part ?? 0) !== part || words[edit.at] === edit.word);
}

function typed(index, part, text) {
  const texts = live.state.texts.map((parts) => [...parts]);
  texts[index][part] = text;
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

// The fields of the first text; a pair has two.
function drawFields() {
  const [parts] = live.state.texts;
  if (fields.children.length === parts.length) parts.forEach((text, i) => (fields.children[i].value = text));
  else fields.replaceChildren(...parts.map((_, part) => field(0, part, parts.length > 1 ? `Text, part ${part + 1}` : "Text")));
}

// ---- Chips -------------------------------------------------------------------------------------------------------

const chips = el("ul", { class: "chips", "aria-label": "Changes", hidden: true });

function drawChips(labels) {
  chips.hidden = !labels.length;
  const undo = (i) => update({ edits: live.state.edits.filter((_, at) => at !== i) });
  chips.replaceChildren(
    ...labels.map((label, i) =>
      el(
        "li",
        {},
        el(
          "button",
          { type: "button", class: "change", "aria-label": `Undo: ${label}`, title: "Undo this change", onclick: () => undo(i) },
          el("bdi", {}, shown(label)),
          el("span", { "aria-hidden": true }, "\u00d7"),
        ),
      ),
    ),
    ...(labels.length > 1 ? [el("li", {}, quiet("Undo all", "Undo every change", () => update({ edits: [] })))] : []),
  );
}

// ---- Tools -------------------------------------------------------------------------------------------------------

function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function savePage() {
  const reply = await post("save", {});
  if (reply) download(await reply.blob(), "npformer.html");
}

const code = el("pre", { tabindex: 0 });
const copied = el("span", { role: "status" });
const copy = quiet("Copy", "Copy the program", async () => {
  await navigator.clipboard.writeText(code.textContent);
  copied.textContent = "Copied.";
});
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

tools.prepend(
  quiet("As Python", "The lines of npformer that compute this page", showProgram),
  quiet("Save page", "Save the page as one file that needs no network", savePage),
);
const models = select(
  "Model",
  doc.live.models.map((name, i) => [i, name]),
  live.state.options?.model ?? 0,
  (i) => update({ options: { ...live.state.options, model: Number(i) } }),
);
models.hidden = doc.live.models.length < 2;
models.classList.add("texts-field");
answerHere.before(models);
title.replaceWith(fields);
answerHere.before(problem, chips);
document.body.append(programHere);
drawFields();
load("answer", fromAddress().view).then(explain);
