// Write view for a translator: its beams as a tree. Beams share the tokens before the first difference.

// The tree of the beams: { token, share, children, ends }. Equal beginnings occur once.
function treeOf(beams) {
  const top = { children: [] };
  beams.forEach(({ tokens, shares, score }, beam) => {
    let node = top;
    tokens.forEach((token, i) => {
      let next = node.children.find((each) => each.token === token);
      if (!next) {
        next = { token, share: shares[i], children: [], ends: [] };
        node.children.push(next);
      }
      node = next;
    });
    node.ends.push({ beam, score });
  });
  return top.children;
}

// Draws each run of tokens without a branch as one line.
function branch(node) {
  const line = [];
  let at = node;
  for (;;) {
    line.push(el("span", { class: "beam-token", title: `${fixed(100 * at.share, 2)}% given the tokens before it`, "--w": at.share }, token(at.token)));
    if (at.children.length !== 1 || at.ends.length) break;
    [at] = at.children;
  }
  const ends = at.ends.map(({ beam, score }) => el("small", {}, ` beam ${beam + 1}, score ${fixed(score, 3)}`));
  return el("li", {}, ...line, ...ends, ...(at.children.length ? [el("ul", {}, ...at.children.map(branch))] : []));
}

const beamsOf = (beams) => [
  el("ol", { class: "beams" }, ...beams.map(({ text, score }) => el("li", {}, el("bdi", {}, shown(text)), el("small", {}, ` ${fixed(score, 3)}`)))),
  el("ul", { class: "tree", "aria-label": "Beams" }, ...treeOf(beams).map(branch)),
];
