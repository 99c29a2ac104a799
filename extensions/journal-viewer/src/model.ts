// A journal's text as entries of a timeline. Pure: nothing here touches the page or the server.
// The format is docs/formats.md: one event a line, `event_hash` first, each linked to the one before.

export type State = "" | "completed" | "in doubt" | "not sent" | "denied" | "error" | "damaged";

export interface Entry {
  readonly seq: number;
  readonly turn: number;
  readonly step: string;
  readonly kind: string;
  readonly at: string;
  readonly summary: string;
  readonly state: State;
  readonly line: number; // from 1
  readonly detail: string;
}

export interface Journal {
  readonly entries: readonly Entry[];
  readonly damage: readonly string[];
  readonly runId: string;
  readonly parentRunId: string;
  readonly task: string;
  readonly status: string;
  readonly turns: number;
  readonly tokens: number;
}

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type Fields = { [name: string]: Json };

const HEAD = '{"event_hash":"sha256:'; // every line starts with it, then 64 digits and `",`
const BODY_AT = HEAD.length + 66;
const ZERO = "sha256:" + "0".repeat(64);
const MAX_SUMMARY = 200;

interface Event {
  readonly seq: number;
  readonly turn: number;
  readonly step: string;
  readonly kind: string;
  readonly at: string;
  readonly hash: string;
  readonly previous: string;
  readonly runId: string;
  readonly payload: Fields;
}

export function parse(text: string): Journal {
  const lines = text.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  const events: (Event | string)[] = lines.map(eventOf);
  const damage: string[] = [];
  const states = callStates(events);
  let expected = ZERO;
  const entries = events.map((event, index): Entry => {
    if (typeof event === "string") {
      damage.push(`line ${index + 1}: ${event}`);
      return damagedEntry(event, index, lines[index] ?? "");
    }
    const broken = linkProblem(event, index, expected);
    if (broken) damage.push(`line ${index + 1}, event ${event.seq}: ${broken}`);
    expected = event.hash;
    return entryOf(event, index, states, broken);
  });
  const known = events.filter((event): event is Event => typeof event !== "string");
  return { entries, damage, ...factsOf(known) };
}

/** The lines (from 1) whose own hash is not right; asks the browser's SHA-256. */
export async function wrongHashes(text: string): Promise<number[]> {
  const found: number[] = [];
  if (!globalThis.crypto?.subtle) return found; // not a secure context: links are checked anyway
  const coder = new TextEncoder();
  for (const [index, line] of text.split("\n").entries()) {
    if (!line.startsWith(HEAD) || !line.endsWith("}")) continue; // told of by `parse`
    const body = coder.encode("{" + line.slice(BODY_AT));
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
    const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    if (hex !== line.slice(HEAD.length, HEAD.length + 64)) found.push(index + 1);
  }
  return found;
}

/** `journal` with the events of `lines` marked as damaged. */
export function withWrongHashes(journal: Journal, lines: readonly number[]): Journal {
  const wrong = new Set(lines);
  const entries = journal.entries.map((entry) =>
    wrong.has(entry.line) ? { ...entry, state: "damaged" as const } : entry,
  );
  const told = lines.map((line) => `line ${line}: the event is not what its hash says`);
  return { ...journal, entries, damage: [...journal.damage, ...told] };
}

function eventOf(line: string): Event | string {
  let value: Json;
  try {
    value = JSON.parse(line) as Json;
  } catch {
    return line.startsWith(HEAD) ? "the line is cut off or changed: no JSON" : "not an event";
  }
  if (!isFields(value) || !isFields(value.payload)) return "not an event of branchkit's";
  return {
    seq: number(value.seq),
    turn: number(value.turn),
    step: string(value.step_id),
    kind: string(value.kind),
    at: string(value.recorded_at),
    hash: string(value.event_hash),
    previous: string(value.prev_event_hash),
    runId: string(value.run_id),
    payload: value.payload,
  };
}

function linkProblem(event: Event, index: number, expected: string): string {
  if (event.seq !== index) return `event ${index} was expected here`;
  return event.previous === expected ? "" : "it does not follow the event before it";
}

/** The three words of what became of each call. */
function callStates(events: readonly (Event | string)[]): Map<string, State> {
  const states = new Map<string, State>();
  for (const event of events) {
    if (typeof event === "string") continue;
    const id = string(event.payload.call_id);
    if (event.kind === "ToolProposed") states.set(id, "not sent");
    else if (event.kind === "ToolIntent") states.set(id, "in doubt");
    else if (event.kind === "ToolResult") states.set(id, "completed");
    else if (event.kind === "Settled" && event.payload.outcome === "not sent")
      states.set(id, "not sent");
  }
  return states;
}

