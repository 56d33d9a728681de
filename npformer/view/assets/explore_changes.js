// Functions with which tabs make the changes of a state.

const FIELDS = ["kind", "attention", "head", "stage", "position", "at", "line"];
const same = (a, b) => FIELDS.every((name) => a[name] === b[name]) && (a.part ?? 0) === (b.part ?? 0);
const madeOf = (edit) => live.state.edits.find((each) => same(each, edit));

// Adds a change, or replaces the change of the same thing, in the same position.
function put(edit, wait = 0) {
  const { edits } = live.state;
  const at = edits.findIndex((each) => same(each, edit));
  update({ edits: at < 0 ? [...edits, edit] : edits.map((each, i) => (i === at ? edit : each)) }, wait);
}
const drop = (edit, wait = 0) => update({ edits: live.state.edits.filter((each) => !same(each, edit)) }, wait);
