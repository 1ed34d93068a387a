// The search box of the header (Ctrl+K): finds a page, a tube, a job, or an action of this page. It does not execute an
// action: it moves the focus to the first field of its form. The elements with `data-palette` are the actions of a page.
// Without this script, the box opens a job by its id, or else searches.
"use strict";

(() => {
  const TYPING_MS = 100;
  const MAX_LOCAL = 8; // pages and actions shown for a text

  const form = document.getElementById("palette");
  if (form === null) {
    return; // the visitor is not signed in
  }
  const input = document.getElementById("find");
  const body = document.getElementById("palette-body");
  const list = document.getElementById("palette-list");
  const status = document.getElementById("palette-status");
  const combobox = new window.Combobox(input, body, list, status, { noun: "result", first: 0, open, choose });

  let shown = []; // the options in the list: {kind, label, run}
  let tubes = []; // tubes in the last response of the server
  let typing = 0;

  // Whether *label* has the characters of *text* in this order, ignoring case. The server finds tubes in the same way.
  function matches(label, text) {
    let from = 0;
    const inside = label.toLowerCase();
    return [...text.toLowerCase()].every((mark) => {
      const place = inside.indexOf(mark, from);
      from = place + 1;
      return place >= 0;
    });
  }

  function address(path, name, value) {
    const url = new URL(path, location.origin);
    url.searchParams.set(name, value);
    return url;
  }

  function go(url) {
    return () => location.assign(url);
  }

  // Opens the details around *element*, and moves the focus to the first control after it.
  function visit(element) {
    for (let outer = element.closest("details"); outer !== null; outer = outer.parentElement.closest("details")) {
      outer.open = true;
    }
    const panel = element.closest("details, section, form");
    const controls = [...panel.querySelectorAll("input:not([type=hidden]), select, textarea, button, a[href]")];
    const first = controls.find((control) => control.offsetParent !== null && !control.disabled);
    (first ?? element).scrollIntoView({ block: "center" });
    first?.focus();
  }

  function pages() {
    return [...document.querySelectorAll(".pages a, .user-menu a")].map((link) => ({
      kind: "Page",
      label: link.firstChild.textContent.trim(), // without the count after it
      run: go(link.href),
    }));
  }

  function actions() {
    const found = [...document.querySelectorAll("[data-palette]")].filter((one) => one.closest("[hidden]") === null);
    return found.map((element) => ({
      kind: "Action",
      label: element.dataset.palette || element.textContent.trim(),
      run: () => visit(element),
    }));
  }

  function options(text) {
    const local = [...actions(), ...pages()].filter((one) => matches(one.label, text));
    const found = text === "" ? local : local.slice(0, MAX_LOCAL);
    if (/^[0-9]{1,20}$/.test(text)) {
      found.unshift({ kind: "Job", label: text, run: go(address(form.dataset.job, "id", text)) });
    }
    found.push(...tubes.map((name) => ({ kind: "Tube", label: name, run: go(address(form.dataset.tube, "tube", name)) })));
    if (text !== "") {
      found.push({ kind: "Search", label: text, run: go(address(form.dataset.search, "q", text)) });
    }
    return found;
  }

  function show(place) {
    shown = options(input.value.trim());
    combobox.show(shown.map(({ kind, label }) => [kind, label]), ["kind", ""], place);
  }

  async function find() {
    const text = input.value.trim();
    const found = text === "" ? null : await combobox.ask(address(form.dataset.find, "q", text));
    if (found !== null && !body.hidden) {
      tubes = found.tubes;
      show(combobox.at);
    }
  }

  function choose(place) {
    combobox.close();
    input.value = "";
    input.blur();
    shown[place].run();
  }

  function open() {
    if (body.hidden && document.querySelector("dialog[open]") === null) {
      tubes = [];
      input.focus();
      input.select();
      show(0);
      find();
    }
  }

  input.addEventListener("input", () => {
    const text = input.value.trim();
    combobox.stopAsking();
    tubes = tubes.filter((name) => text !== "" && matches(name, text));
    show(0);
    clearTimeout(typing);
    typing = setTimeout(find, TYPING_MS);
  });

  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      combobox.close();
      input.blur();
    }
  });

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key === "k") {
      event.preventDefault();
      open();
    }
  });

  input.addEventListener("click", open);
  form.addEventListener("focusout", (event) => {
    if (!form.contains(event.relatedTarget)) {
      combobox.close();
    }
  });
})();
