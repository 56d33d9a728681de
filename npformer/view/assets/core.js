// Shared by all views: reading arrays, colours and themes, elements, tips. widgets.js has the building blocks of views.
// No framework and no innerHTML, which the page's policy forbids: text is only inserted as text. Each view is a
// function of its data and of the page (shell.js), which shows one view at a time.
"use strict";

const doc = JSON.parse(document.getElementById("meta").textContent);
const VIEWS = {};
const root = document.documentElement;

// ---- Arrays ------------------------------------------------------------------------------------------------------

// Attention weights (heads, keys, queries) in whole units of 10^-decimals. `text` prints a weight as Python rounded it.
class Weights {
  constructor(head, units) {
    [this.heads, this.queries, this.keys] = head.shape;
    this.decimals = head.decimals;
    this.units = units;
    this.one = 10 ** head.decimals;
  }
  unit(h, q, k) {
    return this.units[(h * this.keys + k) * this.queries + q];
  }
  at(h, q, k) {
    return this.unit(h, q, k) / this.one;
  }
  text(h, q, k) {
    return this.at(h, q, k).toFixed(this.decimals);
  }
}

// Floats, bit for bit, in C order.
class Floats {
  constructor(head, values) {
    this.shape = head.shape;
    this.decimals = head.decimals;
    this.values = values;
  }
  // The values of one row: all axes but the last are given.
  row(...index) {
    const width = this.shape[this.shape.length - 1];
    let at = 0;
    index.forEach((i, axis) => {
      at = at * this.shape[axis] + i;
    });
    return this.values.subarray(at * width, (at + 1) * width);
  }
}

// Reads a view's arrays by name, inflating each on first use.
function loader(heads) {
  const loaded = new Map();
  return (name) => {
    if (!loaded.has(name)) loaded.set(name, read(heads[name]));
    return loaded.get(name);
  };
}

// Decodes an array. Its data is in a script element of the page, or in `text` if it was loaded later.
async function read(head) {
  const text = head.text ?? document.querySelector(`script[data-array="${head.data}"]`).textContent;
  // Browsers from 2025 on can decode base64 themselves, several times as fast.
  const packed = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const type = { u2: Uint16Array, f4: Float32Array, f8: Float64Array }[head.kind];
  const size = type.BYTES_PER_ELEMENT;
  const count = planes.length / size;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < size; plane++) {
    const from = plane * count;
    for (let i = 0; i < count; i++) bytes[i * size + plane] = planes[from + i];
  }
  const values = new type(bytes.buffer);
  return head.kind === "u2" ? new Weights(head, values) : new Floats(head, values);
}

// Formats a number with fixed decimals as Python does, but without a sign for zero.
function fixed(value, decimals = 4) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const text = value.toFixed(decimals);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

// ---- Colours -----------------------------------------------------------------------------------------------------

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
let themeName; // copy of root.dataset.theme, which is slow to read for every pixel
const theme = () => themeName;

// 256 steps of a scale in the current theme, as [r, g, b].
function steps(scale) {
  const stops = doc.scales[scale][theme()].map(channels);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((start, c) => Math.round(start + (stops[low + 1][c] - start) * (at - low)));
  });
}

const cache = {};
const ramp = (scale) => (cache[scale + theme()] ??= steps(scale));
const strength = (weight) => Math.sqrt(Math.max(weight, 0)); // of a colour or opacity: 0.1 for a weight of 0.01
const weightColour = (weight) => ramp("sequential")[Math.round(255 * Math.min(strength(weight), 1))];
// The colour of a signed number relative to the largest magnitude shown with it. The square root makes the sign of
// small numbers visible.
function signedColour(value, limit) {
  const size = limit && Number.isFinite(value) ? Math.min(1, strength(Math.abs(value) / limit)) : 0;
  return ramp("diverging")[Math.round(127.5 + 127.5 * Math.sign(value) * size)] ?? ramp("diverging")[128];
}
const css = (rgb) => `rgb(${rgb.join(" ")})`;

function luminance(rgb) {
  const [r, g, b] = rgb.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
// Black or white, whichever contrasts more with the colour: always at least 4.5 to 1.
const ink = (rgb) => (luminance(rgb) > 0.179 ? "#000" : "#fff");

const themed = []; // callbacks that redraw when the theme changes

function setTheme(name) {
  themeName = root.dataset.theme = name;
  themed.forEach((draw) => draw());
  document.querySelectorAll(".scale canvas").forEach((canvas) => canvas.draw());
}

// ---- Elements ----------------------------------------------------------------------------------------------------

// An element: `{class: ..., onclick: ...}`; other names are attributes, children are nodes or text. An `aria-`
// attribute has the value "true" or "false"; other boolean attributes are present or absent.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (name.startsWith("aria-") && value != null) node.setAttribute(name, String(value));
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// A printable text: control characters become their Unicode pictures; lone surrogates and characters that change the
// direction of others become U+FFFD.
const shown = (text) =>
  text
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\p{Surrogate}\u202a-\u202e\u2066-\u2069]/gu, "\ufffd") || "\u00a0";
// A token, isolated by <bdi>, because its script may run right to left.
const token = (text) => el("bdi", { class: "token", title: text.length > 14 ? shown(text) : null }, shown(text));

// The token or word at index `i` of a text, with the number of its (first) token if it occurs elsewhere in the text.
const placed = (tokens, i, places) =>
  tokens.indexOf(tokens[i]) === tokens.lastIndexOf(tokens[i])
    ? token(tokens[i])
    : el("span", { class: "placed" }, token(tokens[i]), el("sub", {}, String(places?.[i] ?? i)));

// A fraction as a thin bar along the bottom of an element.
const meter = (share, colour = "var(--accent)") => el("i", { class: "meter", "--w": share, "--c": colour });

// ---- The page ----------------------------------------------------------------------------------------------------

const tip = el("div", { class: "tip", role: "tooltip", hidden: true });
const spoken = el("div", { class: "spoken", role: "status", "aria-live": "polite" });

function showTip(event, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > root.clientWidth ? event.clientX - box.width - 10 : event.clientX + 14;
  const top =
    event.clientY + 18 + box.height > root.clientHeight ? event.clientY - box.height - 10 : event.clientY + 18;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}
const hideTip = () => {
  tip.hidden = true;
};

// Signals that the first picture is complete, after the frame that paints it.
function ready() {
  requestAnimationFrame(() =>
    setTimeout(() => {
      performance.mark("ready");
      root.dataset.ready = "yes";
    }),
  );
}

const preferred = matchMedia("(prefers-color-scheme: dark)");
setTheme(preferred.matches ? "dark" : "light");
preferred.addEventListener("change", () => setTheme(preferred.matches ? "dark" : "light"));
// A page that shows this page in a frame may set the theme: frame.contentWindow.postMessage("dark", "*").
addEventListener("message", ({ data }) => {
  if (data === "light" || data === "dark") setTheme(data);
});
// Paper is white, so printing uses the light theme, and the former theme returns afterwards.
let screenTheme = null;
addEventListener("beforeprint", () => {
  screenTheme = theme();
  setTheme("light");
});
addEventListener("afterprint", () => {
  if (screenTheme) setTheme(screenTheme);
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
