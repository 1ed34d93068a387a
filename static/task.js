// Goes on to the result of a task, once the task is done: to the confirmation of a dry run, or to what a search found.
// A task that was cancelled or failed stays on its page, which says why.
"use strict";

document.addEventListener("live", (event) => {
  if (event.detail.fields?.["task-state"] === "done") {
    location.replace(document.getElementById("main").dataset.result);
  }
});
