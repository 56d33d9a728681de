// Ranks the results of the site's search: pages of How to and of models first, then Reference, Learn and How it works.
// Otherwise Sphinx sorts equal results alphabetically.
var Scorer = {
  score: ([docname, , , , score]) => score + ({ howto: 3, models: 3, reference: 2, learn: 1 }[docname.split("/")[0]] ?? 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
