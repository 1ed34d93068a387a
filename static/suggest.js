// Suggests terms and values in a field for a query, as a combobox with a list (ARIA 1.2). Without this script, the field
// has the suggestions of its datalist. `data-suggest` is the URL that returns suggestions for the text before the cursor.
"use strict";

(() => {
  const TYPING_MS = 150;

  const input = document.querySelector("input[data-suggest]");
  if (input === null) {
    return;
  }
  const box = document.createElement("div");
  const list = document.createElement("ul");
  const status = document.createElement("p");

  let begin = 0; // where the term begins that the chosen option replaces
  let at = -1; // the selected option, or -1
  let asking = null; // the AbortController of the current request
  let typing = 0;

  function close() {
    clearTimeout(typing);
    asking?.abort();
    asking = null;
    box.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    status.textContent = "";
  }

  function select(place) {
    at = (place + 1 + list.children.length + 1) % (list.children.length + 1) - 1; // beyond the ends: none
    [...list.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === at)));
    if (at < 0) {
      input.removeAttribute("aria-activedescendant");
    } else {
      input.setAttribute("aria-activedescendant", list.children[at].id);
      list.children[at].scrollIntoView({ block: "nearest" });
    }
  }

  function option({ text, help }, index) {
    const element = document.createElement("li");
    const term = document.createElement("span");
    const note = document.createElement("span");
    element.id = `suggestion-${index}`;
    element.setAttribute("role", "option");
    element.dataset.text = text;
    term.className = "mono";
    term.textContent = text;
    note.className = "note";
    note.textContent = help;
    element.append(term, " ", note);
    return element;
  }

  function show(found) {
    begin = found.begin;
    list.replaceChildren(...found.options.map(option));
    if (found.options.length === 0) {
      close();
      return;
    }
    box.hidden = false;
    input.setAttribute("aria-expanded", "true");
    status.textContent = `${found.options.length} ${found.options.length === 1 ? "suggestion" : "suggestions"}`;
    select(-1);
  }

  async function ask() {
    const mine = new AbortController();
    const url = new URL(input.dataset.suggest, location.origin);
    url.searchParams.set("q", input.value.slice(0, input.selectionStart));
    asking?.abort();
    asking = mine;
    try {
      const response = await fetch(url, { signal: mine.signal, cache: "no-store" });
      const found = response.ok ? await response.json() : { begin: 0, options: [] };
      if (asking === mine && document.activeElement === input) {
        show(found);
      }
    } catch {
      // a newer request has replaced this one, or the server does not respond
    }
  }

  function askSoon() {
    clearTimeout(typing);
    typing = setTimeout(ask, TYPING_MS);
  }

  // Replaces the term before the cursor. After a name, the values follow; after a value, a space.
  function choose(chosen) {
    const { text } = chosen.dataset;
    const isName = text.endsWith(":");
    const rest = input.value.slice(input.selectionStart).replace(/^\S*/, "");
    const head = `${input.value.slice(0, begin)}${text}${isName || rest.startsWith(" ") ? "" : " "}`;
    input.value = head + rest;
    input.setSelectionRange(head.length, head.length);
    close();
    if (isName) {
      ask();
    }
  }

  input.addEventListener("input", askSoon);
  input.addEventListener("click", askSoon);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) {
      event.preventDefault();
      if (box.hidden) {
        ask();
      } else {
        select(at + moves[event.key]);
      }
    } else if (event.key === "Escape" && !box.hidden) {
      event.preventDefault(); // keeps the text of the search field
      close();
    } else if (event.key === "Enter" && !event.isComposing && !box.hidden && at >= 0) {
      event.preventDefault();
      choose(list.children[at]);
    }
  });
  list.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the focus in the field
  list.addEventListener("click", (event) => {
    const clicked = event.target.closest("[role=option]");
    if (clicked !== null) {
      choose(clicked);
    }
  });

  box.className = "menu-body palette suggestions";
  box.hidden = true;
  list.id = "suggestions";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Suggestions");
  status.className = "visually-hidden";
  status.setAttribute("role", "status");
  box.append(list);
  input.after(box, status);
  input.removeAttribute("list");
  for (const [name, value] of Object.entries({
    role: "combobox", "aria-expanded": "false", "aria-controls": "suggestions", "aria-autocomplete": "list",
    autocomplete: "off",
  })) {
    input.setAttribute(name, value);
  }
})();
