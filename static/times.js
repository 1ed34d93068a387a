// Shows times in the zone that the visitor chose: UTC, or that of the browser. The server writes UTC.
"use strict";

(() => {
  const isLocal = document.documentElement.dataset.zone === "local";
  const timeZone = isLocal ? Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC";
  const parts = new Intl.DateTimeFormat("en-GB", {
    timeZone, year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });

  function fields(date) {
    return Object.fromEntries(parts.formatToParts(date).map(({ type, value }) => [type, value]));
  }

  const formats = {
    full: ({ year, month, day, hour, minute, second, timeZoneName }) => `${year}-${month}-${day} ${hour}:${minute}:${second} ${timeZoneName}`,
    day: ({ year, month, day }) => `${year}-${month}-${day}`,
    clock: ({ hour, minute, second, timeZoneName }) => `${hour}:${minute}:${second} ${timeZoneName}`,
  };

  // The zone for other scripts: its name for Intl, its short name at a time, such as "UTC" or "CET", and times of day.
  window.times = { isLocal, timeZone, name: (date) => fields(date).timeZoneName, clock: (date) => formats.clock(fields(date)) };

  function rewrite(root) {
    const found = root instanceof Element && root.matches("time[data-format]") ? [root] : [];
    for (const time of [...found, ...root.querySelectorAll("time[data-format]")]) {
      time.textContent = formats[time.dataset.format](fields(new Date(time.dateTime)));
    }
  }

  // Fields for a time hold UTC in the page and in requests, and the visitor's zone on the screen.

  function shift(value, toLocal) {
    const minutes = new Date(toLocal ? `${value}Z` : value).getTimezoneOffset();
    const utc = new Date(`${value}Z`).getTime() + (toLocal ? -minutes : minutes) * 60000;
    return new Date(utc).toISOString().slice(0, value.length);
  }

  function adopt(input) {
    if (input.value) {
      input.value = shift(input.value, true);
    }
    for (const label of input.labels) {
      label.textContent = label.textContent.replace("UTC", timeZone);
    }
    input.form.addEventListener("formdata", ({ formData }) => {
      if (input.value) {
        formData.set(input.name, shift(input.value, false));
      }
    });
  }

  // The offset changes at the next midnight if the clocks change before it.
  function offset() {
    const midnight = new Date();
    midnight.setHours(24, 0, 0, 0);
    return -midnight.getTimezoneOffset();
  }

  document.getElementById("zone-name").textContent = timeZone;
  document.getElementById("zone").hidden = false;
  if (isLocal) {
    rewrite(document);
    document.querySelectorAll("input[type=datetime-local]").forEach(adopt);
    document.querySelectorAll("input[data-utc-offset]").forEach((input) => {
      input.value = offset();
    });
    const news = (changes) => changes.flatMap(({ addedNodes }) => [...addedNodes]).filter((node) => node instanceof Element);
    new MutationObserver((changes) => news(changes).forEach(rewrite)).observe(document.getElementById("main"), { childList: true, subtree: true });
  }
})();
