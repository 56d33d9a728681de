// Step view, the array: its shape, its picture with a colour for each number, and the numbers themselves, by head.

const arrayHere = el("div", { class: "array" });
let asked = 0; // counts requests for arrays, so that a slow reply does not replace a newer array
let shownHead = null; // the chosen head

// Loads a part that contains an array, and decodes the array's numbers.
async function fetchValue(name) {
  if (!(await load(name))) return null;
  const part = live.parts.get(name);
  if (!part.error) part.numbers ??= await read({ ...part.head, text: part.data });
  return part;
}

// Whether the state changes words of the text or lines of the page. Other changes do not affect the page.
const isPageChanged = () => live.state.edits.some(({ kind }) => kind === "word" || kind === "line");

// Draws a value and then, if `was` names a part, the array before the changes.
async function drawValue(name, value, was = null) {
  asked += 1;
  const mine = asked;
  if (typeof value !== "number") {
    const text = value === null || value === undefined ? "This line computes no array." : value;
    arrayHere.replaceChildren(el("h3", {}, name ?? ""), el("p", { class: "about" }, text));
    return;
  }
  const part = await fetchValue(`value:${value}`);
  if (mine !== asked || !part) return;
  if (part.error) return arrayHere.replaceChildren(el("p", { class: "about" }, part.error));
  drawArray(name, part);
  const before = was && (await fetchValue(was));
  if (mine !== asked || !before) return;
  part.before = before;
  drawArray(name, part);
}

// A sentence that compares the array with the array before the changes; "" without that array.
function beforeText({ before, shape, numbers }) {
  if (!before || before.error) return before?.error ?? "";
  if (!sameShape(before, { shape })) return `Before the changes: shape (${before.shape.join(", ")}).`;
  const same = numbers.values.every((number, i) => Object.is(number, before.numbers.values[i]));
  return same ? "The changes do not affect the numbers shown here." : `Before the changes: ${rangeOf(before).replace("From", "from")}`;
}
const sameShape = (a, b) => String(a.shape) === String(b.shape);
const isCompared = ({ before, shape }) => Boolean(before?.numbers) && sameShape(before, { shape });

function drawArray(name, part) {
  const [heads, rows, columns] = part.picked;
  const again = () => drawArray(name, part);
  const chooseHead = (h) => {
    shownHead = Number(h);
    page.changed();
    drawHeads();
    drawNote();
    again();
  };
  const choice = heads.length > 1 ? select("Head", heads.map((h, i) => [i, String(h)]), headOf(part), chooseHead) : null; // prettier-ignore
  arrayHere.replaceChildren(
    el("h3", {}, name, " ", el("code", {}, `(${part.shape.join(", ")}${part.shape.length === 1 ? "," : ""})`), " ", el("small", {}, part.dtype)),
    el("p", { class: "about" }, part.finite ? rangeOf(part) : "Not all of its numbers are finite.", ...(part.before ? [" ", el("span", { class: "was" }, beforeText(part))] : [])),
    ...(choice ? [choice] : []),
    ...(part.shape.length ? [drawPicture(part)] : []),
    el("p", { class: "about extent" }, extent(part)),
    scroller(numbersOf(part, again)),
  );
}

// The indices of a table's rows or columns: all up to `fits`, else `most` evenly spaced ones and the chosen one.
function spaced(count, { fits, most }, chosen) {
  const all = count <= fits;
  const found = Array.from({ length: all ? count : most }, (_, i) => (all ? i : Math.round((i * (count - 1)) / (most - 1))));
  if (chosen >= 0 && !found.includes(chosen)) found.push(chosen);
  return found.sort((a, b) => a - b);
}
const TABLE = { rows: { fits: 36, most: 24 }, columns: { fits: 24, most: 16 } };
const shownOf = (part) => {
  const [, rows, columns] = part.picked;
  const chosen = columnTokens(part) === meta.tokens ? columns.findIndex(isChosenToken) : -1;
  return [spaced(rows.length, TABLE.rows, rows.findIndex((_, r) => isPlace(part, r))), spaced(columns.length, TABLE.columns, chosen)];
};
// How much of an array the picture shows, and how much the table leaves out.
function extent(part) {
  const { picked: [, rows, columns], counts } = part; // prettier-ignore
  const some = (r, c, number) => [[r, counts[1], "rows"], [c, counts[2], "columns"]].filter(([n, all]) => n < all).map(([n, all, what]) => `${number(n, all)} of ${all} ${what}`).join(" and "); // prettier-ignore
  const picture = some(rows.length, columns.length, (n) => n);
  const table = some(...shownOf(part).map((each) => each.length), (n, all) => all - n);
  return [picture && `The picture shows ${picture}. `, table && `The table hides ${table}.`].join("");
}

