// Plots of the last minutes, as SVG: a line per series, the axis from zero, the value under the pointer in words. A spike
// is cut off, and its value written: it would flatten everything else.

import { byId, count, duration, el, percent, setText, svg } from "./dom.js";

const HEIGHT = 84;
const LEFT = 44;
const BOTTOM = 14;
const TOP = 5;
const CUT = 3; // a plot is at most so many times as high as all but the highest 2 % of its values
const PLOTS = [
  ["Output tokens per second, mean of 10 s", count, [["output", "output_tokens_per_second"]]],
  ["Requests", count, [["running", "running"], ["waiting", "waiting"]]],
  ["Time to first token", duration, [["median", "first_token_p50"], ["95 %", "first_token_p95"]]],
  ["Between tokens", duration, [["median", "inter_token_p50"], ["95 %", "inter_token_p95"]]],
  ["KV cache held", percent, [["held", "kv_usage"]], 1],
  ["Drafted tokens accepted", percent, [["accepted", "acceptance"]], 1],
];

/** All plots, and the samples that they show. */
export class Plots {
  constructor() {
    this.columns = [];
    this.rows = [];
    this.length = 1;
    this.plots = PLOTS.map((plot) => new Plot(...plot));
    byId("plots").replaceChildren(...this.plots.map((plot) => plot.element));
    new ResizeObserver(() => this.draw()).observe(byId("plots"));
  }

  /** Replaces all samples. history: {columns, rows, length}, one row per interval, the newest last. */
  begin(history) {
    Object.assign(this, history);
    this.draw();
  }

  /** Appends samples: a value or null per column. */
  add(rows) {
    this.rows.push(...rows);
    this.rows.splice(0, Math.max(this.rows.length - this.length, 0));
    if (rows.length) this.draw();
  }

  draw() {
    for (const plot of this.plots) plot.draw(this);
  }
}

class Plot {
  constructor(title, format, series, top) {
    this.format = format;
    this.top = top;
    this.series = series.map(([name, column], index) => {
      const value = el("b");
      return { name, column, value, path: svg("path", { class: `line s${index}` }), key: el("span", { class: `key s${index}` }, value, ` ${name}`) };
    });
    this.when = el("span", { class: "muted" });
    this.svg = svg("svg", { height: HEIGHT, role: "img", "aria-label": title });
    this.grid = svg("path", { class: "grid" });
    this.labels = [0, 1, 2].map(() => svg("text", { x: LEFT - 6, "text-anchor": "end" }));
    this.times = [0, 1, 2].map((place) => svg("text", { y: HEIGHT - 2, "text-anchor": ["start", "middle", "end"][place] }));
    this.cursor = svg("path", { class: "cursor" });
    this.note = svg("text", { x: LEFT + 4, y: TOP + 11 });
    this.svg.append(this.grid, this.note, ...this.labels, ...this.times, ...this.series.map((each) => each.path), this.cursor);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#point(null));
    const legend = el("span", { class: "keys" }, ...this.series.map((each) => each.key), this.when);
    this.element = el("figure", {}, el("figcaption", {}, el("span", {}, title), legend), this.svg);
    this.pointed = null;
  }

  draw(data) {
    this.data = data;
    const width = Math.max(this.element.clientWidth, LEFT + 40);
    const places = this.series.map((each) => data.columns.indexOf(each.column));
    const values = data.rows.flatMap((row) => places.map((place) => row[place] ?? null)).filter((value) => value !== null);
    const most = Math.max(0, ...values);
    const top = this.top ?? niceAbove(mostOf(values), this.format === count);
    setText(this.note, values.length ? (most > top ? `peak ${this.format(most)}` : "") : "no values yet");
    this.scale = { width, top, step: (width - LEFT - 2) / Math.max(data.length - 1, 1) };
    this.#drawAxis();
    this.series.forEach((each, index) => each.path.setAttribute("d", this.#line(places[index])));
    this.#show();
  }

  #x(place) {
    return LEFT + (place + this.data.length - this.data.rows.length) * this.scale.step;
  }

  #y(value) {
    return TOP + (1 - Math.min(value / this.scale.top, 1)) * (HEIGHT - TOP - BOTTOM);
  }

  #line(column) {
    let path = "";
    let down = false;
    this.data.rows.forEach((row, place) => {
      const value = row[column] ?? null;
      if (value !== null) path += `${down ? "L" : "M"}${this.#x(place).toFixed(1)} ${this.#y(value).toFixed(1)}${down ? "" : "h.1"}`;
      down = value !== null;
    });
    return path;
  }

  #drawAxis() {
    const { width, top } = this.scale;
    this.svg.setAttribute("width", width);
    let path = "";
    [0, 0.5, 1].forEach((share, index) => {
      const y = Math.round(this.#y(share * top)) + 0.5;
      path += `M${LEFT} ${y}H${width}`;
      this.labels[index].setAttribute("y", y + 3.5);
      setText(this.labels[index], share === 0 ? "0" : this.format(share * top));
    });
    this.grid.setAttribute("d", path);
    const span = this.data.length * (this.data.interval ?? 1);
    [LEFT, (LEFT + width) / 2, width - 1].forEach((x, index) => this.times[index].setAttribute("x", x));
    ["start", "middle"].forEach((_, index) => setText(this.times[index], `−${duration(span / (index + 1)).replace(" 00 s", "")}`));
    setText(this.times[2], "now");
  }

  #point(event) {
    if (event === null || !this.data) this.pointed = null;
    else {
      const x = event.clientX - this.svg.getBoundingClientRect().left;
      const offset = this.data.length - this.data.rows.length;
      const place = Math.min(Math.round((x - LEFT) / this.scale.step) - offset, this.data.rows.length - 1);
      this.pointed = place >= 0 ? this.data.rows.length - 1 - place : null;
    }
    this.#show();
  }

  #show() {
    if (!this.data) return;
    const { rows, columns, interval } = this.data;
    const back = this.pointed ?? 0;
    const row = rows[rows.length - 1 - back] ?? [];
    for (const each of this.series) setText(each.value, this.format(row[columns.indexOf(each.column)] ?? null));
    const when = back ? `${duration(back * (interval ?? 1))} ago` : "now";
    setText(this.when, this.pointed === null ? "" : when);
    const x = this.pointed === null ? null : this.#x(rows.length - 1 - back).toFixed(1);
    this.cursor.setAttribute("d", x === null ? "" : `M${x} ${TOP}V${HEIGHT - BOTTOM}`);
  }
}

/** Returns the highest value, or less where few values are much higher than the others. */
function mostOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const usual = sorted[Math.floor(0.98 * (sorted.length - 1))] ?? 0;
  const most = sorted.at(-1) ?? 0;
  return usual > 0 ? Math.min(most, CUT * usual) : most;
}

function niceAbove(value, whole) {
  if (!(value > 0)) return whole ? 2 : 0.01;
  const unit = 10 ** Math.floor(Math.log10(value));
  const top = [1, 2, 4, 5, 10].find((step) => step * unit >= value * 1.02) ?? 20;
  return Math.max(top * unit, whole ? 2 : 0);
}
