// Opens the result of a finished task: the confirmation of a dry run, or the matches of a search.
// The page of a cancelled or failed task stays open, since it gives the reason.
"use strict";

document.addEventListener("live", (event) => {
  if (event.detail.fields?.["task-state"] === "done") {
    location.replace(document.getElementById("main").dataset.result);
  }
});