const rangeOf = ({ range: [least, most, mean] }) => `From ${fixed(least)} to ${fixed(most)}, mean ${fixed(mean)}.`;
// The chosen head, or the first head if the array does not show the chosen one.
const headOf = ({ picked: [heads] }) => (shownHead !== null && shownHead < heads.length ? shownHead : 0);
const numberAt = (part, r, c, numbers = part.numbers) => numbers.values[(headOf(part) * part.picked[1].length + r) * part.picked[2].length + c];
const numberBefore = (part, r, c) => numberAt(part, r, c, part.before.numbers);

function drawPicture(part) {
  const [, rows, columns] = part.picked;
  const limit = Math.max(Math.abs(part.range[0]), Math.abs(part.range[1]));
  const canvas = el("canvas", { role: "img", "aria-label": `${rows.length} by ${columns.length} numbers as colours` });
  const isShare = part.range[0] >= 0 && part.range[1] <= 1.0001; // weights and probabilities
  const colour = (number) => (isShare ? weightColour(number) : signedColour(number, limit));
  const paint = () => pixels(canvas, columns.length, rows.length, (x, y) => colour(numberAt(part, y, x)));
  paint();
  canvas.repaint = paint;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (place, size, count) => Math.max(0, Math.min(count - 1, Math.floor((place / size) * count)));
    const y = at(event.clientY - box.top, box.height, rows.length);
    const x = at(event.clientX - box.left, box.width, columns.length);
    showTip(event, el("div", { class: "where" }, ...rowName(part, y), ` \u00b7 `, columnName(part, x)), el("output", {}, `${isCompared(part) ? `${fixed(numberBefore(part, y, x))} \u2192 ` : ""}${fixed(numberAt(part, y, x))}`));
  });
  canvas.addEventListener("pointerleave", hideTip);
  return canvas;
}

// The names of rows and columns: tokens if there are as many tokens as rows or columns, otherwise indices.
const tokensFor = (count) => [meta.tokens, meta.sources].find((tokens) => tokens.length === count && count > 1);
function rowName({ counts, picked }, r) {
  const tokens = tokensFor(counts[1]);
  return tokens ? [`${picked[1][r]} `, token(tokens[picked[1][r]])] : [String(picked[1][r])];
}
const columnTokens = ({ counts }) => (counts[1] > 1 ? tokensFor(counts[2]) : null);
function columnName(part, c) {
  const [tokens, at_] = [columnTokens(part), part.picked[2][c]];
  return tokens ? placed(tokens, at_) : String(at_);
}

// Whether the rows belong to the text's tokens, and whether a row belongs to the token chosen on all tabs.
const hasTokens = ({ counts }) => tokensFor(counts[1]) === meta.tokens;
const isPlace = (part, r) => hasTokens(part) && isChosenToken(part.picked[1][r]);

function numbersOf(part, again) {
  const [rows, some] = shownOf(part);
  const named = (r) =>
    hasTokens(part) ? [el("button", { type: "button", class: "row", "aria-pressed": isPlace(part, r), title: "Choose this token on all tabs" }, ...rowName(part, r))] : rowName(part, r);
  const choose = (r) => {
    chooseToken(part.picked[1][r]);
    drawTokens();
    drawNote();
    again();
    page.changed();
  };
  // The chosen row as it was before the changes, shown above it.
  const earlier = (r) => el("tr", { class: "before" }, el("th", { scope: "row" }, "before"), ...some.map((c) => el("td", {}, fixed(numberBefore(part, r, c)))));
  return el(
    "table",
    { class: "numbers" },
    el("thead", {}, el("tr", {}, el("th", {}), ...some.map((c) => el("th", { scope: "col" }, columnName(part, c))))),
    el(
      "tbody",
      {},
      ...rows.flatMap((r) => [
        ...(isCompared(part) && (isPlace(part, r) || rows.length === 1) ? [earlier(r)] : []),
        el("tr", { class: isPlace(part, r) ? "on" : null, onclick: () => hasTokens(part) && choose(r) }, el("th", { scope: "row" }, ...named(r)), ...some.map((c) => el("td", {}, fixed(numberAt(part, r, c))))),
      ]),
    ),
  );
}
themed.push(() => arrayHere.querySelectorAll("canvas").forEach((canvas) => canvas.repaint?.()));
