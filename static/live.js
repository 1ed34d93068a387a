// Live updates: applies the changes that the server sends while the page is visible (web/live/hub.py has the format).
//
// A visible tab has one EventSource. If that fails, because the server has no free stream or a proxy buffers it, the
// page polls every two seconds and tries a stream again later. This script formats nothing and builds no markup: rows
// are copies of the page's template, and parts arrive as HTML.
"use strict";

const POLL_MS = 2000;
const SLOWEST_MS = 5000;
const GIVE_UP_MS = 5000; // timeout of a request, and of the first event of a stream
const SILENT_MS = 40000; // timeout of a stream: the server sends something at least every 15 s
const TRIES = 3; // failed streams before the page polls
const STREAM_AGAIN_MS = 60000;
const SETTLE_MS = 1000;
const TYPING_MS = 150;
const LONGEST_UNCUT = 20; // both as in web/framework/text.py
const NAME_END = 10;

const NOTICE = ["notice", "n", "late"];

const main = document.getElementById("main");
const live = document.getElementById("live");
const lost = document.getElementById("lost");
const args = new URLSearchParams(main.dataset.liveArgs ?? "");

let source = null; // the open EventSource
let asking = null; // the AbortController of the current request
let timer = 0; // the timeout of the stream, or the next request
let failures = 0; // consecutive
let streamAgainAt = 0;
let isGone = false;
let asOf = new Date(); // when the page last showed the present state

// Applying changes

function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

// Returns a name that is cut in its middle if it does not fit, as web/framework/text.py does.
function middle(name) {
  const element = document.createElement("span");
  element.className = "cut-name";
  element.title = name;
  if (name.length <= LONGEST_UNCUT) {
    element.textContent = name;
    return element;
  }
  element.classList.add("long");
  element.dataset.end = name.slice(-NAME_END);
  const [whole, end] = [document.createElement("span"), document.createElement("span")];
  end.textContent = element.dataset.end;
  whole.append(name.slice(0, -NAME_END), end);
  element.append(whole);
  return element;
}

function say(state, text) {
  live.dataset.state = state;
  setText(live, text);
}

// Dims the page, which no longer shows the present state.
function lose() {
  say("lost", "Offline");
  if (lost.hidden) {
    const time = document.getElementById("lost-at");
    time.dateTime = asOf.toISOString();
    time.textContent = times.clock(asOf);
    lost.hidden = false;
    main.dataset.stale = "";
  }
}

function recover(state, text) {
  asOf = new Date();
  say(state, text);
  undim();
}

function undim() {
  delete main.dataset.stale;
  if (lost.contains(document.activeElement)) {
    main.focus({ preventScroll: true });
  }
  lost.hidden = true;
}

// Shows a text as the path of a sparkline, in a child element such as a badge, or in the element itself.
function setFigure(element, text) {
  if (element.dataset.path !== undefined) {
    const path = element.querySelector("path");
    if (path.getAttribute("d") !== text) {
      path.setAttribute("d", text); // setting it costs layout and paint, even if nothing changes
    }
    return;
  }
  const place = element.querySelector("[data-text]") ?? element;
  if (place.dataset.state !== undefined) {
    [place.dataset.state] = text.split(" ", 1); // the rest is the label of the chip
    setText(place, text.slice(place.dataset.state.length + 1));
    return;
  }
  if (place.textContent !== text) {
    place.textContent = text;
    element.classList.toggle("zero", text === "0" || text === "–");
  }
}

// Returns null if nothing is selected. `isCollapsed` forces a layout, so settle() reads it once for all rows.
function readSelection() {
  const found = document.getSelection();
  return found === null || found.isCollapsed ? null : found;
}

let selection = null;

function isSelected(element) {
  return selection !== null && selection.containsNode(element, true);
}

function isInUse(element) {
  return (
    element.contains(document.activeElement) || element.querySelector("details[open]") !== null || isSelected(element)
  );
}

// A part of the page. Its newest HTML replaces it once the visitor does not use it.
class Part {
  constructor(element) {
    this.element = element;
    this.html = null;
  }

  get isWaiting() {
    return this.html !== null;
  }

  settle() {
    if (!isInUse(this.element)) {
      const page = new DOMParser().parseFromString(this.html, "text/html");
      this.element.replaceChildren(...document.importNode(page.body, true).childNodes);
      this.html = null;
    }
  }
}

class Table {
  constructor(body) {
    this.body = body;
    this.template = document.querySelector(`template[data-row="${body.dataset.rows}"]`).content.firstElementChild;
    this.rows = new Map([...body.rows].map((row) => [row.dataset.key, row]));
    this.keys = [...this.rows.keys()];
    this.texts = new Map(); // texts of rows that are not shown yet
    this.isWaiting = false; // whether texts or removals of rows are pending
  }

