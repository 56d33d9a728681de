// The page around the views: heading, tabs, controls, notes on numbers, keys, and pictures to save.
//
// One view of one text is shown at a time; a view is created on first use and keeps its selections. They are also in the
// page's address, such as `#view=heads&layer=3&head=8&from=5`, so that links and reloads keep them.

const now = { text: 0, view: doc.texts[0][0].kind };
const made = new Map(); // `text view` -> the view: controls, body, notes, keys, read(), apply(choices), ready, whole(), part()

const about = (text, view) => doc.texts[text].find(({ kind }) => kind === view);
const shownView = () => made.get(`${now.text} ${now.view}`);

function viewOf(text, kind) {
  const key = `${text} ${kind}`;
  if (!made.has(key)) {
    const meta = about(text, kind);
    const gone = new AbortController(); // ends the view's listeners
    const first = themed.length;
    const make = meta.error ? missing : VIEWS[kind];
    const inside = make(meta, {
      changed: () => {
        if (key !== `${now.text} ${now.view}`) return;
        share();
        note(false);
      },
      // Listens on the window while this view is shown, except for letters typed into a field.
      on: (type, act, options) => {
        const isHere = ({ target }) => key === `${now.text} ${now.view}` && !target.closest?.("textarea, input[type=text]");
        addEventListener(type, (event) => isHere(event) && act(event), { ...options, signal: gone.signal });
      },
      // Opens another view of the same text, or only returns whether it exists.
      has: (view) => Boolean(about(text, view)),
      savers, // save buttons to put into a dialog, which blocks the page's own buttons
      open: (view, choices) => show({ text, view, choices }, true),
    });
    made.set(key, { ...inside, gone, redraws: themed.slice(first) });
  }
  return made.get(key);
}

// The element shown instead of a view that a text or a model lacks, with the reason.
const missing = ({ error }) => ({
  controls: [],
  body: [el("p", { class: "missing" }, error)],
  keys: [],
  read: () => ({}),
  apply: async () => {},
});

// Drops all views except `kept`, because their data has changed.
function forget(kept) {
  for (const [key, view] of made) {
    if (view === kept) continue;
    made.delete(key);
    view.gone.abort();
    themed.splice(0, themed.length, ...themed.filter((draw) => !view.redraws.includes(draw)));
  }
}

// ---- The address -------------------------------------------------------------------------------------------------

// The selections in the current view, [name, value]; several heads or tokens are separated by spaces (+).
const chosen = () => Object.entries(shownView().read()).filter(([, value]) => value != null);

function address() {
  const words = new URLSearchParams();
  if (doc.texts[now.text].length > 1) words.set("view", now.view);
  if (doc.texts.length > 1) words.set("text", now.text);
  for (const [name, value] of [...chosen(), ...alsoAddressed()]) words.set(name, value);
  return `#${words}`;
}
let alsoAddressed = () => []; // the explorer also keeps its state in the address

// A page that is embedded in another page (a notebook) does not have its own address.
const addressed = location.protocol !== "about:";
function note(step) {
  document.title = about(now.text, now.view).title;
  markHead(now.view === "heads" ? shownView().read() : null);
  if (addressed) history[step ? "pushState" : "replaceState"](null, "", address());
}

function fromAddress() {
  const { view, text, state, ...choices } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const at = /^\d+$/.test(text ?? "") && doc.texts[text] ? Number(text) : 0;
  return { text: at, view: about(at, view) ? view : doc.texts[at][0].kind, choices };
}

// ---- The choice that all views share -------------------------------------------------------------------------------

// The attention, layer, head and token that were chosen last, in any view; `version` counts the choices.
const place = { attention: null, layer: null, head: null, token: null, version: 0 };

const single = (value) => (/^\d+$/.test(String(value ?? "")) ? String(value) : null);
const placeIn = ({ attention, layer, head, from, at }) => ({
  attention: single(attention),
  layer: single(layer),
  head: single(head),
  token: single(from ?? at),
});

// Copies the current view's selections, if they have changed, to the shared choice. A head is chosen with its layer.
const SHARES = ["heads", "model", "neurons", "stages", "lens", "ablation", "change", "step"];
// A view whose address names a line or a stage returns the layer and head of that place in `where`.
const whereIn = (inside) => placeIn(inside.where?.() ?? inside.read());
function share() {
  const inside = shownView();
  if (!SHARES.includes(now.view)) return;
  const [before, after] = [inside.place ?? {}, whereIn(inside)];
  const differs = (...names) => names.some((name) => (before[name] ?? null) !== after[name]);
  const [isHead, isToken] = [differs("attention", "layer", "head"), differs("token")];
  inside.place = after;
  if (!isHead && !isToken) return;
  const { token, ...head } = after;
  Object.assign(place, isHead ? head : {}, isToken ? { token } : {});
  place.version += 1;
  inside.version = place.version;
}

// Whether a token is the one chosen in all views, and a function that chooses a token after a click on its row or chip.
const isChosenToken = (at) => String(at) === place.token;
function chooseToken(at) {
  place.token = at === null ? null : String(at);
  place.version += 1;
  shownView().version = place.version;
}
const chosenToken = () => place.token;
// Chooses the token that an address names, if the text has it.
function takeToken(text, count) {
  const at = single(text);
  if (at !== null && Number(at) < count && !isChosenToken(at)) chooseToken(at);
}

