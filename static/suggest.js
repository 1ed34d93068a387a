// Suggests terms and values in a field for a query. Without this script, the field has the suggestions of its datalist.
// `data-suggest` is the URL that returns suggestions for the text before the cursor.
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
  let terms = []; // the texts of the options
  let typing = 0;

  function close() {
    clearTimeout(typing);
    combobox.close();
  }

  async function ask() {
    const url = new URL(input.dataset.suggest, location.origin);
    url.searchParams.set("q", input.value.slice(0, input.selectionStart));
    const found = await combobox.ask(url);
    if (found === null || document.activeElement !== input) {
      return;
    }
    begin = found.begin;
    terms = found.options.map(({ text }) => text);
    if (terms.length === 0) {
      close();
    } else {
      combobox.show(found.options.map(({ text, help }) => [text, help]), ["mono", "note"], -1);
    }
  }

  function askSoon() {
    clearTimeout(typing);
    typing = setTimeout(ask, TYPING_MS);
  }

  // Replaces the term before the cursor. A name is followed by suggestions of values, and a value by a space.
  function choose(place) {
    const text = terms[place];
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
  input.setAttribute("autocomplete", "off");
  const combobox = new window.Combobox(input, box, list, status, { noun: "suggestion", first: -1, open: ask, choose });
  input.addEventListener("input", askSoon);
  input.addEventListener("click", askSoon);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !box.hidden) {
      event.preventDefault(); // keeps the text of the search field
      close();
    }
  });
})();
