// The page: signs in where the service wants a token, then follows the live stream and hands its parts on.

import { Chat } from "./chat.js";
import { events, getJson, NeedsToken, token } from "./connection.js";
import { byId, clock, count, duration, el, percent, setText } from "./dom.js";
import { Plots } from "./plots.js";
import { Pools } from "./pool.js";
import { Requests } from "./requests.js";
import { Table } from "./table.js";

const RETRY_MS = 1000;
const SLOWEST_RETRY_MS = 10000;
const FOR_OPERATORS = ["load", "kv", "tenants", "adapters", "engines", "log"];

const TENANTS = [
  { label: "Tenant", show: (row) => row.tenant || "(none)" },
  { label: "Requests", class: "number", show: (row) => count(row.requests), sort: (row) => row.requests },
  { label: "Running", class: "number", show: (row) => count(row.running), sort: (row) => row.running },
  { label: "Waiting", class: "number", show: (row) => count(row.waiting), sort: (row) => row.waiting },
  { label: "To compute", class: "number secondary", show: (row) => count(row.waiting_tokens), sort: (row) => row.waiting_tokens },
  { label: "Weight", class: "number", show: (row) => (row.weight ? count(row.weight) : "–"), sort: (row) => row.weight },
  { label: "Share", class: "number", show: (row) => (row.share ? percent(row.share) : "–"), sort: (row) => row.share },
  { label: "Served", class: "number secondary", show: (row) => count(Math.round(row.served)), sort: (row) => row.served },
  { label: "Engine", class: "number", show: (row) => row.rank, sort: (row) => row.rank },
];
const ADAPTERS = [
  { label: "Adapter", show: (row) => row.name },
  { label: "Tenants", class: "secondary", show: (row) => row.tenants.join(", ") || "all" },
  { label: "Loaded", show: (row) => (row.loaded ? "yes" : "no") },
  { label: "Pinned", class: "secondary", show: (row) => (row.pinned ? "yes" : "no") },
  { label: "Requests", class: "number", show: (row) => count(row.requests), sort: (row) => row.requests },
  { label: "Rank", class: "number", show: (row) => count(row.rank), sort: (row) => row.rank },
  { label: "MiB", class: "number", show: (row) => count(row.bytes / 1048576), sort: (row) => row.bytes },
  { label: "Digest", class: "secondary", show: (row) => row.digest.slice(0, 12) },
];
const ENGINES = [
  { label: "Engine", show: (row) => row.rank },
  { label: "State", show: (row) => (row.unanswered > 1 ? `${row.state}, ${row.unanswered} heartbeats missed` : row.state) },
  { label: "Worker", show: (row) => row.device || "–" },
  { label: "Up", show: (row) => (row.since ? duration(Date.now() / 1e3 - row.since) : "–") },
  { label: "Running", class: "number", show: (row) => count(row.running), sort: (row) => row.running ?? -1 },
  { label: "Waiting", class: "number", show: (row) => count(row.waiting), sort: (row) => row.waiting ?? -1 },
  { label: "Tokens/s", class: "number", show: (row) => count(row.tokens_per_second), sort: (row) => row.tokens_per_second ?? -1 },
  { label: "Cache hits", class: "number secondary", show: (row) => percent(row.hit_rate) },
  { label: "Preempted", class: "number secondary", show: (row) => count(row.preemptions) },
  { label: "Refused", class: "number secondary", show: (row) => count(row.refused) },
  { label: "Version", class: "secondary", show: (row) => row.version },
];
const LOG = [
  { label: "Time", show: (row) => clock(row.time) },
  { label: "Engine", show: (row) => row.rank },
  { label: "What", show: (row) => row.what },
  { label: "Requests", class: "number", show: (row) => (row.requests ? count(row.requests) : "") },
];

