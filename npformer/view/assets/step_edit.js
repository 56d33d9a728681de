// Step view, changing a line: an editor replaces the line. If the new line is refused, the editor stays open with the
// reason, and the previous line remains in force.

let editing = null; // the line that is being changed
let applied = null; // the change that was made last: { line, to, before }
let draft = null; // the change that was refused last: { line, to, reason }

const lineEdit = (line) => live.state.edits.find((edit) => edit.kind === "line" && edit.line === line);

// Undoes the last change if the new run refuses it. Returns whether it was refused.
function takeRefused({ refused }) {
  const { line, to, before } = applied ?? {};
  applied = null;
  if (refused[line]?.to !== to || to === undefined) return false;
  draft = { line, ...refused[line] };
  editing = line;
  if (before) put(before);
  else drop({ kind: "line", line });
  drawChips();
  return true;
}

function editor(line) {
  const old = lineEdit(line)?.old ?? meta.changeable[line];
  const entry = el("textarea", { class: "explore-field", rows: 1, spellcheck: "false", "aria-label": `Line ${line}` });
  const isDraft = draft?.line === line;
  const { reason, to: tried } = (isDraft ? draft : meta.refused[line]) ?? {};
  entry.value = tried ?? lineEdit(line)?.to ?? old;
  const leave = () => {
    editing = null;
    draft = isDraft ? null : draft;
    if (line in meta.refused) drop({ kind: "line", line });
    else draw();
    code.focus({ preventScroll: true });
  };
  entry.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    if (event.key !== "Enter") return;
    event.preventDefault();
    const to = entry.value.trim();
    applied = { line, to, before: line in meta.refused ? null : lineEdit(line) };
    draft = isDraft ? null : draft;
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
    el("p", { class: "hint" }, el("kbd", {}, "Enter"), " applies, ", el("kbd", {}, "Escape"), reason ? " returns to the line that is in force." : " leaves."),
  ];
}

function edit() {
  if (!(step()[LINE] in meta.changeable)) return;
  editing = step()[LINE];
  drawCode();
}

// The refused lines other than the current one, each with its reason. A click goes to the line.
const refusals = () =>
  Object.entries(meta.refused)
    .filter(([line]) => Number(line) !== step()[LINE])
    .map(([line, { reason }]) =>
      el("p", { class: "problem" }, el("button", { type: "button", class: "part-name", onclick: () => go(nearest(Number(line))) }, `Line ${line} is left out`), `: ${reason}`),
    );
