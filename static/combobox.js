// A text field with a list of options below it, as a combobox (ARIA 1.2): the arrow keys select an option, Enter and a
// click choose it. The focus stays in the field.
"use strict";

// *choose* is called with the place of the chosen option, and *open* at an arrow key while the list is closed. *first* is
// the place that is selected at first: 0, or -1 for none. With -1, the arrow keys also select none, between the last
// option and the first.
window.Combobox = class {
  constructor(input, box, list, status, { noun, first, open, choose }) {
    Object.assign(this, { input, box, list, status, noun, first, at: first, asking: null });
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step !== undefined) {
        event.preventDefault();
        if (box.hidden) {
          open();
        } else {
          this.select(this.at + step);
        }
      } else if (event.key === "Enter" && !event.isComposing && !box.hidden && this.at in list.children) {
        event.preventDefault();
        choose(this.at);
      }
    });
    list.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the focus in the field
    list.addEventListener("click", (event) => {
      const clicked = event.target.closest("[role=option]");
      if (clicked !== null) {
        choose([...list.children].indexOf(clicked));
      }
    });
    for (const [name, value] of Object.entries({
      role: "combobox", "aria-expanded": "false", "aria-controls": list.id, "aria-autocomplete": "list",
    })) {
      input.setAttribute(name, value);
    }
  }

  select(place) {
    const count = this.list.children.length;
    this.at = this.first < 0 ? (place + 1 + count + 1) % (count + 1) - 1 : Math.min(Math.max(place, 0), count - 1);
    [...this.list.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === this.at)));
    if (this.at < 0) {
      this.input.removeAttribute("aria-activedescendant");
    } else {
      this.input.setAttribute("aria-activedescendant", this.list.children[this.at].id);
      this.list.children[this.at].scrollIntoView({ block: "nearest" });
    }
  }

  // Shows *options*, each the texts of two elements with the classes in *classes*, and selects the one at *place*.
  show(options, classes, place) {
    this.list.replaceChildren(...options.map((texts, index) => {
      const option = document.createElement("li");
      const parts = texts.map((text, part) => {
        const element = document.createElement("span");
        element.className = classes[part];
        element.textContent = text;
        return element;
      });
      option.id = `${this.list.id}-${index}`;
      option.setAttribute("role", "option");
      option.append(parts[0], " ", parts[1]);
      return option;
    }));
    this.box.hidden = false;
    this.input.setAttribute("aria-expanded", String(options.length > 0));
    this.status.textContent = `${options.length} ${this.noun}${options.length === 1 ? "" : "s"}`;
    this.select(place);
  }

  close() {
    this.stopAsking();
    this.box.hidden = true;
    this.at = this.first;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
    this.status.textContent = "";
  }

  stopAsking() {
    this.asking?.abort();
    this.asking = null;
  }

  // Returns the JSON at *url*; null if a newer request has replaced this one, or the server does not respond.
  async ask(url) {
    const mine = new AbortController();
    this.stopAsking();
    this.asking = mine;
    try {
      const response = await fetch(url, { signal: mine.signal, cache: "no-store" });
      const found = response.ok ? await response.json() : null;
      return this.asking === mine ? found : null;
    } catch {
      return null;
    }
  }
};
