// Small DOM helpers. All strings are inserted as text, never as HTML.

export const $ = (id) => document.getElementById(id);

/** el("a", {href: "/", class: "x"}, "text", node, ...) */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Updates the rows of a list by key: `make` creates a row, `fill` updates it. The focus is kept. */
export class Keyed {
  constructor(parent, make, fill) {
    this.parent = parent;
    this.make = make;
    this.fill = fill;
    this.rows = new Map();
  }

  show(items, key = (item) => item.id) {
    const wanted = new Set(items.map(key));
    for (const [id, row] of this.rows) {
      if (!wanted.has(id)) {
        row.remove();
        this.rows.delete(id);
      }
    }
    let place = this.parent.firstElementChild;
    for (const item of items) {
      const id = key(item);
      let row = this.rows.get(id);
      if (!row) {
        row = this.make(item);
        this.rows.set(id, row);
      }
      this.fill(row, item);
      if (row === place) place = place.nextElementSibling;
      else this.parent.insertBefore(row, place);
    }
  }
}
