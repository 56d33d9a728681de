// Shared by all views: reading arrays, colours and themes, elements, token lists with keyboard control.
// No framework and no innerHTML (the page's policy forbids it): text only ever becomes text. Views follow, each a function
// of its data and the page (shell.js), which shows one at a time.
"use strict";

const doc = JSON.parse(document.getElementById("meta").textContent);
const VIEWS = {};
const root = document.documentElement;

// ---- Arrays ------------------------------------------------------------------------------------------------------

// Attention weights as whole numbers of 10^-decimals, (heads, keys, queries): `text` is exactly what was rounded in Python.
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

async function read(head) {
  const element = document.querySelector(`script[data-array="${head.data}"]`);
  const text = element.textContent; // browsers from 2025 on have a reader of base64, several times as fast
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

// A number to fixed decimals as Python prints it, and without a sign on zero.
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
const strength = (weight) => Math.sqrt(Math.max(weight, 0)); // for colour and opacity: 0.01 shows as a tenth
const weightColour = (weight) => ramp("sequential")[Math.round(255 * Math.min(strength(weight), 1))];
// A signed number relative to the largest magnitude shown with it: also its root, so that small ones keep their sign.
function signedColour(value, limit) {
  const size = limit && Number.isFinite(value) ? Math.min(1, strength(Math.abs(value) / limit)) : 0;
  return ramp("diverging")[Math.round(127.5 + 127.5 * Math.sign(value) * size)] ?? ramp("diverging")[128];
}
const css = (rgb) => `rgb(${rgb.join(" ")})`;

function luminance(rgb) {
  const [r, g, b] = rgb.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
// Black or white, whichever reads better on the colour: always at least 4.5 to 1.
const ink = (rgb) => (luminance(rgb) > 0.179 ? "#000" : "#fff");

const themed = []; // callbacks that redraw when the theme changes

function setTheme(name) {
  themeName = root.dataset.theme = name;
  themed.forEach((draw) => draw());
  document.querySelectorAll(".scale canvas").forEach((canvas) => canvas.draw());
}

// ---- Elements ----------------------------------------------------------------------------------------------------

// An element: `{class: ..., onclick: ...}`; `data-` and `aria-` names are attributes, children are nodes or text.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
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
// A token, in its own direction.
const token = (text) => el("bdi", { class: "token", title: text.length > 14 ? shown(text) : null }, shown(text));

// The token at index `i` of a text, with the index if the same word occurs elsewhere in the text.
const placed = (tokens, i) =>
  tokens.indexOf(tokens[i]) === tokens.lastIndexOf(tokens[i])
    ? token(tokens[i])
    : el("span", { class: "placed" }, token(tokens[i]), el("sub", {}, String(i)));

// A fraction as a thin bar along the bottom of an element.
const meter = (share, colour = "var(--accent)") => el("i", { class: "meter", "--w": share, "--c": colour });

function select(label, options, value, onchange) {
  const list = el("select", { onchange: (event) => onchange(event.target.value) });
  options.forEach(([key, text]) => list.append(el("option", { value: key }, text)));
  list.value = value;
  return el("label", { class: "field" }, el("span", {}, label), list);
}

// A choice of a few, as a row of buttons.
function segmented(label, options, value, onchange) {
  const group = el("div", { class: "segmented", role: "radiogroup", "aria-label": label });
  const choose = (key, focus) => {
    [...group.children].forEach((button) => {
      const on = button.dataset.key === String(key);
      button.setAttribute("aria-checked", on);
      button.tabIndex = on ? 0 : -1;
      if (on && focus) button.focus();
    });
  };
  options.forEach(([key, text]) =>
    group.append(
      el(
        "button",
        {
          type: "button",
          role: "radio",
          "data-key": key,
          onclick: () => {
            choose(key);
            onchange(key);
          },
        },
        text,
      ),
    ),
  );
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = options.findIndex(([key]) => String(key) === document.activeElement.dataset.key);
    const [key] = options[(at + step + options.length) % options.length];
    choose(key, true);
    onchange(key);
  });
  choose(value);
  return el("div", { class: "field" }, el("span", {}, label), group);
}

