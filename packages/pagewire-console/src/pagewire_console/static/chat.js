// The chat: streams an answer of the OpenAI endpoint of the same port, shows its tokens and how probable they were.

import { events } from "./connection.js";
import { byId, count, duration, el, percent, setText } from "./dom.js";
import { Pictures } from "./images.js";

const KNOBS = [
  ["temperature", "Temperature", 0.1, 0],
  ["top_p", "Top p", 0.05, 0],
  ["top_k", "Top k", 1, 0],
  ["min_p", "Min p", 0.01, 0],
  ["repetition_penalty", "Repetition penalty", 0.05, 0],
  ["presence_penalty", "Presence penalty", 0.1],
  ["frequency_penalty", "Frequency penalty", 0.1],
  ["max_tokens", "Max tokens", 1, 1],
  ["seed", "Seed", 1, 0],
  ["top_logprobs", "Candidates per token", 1, 0],
];
const CANDIDATES = 5; // per token, unless the form or the server says otherwise
const DEFAULTS = { max_tokens: "what the context leaves", seed: "drawn" };
const STEPS = 8; // shades of a token's probability, each half as probable as the one before
const OFFERS = ["What is the capital of Japan?", "Write a haiku about a river.", "Count from one to ten in French."];

/** The conversation, its form, and the view of tokens. */
export class Chat {
  constructor(about) {
    this.history = [];
    this.current = null;
    this.inputs = new Map();
    this.pictures = new Pictures();
    this.numCandidates = Math.min(CANDIDATES, about.max_logprobs);
    for (const [name, label, step, min] of KNOBS) this.#addKnob(name, label, step, min, about);
    this.stopInput = el("input", { type: "text", spellcheck: "false", autocomplete: "off" });
    byId("sampling").append(el("label", {}, "Stop string", this.stopInput));
    this.modelInput = el("input", { type: "text", list: "models", placeholder: about.model, spellcheck: "false", autocomplete: "off" });
    const models = el("datalist", { id: "models" }, ...about.adapters.map((value) => el("option", { value })));
    byId("sampling").append(el("label", {}, "Model or adapter", this.modelInput, models));
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.clear());
    byId("show-tokens").addEventListener("change", () => this.#showTokens());
    const shades = Array.from({ length: STEPS }, (_, step) => el("i", { class: `p${step}` }));
    byId("shades").replaceChildren("100 % ", ...shades, " below 1 %");
    this.#offer();
    this.#showTokens();
  }

  /** The id of the request that is being answered; "" for none. */
  get requestId() {
    return this.current?.id ?? "";
  }

  /** Ends the answer that is being written: the connection closes, and the service aborts the request. */
  stop() {
    this.current?.abort.abort();
  }

  /** Begins a new conversation. */
  clear() {
    this.stop();
    this.history = [];
    this.pictures.takeAll();
    this.#offer();
    setText(byId("token-detail"), "");
    byId("prompt").focus();
  }

