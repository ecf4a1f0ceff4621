"use strict";
// Keyboard control; the page works without it.

const find = (selector) => document.querySelector(selector);
const interactive = "a, button, input, select, textarea, summary, [tabindex]";

// A second press before the next page has loaded must not send a second answer.
let sent = false;
document.addEventListener("submit", (event) => {
  if (sent) event.preventDefault();
  sent = true;
});
window.addEventListener("pageshow", () => { sent = false; });

const narrow = find("#narrow");
if (narrow) {
  narrow.querySelector("button").hidden = true;
  narrow.querySelector("select").addEventListener("change", () => narrow.submit());
}

const image = find("#image");
if (image && image.dataset.next) new Image().src = image.dataset.next;

// Screen readers announce changes of a live region, not its initial text.
const live = find("#live");
window.addEventListener("pageshow", () => setTimeout(() => { live.textContent = live.dataset.announcement; }, 100));

// Single keys disturb speech input and some screen readers, so they can be switched off permanently.
const single = find("#single");
single.checked = localStorage.getItem("single") !== "off";
single.addEventListener("change", () => localStorage.setItem("single", single.checked ? "on" : "off"));

const press = (selector) => {
  const target = find(selector);
  if (target) target.click();
  return Boolean(target);
};

const keys = {
  ArrowLeft: () => press("#previous"),
  ArrowRight: () => press("#next"),
  PageUp: () => press("#earlier"),
  PageDown: () => press("#later"),
  Backspace: () => press("#undo button"),
  "/": () => { const text = find("#text"); if (text) text.focus(); return Boolean(text); },
};

const answerKey = (key) => {
  const number = key === "Enter" || key === " " ? "1" : key;
  return [...document.querySelectorAll("#answer [data-key]")].find((button) => button.dataset.key === number);
};

document.addEventListener("keydown", (event) => {
  const text = find("#text");
  if (event.target === text) {
    if (event.key === "Escape") { text.value = ""; text.blur(); }
    return;
  }
  if (!single.checked || event.target.closest?.("input, select, textarea")) return;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if ((event.key === "Enter" || event.key === " ") && event.target.closest?.(interactive)) return;
  const button = answerKey(event.key);
  if (button) {
    event.preventDefault();
    if (!event.repeat) button.click();
  } else if (Object.hasOwn(keys, event.key) && (!event.repeat || event.key.startsWith("Arrow"))) {
    if (keys[event.key]()) event.preventDefault();
  } else if (text && /^\p{L}$/u.test(event.key)) {
    text.focus();  // the key event then enters the letter
  }
});