class Console {
  constructor(about) {
    this.about = about;
    this.stopped = null;
    this.requests = new Requests((row) => this.pools.mark(row));
    this.pools = new Pools();
    this.plots = new Plots();
    this.tenants = new Table(byId("tenants-table"), TENANTS, { key: (row) => `${row.rank}/${row.tenant}`, empty: "None has requests in flight." });
    this.adapters = new Table(byId("adapters-table"), ADAPTERS, { key: (row) => row.name, empty: "None has a name." });
    this.engines = new Table(byId("engines-table"), ENGINES, { key: (row) => String(row.rank), empty: "No engine is connected." });
    this.log = new Table(byId("log-table"), LOG, { key: (row) => `${row.time}/${row.rank}/${row.what}`, empty: "None since this frontend started." });
    this.chat = new Chat(about);
    this.#arrange();
    document.addEventListener("visibilitychange", () => this.stopped?.());
    document.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Follows the live stream until the service wants another token. A hidden page follows nothing. */
  async follow() {
    for (let pause = RETRY_MS; ; pause = Math.min(2 * pause, SLOWEST_RETRY_MS)) {
      const abort = new AbortController();
      try {
        if (document.hidden) await new Promise((resolve) => (this.stopped = resolve));
        this.stopped = () => document.hidden && abort.abort();
        for await (const message of events("data/live", { signal: abort.signal })) {
          this[`on_${message.kind}`](message);
          pause = RETRY_MS;
        }
      } catch (error) {
        if (error instanceof NeedsToken) throw error;
        if (error.name !== "AbortError") this.#setStatus("bad", `not connected: ${error.message}`);
      }
      if (!document.hidden) await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  on_history(history) {
    this.plots.begin(history);
  }

  on_now(now) {
    this.#setStatus(now.state === "serving" ? "good" : "bad", now.state);
    this.plots.add(now.samples ?? []);
    this.requests.update(now.requests);
    if (Boolean(now.tenants) !== this.about.is_operator) location.reload(); // the token allows something else now
    if (!now.tenants) return;
    this.tenants.update(now.tenants);
    this.engines.update(now.engines);
    this.log.update(now.log);
  }

  on_pool(pool) {
    this.pools.update(pool.pools);
  }

  on_adapters({ adapters, total }) {
    this.adapters.update(adapters);
    setText(byId("adapters-summary"), total > adapters.length ? `${count(adapters.length)} of ${count(total)}` : "");
  }

  #setStatus(kind, text) {
    if (!this.status) {
      this.status = el("span");
      this.rest = el("span");
      byId("status").replaceChildren(this.status, this.rest);
    }
    this.status.className = kind;
    setText(this.status, text);
    const up = duration(Date.now() / 1e3 - this.about.start_time);
    setText(this.rest, ` · up ${up} · version ${this.about.version}${this.about.tenant ? ` · ${this.about.tenant}` : ""}`);
  }

  #arrange() {
    setText(byId("model"), this.about.model);
    document.title = `${this.about.model} · pagewire`;
    for (const name of FOR_OPERATORS) byId(name).hidden = !this.about.is_operator;
    byId("requests").hidden = !this.about.sees_requests;
    byId("main").classList.toggle("only-chat", !this.about.sees_requests);
    const sections = [...document.querySelectorAll("section")].filter((section) => !section.hidden);
    byId("nav").replaceChildren(...sections.map((section) => el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
  }

  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") this.chat.stop();
    if (event.target.closest("input, textarea, select")) return;
    const target = { c: "prompt", "/": "filter" }[event.key];
    if (!target) return;
    event.preventDefault();
    byId(target).focus();
  }
}

async function askForToken(reason) {
  byId("main").hidden = true;
  byId("sign-in").hidden = false;
  setText(byId("sign-in-reason"), token.get() ? reason : "This service answers requests with a token only.");
  token.forget();
  byId("token").value = "";
  byId("token").focus();
  await new Promise((resolve) => {
    byId("sign-in").onsubmit = (event) => {
      event.preventDefault();
      token.set(byId("token").value);
      resolve();
    };
  });
  byId("sign-in").hidden = true;
}

async function start() {
  let page = null;
  for (;;) {
    try {
      const about = await getJson("data/about");
      byId("main").hidden = false;
      if (page && page.about.tenant !== about.tenant) location.reload(); // another caller has another page
      page ??= new Console(about);
      await page.follow();
    } catch (error) {
      if (error instanceof NeedsToken) await askForToken(error.message);
      else {
        setText(byId("status"), `not connected: ${error.message}`);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }
}

start();
