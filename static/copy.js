// “Copy as command”: updates the shown commands when the form changes, and copies them.
// The server renders the commands (web/pages/commands.py).
"use strict";

(() => {
  const TYPING_MS = 200;
  const SAID_MS = 2000;

  let typing = 0;

  function show(details, texts) {
    for (const figure of details.querySelectorAll("[data-command]")) {
      const text = figure.dataset.command === "curl" ? texts.curl : texts.ctl;
      figure.querySelector("code").textContent = text;
      figure.hidden = text === "";
    }
    details.querySelector("[data-problem]").textContent = texts.problem;
  }

  async function render(details) {
    const form = details.closest("form");
    for (const button of details.querySelectorAll("[data-copy]")) {
      button.hidden = false;
    }
    if (form === null) {
      return;
    }
    try {
      const response = await fetch(details.dataset.commands, { method: "POST", body: new FormData(form) });
      if (response.ok) {
        show(details, await response.json());
      }
    } catch {
      // the server does not respond: the commands stay as they are
    }
  }

  // The clipboard is available only in a secure context. Without it, the text is selected.
  async function copy(button) {
    const code = button.closest("figure").querySelector("code");
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      said = "Selected: press Ctrl+C";
    }
    button.textContent = said;
    setTimeout(() => {
      button.textContent = "Copy";
    }, SAID_MS);
  }

  function follow(event) {
    const details = event.target.form?.querySelector("details.copy-as[open]");
    if (details) {
      clearTimeout(typing);
      typing = setTimeout(() => render(details), TYPING_MS);
    }
  }

  document.addEventListener("input", follow);
  document.addEventListener("change", follow);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button !== null) {
      copy(button);
    }
  });
  document.addEventListener(
    "toggle",
    (event) => {
      if (event.target.matches("details.copy-as") && event.target.open) {
        render(event.target);
      }
    },
    true, // toggle does not bubble
  );
})();
