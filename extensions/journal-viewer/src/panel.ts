// The side panel: the journals of a folder, each branch below the run that it was forked from.

import { Contents } from "@jupyterlab/services";
import { Message } from "@lumino/messaging";
import { ISignal, Signal } from "@lumino/signaling";
import { Widget } from "@lumino/widgets";

import { parse } from "./model";
import { element } from "./view";

export const SUFFIX = ".journal.jsonl";
const MAX_JOURNALS = 200; // read whole for their first line; more are named and not read

interface Place {
  readonly path: string;
  readonly name: string;
  readonly runId: string;
  readonly parentRunId: string;
}

export class JournalsPanel extends Widget {
  private readonly _opened = new Signal<this, string>(this);
  private readonly _refresh = element("button", "", "Read again");
  private _asked = 0;

  constructor(
    private readonly _contents: Contents.IManager,
    private readonly _folder: () => string,
  ) {
    super();
    this.addClass("bk-journals");
    this.title.caption = "Journals of this folder";
    this.title.label = "Journals";
    this.id = "branchkit-journals";
    this._refresh.addEventListener("click", () => void this.read());
  }

  /** A journal was chosen; the argument is its path. */
  get opened(): ISignal<this, string> {
    return this._opened;
  }

  dispose(): void {
    if (this.isDisposed) return;
    Signal.clearData(this);
    super.dispose();
  }

  async read(): Promise<void> {
    const asked = ++this._asked;
    const folder = this._folder();
    const title = element("h2", "", `Journals in /${folder}`);
    this.node.replaceChildren(title, this._refresh, element("p", "", "reading…"));
    let shown: HTMLElement;
    try {
      shown = this._tree(await this._places(folder));
    } catch (error) {
      shown = element("p", "", `cannot be read: ${String(error)}`);
    }
    if (asked === this._asked && !this.isDisposed)
      this.node.replaceChildren(title, this._refresh, shown);
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    void this.read();
  }

  private async _places(folder: string): Promise<Place[]> {
    const listing = await this._contents.get(folder, { content: true });
    const models = (listing.content as Contents.IModel[]).filter((one) =>
      one.name.endsWith(SUFFIX),
    );
    models.sort((one, other) => one.name.localeCompare(other.name));
    return Promise.all(models.map((model, index) => this._place(model, index < MAX_JOURNALS)));
  }

  private async _place(model: Contents.IModel, read: boolean): Promise<Place> {
    const { path, name } = model;
    if (!read) return { path, name, runId: "", parentRunId: "" };
    const file = await this._contents.get(path, { content: true, format: "text", type: "file" });
    const text = String(file.content);
    const { runId, parentRunId } = parse(text.slice(0, text.indexOf("\n") + 1));
    return { path, name, runId, parentRunId };
  }

  private _tree(places: readonly Place[]): HTMLElement {
    if (places.length === 0) return element("p", "", `no *${SUFFIX} in this folder`);
    const known = new Set(places.map((place) => place.runId));
    const roots = places.filter((place) => !known.has(place.parentRunId) || !place.parentRunId);
    return this._branches(roots, places, new Set());
  }

  private _branches(
    level: readonly Place[],
    places: readonly Place[],
    above: ReadonlySet<string>,
  ): HTMLElement {
    const list = element("ul", "");
    for (const place of level) {
      const item = element("li", "");
      const link = element("a", "", place.name);
      link.href = "#";
      link.addEventListener("click", (event) => {
        event.preventDefault();
        this._opened.emit(place.path);
      });
      item.append(link);
      const own = places.filter((one) => one.parentRunId && one.parentRunId === place.runId);
      if (own.length && !above.has(place.runId))
        item.append(this._branches(own, places, new Set([...above, place.runId])));
      list.append(item);
    }
    return list;
  }
}
