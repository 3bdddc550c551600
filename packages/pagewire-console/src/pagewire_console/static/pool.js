// The KV cache as a picture: a cell per block, or per range of blocks, filled by what its blocks are.

import { byId, count, el, percent, setText } from "./dom.js";

const STATES = ["shared", "held", "cached", "free"];
const MEANING = {
  shared: "held by several sequences",
  held: "held by one sequence",
  cached: "held by none; their content is known and kept until the memory is needed",
  free: "held by none, without content",
};
const SIZES = [14, 12, 10, 8, 7, 6, 5, 4, 3];
const MOST_HEIGHT = 150;

/** The maps of all engines, and their legend. */
export class Pools {
  constructor() {
    this.maps = new Map();
    this.numbers = Object.fromEntries(STATES.map((state) => [state, el("b")]));
    const keys = STATES.map((state) => el("span", { class: state, title: MEANING[state] }, this.numbers[state], ` ${state}`));
    byId("kv-legend").replaceChildren(...keys);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(byId("kv-maps"));
  }

  /** Shows the pools; see pools_view of the server. */
  update(pools) {
    const ranks = new Set(pools.map((pool) => pool.rank));
    for (const [rank, map] of this.maps) {
      if (ranks.has(rank)) continue;
      map.element.remove();
      this.maps.delete(rank);
    }
    const sums = { shared: 0, held: 0, cached: 0, free: 0 };
    for (const pool of pools) {
      if (!this.maps.has(pool.rank)) {
        this.maps.set(pool.rank, new PoolMap());
        byId("kv-maps").append(this.maps.get(pool.rank).element);
      }
      this.maps.get(pool.rank).update(pool);
      sums.shared += pool.shared;
      sums.held += pool.held - pool.shared;
      sums.cached += pool.cached;
      sums.free += pool.num_blocks - pool.held - pool.cached;
    }
    for (const state of STATES) setText(this.numbers[state], count(sums[state]));
  }

  /** Marks the blocks of a request; null: of none. */
  mark(request) {
    for (const map of this.maps.values()) map.mark(request);
  }

  draw() {
    for (const map of this.maps.values()) map.draw();
  }
}

class PoolMap {
  constructor() {
    this.title = el("p");
    this.canvas = el("canvas", { role: "img" });
    this.element = el("div", { class: "pool" }, this.title, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.#describe(event));
    this.canvas.addEventListener("pointerleave", () => setText(byId("kv-detail"), ""));
    this.marked = null;
    this.pool = null;
  }

  update(pool) {
    this.pool = pool;
    const share = percent(pool.held / Math.max(pool.num_blocks, 1));
    const host = pool.host ? `; host memory: ${count(pool.used_host)} of ${count(pool.host)}` : "";
    const text = `Engine ${pool.rank}: ${count(pool.held)} of ${count(pool.num_blocks)} blocks of ${pool.block_size} tokens held (${share})${host}`;
    setText(this.title, text);
    this.canvas.setAttribute("aria-label", `${text}; ${count(pool.shared)} shared, ${count(pool.cached)} cached`);
    this.draw();
  }

  mark(request) {
    this.marked = request;
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!this.pool || !width) return;
    const cells = this.pool.cells[0].length;
    const size = SIZES.find((each) => Math.ceil(cells / Math.floor(width / each)) * each <= MOST_HEIGHT) ?? SIZES.at(-1);
    const columns = Math.floor(width / size);
    const height = Math.ceil(cells / columns) * size;
    this.grid = { size, columns };
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(this.element);
    const colors = STATES.map((state) => style.getPropertyValue(`--${state}`));
    context.strokeStyle = style.getPropertyValue("--mark");
    const side = size - (size > 4 ? 1 : 0.5);
    for (let cell = 0; cell < cells; cell++) {
      const x = (cell % columns) * size;
      const y = Math.floor(cell / columns) * size;
      let top = 0;
      this.#counts(cell).forEach((number, state) => {
        const part = (side * number) / this.#size(cell);
        context.fillStyle = colors[state];
        if (part > 0) context.fillRect(x, y + top, side, part);
        top += part;
      });
      if (this.#isMarked(cell)) context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    }
  }

  /** Blocks of a cell: the last one may have fewer. */
  #size(cell) {
    return Math.min(this.pool.per_cell, this.pool.num_blocks - cell * this.pool.per_cell);
  }

  /** Blocks of a cell by state, in the order of STATES. */
  #counts(cell) {
    const [held, shared, cached] = this.pool.cells.map((column) => column[cell]);
    return [shared, held - shared, cached, this.#size(cell) - held - cached];
  }

  #holder(cell) {
    const number = this.pool.cells[3][cell];
    return number ? this.pool.holders[number - 1] : null;
  }

  #isMarked(cell) {
    const holder = this.marked && this.marked.rank === this.pool.rank ? this.#holder(cell) : null;
    return Boolean(holder) && holder[0] === this.marked.id && holder[1] === this.marked.tenant;
  }

  #describe(event) {
    if (!this.grid) return;
    const column = Math.floor(event.offsetX / this.grid.size);
    const cell = Math.floor(event.offsetY / this.grid.size) * this.grid.columns + column;
    if (column >= this.grid.columns || cell >= this.pool.cells[0].length) return;
    const first = cell * this.pool.per_cell;
    const last = first + this.#size(cell) - 1;
    const counts = this.#counts(cell);
    const states = STATES.map((state, place) => [state, counts[place]]).filter(([, number]) => number);
    const what = last > first ? states.map(([state, number]) => `${number} ${state}`).join(", ") : states[0][0];
    const holder = this.#holder(cell);
    const by = holder ? `; ${last > first ? "most by" : "by"} ${holder[1] ? `${holder[1]}/` : ""}${holder[0]}` : "";
    setText(byId("kv-detail"), `${last > first ? `Blocks ${first} to ${last}` : `Block ${first}`}: ${what}${by}`);
  }
}