function entryOf(
  event: Event,
  index: number,
  states: ReadonlyMap<string, State>,
  broken: string,
): Entry {
  return {
    seq: event.seq,
    turn: event.turn,
    step: event.step,
    kind: event.kind,
    at: event.at,
    summary: broken || short(summaryOf(event)),
    state: broken ? "damaged" : stateOf(event, states),
    line: index + 1,
    detail: JSON.stringify(event.payload, null, 2),
  };
}

function damagedEntry(problem: string, index: number, line: string): Entry {
  return {
    seq: index,
    turn: -1,
    step: "",
    kind: "(damaged)",
    at: "",
    summary: problem,
    state: "damaged",
    line: index + 1,
    detail: line.slice(0, 20_000),
  };
}

function stateOf(event: Event, states: ReadonlyMap<string, State>): State {
  const { payload, kind } = event;
  if (kind === "ToolProposed") return states.get(string(payload.call_id)) ?? "";
  if (kind === "ToolAuthorized" && payload.decision === "deny") return "denied";
  if (kind === "ToolResult" && payload.status !== "completed") return "error";
  return kind === "ModelFailed" ? "error" : "";
}

function summaryOf({ kind, payload }: Event): string {
  switch (kind) {
    case "TaskStarted":
      return `${string(payload.task)}`;
    case "InputReceived":
    case "ModelReplied":
      return messageSummary(payload.message);
    case "ModelFailed":
      return string(payload.error);
    case "ContextBuilt":
      return `${number(payload.messages)} messages`;
    case "ToolProposed":
      return `${string(payload.name)} ${JSON.stringify(payload.arguments)}`;
    case "ToolAuthorized":
      return `${string(payload.decision)} by ${string(payload.policy)}`;
    case "ToolIntent":
      return `${string(payload.name)}, ${string(payload.effect)}`;
    case "ToolResult":
      return `${string(payload.status)}: ${string(payload.text) || `${number(payload.bytes)} bytes`}`;
    case "Delivered":
      return payload.omitted_lines
        ? `${number(payload.omitted_lines)} lines hidden by ${string(payload.rule)}`
        : "whole";
    case "Checkpoint":
      return `${number(payload.files)} files, ${number(payload.changed_bytes)} bytes changed`;
    case "Compacted":
      return `history replaced: ${string(payload.reason)}`;
    case "Forked":
      return `branch of ${string(payload.parent_run_id)} after turn ${number(payload.turn)}`;
    case "TaskFinished":
      return `${string(payload.status)} ${string(payload.reason)}`;
    default:
      return JSON.stringify(payload);
  }
}

function messageSummary(message: Json | undefined): string {
  if (!isFields(message)) return "";
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
  const named = calls.filter(isFields).map((call) => {
    const made = isFields(call.function) ? call.function : {};
    return `→ ${string(made.name)} ${string(made.arguments)}`;
  });
  const content = message.content;
  const said = typeof content === "string" ? content : content ? JSON.stringify(content) : "";
  return [said, ...named].filter(Boolean).join("  ");
}

function factsOf(events: readonly Event[]): Omit<Journal, "entries" | "damage"> {
  const first = events[0];
  const finished = events.filter((event) => event.kind === "TaskFinished").pop();
  const replies = events.filter((event) => event.kind === "ModelReplied");
  const tokens = replies.reduce((sum, event) => {
    const usage = isFields(event.payload.usage) ? event.payload.usage : {};
    return sum + number(usage.total_tokens);
  }, 0);
  return {
    runId: first?.runId ?? "",
    parentRunId: first?.kind === "Forked" ? string(first.payload.parent_run_id) : "",
    task: first?.kind === "TaskStarted" ? string(first.payload.task) : "",
    status: finished ? string(finished.payload.status) : "not ended",
    turns: replies.reduce((most, event) => Math.max(most, event.turn), 0),
    tokens,
  };
}

function isFields(value: Json | undefined): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function string(value: Json | undefined): string {
  return typeof value === "string" ? value : "";
}

function number(value: Json | undefined): number {
  return typeof value === "number" ? value : 0;
}

function short(text: string): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > MAX_SUMMARY ? line.slice(0, MAX_SUMMARY - 1) + "…" : line;
}
