"use strict";
// Asks for news, and puts in what changed. The page is whole without this file; it then loads itself again.

const EVERY = 2000;  // ms between two questions
const body = document.body, connection = document.getElementById("connection");
let ahead = Number(body.dataset.now) - Date.now() / 1000;  // of the server's clock
const shown = {};

const ago = (seconds) => {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s ago`;
  return s < 3600 ? `${Math.floor(s / 60)} min ago` : `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min ago`;
};

const tellAges = () => {
  for (const time of document.querySelectorAll("[data-at]")) {
    time.textContent = ago(Date.now() / 1000 + ahead - Number(time.dataset.at));
  }
};

// What the reader did to a part outlives its replacement: where it was scrolled to, and what had the focus.
const replace = (part, html) => {
  const stops = () => [...part.querySelectorAll("a, summary, [tabindex]")];
  const focused = stops().indexOf(document.activeElement);
  const scrolled = [...part.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
  part.innerHTML = html;  // made and escaped by our own server
  part.querySelectorAll(".scroll").forEach((box, n) => { if (scrolled[n]) [box.scrollLeft, box.scrollTop] = scrolled[n]; });
  if (focused >= 0 && stops()[focused]) stops()[focused].focus({ preventScroll: true });
};

const say = (trouble) => {
  connection.textContent = trouble;
  connection.hidden = !trouble;
};

const ask = async () => {
  const answer = await fetch(`/state?seen=${body.dataset.version}`, { cache: "no-store" });
  if (answer.status === 403) return say("fedcopl watch was started anew: open the address that it printed.");
  if (!answer.ok) return say(`fedcopl watch answered ${answer.status}; trying again.`);
  say("");
  if (answer.status === 204) return undefined;
  const news = await answer.json();
  body.dataset.version = news.version;
  ahead = news.now - Date.now() / 1000;
  for (const [name, html] of Object.entries(news.parts)) {
    const part = document.getElementById(name);
    if (part && shown[name] !== html) replace(part, html);
    shown[name] = html;
  }
  return undefined;
};

const again = async () => {
  try {
    await ask();
  } catch {
    say("fedcopl watch does not answer; trying again.");
  }
  tellAges();
  setTimeout(again, EVERY);
};

tellAges();
setTimeout(again, EVERY);
