// Keeps the overview live: asks for its figures each second while the page is seen, and puts the text it gets into
// the page that the server made. Formats nothing and builds no markup: rows are copies of the page's template.
"use strict";

const EVERY_MS = 1000;
const SLOWEST_MS = 10000;
const GIVE_UP_MS = 5000;

const byId = (id) => document.getElementById(id);
const fieldCells = document.querySelectorAll("[data-field]");
const body = byId("tubes");
const rowTemplate = byId("tube-row").content.firstElementChild;
const filter = byId("filter");
const input = byId("q");
const rows = new Map([...body.rows].map((row) => [row.dataset.tube, row]));

let timer = 0;
let asking = null; // the AbortController of the request under way
let failures = 0;

function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

function setFigure(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
    element.classList.toggle("zero", text === "0" || text === "–");
  }
}

function setLive(state, text) {
  const live = byId("live");
  live.dataset.state = state;
  setText(live, text);
}

function newRow(name) {
  const row = rowTemplate.cloneNode(true);
  row.dataset.tube = name;
  const link = row.cells[0].firstElementChild;
  link.textContent = name;
  link.setAttribute("href", link.getAttribute("href") + encodeURIComponent(name)); // a template has no base for .search
  rows.set(name, row);
  return row;
}

function showTubes(tubes) {
  const gone = new Set(rows.keys());
  let next = body.firstElementChild;
  for (const texts of tubes) {
    const name = texts[0];
    const row = rows.get(name) ?? newRow(name);
    gone.delete(name);
    if (row === next) {
      next = row.nextElementSibling;
    } else {
      body.insertBefore(row, next);
    }
    for (let at = 1; at < texts.length; at += 1) {
      setFigure(row.cells[at], texts[at]);
    }
  }
  for (const name of gone) {
    rows.get(name).remove();
    rows.delete(name);
  }
}

function show(overview) {
  for (const cell of fieldCells) {
    setFigure(cell, overview.server[cell.dataset.field]);
  }
  showTubes(overview.tubes);
  setText(byId("summary"), overview.summary);
  setText(byId("filtered-query"), overview.query);
  byId("table").hidden = overview.is_filtered_out;
  byId("filtered-out").hidden = !overview.is_filtered_out;
  byId("unused").hidden = !overview.is_unused;
  byId("draining").hidden = !overview.is_draining;
  setText(byId("trouble-reason"), overview.trouble);
  byId("trouble").hidden = !overview.trouble;
}

// A page opened as http://user:password@host/ must not pass these on: fetch refuses such an address.
function address() {
  const url = new URL("overview.json", location.origin + location.pathname);
  if (input.value.trim()) {
    url.searchParams.set("q", input.value);
  }
  return url;
}

async function ask() {
  clearTimeout(timer);
  asking?.abort();
  asking = null;
  if (document.hidden) {
    return;
  }
  const mine = new AbortController();
  asking = mine;
  const late = setTimeout(() => mine.abort(), GIVE_UP_MS);
  try {
    const response = await fetch(address(), { cache: "no-store", signal: mine.signal });
    if (!response.ok) {
      throw new Error(`status ${response.status}`);
    }
    const overview = await response.json();
    if (asking !== mine) {
      return; // another question has been asked since
    }
    show(overview);
    failures = 0;
    setLive("live", "Live");
  } catch {
    if (asking !== mine) {
      return;
    }
    failures += 1;
    setLive("lost", "No answer, retrying");
  } finally {
    clearTimeout(late);
  }
  timer = setTimeout(ask, Math.min(EVERY_MS * 2 ** failures, SLOWEST_MS));
}

function keepFilter() {
  const url = new URL(location.href);
  if (input.value.trim()) {
    url.searchParams.set("q", input.value);
  } else {
    url.searchParams.delete("q");
  }
  history.replaceState(null, "", url.pathname + url.search);
}

document.documentElement.classList.add("scripted");
document.addEventListener("visibilitychange", ask);
input.addEventListener("input", () => {
  keepFilter();
  ask();
});
filter.addEventListener("submit", (event) => {
  event.preventDefault();
  keepFilter();
  ask();
});
ask();
