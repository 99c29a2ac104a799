// The live map: a canvas fed with bytes, branches x turns. See wire.py for the traits and grid.py
// for the classes of cells. Text goes in by textContent only; colours of the page are --jp-*.

const LABEL = 116; // px left of the cells
const TOP = 18; // px above them, for the turns
const MAX_HEIGHT = 560; // px of cells; more rows than fit are pooled by their maximum
const MIN_ROW = 4;
const MAX_ROW = 18;
const GAP = 15; // px above an arm, for its name

const STYLE = `
.bk-live{font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);
 color:var(--jp-ui-font-color1,var(--bk-fg,CanvasText));
 background:var(--jp-layout-color0,var(--bk-back,Canvas));padding:6px 8px}
.bk-live canvas{display:block;outline:none;cursor:crosshair}
.bk-live canvas:focus-visible{box-shadow:0 0 0 2px var(--jp-brand-color1,#1976d2)}
.bk-live .say{min-height:1.5em}
.bk-live .help{color:var(--jp-ui-font-color2,var(--bk-dim,GrayText));font-size:12px}
.bk-live .detail{max-height:420px;overflow:auto;margin-top:6px;
 border:1px solid var(--jp-border-color1,var(--bk-line,GrayText))}
.bk-live .detail:empty{display:none}
.bk-live .title{margin:6px 8px;font-weight:bold}
.bk-live .diff{font:12px/1.4 var(--jp-code-font-family,monospace);white-space:pre-wrap;
 overflow-wrap:anywhere}
.bk-live .line{display:grid;grid-template-columns:1.2em minmax(0,1fr) 1.2em minmax(0,1fr);
 content-visibility:auto;contain-intrinsic-height:auto 1.4em}
.bk-live .line>div{padding:0 4px;min-height:1.4em}
.bk-live .head{font-weight:bold;background:var(--jp-layout-color2,transparent)}
.bk-live .gap{color:var(--jp-ui-font-color2,var(--bk-dim,GrayText));background:var(--jp-layout-color1,transparent)}
.bk-live .was{background:rgba(213,94,0,.22)}.bk-live .now{background:rgba(0,114,178,.25)}
`;

function symbol(cell) {
  if (cell === 0) return " ";
  if (cell < 3) return ".";
  const rank = (cell - 3) >> 1;
  const other = (cell - 3) & 1;
  if (rank >= 26) return other ? "+" : "#";
  return String.fromCharCode((other ? 97 : 65) + rank);
}

function words(cell) {
  if (cell === 0) return "no such turn";
  if (cell === 1) return "the record's action";
  if (cell === 2) return "the record's action in another context";
  return `another action (${symbol(cell)})${(cell - 3) & 1 ? " in another context" : ""}`;
}

