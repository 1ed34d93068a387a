// Menus: `details` elements of the class `menu`. They work without this script, which closes them on Escape and on a
// click elsewhere, so that only one is open, and moves between entries with the arrow keys.
"use strict";

(() => {
  // In a narrow window the navigation scrolls sideways: the current page is in view.
  const current = document.querySelector(".pages [aria-current]");
  if (current !== null) {
    const pages = current.parentElement;
    pages.scrollLeft = current.offsetLeft + current.offsetWidth - pages.offsetLeft - pages.clientWidth;
  }

  function openMenus() {
    return [...document.querySelectorAll("details.menu[open]")];
  }

  function entries(menu) {
    const all = [...menu.querySelectorAll(":scope > .menu-body :is(a[href], button, summary)")];
    return all.filter((one) => one.offsetParent !== null && !one.disabled);
  }

  function move(menu, step) {
    const there = entries(menu);
    const at = there.indexOf(document.activeElement);
    const next = at < 0 ? (step > 0 ? 0 : there.length - 1) : (at + step + there.length) % there.length;
    there[next]?.focus();
  }

  document.addEventListener("click", (event) => {
    for (const menu of openMenus()) {
      if (!menu.contains(event.target) && !menu.classList.contains("selected")) {
        menu.open = false;
      }
    }
  });

  document.addEventListener("keydown", (event) => {
    const menu = event.target.closest?.("details.menu[open]");
    if (event.key === "Escape" && menu) {
      menu.open = false;
      menu.querySelector(":scope > summary").focus();
      return;
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && menu && !event.target.matches("input, select, textarea")) {
      event.preventDefault();
      move(menu, step);
    }
  });
})();
