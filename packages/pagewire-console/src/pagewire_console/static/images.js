// Pictures of the next message: pasted or dropped, shown beside the form, and sent as data URIs. They are drawn, so
// that the page's policy allows images of its own port alone.

import { byId, el } from "./dom.js";

const LARGEST = 400; // pixels on a side of a picture as it is shown

/** The pictures that wait to be sent. */
export class Pictures {
  constructor() {
    this.waiting = [];
    this.reading = new Set(); // pictures that will wait, each with a promise
    const form = byId("ask");
    byId("prompt").addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    form.addEventListener("dragover", (event) => event.preventDefault());
    form.addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
  }

  /** Resolves when all that was pasted or dropped waits to be sent. */
  async read() {
    await Promise.allSettled([...this.reading].map((each) => each.added));
  }

  /** Returns all pictures, each with its data URI and a view of it. None waits any longer, or will. */
  takeAll() {
    const taken = this.waiting;
    this.waiting = [];
    this.reading.clear();
    this.#show();
    return taken;
  }

  /** Takes the pictures among what was pasted or dropped; text is left to the browser. */
  #take(event, given) {
    const files = [...(given?.files ?? [])].filter((file) => file.type.startsWith("image/"));
    if (!files.length) return;
    event.preventDefault();
    for (const file of files) {
      const picture = {};
      this.reading.add(picture);
      picture.added = this.#add(file, picture);
    }
  }

  async #add(file, picture) {
    const [uri, view] = await Promise.all([read(file), draw(file)]).catch(() => []);
    if (!this.reading.delete(picture) || !uri) return;
    this.waiting.push({ uri, view });
    this.#show();
  }

  #show() {
    const buttons = this.waiting.map((each, place) => {
      const remove = () => {
        this.waiting.splice(place, 1);
        this.#show();
      };
      return el("button", { type: "button", title: "Remove", "aria-label": "Remove picture", onclick: remove }, each.view);
    });
    byId("pictures").replaceChildren(...buttons);
  }
}

/** Returns the data URI of a file. */
function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

/** Returns a view of a picture, not larger than is shown; empty if the browser cannot read it. */
async function draw(file) {
  const canvas = el("canvas", { role: "img", "aria-label": file.name, width: 1, height: 1 });
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (bitmap) {
    const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
    canvas.width = Math.max(1, Math.round(scale * bitmap.width));
    canvas.height = Math.max(1, Math.round(scale * bitmap.height));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
  }
  return canvas;
}