  show(news) {
    const changed = Array.isArray(news) ? news : news.changed;
    for (const [key, ...texts] of changed) {
      this.texts.set(key, texts);
    }
    this.keys = Array.isArray(news) ? news.map((row) => row[0]) : (news.order ?? this.keys);
    this.isWaiting = true;
  }

  settle() {
    for (const [key, texts] of this.texts) {
      const row = this.rows.get(key) ?? this.add(key);
      if (!isSelected(row)) {
        this.fill(row, texts);
        this.texts.delete(key);
      }
    }
    this.order();
    this.isWaiting = this.texts.size > 0 || this.rows.size > this.keys.length;
  }

  // Fills the cells in order, except the first, which has the key, and those with `data-keep`.
  fill(row, texts) {
    const cells = [...row.cells].filter((cell) => cell.dataset.keep === undefined).slice(1);
    texts.forEach((text, at) => {
      setFigure(cells[at], text);
      if (cells[at].dataset.whole !== undefined) {
        cells[at].title = text; // the cell may truncate the text
      }
    });
  }

  // Adds a row; the next sort inserts it into the table.
  add(key) {
    const row = this.template.cloneNode(true);
    row.dataset.key = key;
    const link = row.querySelector("a");
    (link.querySelector("[data-text]") ?? link).replaceChildren(middle(key));
    link.setAttribute("href", link.getAttribute("href") + encodeURIComponent(key)); // .search is empty in a template, whose links have no base URL
    for (const other of row.querySelectorAll("a[data-keyed]")) {
      other.setAttribute("href", other.getAttribute("href") + encodeURIComponent(key));
    }
    for (const input of row.querySelectorAll("[data-keep] input")) {
      input.value = key;
      input.setAttribute("aria-label", `${input.getAttribute("aria-label") ?? ""}${key}`);
    }
    this.rows.set(key, row);
    return row;
  }

  order() {
    const wanted = new Set(this.keys);
    for (const [key, row] of this.rows) {
      if (!wanted.has(key) && !isSelected(row)) {
        if (row.contains(document.activeElement)) {
          this.passFocus(row, wanted);
        }
        row.remove();
        this.rows.delete(key);
        this.texts.delete(key);
      }
    }
    const focused = document.activeElement;
    let next = this.body.firstElementChild;
    for (const key of this.keys) {
      const row = this.rows.get(key);
      if (row === next) {
        next = row.nextElementSibling;
      } else {
        this.body.insertBefore(row, next);
      }
    }
    if (focused !== document.activeElement && this.body.contains(focused)) {
      focused.focus({ preventScroll: true }); // a moved element loses the focus
    }
  }

  // Moves the focus from a removed row to the next remaining row, or to the one before it.
  passFocus(row, wanted) {
    const rows = [...this.body.rows];
    const at = rows.indexOf(row);
    const staying = (one) => wanted.has(one.dataset.key);
    const remaining = rows.slice(at + 1).find(staying) ?? rows.slice(0, at).findLast(staying);
    const controls = (one) => [...one.querySelectorAll("a, input")];
    const same = controls(row).indexOf(document.activeElement);
    (remaining === undefined ? main : controls(remaining)[same]).focus({ preventScroll: true });
  }
}

const parts = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, new Part(part)]));
const tables = new Map([...document.querySelectorAll("[data-rows]")].map((body) => [body.dataset.rows, new Table(body)]));

const title = document.title.replace(/^\([^)]*\) /, ""); // without the count before it

// Shows the counts of the navigation, and the worst severity, also in the title and the icon of the page.
function showBadges(badges) {
  for (const element of document.querySelectorAll("[data-badge]")) {
    setText(element, badges[element.dataset.badge] ?? element.textContent);
  }
  if (badges.alerts !== undefined) {
    document.title = badges.alerts === "" ? title : `(${badges.alerts}) ${title}`;
  }
  if (badges.severity !== undefined) {
    document.documentElement.dataset.severity = badges.severity;
    const icon = document.querySelector("link[rel=icon]");
    icon.href = icon.href.replace(/favicon[a-z-]*/, badges.severity === "" ? "favicon" : `favicon-${badges.severity}`);
  }
}

function takeIn(news) {
  for (const [name, rows] of Object.entries(news.rows ?? {})) {
    tables.get(name)?.show(rows);
  }
  for (const [name, html] of Object.entries(news.parts ?? {})) {
    if (parts.has(name)) {
      parts.get(name).html = html;
    }
  }
  settle();
  if (news.fields !== undefined) {
    for (const element of document.querySelectorAll("[data-field]")) {
      const text = news.fields[element.dataset.field];
      if (text !== undefined) {
        setFigure(element, text);
      }
    }
  }
  for (const element of document.querySelectorAll("[data-shown]")) {
    const isShown = news.shown?.[element.dataset.shown];
    if (isShown !== undefined) {
      element.hidden = !isShown;
    }
  }
  if (news.badges !== undefined) {
    showBadges(news.badges);
  }
  document.dispatchEvent(new CustomEvent("live", { detail: news }));
}

