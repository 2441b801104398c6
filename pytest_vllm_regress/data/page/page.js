"use strict";
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const byId = (id) => document.getElementById(id);

// A link to evidence opens it; Escape goes back to the link.
const reveal = () => {
  const target = byId(decodeURIComponent(location.hash.slice(1)));
  if (!target || !target.classList.contains("body")) return;
  target.closest("details").open = true;
  target.scrollIntoView();
  target.focus({ preventScroll: true });
};
addEventListener("hashchange", reveal);
addEventListener("keydown", (event) => {
  const body = event.key === "Escape" && document.activeElement.closest(".evidence > .body");
  if (!body) return;
  body.parentElement.open = false;
  const link = document.querySelector(`a[href="#${CSS.escape(body.id)}"]`);
  history.replaceState(null, "", location.pathname);
  (link || body.parentElement.firstElementChild).focus();
});
addEventListener("beforeprint", () => all("details").forEach((element) => { element.open = true; }));

all(".copy button").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = button.previousElementSibling.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Selected";
    }
  });
});

const SHOWN = ["REPRODUCED", "REGRESSED", "IN_RANGE"];
const setUpTable = (table, filters) => {
  const head = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, cells: [...row.cells], text: row.cells[0].textContent.toLowerCase() }));
  const marks = (cell) => [...cell.children];
  const has = (cell, names) => marks(cell).some((mark) => names.some((name) => mark.classList.contains(name)));
  const fields = ["text", "family", "severity", "verdict"].map((name) => byId("filter-" + name));
  const compared = ["before", "after"].map((name) => byId("compare-" + name));
  let columns = [];

  const change = ({ cells }) => {
    const [before, after] = columns.map((column) => has(cells[column], SHOWN));
    return before && after ? "leaves" : before ? "fixes" : after ? "breaks" : "";
  };
  const showColumns = () => {
    const wanted = compared.map((field) => field && Number(field.value));
    const next = wanted.every(Boolean) && wanted[0] !== wanted[1] ? wanted : [];
    if (String(next) === String(columns)) return;
    for (const column of columns) [head, ...rows.map(({ cells }) => cells)].forEach((cells) => cells[column].classList.remove("on"));
    for (const column of next) [head, ...rows.map(({ cells }) => cells)].forEach((cells) => cells[column].classList.add("on"));
    columns = next;
    table.classList.toggle("compared", columns.length > 0);
  };
  const apply = () => {
    const [text, family, severity, verdict] = fields.map((field) => (field ? field.value : ""));
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = { breaks: 0, leaves: 0, fixes: 0 };
    let visible = 0;
    showColumns();
    for (const entry of rows) {
      const { row, cells } = entry;
      const effect = columns.length ? change(entry) : "";
      const looked = columns.length ? columns.map((column) => cells[column]) : cells.slice(1);
      const kept = words.every((word) => entry.text.includes(word))
        && (!family || row.dataset.family === family) && (!severity || row.dataset.severity === severity)
        && (!columns.length || effect) && (!verdict || looked.some((cell) => has(cell, [verdict])));
      row.hidden = !kept;
      if (row.dataset.change !== effect) row.dataset.change = effect;
      visible += kept;
      if (kept && effect) counts[effect] += 1;
    }
    const names = columns.map((column) => head[column].textContent);
    byId("filter-result").textContent = columns.length
      ? `${names[0]} to ${names[1]}: ${Object.entries(counts).map(([name, count]) => `${name} ${count}`).join(", ")}`
      : visible < rows.length ? `${visible} of ${rows.length} cases` : "";
  };
  const every = [...fields, ...compared].filter(Boolean);
  every.forEach((field) => field.addEventListener(field.matches("select") ? "change" : "input", apply));
  byId("filter-reset").addEventListener("click", () => { every.forEach((field) => { field.value = ""; }); apply(); });
  filters.hidden = false;

  // One link of the table is in the order of Tab; arrows go to the others.
  const links = all("tbody a", table);
  links.forEach((link) => { link.tabIndex = -1; });
  let current = links[0];
  current.tabIndex = 0;
  const go = (link) => {
    current.tabIndex = -1;
    current = link;
    current.tabIndex = 0;
    current.focus();
  };
  const next = (cells, at, step, which = 0) => {
    for (let index = at + step; index >= 0 && index < cells.length; index += step) {
      const link = cells[index].offsetParent && all("a", cells[index]).at(which);
      if (link) return link;
    }
    return null;
  };
  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("tbody th, tbody td");
    if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
    const line = [...cell.parentElement.cells];
    const column = rows.map(({ cells }) => cells[cell.cellIndex]);
    const at = rows.findIndex(({ row }) => row === cell.parentElement);
    const mine = all("a", cell);
    const among = mine.indexOf(event.target);
    const moves = {
      ArrowRight: () => mine[among + 1] || next(line, cell.cellIndex, 1),
      ArrowLeft: () => mine[among - 1] || next(line, cell.cellIndex, -1, -1),
      ArrowDown: () => next(column, at, 1),
      ArrowUp: () => next(column, at, -1),
      Home: () => next(line, -1, 1),
      End: () => next(line, line.length, -1, -1),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const link = moves[event.key]();
    if (link) go(link);
  });
  table.addEventListener("focusin", (event) => {
    if (event.target.matches("tbody a") && event.target !== current) {
      current.tabIndex = -1;
      current = event.target;
      current.tabIndex = 0;
    }
  });
  table.addEventListener("mouseover", (event) => {
    const mark = event.target.closest(".m");
    if (!mark || mark.title) return;
    const cell = mark.parentElement;
    mark.title = `${cell.parentElement.cells[0].firstElementChild.textContent} in ${head[cell.cellIndex].textContent}: ${mark.ariaLabel || mark.textContent}`;
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, select, textarea")) {
      event.preventDefault();
      fields[0].focus();
    }
  });
  const frame = table.parentElement;
  if (frame.classList.contains("dense")) frame.scrollLeft = frame.scrollWidth; // the newest releases
  all(".keys", table).forEach((element) => { element.hidden = false; });
};
const filters = document.querySelector(".filters");
// After the first paint, which a large table would delay.
if (filters) requestAnimationFrame(() => setTimeout(() => setUpTable(document.querySelector("#table table"), filters)));
reveal();
