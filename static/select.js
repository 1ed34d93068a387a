// Ticks rows of a list: a box for all of them, ranges with the shift key, and how many are ticked. The form works
// without it.
"use strict";

const form = document.getElementById("bulk");
const all = document.getElementById("tick-all");
const panel = document.getElementById("bulk-panel");
const ticked = document.getElementById("ticked");
const action = document.getElementById("bulk-action");

let last = null; // the box that was changed last

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

// Only the field that the chosen action needs is to be seen, and must be filled in.
function choose() {
  for (const field of form.querySelectorAll("[data-for]")) {
    field.hidden = field.dataset.for !== action.value;
    field.querySelector("input").required = !field.hidden;
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
  if (count() > 0) {
    panel.open = true;
    form.elements.scope.value = "ticked";
  }
});

action.addEventListener("change", choose);
document.addEventListener("live", count);
all.hidden = false;
choose();
count();
