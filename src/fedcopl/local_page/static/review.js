"use strict";
// The page works without this file; it adds the keyboard.

const find = (selector) => document.querySelector(selector);
const interactive = "a, button, input, select, textarea, summary, [tabindex]";

// A second press before the next page is there must not answer twice.
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

// What stands in a live region when a page comes is not read out; what comes later is.
const live = find("#live");
window.addEventListener("pageshow", () => setTimeout(() => { live.textContent = live.dataset.words; }, 100));

// Single keys get in the way of speech input and of some screen readers: they can be switched off, for good.
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
  const wanted = key === "Enter" || key === " " ? "1" : key;
  return [...document.querySelectorAll("#answer [data-key]")].find((button) => button.dataset.key === wanted);
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
    text.focus();  // the letter itself goes into the box
  }
});
