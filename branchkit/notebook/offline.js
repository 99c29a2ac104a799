// What stands in for the kernel in a page of its own: the traits of map.js from the page itself,
// and the diff of a chosen cell. See offline.py for what it holds.

async function told() {
  const packed = document.getElementById("bk-told").textContent;
  const inflated = new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(inflated).text());
}

function bytes(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

class Page {
  constructor(told) {
    const { diffs, places, ...traits } = told;
    this.diffs = diffs;
    this.places = places;
    const cells = bytes(told.cells);
    this.traits = { ...traits, cells, record: bytes(told.record), selected: [-1, -1], detail: {} };
    this.listeners = new Set();
  }

  get(name) {
    return this.traits[name];
  }

  set(name, value) {
    this.traits[name] = value;
  }

  on(_, listener) {
    this.listeners.add(listener);
  }

  off(_, listener) {
    this.listeners.delete(listener);
  }

  save_changes() {
    const [row, turn] = this.traits.selected;
    const place = this.places[row][turn - this.traits.first_turn];
    const title = `turn ${turn}: the record, and ${this.traits.titles[row]}`;
    this.traits.detail =
      place >= 0
        ? { title, lines: this.diffs[place] }
        : { title: `${title}: not in this page, which ends at 1 MB; the notebook has it`, lines: [] };
    for (const listener of this.listeners) listener();
  }
}

// Without DecompressionStream or with a damaged page the table stays, and the console says why.
told().then((found) => {
  const el = document.querySelector(".bk-map");
  if (found.turns === 0) return;
  el.replaceChildren();
  render({ model: new Page(found), el });
});
