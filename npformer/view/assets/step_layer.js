// Step view, sentences about the layer at the chosen token: the tokens that its heads read, how far its blocks move the
// row, and the answer with a block left out. The server computes the sentences' data when the page is idle, after the
// words and heads on which the answer depends.

const noteHere = el("div", { class: "layer-note", role: "status" });
const REST = 120; // milliseconds after the last step until the sentences are requested
let noted = null; // the key of the sentences shown: the state, the layer and token, the head
let wanted = null; // the key of the current position
let noting = 0;

const tokenHere = el("select", { "aria-label": "Token", onchange: () => (chooseToken(tokenHere.value || null), draw(), page.changed()) });
function drawTokens() {
  tokenHere.replaceChildren(el("option", { value: "" }, "\u2013"), ...meta.tokens.map((text, i) => el("option", { value: i }, `${i}  ${shown(text)}`)));
  tokenHere.value = chosenToken() ?? "";
}

function drawNote() {
  const number = layerSteps().filter((i) => i <= at).length - 1;
  const at_ = chosenToken();
  const name = number < 0 || at_ === null ? null : `layer:${number}:${at_}`;
  const key = `${live.number} ${name} ${shownHead}`;
  wanted = key;
  if (noted === key) return;
  noted = null;
  clearTimeout(noting);
  noteHere.classList.toggle("old", name !== null && !live.parts.has(name));
  const missing_ = [...(number < 0 ? ["a layer"] : []), ...(at_ === null ? ["a token"] : [])].join(" and ");
  if (!name) return noteHere.replaceChildren(`Choose ${missing_} to read here what the layer does with the token.`);
  if (live.parts.has(name)) return tellLayer(name, key);
  if (!live.parts.has("reasons")) return; // `explained` calls this function again when they arrive
  noting = setTimeout(async () => (await load(name)) && wanted === key && tellLayer(name, key), REST);
}

function tellLayer(name, key) {
  noted = key;
  const part = live.parts.get(name);
  noteHere.classList.remove("old");
  noteHere.replaceChildren(...(part.error ? [part.error] : sentencesOf(part, Number(name.split(":")[2]))));
}

// Nodes with "," or "and" between them.
const listed = (items) => items.flatMap((nodes, i) => [i === 0 ? "" : i === items.length - 1 ? " and " : ", ", ...nodes]);
const percent = (share, decimals = 0) => `${fixed(100 * share, decimals)}%`;

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const blockName = (name) => (name === "FFN" ? "the FFN" : name);

function sentencesOf({ layer, answer, own, blocks }, token_) {
  const here = placed(meta.tokens, token_);
  const changed = live.state.edits.some(({ kind }) => kind === "line");
  return [
    el("p", {}, el("strong", {}, capital(layer), " at ", here), ": ", ...readsOf(blocks), ". ", ...chosenReads(blocks)),
    el("p", {}, ...sizesOf(blocks), ...answerOf(answer, own, blocks), changed ? "These sentences ignore the changed lines." : ""),
  ];
}

const wordsOf = ({ of }, read) => listed(read.map(([i, share]) => [placed(meta[of], i), ` (${percent(share)})`]));
const readsOf = (blocks) =>
  blocks.filter(({ reads }) => reads).flatMap(({ name, reads }, i) => [
    i ? "; the heads of its cross-attention read " : `on average, the ${reads.heads.length} heads of its ${name} read `,
    ...wordsOf(reads, reads.mean),
  ]); // prettier-ignore

// A sentence about the chosen head alone.
function chosenReads(blocks) {
  const name = Number(layerOf(at).attention) === 2 ? "cross-attention" : "attention";
  const { reads } = blocks.find((block) => block.name === name) ?? {};
  return reads?.heads[shownHead] ? [`Head ${shownHead} reads `, ...wordsOf(reads, reads.heads[shownHead]), "."] : [];
}

function sizesOf(blocks) {
  const known = blocks.filter(({ length }) => length !== null);
  const one = ({ name, length }, i) => [`${blockName(name)} ${i ? "one" : "adds a vector"} ${fixed(length, 2)} times as long${i ? "" : " as the token's row"}`];
  const [first, ...rest] = known.map(one);
  return first ? [capital(first[0]), ...(rest.length ? [", ", ...listed(rest)] : []), ". "] : [];
}

// The probability of the explained outcome, with all blocks, and with each block left out at this token.
function answerOf(answer, own, blocks) {
  const known = blocks.filter(({ without }) => without);
  if (!known.length) return [];
  const isTranslation = doc.answers[0]?.about === "translation";
  const has = isTranslation ? ["The translation's words have a mean probability of "] : [el("bdi", {}, shown(answer[0])), " has "];
  const odds = (change) => (isTranslation ? "" : ` (${change > 0 ? "+" : ""}${fixed(change, 2)} in log-odds)`);
  const less = known.map(({ name, without: [outcome, share, left, change] }) => [
    `${percent(left, 2)}${odds(change)} without what ${blockName(name)} adds here`,
    ...(outcome === own ? [] : [" (the answer would be ", el("bdi", {}, shown(outcome)), ` with ${percent(share, 2)})`]),
  ]); // prettier-ignore
  return [...has, percent(answer[1], 2), "; it would have ", ...listed(less), ". "];
}
