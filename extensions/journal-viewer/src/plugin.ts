// Wires the timeline and the side panel to JupyterLab.

import { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { PathExt } from "@jupyterlab/coreutils";
import {
  ABCWidgetFactory,
  DocumentRegistry,
  DocumentWidget,
  IDocumentWidget,
} from "@jupyterlab/docregistry";
import { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";

import { parse, withWrongHashes, wrongHashes } from "./model";
import { JournalsPanel, SUFFIX } from "./panel";
import { Timeline, Wish } from "./view";

const FILE_TYPE = "branchkit-journal";
const FACTORY = "Journal timeline";

class TimelineFactory extends ABCWidgetFactory<IDocumentWidget<Timeline>> {
  constructor(
    options: DocumentRegistry.IWidgetFactoryOptions<IDocumentWidget<Timeline>>,
    private readonly _act: (path: string, wish: Wish) => void,
  ) {
    super(options);
  }

  protected createNewWidget(context: DocumentRegistry.Context): IDocumentWidget<Timeline> {
    const content = new Timeline();
    const widget = new DocumentWidget({ content, context });
    const draw = (): void => {
      const text = context.model.toString();
      const journal = parse(text);
      const name = PathExt.basename(context.path);
      content.present(name, journal);
      void wrongHashes(text).then((lines) => {
        if (lines.length && !content.isDisposed && text === context.model.toString())
          content.present(name, withWrongHashes(journal, lines));
      });
    };
    const wished = (_: Timeline, wish: Wish): void => this._act(context.path, wish);
    content.wished.connect(wished);
    void context.ready.then(() => {
      draw();
      context.model.contentChanged.connect(draw);
    });
    content.disposed.connect(() => {
      content.wished.disconnect(wished);
      context.model.contentChanged.disconnect(draw);
    });
    return widget;
  }
}

/** What a cell needs to do in `notebook` what was wished for the journal at `path`. */
export function source(path: string, notebook: string, wish: Wish): string {
  const journal = PathExt.relative(PathExt.dirname(notebook), path) || path;
  const word = /^[\w./-]+$/.test(journal) ? journal : `'${journal.replace(/'/g, "'\\''")}'`;
  const act =
    wish.action === "rewind"
      ? `%rewind ${wish.turn}`
      : `# one changed component is an arm; see %fork --help\n%fork ${wish.turn - 1} --swap truncation=none -n 20`;
  return `%load_ext branchkit\nrun = %journal ${word}\n${act}`;
}

async function insert(
  app: JupyterFrontEnd,
  notebooks: INotebookTracker,
  path: string,
  wish: Wish,
): Promise<void> {
  let panel = notebooks.currentWidget;
  if (panel === null) {
    const cwd = PathExt.dirname(path);
    await app.serviceManager.kernelspecs.ready;
    const kernelName = app.serviceManager.kernelspecs.specs?.default ?? "";
    const asked = { cwd, kernelName };
    panel = (await app.commands.execute("notebook:create-new", asked)) as NotebookPanel;
    await panel.context.ready;
  }
  const cells = panel.content;
  const at = cells.activeCellIndex + 1;
  const text = source(path, panel.context.path, wish);
  cells.model?.sharedModel.insertCell(at, { cell_type: "code", source: text });
  cells.activeCellIndex = at;
  app.shell.activateById(panel.id);
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: "@branchkit/journal-viewer:plugin",
  description: "Journals as timelines, and a side panel with a folder's journals.",
  autoStart: true,
  requires: [INotebookTracker],
  optional: [IDefaultFileBrowser],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    files: IDefaultFileBrowser | null,
  ): void => {
    const registry = app.docRegistry;
    registry.addFileType({
      name: FILE_TYPE,
      displayName: "branchkit journal",
      extensions: [SUFFIX],
      mimeTypes: ["application/jsonl"],
      contentType: "file",
      fileFormat: "text",
    });
    registry.addWidgetFactory(
      new TimelineFactory(
        {
          name: FACTORY,
          modelName: "text",
          fileTypes: [FILE_TYPE],
          defaultFor: [FILE_TYPE],
          readOnly: true,
        },
        (path, wish) => void insert(app, notebooks, path, wish),
      ),
    );
    const panel = new JournalsPanel(app.serviceManager.contents, () => files?.model.path ?? "");
    panel.opened.connect((_, path) => {
      void app.commands.execute("docmanager:open", { path, factory: FACTORY });
    });
    app.shell.add(panel, "left", { rank: 600, type: "Journals" });
  },
};

export default plugin;