// Lets arrow keys move the focus in a grid whose cells have data-at, "row column".
function arrowsMove(grid) {
  grid.addEventListener("keydown", (event) => {
    const at = event.target.dataset.at?.split(" ").map(Number);
    const [down, across] =
      { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [];
    if (!at || down === undefined) return;
    event.preventDefault();
    grid.querySelector(`[data-at="${at[0] + down} ${at[1] + across}"]`)?.focus();
  });
}

// Draws a grid again, and gives the focus back to the cell that had it.
function redrawn(grid, draw) {
  const focus = document.activeElement?.dataset?.at;
  draw();
  if (focus) grid.querySelector(`[data-at="${focus}"]`)?.focus();
}

// A box that scrolls sideways, with a shade and an arrow at the edge beyond which there is more.
function scroller(...children) {
  const box = el("div", { class: "scroller" }, ...children);
  const step = (by, text, title) =>
    el(
      "button",
      {
        type: "button",
        class: `more ${by < 0 ? "before" : "after"}`,
        title,
        "aria-label": title,
        tabindex: -1,
        onclick: () => box.scrollBy({ left: by * 0.8 * box.clientWidth, behavior: "smooth" }),
      },
      text,
    );
  const frame = el("div", { class: "frame" }, box, step(-1, "\u2190", "Columns to the left"));
  frame.append(step(1, "\u2192", "More columns to the right"));
  const look = () => {
    frame.style.setProperty("--stuck", `${box.querySelector("tbody th")?.offsetWidth ?? 0}px`);
    frame.classList.toggle("has-before", box.scrollLeft > 1);
    frame.classList.toggle("has-after", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", look, { passive: true });
  const observer = new ResizeObserver(look);
  [box, ...children].forEach((node) => observer.observe(node));
  return frame;
}

// The largest of signed parts as a list with bars: [{ name: nodes, value, go }], `go` for a click on the name.
function largestParts(title, parts, decimals = 3) {
  const most = 10;
  const size = ({ value }) => Math.abs(value);
  const sorted = parts.filter((part) => Number(fixed(part.value, decimals))).sort((a, b) => size(b) - size(a));
  const limit = size(sorted[0] ?? { value: 1 });
  const bar = (value) => {
    const colour = css(signedColour(value, limit));
    return el("b", { class: value < 0 ? "bar against" : "bar", "--w": Math.abs(value) / limit, "--c": colour }, el("i", {}));
  };
  const listed = sorted.slice(0, most).map(({ name, value, go }) =>
    el(
      "li",
      {},
      go ? el("button", { type: "button", class: "part-name", onclick: go }, ...name) : el("span", {}, ...name),
      bar(value),
      el("output", {}, `${value > 0 ? "+" : ""}${fixed(value, decimals)}`),
    ),
  );
  const signed = sorted.slice(0, most).some(({ value }) => value < 0);
  return [el("h2", {}, title), el("ol", { class: signed ? "parts" : "parts one-sided" }, ...listed)];
}

const LONG = 48; // rows; a longer list shows the strongest and folds the others
const KEPT = matchMedia("(max-width: 40rem)").matches ? 12 : 24; // strongest rows: about a phone's height, or a window's

// The indices, with each run of several that are not kept as a list.
function foldedRows(indices, isKept) {
  const found = [];
  for (const i of indices) {
    if (isKept(i)) found.push(i);
    else if (Array.isArray(found.at(-1))) found.at(-1).push(i);
    else found.push([i]);
  }
  return found.map((each) => (each.length === 1 ? each[0] : each));
}
const largestOf = (indices, value, count) => new Set([...indices].sort((a, b) => value(b) - value(a)).slice(0, count));

// A canvas with its drawing context, sized in CSS pixels and sharp on any screen.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// One coloured cell a pixel; the stylesheet enlarges it without smoothing.
function pixels(canvas, width, height, colour) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at += 4) {
      const [r, g, b] = colour(x, y);
      image.data[at] = r;
      image.data[at + 1] = g;
      image.data[at + 2] = b;
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

// A scale with its ticks: `stops` are [place 0..1, label], `colour` gives [r, g, b] at a place.
function scaleBar(stops, colour) {
  const canvas = el("canvas", { "aria-hidden": true });
  canvas.draw = () => pixels(canvas, 128, 1, (x) => colour(x / 127));
  canvas.draw();
  return el("div", { class: "scale" }, canvas, ...stops.map(([place, text]) => el("span", { "--at": place }, text)));
}
const weightScale = () =>
  scaleBar(
    [0, 0.1, 0.25, 0.5, 1].map((w) => [strength(w), String(w)]),
    (x) => weightColour(x * x),
  );

// An observer that does `work` on an element once, when it comes near the window.
function whenNear(work) {
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        observer.unobserve(target);
        work(target);
      }
    },
    { rootMargin: "300px" },
  );
  return observer;
}

// Do `work` on each item in turn when idle: for elements below the window, before they are scrolled to or printed.
function leisurely(items, work) {
  const queue = [...items];
  const soon = window.requestIdleCallback ?? setTimeout;
  const next = async () => {
    if (!queue.length) return;
    await work(queue.shift());
    soon(next);
  };
  soon(next);
}

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

// Signal that the first picture is complete, after the frame that paints it.
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
// A page that shows this one in a frame may choose: frame.contentWindow.postMessage("dark", "*").
addEventListener("message", ({ data }) => {
  if (data === "light" || data === "dark") setTheme(data);
});
// Paper is white: print in the light theme, then go back.
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
