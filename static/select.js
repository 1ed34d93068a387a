// Selection of rows in a list: a checkbox for all, ranges with the shift key, and a counter. The form works without
// this script.
"use strict";

const form = document.getElementById("bulk");
const all = document.getElementById("tick-all");
const panel = document.getElementById("bulk-panel");
const ticked = document.getElementById("ticked");
const action = document.getElementById("bulk-action");

let last = null; // the checkbox changed last

function boxes() {
  return [...document.querySelectorAll('tbody input[name="id"][form="bulk"]')];
}

function count() {
  const there = boxes();
  const on = there.filter((box) => box.checked).length;
  all.checked = on > 0 && on === there.length;
  all.indeterminate = on > 0 && on < there.length;
  ticked.textContent = `: ${on}`;
  return on;
}

function tickUpTo(box) {
  const there = boxes();
  const [from, to] = [there.indexOf(last), there.indexOf(box)].sort((a, b) => a - b);
  if (from >= 0) {
    there.slice(from, to + 1).forEach((one) => {
      one.checked = box.checked;
    });
  }
}

// Shows and requires only the field that the chosen action needs.
function choose() {
  for (const field of form.querySelectorAll("[data-for]")) {
    field.hidden = field.dataset.for !== action.value;
    field.querySelector("input").required = !field.hidden && field.dataset.optional === undefined;
  }
}

document.addEventListener("click", (event) => {
  const box = event.target;
  if (box === all) {
    boxes().forEach((one) => {
      one.checked = all.checked;
    });
  } else if (box instanceof HTMLInputElement && box.name === "id" && box.form === form) {
    if (event.shiftKey && last !== null) {
      tickUpTo(box);
    }
    last = box;
  } else {
    return;
  }
  const isSelected = count() > 0;
  panel.open = isSelected;
  panel.classList.toggle("selected", isSelected);
  if (isSelected) {
    form.elements.scope.value = "ticked";
  }
});

// In a filtered list, the action is for all matches unless rows are selected.
panel.addEventListener("toggle", () => {
  if (!panel.open) {
    panel.classList.remove("selected");
  }
  if (panel.open && form.elements.q.value && count() === 0) {
    form.elements.scope.value = "all";
  }
});
action.addEventListener("change", choose);
document.addEventListener("live", count);
all.hidden = false;
choose();
count();
