// ---- Pictures ----------------------------------------------------------------------------------------------------
// A view on the page as SVG: text as text, coloured boxes as rectangles, canvases as images. One implementation thus
// saves every view with its selections. A canvas with `paths()` becomes lines instead of pixels.

const escaped = (text) =>
  shown(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const digits = (number) => String(Math.round(number * 100) / 100);
const tag = (name, attributes, content = "") =>
  `<${name} ${Object.entries(attributes)
    .map(([key, value]) => `${key}="${escaped(typeof value === "number" ? digits(value) : value)}"`)
    .join(" ")}${content === "" ? "/>" : `>${content}</${name}>`}`;
const clear = (colour) => /^transparent$|^rgba\(.*, 0\)$|\/ 0\)$/.test(colour);

// The document that shows `part` under lines of a title, with its size in pixels.
function drawn(part, titles) {
  root.dataset.picture = "yes"; // shows scrolling elements in full
  const box = part.getBoundingClientRect();
  const font = getComputedStyle(document.body).fontFamily;
  const top = 16 + 20 * titles.length;
  const paint = new Paint(16 - box.left, top + 8 - box.top);
  paint.node(part);
  const width = Math.max(paint.right, 200) + 16;
  const height = paint.bottom + 16;
  delete root.dataset.picture;
  const ink = getComputedStyle(root).color;
  const lines = titles.map((text, i) =>
    tag(
      "text",
      { x: 16, y: 26 + 20 * i, "font-size": 14, fill: ink, "font-weight": i ? 400 : 600 },
      escaped(fitted(text, width)),
    ),
  );
  const page = tag("rect", { width, height, fill: getComputedStyle(root).backgroundColor });
  const head = {
    xmlns: "http://www.w3.org/2000/svg",
    width,
    height,
    viewBox: `0 0 ${digits(width)} ${digits(height)}`,
  };
  const svg = tag("svg", { ...head, "font-family": font }, [page, ...lines, ...paint.parts].join("\n"));
  return { svg, width, height };
}

// Truncates a title to the picture's width, with an ellipsis. A letter of 14 pixels is about 7.5 pixels wide.
const fitted = (text, width) =>
  text.length * 7.5 > width - 32 ? `${text.slice(0, Math.floor((width - 40) / 7.5))}…` : text;

class Paint {
  constructor(x, y) {
    Object.assign(this, { x, y, parts: [], right: 0, bottom: 0 });
  }

  add(box, name, attributes, content) {
    this.parts.push(tag(name, attributes, content));
    this.right = Math.max(this.right, box.right + this.x);
    this.bottom = Math.max(this.bottom, box.bottom + this.y);
  }

