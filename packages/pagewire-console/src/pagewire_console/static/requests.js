// The requests in flight: a table that can be filtered and sorted, and where the time of a selected one went.

import { getJson } from "./connection.js";
import { byId, clipped, count, duration, el, setText } from "./dom.js";
import { Table } from "./table.js";

const COLUMNS = [
  { label: "Request", class: "id", show: (row) => row.id },
  { label: "Tenant", class: "secondary", show: (row) => row.tenant || "–" },
  { label: "Phase", show: (row) => row.phase },
  { label: "Waits for", show: (row) => row.cause || "" },
  { label: "Age", class: "number", show: (row) => duration(row.age), sort: (row) => row.age },
  { label: "Prompt", class: "number", show: (row) => count(row.prompt), sort: (row) => row.prompt },
  { label: "Cached", class: "number secondary", show: (row) => count(row.cached), sort: (row) => row.cached },
  { label: "Output", class: "number", show: (row) => count(row.output), sort: (row) => row.output },
  { label: "Blocks", class: "number", show: (row) => count(row.blocks), sort: (row) => row.blocks },
  { label: "Shared", class: "number secondary", show: (row) => count(row.shared), sort: (row) => row.shared },
  { label: "Class", class: "number secondary", show: (row) => row.priority, sort: (row) => row.priority },
  { label: "Engine", class: "number secondary", show: (row) => row.rank ?? "–", sort: (row) => row.rank ?? -1 },
];
const EXPLAIN_MS = 1000;
const SHARER = 60; // characters of an id among several

/** The table, its filter and the details below it. */
export class Requests {
  /** onselect: called with the selected row, or null. */
  constructor(onselect) {
    this.list = [];
    this.total = 0;
    this.onselect = onselect;
    this.selected = null;
    this.asked = 0;
    this.table = new Table(byId("requests-table"), COLUMNS, {
      key: (row) => `${row.tenant}/${row.id}`,
      onselect: (row) => this.#select(row),
      ongone: () => this.#onGone(),
      empty: "None.",
    });
    byId("filter").addEventListener("input", () => this.#show());
  }

  /** Shows these requests. requests: {columns, rows, total}; total may exceed the number of rows. */
  update(requests) {
    const { columns, rows, total } = requests;
    this.list = rows.map((row) => Object.fromEntries(columns.map((name, place) => [name, row[place]])));
    this.total = total;
    this.#show();
    if (this.selected) this.#explain();
  }

  #show() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? this.list.filter((row) => matches(row, words)) : this.list;
    this.table.update(found);
    const phases = new Map();
    for (const row of this.list) phases.set(row.phase, (phases.get(row.phase) ?? 0) + 1);
    const parts = [...phases].map(([phase, number]) => `${count(number)} ${phase}`);
    if (this.total > this.list.length) parts.push(`${count(this.total - this.list.length)} more`);
    if (words.length) parts.push(`${count(found.length)} shown`);
    setText(byId("requests-summary"), parts.join(", "));
  }

  #select(row) {
    this.selected = row;
    this.asked = 0;
    this.onselect(row);
    byId("request-detail").replaceChildren();
    this.#explain();
  }

  /** What was known last of a request that has ended, or that the filter hides, stays. */
  #onGone() {
    this.selected = null;
    this.onselect(null);
  }

  async #explain() {
    const row = this.selected;
    const now = performance.now();
    if (now - this.asked < EXPLAIN_MS) return;
    this.asked = now;
    const query = new URLSearchParams({ id: row.id, tenant: row.tenant });
    try {
      const parts = explain(await getJson(`data/explain?${query}`));
      if (this.selected === row) byId("request-detail").replaceChildren(...parts);
    } catch {
      // It has just ended: the next list does not have it.
    }
  }
}

function matches(row, words) {
  const text = `${row.id} ${row.tenant} ${row.phase} ${row.cause}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Returns what is known of a request as terms and their values. Durations are texts such as "0.25s". */
function explain({ request, sequences = [], sharers = [], num_sharers: numSharers = 0, position, swapped_tokens: swapped }) {
  const lines = [["Request", request.request_id]];
  const timings = request.timings ?? {};
  lines.push(["Time so far", durations(timings, ["preprocess", "queue", "prefill", "decode", "preempted"])]);
  const waits = durations(timings.waits ?? {}, ["queue", "rows", "blocks", "budget", "trial", "adapter", "kv_transfer", "encoder", "client"]);
  if (waits) lines.push(["Waited for", waits]);
  if (position) {
    const wait = position.predicted_wait ? `, about ${duration(parseFloat(position.predicted_wait))} to go` : "";
    lines.push(["In the queue", `${count(position.sequences_ahead ?? 0)} sequences ahead with ${count(Number(position.tokens_ahead ?? 0))} tokens to compute${wait}`]);
  }
  if (request.deadline) lines.push(["Deadline in", duration(parseFloat(request.deadline))]);
  if (request.preemptions) lines.push(["Preempted", `${count(request.preemptions)} times${swapped ? `, ${count(swapped)} tokens kept in host memory` : ""}`]);
  for (const each of sequences) {
    lines.push([`Sequence ${each.index ?? 0}`, `${each.phase}, ${count(each.computed_tokens ?? 0)} of ${count(each.tokens ?? 0)} tokens computed, ${count(each.output_tokens ?? 0)} of output, ${count(each.blocks ?? 0)} blocks`]);
  }
  if (numSharers) {
    const named = sharers.map((each) => `${clipped(each.request_id, SHARER)} (${count(each.blocks)})`).join(", ");
    const rest = numSharers - sharers.length;
    lines.push(["Shares blocks with", `${named}${rest ? ` and ${count(rest)} more` : ""}`]);
  }
  if (request.trace_id) lines.push(["Trace", request.trace_id]);
  return [el("dl", {}, ...lines.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))];
}

function durations(values, names) {
  const present = names.filter((name) => parseFloat(values[name] ?? "0") > 0);
  return present.map((name) => `${name} ${duration(parseFloat(values[name]))}`).join(", ");
}
