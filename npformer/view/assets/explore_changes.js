// Functions that tabs call to add, replace or remove changes of a state.

const FIELDS = ["kind", "attention", "head", "stage", "position", "at", "line"];
const same = (a, b) => FIELDS.every((name) => a[name] === b[name]) && (a.part ?? 0) === (b.part ?? 0);
const madeOf = (edit) => live.state.edits.find((each) => same(each, edit));

// Adds a change. If the state already changes the same thing, replaces that change at its position in the list.
function put(edit, wait = 0) {
  const { edits } = live.state;
  const at = edits.findIndex((each) => same(each, edit));
  update({ edits: at < 0 ? [...edits, edit] : edits.map((each, i) => (i === at ? edit : each)) }, wait);
}
const drop = (edit, wait = 0) => update({ edits: live.state.edits.filter((each) => !same(each, edit)) }, wait);
