// Opens the result of a task when the task is done: the confirmation of a dry run, or the matches of a search.
// The page of a task that was cancelled or failed stays, since it says why.
"use strict";

document.addEventListener("live", (event) => {
  if (event.detail.fields?.["task-state"] === "done") {
    location.replace(document.getElementById("main").dataset.result);
  }
});
