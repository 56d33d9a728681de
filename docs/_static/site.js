// Views in frames follow the theme of the site: its button, or the system if the button says "auto".
const system = matchMedia("(prefers-color-scheme: dark)");
const frames = () => document.querySelectorAll("iframe");
const tell = (frame) => {
  const chosen = document.body.dataset.theme;
  const dark = chosen === "dark" || (chosen !== "light" && system.matches);
  frame.contentWindow?.postMessage(dark ? "dark" : "light", "*");
};
addEventListener("DOMContentLoaded", () => {
  frames().forEach((frame) => frame.addEventListener("load", () => tell(frame)));
  new MutationObserver(() => frames().forEach(tell)).observe(document.body, { attributeFilter: ["data-theme"] });
  system.addEventListener("change", () => frames().forEach(tell));
});
addEventListener("load", () => frames().forEach(tell));

// If no page has all words of a search, the pages with the most of these words are shown.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const withAll = Search.performTermsSearch;
  Search.performTermsSearch = (words, excluded) => {
    const found = withAll(words, excluded);
    if (found.length || words.size < 2) return found;
    const pages = new Map(); // page -> its result and number of words
    for (const word of words)
      for (const result of withAll(new Set([word]), excluded)) {
        const { result: page, count } = pages.get(result[0]) ?? { result, count: 0 };
        if (count) page[4] += result[4];
        pages.set(result[0], { result: page, count: count + 1 });
      }
    const most = Math.max(0, ...[...pages.values()].map((page) => page.count));
    return [...pages.values()].filter((page) => page.count === most).map((page) => page.result);
  };
});

// Each block of code has a button that copies it. Of an example at a prompt, it copies only the typed lines.
document.addEventListener("DOMContentLoaded", () => {
  for (const pre of document.querySelectorAll("div.highlight > pre")) {
    if (pre.closest(".cell_output")) continue;
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      const lines = pre.textContent.trimEnd().split("\n");
      const typed = lines.filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
      const text = typed.length ? typed.map((line) => line.slice(4)).join("\n") : lines.join("\n");
      await navigator.clipboard.writeText(`${text}\n`);
      button.textContent = "copied";
      setTimeout(() => (button.textContent = "copy"), 1500);
    });
    pre.parentElement.append(button);
  }
});
