// Keyboard shortcuts, listed in a dialog on every page. They are inactive in text fields and with modifier keys. The
// dialog can turn them off, because speech input may type letters unintentionally.
"use strict";

(() => {
  const GO_MS = 1500; // longest time between `g` and the letter of a page
  const OFF = "shortcuts-off"; // key in the browser's storage

  const help = document.getElementById("keys");
  const opener = document.getElementById("keys-open");
  const choice = document.getElementById("keys-on");

  let goUntil = 0;

  // Reading localStorage throws if the browser blocks storage.
  function isOff() {
    try {
      return localStorage.getItem(OFF) !== null;
    } catch {
      return false;
    }
  }

  function keep(isOn) {
    try {
      if (isOn) {
        localStorage.removeItem(OFF);
      } else {
        localStorage.setItem(OFF, "1");
      }
    } catch {
      // applies to this page only
    }
  }

  function isTyping(element) {
    return element.closest("input:not([type=checkbox], [type=radio]), select, textarea") !== null;
  }

  function page(letter) {
    return document.querySelector(`.pages [data-go="${letter}"]`);
  }

  function open() {
    document.getElementById("settings").open = false;
    choice.checked = isOn;
    help.showModal();
  }

  function find() {
    const fields = [...document.querySelectorAll("main input[type=search]")];
    const field = fields.find((one) => one.offsetParent !== null);
    const box = field ?? document.getElementById("find");
    box?.focus();
    box?.select();
  }

  function links() {
    const rows = [...document.querySelectorAll("main table.table tbody tr")];
    const found = rows.map((row) => row.querySelector("th a") ?? row.querySelector("a"));
    return found.filter((link) => link !== null && link.offsetParent !== null);
  }

  function move(step) {
    const there = links();
    const at = there.findIndex((link) => link.closest("tr").contains(document.activeElement));
    const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), there.length - 1);
    there[next]?.focus();
  }

  function row() {
    return document.activeElement.closest("tbody tr");
  }

  function tick() {
    row()?.querySelector("td.tick input")?.click();
  }

  // Prepares an action on the selected rows, or on the focused row if none is selected. The page of the preview asks for
  // confirmation; a move needs a destination first.
  function prepare(action) {
    const form = document.getElementById("bulk");
    if (form === null) {
      return;
    }
    if (document.querySelector('td.tick input[form="bulk"]:checked') === null) {
      tick();
    }
    if (document.querySelector('td.tick input[form="bulk"]:checked') === null) {
      return;
    }
    form.elements.scope.value = "ticked";
    form.elements.action.value = action;
    form.elements.action.dispatchEvent(new Event("change", { bubbles: true }));
    document.getElementById("bulk-panel").open = true;
    if (action === "move") {
      form.elements.to.focus();
    } else {
      form.requestSubmit();
    }
  }

  // A live page requests its whole state again; any other page is reloaded.
  function reload() {
    if (document.getElementById("live") === null) {
      location.reload();
    } else {
      document.dispatchEvent(new Event("refresh"));
    }
  }

  const actions = {
    "/": find,
    "?": open,
    j: () => move(1),
    k: () => move(-1),
    r: reload,
    x: tick,
    K: () => prepare("kick"),
    d: () => prepare("delete"),
    m: () => prepare("move"),
    g: () => {
      goUntil = Date.now() + GO_MS;
    },
  };

  let isOn = !isOff();

  document.addEventListener("keydown", (event) => {
    if (!isOn || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) {
      return;
    }
    if (document.querySelector("dialog[open]") !== null || isTyping(event.target)) {
      return;
    }
    const link = Date.now() < goUntil ? page(CSS.escape(event.key)) : null;
    goUntil = 0;
    const act = link === null ? actions[event.key] : () => link.click();
    if (act !== undefined) {
      event.preventDefault();
      act();
    }
  });

  choice.addEventListener("change", () => {
    isOn = choice.checked;
    keep(isOn);
  });
  opener.addEventListener("click", open);
  document.getElementById("keys-close").addEventListener("click", () => help.close());
  opener.hidden = false;
})();
