// A table whose rows are kept from one update to the next: only cells whose text has changed are written, so that
// 500 rows a second cost little, and a selected row stays selected.

import { el, setText } from "./dom.js";

/**
 * A table. columns: {label, show(row), sort(row), class}. options: key(row), empty: what stands for no rows,
 * onselect(row) where rows can be selected, ongone() when the selected one is not there any more.
 */
export class Table {
  constructor(parent, columns, options) {
    this.columns = columns;
    this.options = options;
    this.rows = new Map(); // key -> {element, cells, data}
    this.sorted = { column: null, down: false };
    this.selected = null;
    this.heads = columns.map((column) => this.#head(column));
    this.body = el("tbody");
    this.empty = el("p", { class: "hint" }, options.empty);
    this.table = el("table", {}, el("thead", {}, el("tr", {}, ...this.heads)), this.body);
    parent.replaceChildren(this.table, this.empty);
    if (options.onselect) {
      this.body.addEventListener("click", (event) => this.#onClick(event));
      this.body.addEventListener("keydown", (event) => this.#onKey(event));
    }
  }

  /** Shows these rows, in this order unless a column is chosen to sort by. */
  update(list) {
    const { column, down } = this.sorted;
    if (column) {
      const value = column.sort ?? column.show;
      list = [...list].sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
    }
    const focused = document.activeElement;
    const byKey = new Map(list.map((data) => [this.options.key(data), data]));
    for (const [key, row] of this.rows) if (!byKey.has(key)) this.#remove(key, row);
    let place = this.body.firstElementChild;
    for (const [key, data] of byKey) {
      const row = this.rows.get(key) ?? this.#add(key);
      row.data = data;
      this.columns.forEach((each, index) => setText(row.cells[index], String(each.show(data))));
      if (row.element === place) place = place.nextElementSibling;
      else this.body.insertBefore(row.element, place);
    }
    if (this.body.contains(focused)) focused.focus({ preventScroll: true }); // a row that has moved lost it
    this.empty.hidden = list.length > 0;
    this.table.hidden = list.length === 0;
    const first = this.body.firstElementChild;
    if (first && this.options.onselect && !this.body.querySelector('[tabindex="0"]')) first.tabIndex = 0;
  }

  #add(key) {
    const cells = this.columns.map((column) => el("td", { class: column.class ?? "" }));
    const element = el("tr", this.options.onselect ? { tabindex: -1, "data-key": key } : {}, ...cells);
    const row = { element, cells, data: null };
    this.rows.set(key, row);
    return row;
  }

  #remove(key, row) {
    const next = row.element.nextElementSibling ?? row.element.previousElementSibling;
    if (row.element === document.activeElement && next) {
      next.tabIndex = 0; // so that the keyboard stays in the table
      next.focus({ preventScroll: true });
    }
    row.element.remove();
    this.rows.delete(key);
    if (this.selected !== key) return;
    this.selected = null;
    this.options.ongone();
  }

  #head(column) {
    const button = el("button", { type: "button" }, column.label);
    const head = el("th", { scope: "col", class: column.class ?? "", "aria-sort": "none" }, button);
    button.addEventListener("click", () => {
      const down = this.sorted.column === column && !this.sorted.down;
      this.sorted = { column, down };
      for (const each of this.heads) each.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      this.update([...this.body.children].map((row) => this.#rowOf(row).data));
    });
    return head;
  }

  #rowOf(element) {
    for (const row of this.rows.values()) if (row.element === element) return row;
    return null;
  }

  #choose(element) {
    for (const each of this.body.querySelectorAll('[tabindex="0"]')) {
      each.tabIndex = -1;
      each.removeAttribute("aria-selected");
    }
    this.selected = element.dataset.key;
    element.tabIndex = 0;
    element.setAttribute("aria-selected", "true");
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "nearest" });
    this.options.onselect(this.#rowOf(element).data);
  }

  #onClick(event) {
    const row = event.target.closest("tr");
    if (row) this.#choose(row);
  }

  #onKey(event) {
    const row = event.target.closest("tr");
    const next = {
      ArrowDown: row?.nextElementSibling,
      ArrowUp: row?.previousElementSibling,
      Home: this.body.firstElementChild,
      End: this.body.lastElementChild,
      Enter: row,
    }[event.key];
    if (!next) return;
    event.preventDefault();
    this.#choose(next);
  }
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
