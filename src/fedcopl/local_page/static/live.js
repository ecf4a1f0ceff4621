"use strict";
// Fetches the page every two seconds and replaces its content. Without JavaScript the page reloads itself.

const INTERVAL = 2000;  // ms between two requests
const body = document.body, connection = document.getElementById("connection");

// Names of the elements with state (open, scrolled, focused); the state is restored after a replacement.
const named = (element) => element.getAttribute("aria-label") || element.textContent;
const folds = () => [...document.querySelectorAll("details")];
const boxes = () => [...document.querySelectorAll(".scroll")];
const stops = () => [...document.querySelectorAll("a, summary, [tabindex]")];

const replace = (next) => {
  const open = new Set(folds().filter((fold) => fold.open).map((fold) => named(fold.firstElementChild)));
  const scrolled = new Map(boxes().map((box) => [named(box), [box.scrollLeft, box.scrollTop]]));
  const focused = stops().includes(document.activeElement) ? named(document.activeElement) : null;
  for (const part of ["header", "main", "footer"]) {
    document.querySelector(part).innerHTML = next.querySelector(part).innerHTML;  // escaped by our own server
  }
  document.title = next.title;
  body.dataset.version = next.body.dataset.version;
  for (const fold of folds()) fold.open = open.has(named(fold.firstElementChild));
  for (const box of boxes()) [box.scrollLeft, box.scrollTop] = scrolled.get(named(box)) || [0, 0];
  if (focused !== null) stops().find((stop) => named(stop) === focused)?.focus({ preventScroll: true });
};

const report = (problem) => {
  connection.textContent = problem;
  connection.hidden = !problem;
};

const refresh = async () => {
  try {
    const reply = await fetch(`/?seen=${body.dataset.version}`, { cache: "no-store" });
    if (reply.status === 403) report("fedcopl watch was restarted: open the address that it printed.");
    else if (!reply.ok) report(`fedcopl watch replied with status ${reply.status}; trying again.`);
    else report("");
    if (reply.status === 200) replace(new DOMParser().parseFromString(await reply.text(), "text/html"));
  } catch {
    report("fedcopl watch does not reply; trying again.");
  }
  setTimeout(refresh, INTERVAL);
};

setTimeout(refresh, INTERVAL);
