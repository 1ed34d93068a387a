// Keeps the page of a tube or a job live: asks the server for the page anew every two seconds while it is seen, and
// takes over the parts marked data-live that have changed, but none in which somebody is at work. Builds no markup.
"use strict";

const EVERY_MS = 2000;
const SLOWEST_MS = 20000;
const GIVE_UP_MS = 5000;

const live = document.getElementById("live");
const parts = document.querySelectorAll("[data-live]");
const known = new Map([...parts].map((part) => [part.dataset.live, part.innerHTML]));

let timer = 0;
let asking = null; // the AbortController of the request under way
let failures = 0;

function setLive(state, text) {
  live.dataset.state = state;
  if (live.textContent !== text) {
    live.textContent = text;
  }
}

function isInUse(part) {
  const selection = document.getSelection();
  return (
    part.contains(document.activeElement) ||
    part.querySelector("details[open]") !== null ||
    (selection !== null && !selection.isCollapsed && selection.containsNode(part, true))
  );
}

// What a form is about must not change under somebody's hands: a tube that is paused or resumed elsewhere shows in
// the parts that are live, and its form is that of the page as it was asked for.
function show(page) {
  for (const part of parts) {
    const news = page.querySelector(`[data-live="${part.dataset.live}"]`);
    if (news !== null && news.innerHTML !== known.get(part.dataset.live) && !isInUse(part)) {
      known.set(part.dataset.live, news.innerHTML);
      part.replaceChildren(...document.importNode(news, true).childNodes);
    }
  }
}

// A page opened as http://user:password@host/ must not pass these on: fetch refuses such an address.
function address() {
  const url = new URL(location.pathname + location.search, location.origin);
  url.searchParams.set("live", "1");
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
    if (asking !== mine) {
      return;
    }
    if (response.status === 404) {
      setLive("lost", "Gone by now");
      return; // an id is never used twice, and who waits for a tube to come back can reload
    }
    if (!response.ok) {
      throw new Error(`status ${response.status}`);
    }
    const html = await response.text();
    if (asking !== mine) {
      return;
    }
    show(new DOMParser().parseFromString(html, "text/html"));
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

// What was done is said once: a reload, or a bookmark, is not to say it again.
const here = new URL(location.href);
for (const name of ["notice", "n", "late"]) {
  here.searchParams.delete(name);
}
history.replaceState(null, "", here.pathname + here.search);

document.addEventListener("visibilitychange", ask);
timer = setTimeout(ask, EVERY_MS / 4);
