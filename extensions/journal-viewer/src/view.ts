// The timeline: a list of which only the rows in sight are in the page, and the chosen event below.
// Text goes in by textContent only.

import { Message } from "@lumino/messaging";
import { ISignal, Signal } from "@lumino/signaling";
import { Widget } from "@lumino/widgets";

import { Entry, Journal } from "./model";

const ROW_HEIGHT = 24; // px, as in index.css
const OVERSCAN = 12;
const MAX_DAMAGE = 5; // told above the list; every damaged row says so itself

export interface Wish {
  readonly action: "rewind" | "fork";
  readonly turn: number; // the reply before which the run is looked at or goes on
}

let timelines = 0;

export class Timeline extends Widget {
  private readonly _head = element("div", "bk-journal-head");
  private readonly _tools = element("div", "bk-journal-tools");
  private readonly _list = element("div", "bk-journal-list");
  private readonly _inner = element("div", "bk-journal-inner");
  private readonly _detail = element("pre", "bk-journal-detail");
  private readonly _rewind = element("button", "bk-journal-rewind");
  private readonly _fork = element("button", "bk-journal-fork");
  private readonly _wished = new Signal<this, Wish>(this);
  private readonly _id = `bk-journal-${++timelines}`;
  private readonly _size = new ResizeObserver(() => this._draw());
  private _entries: readonly Entry[] = [];
  private _chosen = -1;

  constructor() {
    super();
    this.addClass("bk-journal");
    this._list.tabIndex = 0;
    this._list.setAttribute("role", "listbox");
    this._list.setAttribute("aria-label", "Events of the journal. Arrow keys move.");
    this._detail.tabIndex = 0;
    this._detail.setAttribute("role", "region");
    this._detail.setAttribute("aria-label", "The chosen event");
    this._list.append(this._inner);
    this._tools.append(this._rewind, this._fork);
    this.node.append(this._head, this._tools, this._list, this._detail);
    this._label();
  }

  /** A turn was asked to be rewound to, or forked at. */
  get wished(): ISignal<this, Wish> {
    return this._wished;
  }

  present(name: string, journal: Journal): void {
    this._entries = journal.entries;
    this._inner.style.position = "relative";
    this._inner.style.height = `${journal.entries.length * ROW_HEIGHT}px`;
    this._headOf(name, journal);
    this._chosen = Math.min(this._chosen, journal.entries.length - 1);
    this._draw();
  }

  dispose(): void {
    if (this.isDisposed) return;
    this._size.disconnect();
    Signal.clearData(this);
    super.dispose();
  }

  handleEvent(event: Event): void {
    if (event.type === "scroll") this._draw();
    else if (event.type === "keydown") this._key(event as KeyboardEvent);
    else if (event.type === "click") this._click(event);
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._list.addEventListener("scroll", this, { passive: true });
    this._list.addEventListener("keydown", this);
    this.node.addEventListener("click", this);
    this._size.observe(this._list);
    this._draw();
  }

  protected onBeforeDetach(message: Message): void {
    this._list.removeEventListener("scroll", this);
    this._list.removeEventListener("keydown", this);
    this.node.removeEventListener("click", this);
    this._size.disconnect();
    super.onBeforeDetach(message);
  }

  protected onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this._list.focus();
  }

  private _headOf(name: string, journal: Journal): void {
    const parent = journal.parentRunId ? `, a branch of run ${journal.parentRunId}` : "";
    const facts = `${journal.turns} turns, ${journal.entries.length} events, ${journal.status}`;
    const tokens = journal.tokens ? `, ${journal.tokens} tokens` : "";
    const nodes = [
      element("h1", "", name),
      element("p", "bk-journal-facts", `${facts}${tokens}${parent}`),
    ];
    if (journal.task) nodes.push(element("p", "", `task: ${journal.task}`));
    for (const problem of journal.damage.slice(0, MAX_DAMAGE)) {
      const line = element("p", "bk-journal-damage", `damaged: ${problem}`);
      line.setAttribute("role", "alert");
      nodes.push(line);
    }
    this._head.replaceChildren(...nodes);
  }

  private _draw(): void {
    const first = Math.max(0, Math.floor(this._list.scrollTop / ROW_HEIGHT) - OVERSCAN);
    const count = Math.ceil(this._list.clientHeight / ROW_HEIGHT) + 2 * OVERSCAN;
    const rows = this._entries
      .slice(first, first + count)
      .map((entry, offset) => this._row(entry, first + offset));
    this._inner.replaceChildren(...rows);
  }

  private _row(entry: Entry, index: number): HTMLElement {
    const row = element("div", "bk-journal-row");
    if (entry.kind === "ModelReplied") row.classList.add("bk-reply");
    if (["damaged", "error", "in doubt", "denied"].includes(entry.state)) row.classList.add("bk-bad");
    row.id = `${this._id}-${index}`;
    row.style.top = `${index * ROW_HEIGHT}px`;
    row.dataset.index = String(index);
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(index === this._chosen));
    row.setAttribute("aria-posinset", String(index + 1));
    row.setAttribute("aria-setsize", String(this._entries.length));
    const turn = entry.turn >= 0 ? `t${entry.turn}` : "";
    for (const text of [String(entry.seq), turn, entry.kind, entry.state, entry.summary])
      row.append(element("span", "", text));
    return row;
  }

  private _click(event: Event): void {
    const target = event.target as HTMLElement;
    if (target === this._rewind) this._wish("rewind");
    else if (target === this._fork) this._wish("fork");
    const row = target.closest<HTMLElement>(".bk-journal-row");
    if (row?.dataset.index) this._choose(Number(row.dataset.index));
  }

  private _key(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(this._list.clientHeight / ROW_HEIGHT) - 1);
    const last = this._entries.length - 1;
    const places: { [key: string]: number } = {
      ArrowDown: this._chosen + 1,
      ArrowUp: this._chosen - 1,
      PageDown: this._chosen + page,
      PageUp: this._chosen - page,
      Home: 0,
      End: last,
    };
    const place = places[event.key];
    if (place === undefined || last < 0) return;
    event.preventDefault();
    event.stopPropagation();
    this._choose(Math.max(0, Math.min(last, place)));
  }

  private _choose(index: number): void {
    this._chosen = index;
    const top = index * ROW_HEIGHT;
    const { scrollTop, clientHeight } = this._list;
    if (top < scrollTop) this._list.scrollTop = top;
    else if (top + ROW_HEIGHT > scrollTop + clientHeight)
      this._list.scrollTop = top + ROW_HEIGHT - clientHeight;
    this._draw();
    this._list.setAttribute("aria-activedescendant", `${this._id}-${index}`);
    const entry = this._entries[index];
    this._detail.textContent = entry ? `${entry.kind}, line ${entry.line}\n${entry.detail}` : "";
    this._label();
  }

  private _label(): void {
    const turn = Math.max(1, this._entries[this._chosen]?.turn ?? 0);
    const none = this._chosen < 0;
    this._rewind.textContent = none ? "Rewind here" : `Rewind here (reply ${turn})`;
    this._fork.textContent = none ? "Fork here" : `Fork here (reply ${turn} is live)`;
    for (const button of [this._rewind, this._fork]) (button as HTMLButtonElement).disabled = none;
  }

  private _wish(action: Wish["action"]): void {
    const turn = Math.max(1, this._entries[this._chosen]?.turn ?? 0);
    this._wished.emit({ action, turn });
  }
}

export function element<K extends keyof HTMLElementTagNameMap>(
  kind: K,
  className: string,
  text?: string,
): HTMLElementTagNameMap[K] {
  const node = document.createElement(kind);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}
