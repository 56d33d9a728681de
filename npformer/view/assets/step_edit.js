// Step view, changing a line: an editor in the place of the line. It stays open with the reason if the line is refused.

let editing = null; // the line that is being changed

const lineEdit = (line) => live.state.edits.find((edit) => edit.kind === "line" && edit.line === line);

function editor(line) {
  const old = lineEdit(line)?.old ?? meta.changeable[line];
  const entry = el("textarea", { class: "explore-field", rows: 1, spellcheck: "false", "aria-label": `Line ${line}` });
  entry.value = lineEdit(line)?.to ?? old;
  const { reason } = meta.refused[line] ?? {};
  const leave = () => {
    editing = null;
    if (reason) drop({ kind: "line", line });
    else draw();
    code.focus({ preventScroll: true });
  };
  entry.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    if (event.key !== "Enter") return;
    event.preventDefault();
    const to = entry.value.trim();
    if (to === old) {
      editing = null;
      drop({ kind: "line", line });
    } else put({ kind: "line", line, old, to });
    code.focus({ preventScroll: true });
  });
  if (editing === line) setTimeout(() => entry.focus({ preventScroll: true }));
  return [
    entry,
    ...(reason ? [el("p", { class: "problem", role: "alert" }, reason)] : []),
    el("p", { class: "hint" }, el("kbd", {}, "Enter"), " applies, ", el("kbd", {}, "Escape"), reason ? " takes the line back." : " leaves."),
  ];
}

function edit() {
  if (!(step()[LINE] in meta.changeable)) return;
  editing = step()[LINE];
  drawCode();
}

// The lines that are refused elsewhere, each with its reason; a click goes to the line.
const refusals = () =>
  Object.entries(meta.refused)
    .filter(([line]) => Number(line) !== step()[LINE])
    .map(([line, { reason }]) =>
      el("p", { class: "problem" }, el("button", { type: "button", class: "part-name", onclick: () => go(nearest(Number(line))) }, `Line ${line} is left out`), `: ${reason}`),
    );