  node(node) {
    if (node.nodeType === Node.TEXT_NODE) return this.text(node);
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches(".quiet, .spoken")) return;
    const style = getComputedStyle(node);
    if (style.display === "none" || style.visibility === "hidden") return;
    const box = node.getBoundingClientRect();
    if (box.width && box.height) this.box(node, style, box);
    if (node.matches("select")) return this.words(node.selectedOptions[0].text, style, box, box.left + 6);
    const summary = node.matches("details:not([open])") && node.querySelector(":scope > summary");
    for (const child of summary ? [summary] : node.childNodes) this.node(child);
  }

  // Adds an element's background, borders and image.
  box(node, style, box) {
    const [x, y, width, height] = [box.left + this.x, box.top + this.y, box.width, box.height];
    const rx = Math.min(parseFloat(style.borderTopLeftRadius) || 0, height / 2);
    if (!clear(style.backgroundColor)) this.add(box, "rect", { x, y, width, height, rx, fill: style.backgroundColor });
    const sides = ["Top", "Right", "Bottom", "Left"].map((side) => ({
      thick: style[`border${side}Style`] === "none" ? 0 : parseFloat(style[`border${side}Width`]),
      colour: style[`border${side}Color`],
      dashes: { dotted: "2 3", dashed: "5 3" }[style[`border${side}Style`]],
    }));
    if (sides.every(({ thick, colour }) => thick > 0 && !clear(colour) && colour === sides[0].colour)) {
      const { thick, colour } = sides[0];
      const half = thick / 2;
      const inside = { x: x + half, y: y + half, width: width - thick, height: height - thick, rx };
      this.add(box, "rect", { ...inside, fill: "none", stroke: colour, "stroke-width": thick });
    } else {
      const ends = [[0, 0, 1, 0], [1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]]; // prettier-ignore
      sides.forEach(({ thick, colour, dashes }, i) => {
        if (!thick || clear(colour)) return;
        const [x1, y1, x2, y2] = ends[i].map((at, n) => (n % 2 ? y + at * height : x + at * width));
        const dashed = dashes ? { "stroke-dasharray": dashes } : {};
        this.add(box, "line", { x1, y1, x2, y2, stroke: colour, "stroke-width": thick, ...dashed });
      });
    }
    if (!node.matches("canvas")) return;
    if (node.paths) {
      const lines = node.paths().map((attributes) => tag("path", { fill: "none", ...attributes }));
      const at = node.parentElement.getBoundingClientRect();
      if (lines.length)
        this.add(
          at,
          "g",
          { transform: `translate(${digits(at.left + this.x)} ${digits(at.top + this.y)})` },
          lines.join("\n"),
        );
    } else if (node.width && node.height) {
      const how = { preserveAspectRatio: "none", style: "image-rendering: pixelated" };
      this.add(box, "image", { x, y, width, height, ...how, href: node.toDataURL() });
    }
  }

  // One run of text per line: a text node may wrap. Text hidden by an ellipsis is cut here too.
  text(node) {
    if (!node.data.trim()) return;
    const parent = node.parentElement;
    const style = getComputedStyle(parent);
    const range = document.createRange();
    const upright = style.writingMode.startsWith("vertical");
    const clip = style.textOverflow === "ellipsis" && !upright ? parent.getBoundingClientRect().right + 0.5 : Infinity;
    const lines = [];
    for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const box = range.getBoundingClientRect();
      const line = lines.at(-1);
      if (!box.width && !box.height) continue;
      if (line && !upright && Math.abs(line.top - box.top) < 2) {
        line.text += ` ${word}`;
        line.right = Math.max(line.right, box.right);
        line.left = Math.min(line.left, box.left);
      } else lines.push({ text: word, left: box.left, right: box.right, top: box.top, bottom: box.bottom });
    }
    for (const line of lines) {
      const width = line.right - line.left;
      if (line.right > clip) {
        const kept = Math.max(1, Math.floor((line.text.length * (clip - line.left)) / width) - 1);
        Object.assign(line, { text: `${line.text.slice(0, kept)}…`, right: clip });
      }
      this.words(line.text, style, line, line.left, upright);
    }
  }

  words(text, style, box, left, upright = false) {
    const size = parseFloat(style.fontSize);
    const look = { "font-size": size, fill: style.color, "font-weight": style.fontWeight };
    if (style.fontStyle === "italic") look["font-style"] = "italic";
    if (style.fontFamily !== getComputedStyle(document.body).fontFamily) look["font-family"] = style.fontFamily;
    if (upright) {
      const [x, y] = [(box.left + box.right) / 2 + this.x + size / 3, box.bottom + this.y];
      this.add(box, "text", { ...look, transform: `translate(${digits(x)} ${digits(y)}) rotate(-90)` }, escaped(text));
    } else {
      const y = (box.top + box.bottom) / 2 + size * 0.35 + this.y;
      this.add(box, "text", { x: left + this.x, y, ...look }, escaped(text));
    }
  }
}

// The picture in pixels, at twice the page's resolution or, if that is too large, at the maximum size of a canvas.
async function rastered(svg, width, height) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await picture.decode();
  const scale = Math.min(2, 16_000 / width, 16_000 / height, Math.sqrt(1e8 / (width * height)));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
