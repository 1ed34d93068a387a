// The form on the overview that acts on many tubes: shows the fields of the chosen action, and the number of tubes that
// match the pattern. The form works without this script.
"use strict";

(() => {
  const TYPING_MS = 150;

  const form = document.getElementById("act-form");
  const pattern = document.getElementById("act-pattern");
  const action = document.getElementById("act-action");
  const count = document.getElementById("act-count");

  let asking = null; // the AbortController of the current request
  let typing = 0;

  function choose() {
    for (const field of form.querySelectorAll("[data-for]")) {
      field.hidden = field.dataset.for !== action.value;
      field.querySelector("input, select").disabled = field.hidden;
    }
  }

  async function find() {
    asking?.abort();
    const mine = new AbortController();
    asking = mine;
    const url = new URL(form.dataset.find, location.origin);
    url.search = new URLSearchParams({ pattern: pattern.value });
    try {
      const response = await fetch(url, { signal: mine.signal, cache: "no-store" });
      const { text } = response.ok ? await response.json() : { text: "" };
      if (asking === mine) {
        count.textContent = text;
      }
    } catch {
      // a newer request has replaced this one, or the server does not respond
    }
  }

  // An empty or invalid pattern needs no request.
  function check() {
    clearTimeout(typing);
    const isPattern = /^[-A-Za-z0-9+/;.$_()*]{1,200}$/.test(pattern.value.trim());
    if (isPattern) {
      typing = setTimeout(find, TYPING_MS);
    } else {
      asking?.abort();
      count.textContent = "";
    }
    pattern.setCustomValidity(isPattern ? "" : "Letters, digits, -+/;.$_() and stars, at most 200.");
  }

  pattern.addEventListener("input", check);
  action.addEventListener("change", choose);
  document.getElementById("act").addEventListener("toggle", check);
  choose();
})();
