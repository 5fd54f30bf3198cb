// SPDX-License-Identifier: LGPL-2.1-or-later
"use strict";
const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

// Missing numbers ("-") sort below all others.
function keyOf(cell, isNumber) {
  const number = parseFloat(cell.dataset.v ?? cell.textContent);
  return !isNumber ? cell.textContent : Number.isNaN(number) ? -Infinity : number;
}

function sort(table, heading) {
  const column = heading.cellIndex, isNumber = heading.classList.contains("n");
  const first = isNumber ? "descending" : "ascending";
  const second = isNumber ? "ascending" : "descending";
  const order = heading.getAttribute("aria-sort") === first ? second : first;
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const compare = isNumber
    ? (a, b) => (a.key > b.key) - (a.key < b.key)
    : (a, b) => a.key.localeCompare(b.key, "en", { numeric: true });
  const rows = Array.from(table.tBodies[0].rows, row => ({ row, key: keyOf(row.cells[column], isNumber) }));
  rows.sort((a, b) => sign * compare(a, b));
  table.tBodies[0].append(...rows.map(each => each.row));
}

function filter(table, words, count) {
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.toLowerCase().split(/\s+/).every(word => text.includes(word));
    shown += !row.hidden;
  }
  count.textContent = words.trim() ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
}

for (const table of document.querySelectorAll("table.data:not(.drawing)")) {
  if (table.tBodies[0].rows.length < 2) continue;
  for (const heading of table.tHead.rows[0].cells) {
    // Chromium does not print a <button> again at the top of the next page.
    const button = make("span", { role: "button", tabIndex: 0 });
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(table, heading));
    button.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(table, heading);
    });
    heading.append(button);
  }
  if (table.tBodies[0].rows.length > 8) {
    const box = make("div", { className: "filter" });
    const input = make("input", { type: "search", placeholder: "Filter rows", ariaLabel: "Filter rows" });
    const count = make("span", { className: "dim", role: "status" });
    input.addEventListener("input", () => filter(table, input.value, count));
    box.append(input, count);
    table.parentNode.before(box);
  }
}

// Browsers offer the clipboard to files and to HTTPS, not to HTTP.
if (navigator.clipboard) {
  for (const block of document.querySelectorAll(".command")) {
    const button = make("button", { type: "button", textContent: "Copy" });
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent)
        .then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Press Ctrl+C";
          getSelection().selectAllChildren(block.querySelector("code")); });
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.append(button);
  }
}

// A finding is printed as a whole, other parts as they are on screen. For browsers that do not
// print what is collapsed by the style alone.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("body:not(.brief) .finding details:not([open])")];
  for (const each of closed) each.open = true;
});
addEventListener("afterprint", () => { for (const each of closed) each.open = false; });
