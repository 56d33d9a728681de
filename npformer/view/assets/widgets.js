// Shared by all views: choices, boxes that scroll, lists of parts, folded rows, and pictures on a canvas.

function select(label, options, value, onchange) {
  const list = el("select", { onchange: (event) => onchange(event.target.value) });
  options.forEach(([key, text]) => list.append(el("option", { value: key }, text)));
  list.value = value;
  return el("label", { class: "field" }, el("span", {}, label), list);
}

// A row of buttons, of which one is selected.
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

// Gives a grid a single tab stop: the cell that had the focus last, or initially the pressed cell. Arrow keys move to
// the next cell of the row or column. The cells have the attribute data-at, "row column".
function arrowsMove(grid) {
  const cells = () => [...grid.querySelectorAll("[data-at]")];
  const placeOf = ({ dataset }) => dataset.at?.split(" ").map(Number);
  let stop = null;
  const mark = () => {
    const all = cells();
    const one = all.find(({ dataset }) => dataset.at === stop) ?? all.find((cell) => cell.matches("[aria-pressed=true]")) ?? all[0];
    all.forEach((cell) => (cell.tabIndex = cell === one ? 0 : -1));
  };
  new MutationObserver(mark).observe(grid, { childList: true });
  grid.addEventListener("focusin", ({ target }) => {
    stop = target.dataset.at ?? stop;
    mark();
  });
  grid.addEventListener("keydown", (event) => {
    const at = placeOf(event.target);
    const [axis, by] = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 1], ArrowLeft: [1, -1] }[event.key] ?? [];
    if (!at || axis === undefined) return;
    event.preventDefault();
    const ahead = cells().flatMap((cell) => {
      const to = placeOf(cell);
      const far = by * (to[axis] - at[axis]);
      return to[1 - axis] === at[1 - axis] && far > 0 ? [[far, cell]] : [];
    });
    ahead.sort(([a], [b]) => a - b)[0]?.[1].focus();
  });
}

// Draws a grid again, and returns the focus to the cell that had it.
function redrawn(grid, draw) {
  const focus = document.activeElement?.dataset?.at;
  draw();
  if (focus) grid.querySelector(`[data-at="${focus}"]`)?.focus();
}

// A box that scrolls sideways, with a shade and an arrow at each edge that hides content.
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

// A list with bars of the parts with the largest magnitudes. parts: [{ name: nodes, value, go }]; a click on a name
// calls `go`. sign: -1 gives negative values the colour of parts that count for the answer.
function largestParts(title, parts, decimals = 3, sign = 1) {
  const most = 10;
  const size = ({ value }) => Math.abs(value);
  const sorted = parts.filter((part) => Number(fixed(part.value, decimals))).sort((a, b) => size(b) - size(a));
  const limit = size(sorted[0] ?? { value: 1 });
  const bar = (value) => {
    const colour = css(signedColour(sign * value, limit));
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

const LONG = 48; // a list with more rows shows the strongest rows and folds the others
const KEPT = matchMedia("(max-width: 40rem)").matches ? 12 : 24; // rows that a phone or a window can show

// Returns the indices, in which each run of two or more indices that are not kept is replaced with a list of them.
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

// Each pixel is one coloured cell; the stylesheet enlarges the canvas without smoothing.
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

// Does `work` on each item in turn when the browser is idle, so that elements below the window are ready when the user
// scrolls to them or prints the page.
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