function element(kind, className, text) {
  const node = document.createElement(kind);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function bytesOf(value) {
  return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
}

/** Groups of rows (and of columns) that share one drawn row: [start, stop) each. */
function pooled(start, stop, room) {
  const count = stop - start;
  const drawn = Math.max(1, Math.min(count, room));
  return Array.from({ length: drawn }, (_, i) => [
    start + Math.floor((i * count) / drawn),
    start + Math.floor(((i + 1) * count) / drawn),
  ]);
}

class MapView {
  constructor(model, el) {
    this.model = model;
    this.rows = model.get("titles").length;
    this.turns = model.get("turns");
    this.cells = bytesOf(model.get("cells"));
    this.record = bytesOf(model.get("record"));
    this.window = [0, this.rows]; // rows in sight; a click on a pooled cell narrows it
    this.cursor = { row: 0, column: 0 }; // places in this.bands and this.columns
    this.root = element("div", "bk-live");
    this.root.append(element("style", "", STYLE));
    this.canvas = element("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute(
      "aria-label",
      `Map of ${this.rows} branches by ${this.turns} turns. Arrow, Home, End and Page keys ` +
        "move, Enter compares, Escape shows all rows.",
    );
    this.say = element("div", "say");
    this.say.setAttribute("aria-live", "polite");
    this.help = element(
      "div",
      "help",
      ". the record's action · A B C another action · a b c the same with another context · " +
        "click or Enter: compare with the record",
    );
    this.detail = element("div", "detail");
    this.root.append(this.canvas, this.say, this.help);
    if (model.get("note")) this.root.append(element("div", "help", model.get("note")));
    this.root.append(this.detail);
    el.append(this.root);
  }

  layout() {
    const width = Math.max(240, this.root.clientWidth - 16);
    const room = width - LABEL;
    this.columns = pooled(0, this.turns, Math.floor(room / 3));
    this.cellWidth = Math.min(26, Math.max(3, Math.floor(room / Math.max(1, this.columns.length))));
    const [first, last] = this.window;
    const bands = [];
    let offset = 0;
    const arms = this.model.get("arms").map(([name, count]) => {
      const span = [Math.max(first, offset), Math.min(last, offset + count)];
      offset += count;
      return { name, count, span };
    });
    const total = Math.max(1, last - first);
    const most = Math.floor(MAX_HEIGHT / MIN_ROW);
    let y = TOP;
    this.headings = [];
    for (const arm of arms) {
      if (arm.span[0] >= arm.span[1]) continue;
      const share = Math.max(1, Math.floor((most * (arm.span[1] - arm.span[0])) / total));
      this.headings.push({ name: `${arm.name} (${arm.count})`, y });
      y += GAP;
      const groups = pooled(arm.span[0], arm.span[1], share);
      bands.push(...groups.map((rows) => ({ rows, y: 0 })));
      this.rowHeight = Math.max(MIN_ROW, Math.min(MAX_ROW, Math.floor(MAX_HEIGHT / total)));
      for (const band of bands.slice(-groups.length)) {
        band.y = y;
        y += this.rowHeight;
      }
    }
    this.bands = bands;
    this.size = [width, y + 2];
  }

  class(band, columns) {
    let most = 0;
    for (let row = band.rows[0]; row < band.rows[1]; row++)
      for (let column = columns[0]; column < columns[1]; column++)
        most = Math.max(most, this.cells[row * this.turns + column]);
    return most;
  }

  draw() {
    this.layout();
    const scale = window.devicePixelRatio || 1;
    const [width, height] = this.size;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const page = getComputedStyle(this.root);
    const ink = page.color;
    const same = page.getPropertyValue("--jp-layout-color3").trim() || "#b8bec8";
    pen.textBaseline = "middle";
    pen.font = "11px monospace";
    pen.fillStyle = ink;
    this.drawScale(pen);
    for (const { name, y } of this.headings) this.drawText(pen, name, 2, y + GAP / 2);
    const colours = this.model.get("colours");
    for (const band of this.bands) {
      this.drawLabel(pen, band, ink);
      this.columns.forEach((columns, at) => {
        const cell = this.class(band, columns);
        if (cell === 0) return;
        const x = LABEL + at * this.cellWidth;
        pen.fillStyle = cell < 3 ? same : colours[cell][0];
        pen.fillRect(x, band.y, this.cellWidth - 1, this.rowHeight - 1);
        if (this.rowHeight < 11 || this.cellWidth < 9) return;
        pen.fillStyle = cell < 3 ? ink : colours[cell][1];
        pen.textAlign = "center";
        pen.fillText(symbol(cell), x + (this.cellWidth - 1) / 2, band.y + this.rowHeight / 2);
        pen.textAlign = "left";
      });
    }
    this.drawCursor(pen, ink);
  }

  drawText(pen, text, x, y) {
    pen.textAlign = "left";
    pen.fillText(text, x, y);
  }

  drawScale(pen) {
    const first = this.model.get("first_turn");
    let free = -1;
    this.columns.forEach(([column], at) => {
      const x = LABEL + at * this.cellWidth;
      if (x < free) return;
      const turn = String(first + column);
      this.drawText(pen, turn, x, TOP / 2);
      free = x + 7 * turn.length + 8; // as wide as it is drawn, and a gap
    });
    this.drawText(pen, "turn", 2, TOP / 2);
  }

  drawLabel(pen, band, ink) {
    if (this.rowHeight < 10) return;
    const [first, last] = band.rows;
    const title = this.model.get("titles")[first];
    const turn = /left at turn (\d+)/.exec(title);
    const verdict = title.slice(title.lastIndexOf(", ") + 2);
    const text = last - first > 1 ? `${last - first} branches` : `${turn ? "t" + turn[1] : "="} ${verdict}`;
    pen.fillStyle = ink;
    this.drawText(pen, text, 10, band.y + this.rowHeight / 2);
  }

  drawCursor(pen, ink) {
    const band = this.bands[this.cursor.row];
    if (!band || document.activeElement !== this.canvas) return;
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    const x = LABEL + this.cursor.column * this.cellWidth;
    pen.strokeRect(x - 1, band.y - 1, this.cellWidth + 1, this.rowHeight + 1);
  }

  /** The cell under a mouse position, or null. */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const row = this.bands.findIndex((band) => y >= band.y && y < band.y + this.rowHeight);
    const column = Math.floor((event.clientX - box.left - LABEL) / this.cellWidth);
    return row < 0 || column < 0 || column >= this.columns.length ? null : { row, column };
  }

  tell(place) {
    const band = this.bands[place.row];
    const columns = this.columns[place.column];
    if (!band || !columns) return;
    const count = band.rows[1] - band.rows[0];
    const who =
      count > 1 ? `${count} branches (click to see each)` : this.model.get("titles")[band.rows[0]];
    const first = this.model.get("first_turn");
    this.say.textContent = `turn ${first + columns[0]}: ${words(this.class(band, columns))} — ${who}`;
  }

  choose(place) {
    const band = this.bands[place.row];
    const columns = this.columns[place.column];
    if (!band || !columns) return;
    if (band.rows[1] - band.rows[0] > 1) {
      this.window = [...band.rows];
      this.cursor = { row: 0, column: place.column };
      this.draw();
      this.say.textContent = `rows ${band.rows[0] + 1} to ${band.rows[1]}; Escape shows all`;
      return;
    }
    this.say.textContent = "reading the journals…";
    this.model.set("selected", [band.rows[0], this.model.get("first_turn") + columns[0]]);
    this.model.save_changes();
    this.asked = place;
  }

  key(event) {
    const all = Infinity;
    const steps = {
      ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      Home: [0, -all], End: [0, all], PageUp: [-20, 0], PageDown: [20, 0],
    };
    const step = steps[event.key];
    if (step) {
      const limit = (value, count) => Math.max(0, Math.min(count - 1, value));
      this.cursor.row = limit(this.cursor.row + step[0], this.bands.length);
      this.cursor.column = limit(this.cursor.column + step[1], this.columns.length);
      this.draw();
      this.tell(this.cursor);
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose(this.cursor);
    } else if (event.key === "Escape") {
      this.window = [0, this.rows];
      this.draw();
    } else {
      return;
    }
    // Without this, JupyterLab would take the key for its own command mode.
    event.preventDefault();
    event.stopPropagation();
  }

  showDetail() {
    const { title, lines } = this.model.get("detail");
    this.detail.replaceChildren();
    if (!title) return;
    if (this.asked) this.tell(this.asked);
    const diff = element("div", "diff");
    for (const { left, right, kind } of lines) {
      const plain = kind === "head" || kind === "gap" ? kind : "";
      const gone = kind === "changed" || kind === "left";
      const came = kind === "changed" || kind === "right";
      // Each line is laid out when it comes in sight: thousands at once take most of a second.
      const line = element("div", "line");
      line.append(element("div", plain || (gone ? "was" : ""), gone ? "−" : ""));
      line.append(element("div", plain || (gone ? "was" : ""), left));
      line.append(element("div", plain || (came ? "now" : ""), came ? "+" : ""));
      line.append(element("div", plain || (came ? "now" : ""), right));
      diff.append(line);
    }
    this.detail.append(element("div", "title", title), diff);
  }
}

function render({ model, el }) {
  const view = new MapView(model, el);
  const draw = () => view.draw();
  const onDetail = () => view.showDetail();
  view.canvas.addEventListener("mousemove", (event) => {
    const place = view.at(event);
    if (place) view.tell(place);
  });
  view.canvas.addEventListener("click", (event) => {
    const place = view.at(event);
    if (!place) return;
    view.cursor = place;
    view.draw();
    view.choose(place);
  });
  view.canvas.addEventListener("keydown", (event) => view.key(event));
  view.canvas.addEventListener("focus", draw);
  view.canvas.addEventListener("blur", draw);
  model.on("change:detail", onDetail);
  const size = new ResizeObserver(draw);
  size.observe(view.root);
  const theme = new MutationObserver(draw);
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  draw();
  onDetail();
  return () => {
    model.off("change:detail", onDetail);
    size.disconnect();
    theme.disconnect();
  };
}

export default { render };
