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