function settle() {
  const waiting = [...parts.values(), ...tables.values()].filter((one) => one.isWaiting);
  if (waiting.length > 0) {
    selection = readSelection();
    waiting.forEach((one) => one.settle());
  }
}

// Requests

// The URL is built from location.origin, which has no credentials: fetch rejects http://user:password@host/.
function address(path) {
  const url = new URL(path, location.origin);
  url.search = new URLSearchParams([["page", main.dataset.live], ...args]);
  return url;
}

function stop() {
  clearTimeout(timer);
  source?.close();
  source = null;
  asking?.abort();
  asking = null;
}

function begin() {
  stop();
  if (document.hidden || isGone) {
    return;
  }
  if (Date.now() >= streamAgainAt) {
    stream();
  } else {
    poll();
  }
}

function end(why) {
  stop();
  isGone = true;
  say("lost", why);
  undim();
}

function stream() {
  const mine = new EventSource(address(main.dataset.eventsAt));
  source = mine;
  const watch = (timeout) => {
    clearTimeout(timer);
    timer = setTimeout(() => giveUpStream(STREAM_AGAIN_MS), timeout);
  };
  mine.addEventListener("message", (event) => {
    watch(SILENT_MS);
    failures = 0;
    recover("live", "Live");
    takeIn(JSON.parse(event.data));
  });
  mine.addEventListener("gone", () => end("Deleted"));
  mine.addEventListener("error", () => {
    failures += 1;
    if (mine.readyState === EventSource.CLOSED) {
      giveUpStream(STREAM_AGAIN_MS); // refused
    } else {
      lose();
      watch(GIVE_UP_MS); // the browser reconnects
      if (failures >= TRIES) {
        giveUpStream(0);
      }
    }
  });
  watch(GIVE_UP_MS);
}

function giveUpStream(againIn) {
  stop();
  streamAgainAt = Date.now() + againIn;
  failures = 0;
  poll();
}

async function poll() {
  const mine = new AbortController();
  asking = mine;
  const late = setTimeout(() => mine.abort(), GIVE_UP_MS);
  try {
    const response = await fetch(address(main.dataset.liveAt), { cache: "no-store", signal: mine.signal });
    const news = response.ok ? await response.json() : null;
    if (asking !== mine) {
      return; // a newer request has started
    }
    if (response.status === 404) {
      end("Deleted"); // ids are never reused; a visitor who waits for a tube to return can reload
      return;
    }
    if (response.status === 401) {
      end("Signed out. Reload to sign in.");
      return;
    }
    if (news === null) {
      throw new Error(`status ${response.status}`);
    }
    failures = 0;
    recover("polling", "Polling");
    takeIn(news);
  } catch {
    if (asking !== mine) {
      return;
    }
    failures += 1;
    lose();
  } finally {
    clearTimeout(late);
  }
  timer = setTimeout(failures === 0 ? begin : poll, Math.min(POLL_MS * 2 ** failures, SLOWEST_MS));
}

// Input

function setArg(params, name, value) {
  if (value.trim()) {
    params.set(name, value);
  } else {
    params.delete(name);
  }
}

// Applies a filter field while the visitor types, and adds it to the page's URL and to the links that keep it.
function narrow(input) {
  const here = new URL(location.href);
  for (const params of [here.searchParams, args]) {
    params.delete("from"); // the place of a page in the old list
  }
  setArg(here.searchParams, input.name, input.value);
  history.replaceState(null, "", here.pathname + here.search);
  for (const link of document.querySelectorAll("a[data-narrowed]")) {
    const url = new URL(link.getAttribute("href"), here);
    setArg(url.searchParams, input.name, input.value);
    link.setAttribute("href", url.pathname + url.search);
  }
  setArg(args, input.name, input.value);
  begin();
}

for (const form of document.querySelectorAll("form[data-narrows]")) {
  let typing = 0;
  form.addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => narrow(event.target), TYPING_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(typing);
    narrow(form.querySelector("[type=search]"));
  });
}

// Removes the notice from the URL, so that a reload or bookmark does not repeat it.
const here = new URL(location.href);
for (const name of NOTICE) {
  here.searchParams.delete(name);
}
history.replaceState(null, "", here.pathname + here.search + here.hash);

document.documentElement.classList.add("scripted");
document.addEventListener("visibilitychange", begin);
document.addEventListener("refresh", begin);
document.getElementById("retry").addEventListener("click", () => {
  streamAgainAt = 0;
  begin();
});
addEventListener("pagehide", stop);
addEventListener("pageshow", (event) => event.persisted && begin());
setInterval(settle, SETTLE_MS);
begin();