// The selections with which a view shows the head or token that was chosen in another view; {} if none was chosen.
const ofHead = ({ attention, layer, head }) => (head === null ? {} : { attention: attention ?? undefined, layer, head });
const ofLayer = ({ layer }) => (layer === null ? {} : { layer });
const ofPlace = ({ attention, layer, head }) => ({ attention, layer, head });
const TAKES = {
  heads: (at) => ({ ...ofLayer(at), ...ofHead(at), ...(at.token === null ? {} : { from: at.token }) }),
  model: ({ attention }) => ({ attention: attention ?? undefined }), // marks the head
  neurons: (at) => TAKES.heads(at),
  lens: (at) => ({ ...ofLayer(at), ...(at.token === null ? {} : { at: at.token }) }),
  ablation: ofHead,
  change: ofHead,
  stages: ofPlace,
  step: ofPlace,
};
function taken(view, inside, fresh) {
  if (!TAKES[view] || !place.version || inside.version === place.version) return null;
  inside.version = place.version;
  const own = fresh ? {} : Object.fromEntries(chosen().map(([name, value]) => [name, String(value)]));
  return { ...own, ...TAKES[view](place) };
}

// ---- Showing -----------------------------------------------------------------------------------------------------

const title = el("h1", {});
const heading = el("h2", { id: "heading" });
const controlsHere = el("div", { class: "controls" });
const main = el("main", { id: "view" });
const notes = el("p", { id: "notes" });
const keys = el("dl", {});
const tabs = el("nav", { class: "tabs", "aria-label": "Views" });

let loading = () => null; // in the explorer, returns a promise for a view's data that has not arrived

// Shows a view, by default with its previous or initial selections. `step`: adds an entry to the browser's history.
async function show({ text = now.text, view = now.view, choices }, step = false) {
  hideTip();
  Object.assign(now, { text, view });
  const wait = loading(view);
  if (wait) {
    markTabs();
    await wait;
    if (now.view !== view || !about(text, view).arrays) return;
  }
  const fresh = !made.has(`${text} ${view}`);
  const inside = viewOf(text, view);
  const meta = about(text, view);
  document.body.dataset.view = view;
  heading.replaceChildren(meta.heading);
  title.replaceChildren(el("bdi", {}, shown(doc.answers[text]?.source ?? meta.subtitle)));
  fillAnswer(doc.answers[text]);
  markTabs();
  chooser.lastChild.value = text;
  putIn(controlsHere, inside.controls);
  putIn(main, inside.body);
  notes.replaceChildren(...meta.notes.flatMap((line) => [el("span", {}, line), " "]));
  keys.replaceChildren(...inside.keys.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]));
  const wanted = choices ?? taken(view, inside, fresh);
  if (wanted || fresh) await inside.apply(wanted ?? {});
  else inside.shownAgain?.();
  if (choices && Object.values(placeIn(inside.where?.() ?? choices)).some(Boolean)) share();
  inside.place = whereIn(inside);
  note(step);
}

// Puts nodes into an element, unless they are already there: a node that is inserted again loses its scroll position.
function putIn(node, children) {
  const same = node.childNodes.length === children.length && children.every((child, i) => child === node.childNodes[i]);
  if (!same) node.replaceChildren(...children);
}

function markTabs() {
  for (const link of tabs.children) {
    link.hidden = !about(now.text, link.dataset.view);
    link.setAttribute("aria-current", link.dataset.view === now.view ? "page" : "false");
  }
}

const TABS = {
  heads: "Heads",
  model: "Model",
  neurons: "Neurons",
  stages: "Stages",
  attribution: "Words",
  logit: "Logit",
  lens: "Lens",
  ablation: "Ablate",
  change: "Change",
  step: "Step",
  write: "Write",
  compare: "Compare",
};
const kinds = Object.keys(TABS).filter((kind) => doc.texts.some((views) => views.some((view) => view.kind === kind)));
if (kinds.length > 1)
  tabs.append(...kinds.map((kind) => el("a", { href: `#view=${kind}`, "data-view": kind }, TABS[kind])));
tabs.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show({ view: link.dataset.view }, true);
});
tabs.hidden = kinds.length < 2;

const chooser = select(
  "Text",
  doc.texts.map((views, i) => [i, shown(views[0].subtitle)]),
  0,
  (i) => show({ text: Number(i), view: about(i, now.view) ? now.view : doc.texts[i][0].kind }, true),
);
chooser.classList.add("texts-field");
chooser.hidden = doc.texts.length < 2;

// ---- Pictures ----------------------------------------------------------------------------------------------------

const quiet = (text, title, onclick) => el("button", { type: "button", class: "quiet", title, onclick }, text);

const savers = () => [
  quiet("Save SVG", "Save the view as a picture for papers and slides", () => save("svg")),
  quiet("Save PNG", "Save the view as a bitmap", () => save("png")),
];

async function save(type) {
  const inside = shownView();
  const { subtitle, heading } = about(now.text, now.view);
  const choices = chosen().map(([name, value]) => `${name} ${value}`);
  await inside.whole?.();
  const lines = [subtitle, [heading, ...choices].join(", ")];
  const { svg, width, height } = drawn(inside.part?.() ?? main, lines);
  const name = [now.view, ...chosen().flat()].join("-");
  const blob = type === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await rastered(svg, width, height);
  const link = el("a", { href: URL.createObjectURL(blob), download: `${name.replace(/[^\w.-]+/g, "-")}.${type}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const toggle = quiet("", null, () => setTheme(theme() === "dark" ? "light" : "dark"));
toggle.id = "theme";
const nameTheme = () => toggle.replaceChildren(theme() === "dark" ? "Light theme" : "Dark theme");
themed.push(nameTheme);
nameTheme();

const tools = el("div", { class: "tools" }, ...savers(), toggle);
document.body.append(
  el("header", { class: "top" }, title, tools),
  chooser,
  answerHere,
  tabs,
  el("div", { class: "lead" }, heading, controlsHere),
  main,
  el("footer", {}, notes, el("details", { class: "help" }, el("summary", {}, "Keys"), keys)),
  tip,
  spoken,
);
