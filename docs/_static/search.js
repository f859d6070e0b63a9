// The order of the results on the search page, as Sphinx's html_search_scorer.
//
// Sphinx ranks a page by one word of it. Here headings count: a page comes first if its title and one of its headings
// have all words of the query, and its result leads to that heading. Guides come before the pages of single names,
// unless the query is such a name.
var Scorer = (() => {
  const stemmer = new Stemmer();
  const ignored = new Set(stopwords); // an array in Sphinx 8.1
  const stems = (text) =>
    splitQuery(text.toLowerCase()).filter((word) => !ignored.has(word)).map((word) => stemmer.stemWord(word));
  const parts = (name) => name.replace(/([a-z])([A-Z])/g, "$1 $2");
  const allParts = (name) => parts(name).replaceAll("_", " ");
  const wordsOf = (text) => new Set([...stems(text), ...stems(allParts(text))]);
  const share = (of, words) => [...of].filter((word) => words.has(word)).length / (of.size || 1);

  const query = (new URLSearchParams(window.location.search).get("q") ?? "").trim();
  const asked = new Set(stems(parts(query)));
  const pages = new Map(); // by name: the title and the headings of the page

  function headings(page) {
    if (pages.size === 0)
      for (const [text, places] of Object.entries(Search._index.alltitles))
        for (const [file, id] of places) {
          const name = Search._index.docnames[file];
          const isTitle = text === Search._index.titles[file];
          const heading = { text, isTitle, anchor: isTitle ? "" : `#${id}`, words: wordsOf(text) };
          pages.set(name, [...(pages.get(name) ?? []), heading]);
        }
    return pages.get(page) ?? [];
  }

  // 0, or 1 to 150: first the share of the query's words that title and heading have, then how much more these say.
  function rank(heading, title) {
    const here = share(asked, heading.words);
    if (here === 0) return 0;
    const both = share(asked, new Set([...heading.words, ...title.words]));
    const phrase = heading.text.toLowerCase().includes(query.toLowerCase()) ? 20 : 0;
    const length = Math.max(asked.size, splitQuery(allParts(heading.text)).length);
    return 100 * both + 10 * here + phrase + 10 * share(asked, title.words) + (10 * asked.size) / length;
  }

  function rankOfName(fullName, description) {
    const name = fullName.split(".").pop();
    const isTopLevel = /^Python (class|function)/.test(description);
    if (name === query) return isTopLevel ? 160 : 45;
    return isTopLevel && share(asked, wordsOf(name)) === 1 ? 30 : 1;
  }

  return {
    objNameMatch: 11, objPartialMatch: 6, objPrio: {}, objPrioDefault: 0,
    title: 15, partialTitle: 7, term: 5, partialTerm: 2,

    score: (result) => {
      const [page, text, anchor, description, score] = result;
      if (description) return rankOfName(text, description);
      const known = headings(page);
      const title = known.find((heading) => heading.isTitle);
      const candidates = known.filter((heading) => !anchor || heading.anchor === anchor);
      if (!title || candidates.length === 0) return score; // an entry of the index
      const named = (heading) => (heading.isTitle ? heading.text : `${title.text} > ${heading.text}`);
      const [best, heading] = candidates.map((one) => [rank(one, title), one]).sort(([a], [b]) => b - a)[0];
      if (best > 0) [result[1], result[2]] = [named(heading), heading.anchor];
      const isMinor = page === "index" || page.startsWith(best > 0 ? "reference/" : "reference/lightlib");
      return (isMinor ? 0.6 : 1) * (best || score);
    },
  };
})();