  /** Sends what is in the form. */
  async send() {
    await this.pictures.read();
    const text = byId("prompt").value;
    if (this.current || !(text.trim() || this.pictures.waiting.length)) return;
    byId("prompt").value = "";
    const pictures = this.pictures.takeAll();
    byId("messages").querySelector(".offers")?.remove();
    const messages = this.history; // a new conversation may begin while this one is answered
    messages.push({ role: "user", content: pictures.length ? parts(pictures, text) : text });
    addMessage("user", text).body.before(...pictures.map((each) => each.view));
    const answer = new Answer();
    const id = `console-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    this.#setCurrent({ id, abort: new AbortController() });
    try {
      await this.#read(answer, messages);
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else answer.fail(error.message);
    }
    answer.close();
    if (answer.text) messages.push({ role: "assistant", content: answer.text });
    else messages.pop(); // what was not answered is not part of the next prompt
    this.#setCurrent(null);
  }

  /** Shows questions to begin with, in place of messages. */
  #offer() {
    const ask = (text) => {
      byId("prompt").value = text;
      this.send();
    };
    const buttons = OFFERS.map((text) => el("button", { type: "button", onclick: () => ask(text) }, text));
    byId("messages").replaceChildren(el("div", { class: "offers" }, el("p", { class: "hint" }, "Ask, for instance:"), ...buttons));
  }

  async #read(answer, messages) {
    const { id, abort } = this.current;
    const body = this.#body(messages);
    const headers = { "x-request-id": id };
    for await (const chunk of events("/v1/chat/completions", { body, headers, signal: abort.signal })) {
      if (chunk.error) throw new Error(chunk.error.message);
      answer.put(chunk);
    }
  }

  #body(messages) {
    const system = byId("system").value;
    const body = {
      messages: system.trim() ? [{ role: "system", content: system }, ...messages] : messages,
      stream: true,
      stream_options: { include_usage: true },
      logprobs: true,
      top_logprobs: this.numCandidates,
    };
    for (const [name, input] of this.inputs) if (input.value !== "") body[name] = Number(input.value);
    if (this.stopInput.value) body.stop = this.stopInput.value;
    if (this.modelInput.value.trim()) body.model = this.modelInput.value.trim();
    return body;
  }

  #setCurrent(current) {
    this.current = current;
    byId("stop").disabled = !current;
    byId("send").disabled = Boolean(current);
  }

  #showTokens() {
    byId("messages").classList.toggle("tokens", byId("show-tokens").checked);
    byId("shades").hidden = !byId("show-tokens").checked;
  }

  #addKnob(name, label, step, min, about) {
    const limits = { type: "number", step: "any", inputmode: "decimal", "data-step": step, min };
    const usual = name === "top_logprobs" ? this.numCandidates : (about.default_sampling[name] ?? DEFAULTS[name] ?? "");
    if (name === "top_logprobs") limits.max = about.max_logprobs;
    const input = el("input", { ...limits, placeholder: String(usual), name });
    this.inputs.set(name, input);
    byId("sampling").append(el("label", {}, label, input));
  }
}

/** Returns the parts of a message with pictures, which come before its text. */
function parts(pictures, text) {
  const found = pictures.map(({ uri: url }) => ({ type: "image_url", image_url: { url } }));
  return text.trim() ? [...found, { type: "text", text }] : found;
}

function addMessage(role, text) {
  const body = el("div", { class: "text" }, text);
  const item = el("article", { class: `message ${role}` }, el("h3", {}, role), body);
  byId("messages").append(item);
  item.scrollIntoView({ block: "nearest" });
  return { item, body };
}

/** One answer as it arrives. */
class Answer {
  constructor() {
    this.text = "";
    this.finish = "";
    this.begun = performance.now();
    this.first = null;
    this.usage = null;
    this.tokens = [];
    const { item, body } = addMessage("assistant", "");
    this.item = item;
    this.body = body;
    this.view = new TokenView(this.tokens);
    this.note = el("p", { class: "hint" });
    item.append(this.view.element, this.note);
  }

  put(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices) {
      const { delta } = choice;
      if (delta.reasoning_content) this.#reason(delta.reasoning_content);
      if (delta.content) {
        this.text += delta.content;
        this.body.append(delta.content);
      }
      for (const call of delta.tool_calls ?? []) this.body.append(call.function.name ?? "", call.function.arguments);
      for (const token of choice.logprobs?.content ?? []) this.view.put(token);
      if (choice.finish_reason) this.finish = choice.finish_reason;
    }
    if (this.first === null && this.tokens.length) this.first = performance.now();
    this.body.normalize();
    this.#follow();
  }

  fail(message) {
    this.item.append(el("p", { class: "error", role: "alert" }, message));
  }

  close() {
    const seconds = this.first === null ? 0 : (performance.now() - this.first) / 1e3;
    const length = this.usage?.completion_tokens ?? this.tokens.length;
    const parts = [`${count(length)} tokens`];
    if (seconds > 0 && length > 1) parts.push(`${count((length - 1) / seconds)} tokens/s`);
    if (this.first !== null) parts.push(`first after ${duration((this.first - this.begun) / 1e3)}`);
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (this.usage) parts.push(`prompt ${count(this.usage.prompt_tokens)}${cached ? ` (${count(cached)} cached)` : ""}`);
    if (this.finish) parts.push(this.finish);
    setText(this.note, parts.join(" · "));
    this.#follow();
  }

  #reason(text) {
    if (!this.reasoning) {
      this.reasoning = el("div", { class: "text" });
      this.body.before(el("details", { class: "reasoning", open: true }, el("summary", {}, "Reasoning"), this.reasoning));
    }
    this.reasoning.append(text);
    this.reasoning.normalize();
  }

  #follow() {
    const list = byId("messages");
    if (list.scrollHeight - list.scrollTop - list.clientHeight < 120) list.scrollTop = list.scrollHeight;
  }
}

/** The tokens of an answer, shaded by probability; one of them can be selected. */
class TokenView {
  constructor(tokens) {
    this.tokens = tokens;
    this.selected = -1;
    this.element = el("div", {
      class: "token-view text",
      tabindex: 0,
      role: "listbox",
      "aria-label": "Tokens; arrow keys select one",
      onkeydown: (event) => this.#onKey(event),
      onfocus: () => this.select(Math.max(this.selected, 0)),
      onpointerover: (event) => this.#onPointer(event),
      onclick: (event) => this.#onPointer(event),
    });
  }

  put(token) {
    const shade = Math.min(STEPS - 1, Math.floor(Math.min(-token.logprob / 0.7, STEPS - 1)));
    const shown = token.token.replaceAll("\n", "⏎\n");
    this.element.append(el("span", { class: `p${shade}`, role: "option", "data-place": this.tokens.length }, shown));
    this.tokens.push(token);
  }

  select(place) {
    if (!this.tokens.length) return;
    this.element.children[this.selected]?.removeAttribute("aria-selected");
    this.selected = Math.max(0, Math.min(place, this.tokens.length - 1));
    const span = this.element.children[this.selected];
    span.setAttribute("aria-selected", "true");
    byId("token-detail").replaceChildren(...describe(this.tokens[this.selected], this.selected));
  }

  #onKey(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.select(this.selected + step);
    this.element.children[this.selected]?.scrollIntoView({ block: "nearest" });
  }

  #onPointer(event) {
    const place = event.target.dataset?.place;
    if (place !== undefined) this.select(Number(place));
  }
}

function describe(token, place) {
  const parts = [el("span", { class: "muted" }, `token ${place + 1} `), el("b", {}, quoted(token.token)), ` ${percent(Math.exp(token.logprob))}`];
  const others = token.top_logprobs.filter((other) => other.token !== token.token);
  if (others.length) parts.push(el("span", { class: "muted" }, " instead of "));
  others.forEach((other, index) => {
    parts.push(`${index ? ", " : ""}${quoted(other.token)} ${percent(Math.exp(other.logprob))}`);
  });
  return parts;
}

function quoted(text) {
  return JSON.stringify(text);
}
