// The last script of a page: shows the view that the address names.

addEventListener("popstate", () => show(fromAddress()));
show(fromAddress()).then(ready);
