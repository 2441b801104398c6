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

const SHOWN = ["REPRODUCED", "REGRESSED", "IN_RANGE", "R", "X", "G"];
const UNEXPECTED = ["unexpected", "X", "U", "I"];
// The verdicts of a mark, one for each device, the one that it shows first. See matrix.html.
const read = (link) => {
  const also = (link.getAttribute("data-also") || "").split(" ");
  const mark = (names, place) => ({ names: names.split(" "), place, device: place.slice(place.lastIndexOf(".") + 1) });
  const marks = [mark(link.className, link.getAttribute("href").split("#")[1] || "-")];
  for (let at = 0; at + 1 < also.length; at += 2) marks.push(mark(also[at], also[at + 1]));
  return marks;
};
const NARROW = matchMedia("(max-width: 40rem)");
const setUpTable = (table, filters) => {
  const head = [...table.tHead.rows[0].cells];
  const rows = all("tbody tr:not(.group)", table).map((row) => ({ row, cells: [...row.cells], text: row.cells[0].textContent.toLowerCase() }));
  const bySeverity = [...rows];
  const places = new Map();
  const readAll = (cell) => {
    places.set(cell, [...cell.children].flatMap(read));
    return places.get(cell);
  };
  const marks = (cell) => {
    const known = places.get(cell) || readAll(cell);
    return device ? known.filter((mark) => mark.device === device) : known;
  };
  const has = (cell, names) => marks(cell).some((mark) => names.some((name) => mark.names.includes(name)));
  const fields = ["text", "family", "severity", "verdict"].map((name) => byId("filter-" + name));
  const compared = ["before", "after"].map((name) => byId("compare-" + name));
  const [release, devices, group, newest] = ["release", "device", "group", "newest"].map(byId);
  let columns = [];
  let device = "";

  const change = ({ cells }) => {
    const [before, after] = columns.map((column) => has(cells[column], SHOWN));
    return before && after ? "leaves" : before ? "fixes" : after ? "breaks" : "";
  };
  // Two columns that are compared, the one that a phone has room for, or all.
  const showColumns = () => {
    const wanted = compared.map((field) => field && Number(field.value));
    const pair = wanted.every(Boolean) && wanted[0] !== wanted[1];
    const next = pair ? wanted : release && NARROW.matches ? [Number(release.value)] : [];
    if (String(next) === String(columns)) return;
    for (const column of columns) [head, ...rows.map(({ cells }) => cells)].forEach((cells) => cells[column].classList.remove("on"));
    for (const column of next) [head, ...rows.map(({ cells }) => cells)].forEach((cells) => cells[column].classList.add("on"));
    columns = next;
    table.classList.toggle("compared", columns.length > 0);
    table.classList.toggle("one", columns.length === 1);
    showEnd();
  };
  // The newest releases, unless the columns fit.
  const frame = table.parentElement;
  const showEnd = () => {
    frame.scrollLeft = columns.length || (newest && newest.checked) ? 0 : frame.scrollWidth;
  };
  const apply = () => {
    const [text, family, severity, verdict] = fields.map((field) => (field ? field.value : ""));
    const chosen = verdict && fields[3].selectedOptions[0].dataset.code;
    const names = verdict === "unexpected" ? UNEXPECTED : [chosen || verdict];
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = { breaks: 0, leaves: 0, fixes: 0 };
    let visible = 0;
    showColumns();
    const pair = columns.length > 1;
    for (const entry of rows) {
      const { row, cells } = entry;
      const effect = pair ? change(entry) : "";
      const kept = words.every((word) => entry.text.includes(word))
        && (!family || row.dataset.family === family) && (!severity || row.dataset.severity === severity)
        && (!pair || effect) && (!verdict || (columns.length ? columns.map((column) => cells[column]) : cells.slice(1)).some((cell) => has(cell, names)));
      row.hidden = !kept;
      if ((row.dataset.change || "") !== effect) row.dataset.change = effect;
      visible += kept;
      if (kept && effect) counts[effect] += 1;
    }
    if (group) arrange();
    for (const body of table.tBodies) body.hidden = !body.querySelector("tr:not(.group, [hidden])");
    const heads = columns.map((column) => head[column].textContent);
    byId("filter-result").textContent = pair
      ? `${heads[0]} to ${heads[1]}: ${Object.entries(counts).map(([name, count]) => `${name} ${count}`).join(", ")}`
      : visible < rows.length ? `${visible} of ${rows.length} cases` : "";
    if (release) remember();
  };

  // The verdicts of one device: the marks that have none are hidden. Thousands of cells: nothing is
  // written that stays as it is.
  const words = new Map(all("option[data-code]", filters).map((option) => [option.dataset.code, option.text.toLowerCase()]));
  const showDevice = () => {
    device = devices.value;
    for (const { cells } of rows) {
      for (const cell of cells) {
        const known = cell.tagName === "TD" ? places.get(cell) || readAll(cell) : [];
        if (!known.length) continue;
        const link = cell.firstElementChild;
        const mark = known.find((each) => !device || each.device === device);
        if (link.hidden === !!mark) link.hidden = !mark;
        if (!mark || known.length === 1) continue;
        link.everywhere ??= { className: link.className, href: link.getAttribute("href"), textContent: link.textContent };
        const { href } = link.everywhere;
        const next = device ? { className: mark.names[0], href: `${href.split("#")[0]}#${mark.place}`, textContent: words.get(mark.names[0]) } : link.everywhere;
        for (const name of ["className", "textContent"]) if (link[name] !== next[name]) link[name] = next[name];
        if (link.getAttribute("href") !== next.href) link.href = next.href;
      }
    }
    apply();
  };
  // Bodies of the table with headings: one for each severity or family, or for each effect while two
  // columns are compared, what breaks first.
  const EFFECTS = ["breaks", "leaves", "fixes", ""];
  let arranged = "severity";
  const arrange = () => {
    const by = columns.length > 1 ? "change" : group.value;
    const key = ({ row }) => row.dataset[by] || "";
    const now = by === "change" ? by + bySeverity.map(key) : by;
    if (now === arranged) return;
    arranged = now;
    const rank = by === "change" ? (entry) => EFFECTS.indexOf(key(entry)) : () => 0;
    const ordered = [...bySeverity].sort((a, b) => rank(a) - rank(b) || (by === "family" ? key(a).localeCompare(key(b)) : 0));
    const bodies = new Map();
    const heading = table.querySelector(".group");
    for (const entry of ordered) {
      const name = key(entry);
      if (!bodies.has(name)) {
        const body = document.createElement("tbody");
        const title = body.appendChild(heading.cloneNode(true)).querySelector(".stay");
        title.firstChild.data = `${name} `;
        bodies.set(name, body);
      }
      bodies.get(name).append(entry.row);
    }
    for (const body of bodies.values()) body.querySelector("small").textContent = body.rows.length - 1;
    all("tbody", table).forEach((body) => body.remove());
    table.append(...bodies.values());
    rows.splice(0, rows.length, ...ordered);
  };
  // The address names what is chosen, so that a view can be sent to somebody. Selects by their
  // words: numbers of columns change with each release.
  const named = { text: fields[0], family: fields[1], severity: fields[2], verdict: fields[3], before: compared[0], after: compared[1], device: devices, group, release, newest };
  const view = Object.entries(named).filter(([, field]) => field);
  const remember = () => {
    const chosen = view.map(([name, field]) => [name,
      field.matches("select") ? field.selectedIndex && field.selectedOptions[0].text : field.type === "checkbox" ? field.checked : field.value.trim()]);
    const query = new URLSearchParams(chosen.filter(([, value]) => value));
    history.replaceState(null, "", query.size ? `#${query}` : location.pathname + location.search);
  };
  const recall = () => {
    const query = new URLSearchParams(location.hash.slice(1));
    for (const [name, field] of view) {
      const value = query.get(name) || "";
      if (field.matches("select")) field.selectedIndex = Math.max(0, [...field.options].findIndex((option) => option.text === value));
      else if (field.type === "checkbox") field.checked = !!value;
      else field.value = value;
    }
    showOrder();
    showDevice();
  };
  const showOrder = () => { table.classList.toggle("newest", newest.checked); showEnd(); };
  const every = [...fields, ...compared].filter(Boolean);
  every.forEach((field) => field.addEventListener(field.matches("select") ? "change" : "input", apply));
  byId("filter-reset").addEventListener("click", () => {
    [...every, devices].forEach((field) => { if (field) field.value = ""; });
    if (device) showDevice(); else apply();
  });
  if (release) {
    release.addEventListener("change", apply);
    devices.addEventListener("change", showDevice);
    group.addEventListener("change", apply);
    newest.addEventListener("change", () => { showOrder(); remember(); });
    NARROW.addEventListener("change", apply);
    addEventListener("hashchange", () => { if (location.hash.includes("=")) recall(); }); // not #main
    recall();
    requestIdleCallback(() => rows.forEach(({ cells }) => cells.slice(1).forEach(marks))); // the first filter need not wait for it
  }
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
      const link = cells[index].offsetParent && all("a:not([hidden])", cells[index]).at(which);
      if (link) return link;
    }
    return null;
  };
  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("tbody th, tbody td");
    if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
    const [first, ...others] = cell.parentElement.cells;
    const line = [first, ...(newest && newest.checked ? others.reverse() : others)];
    const place = line.indexOf(cell);
    const column = rows.map(({ cells }) => cells[cell.cellIndex]);
    const at = rows.findIndex(({ row }) => row === cell.parentElement);
    const mine = all("a", cell);
    const among = mine.indexOf(event.target);
    const moves = {
      ArrowRight: () => mine[among + 1] || next(line, place, 1),
      ArrowLeft: () => mine[among - 1] || next(line, place, -1, -1),
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
    const mark = event.target.closest("td a");
    if (!mark) return;
    const cell = mark.parentElement;
    mark.title = `${cell.parentElement.cells[0].firstElementChild.textContent} in ${head[cell.cellIndex].textContent}: ${mark.ariaLabel || mark.textContent}`;
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, select, textarea")) {
      event.preventDefault();
      fields[0].focus();
    }
  });
  if (frame.classList.contains("dense")) showEnd();
  all(".keys", table).forEach((element) => { element.hidden = false; });
};
// The box in the navigation leads to the search page, which alone has the texts.
const box = byId("search");
const search = (data) => {
  const kinds = [
    ["Cases", data.cases.map(([id, title, href]) => ({ text: `${id} ${title}`, name: id, rest: title, href }))],
    ["Diagnoses", data.diagnoses.map(([id, title, why, step]) => ({ text: `${id} ${title} ${why}`, name: title, rest: `${why} ${step}` }))],
    ["Fixes of vLLM, the newest first", data.fixes.map(([number, first, part, title]) => ({
      text: `vllm#${number} ${title} ${data.subsystems[part]}`, name: `#${number}`, href: `https://github.com/vllm-project/vllm/pull/${number}`,
      rest: `${title} (${data.releases[first] ? "in " + data.releases[first] : "in no release yet"}; ${data.subsystems[part]})`,
    }))],
  ];
  for (const [, entries] of kinds) for (const entry of entries) entry.text = entry.text.toLowerCase();
  const SHOWN_AT_ONCE = 40;
  const show = () => {
    const words = decodeURIComponent(location.hash.slice(1)).toLowerCase().split(/\s+/).filter(Boolean);
    const parts = [];
    let total = 0;
    for (const [title, entries] of words.length ? kinds : []) {
      const found = entries.filter((entry) => words.every((word) => entry.text.includes(word)));
      total += found.length;
      if (!found.length) continue;
      const heading = document.createElement("h2");
      heading.textContent = found.length > SHOWN_AT_ONCE ? `${title}: ${SHOWN_AT_ONCE} of ${found.length}` : `${title}: ${found.length}`;
      const list = document.createElement("ul");
      for (const entry of found.slice(0, SHOWN_AT_ONCE)) {
        const name = document.createElement(entry.href ? "a" : "b");
        name.textContent = entry.name;
        if (entry.href) name.href = entry.href;
        const item = document.createElement("li");
        item.append(name, ` ${entry.rest}`);
        list.append(item);
      }
      parts.push(heading, list);
    }
    byId("results").replaceChildren(...parts);
    byId("found").textContent = words.length ? `${total} found` : "";
  };
  box.addEventListener("input", () => {
    history.replaceState(null, "", `#${encodeURIComponent(box.value)}`);
    show();
  });
  const follow = () => {
    box.value = decodeURIComponent(location.hash.slice(1));
    show();
  };
  addEventListener("hashchange", follow);
  follow();
  box.focus();
};
if (box) {
  box.hidden = false;
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") location.href = `${box.dataset.page}#${encodeURIComponent(box.value)}`;
  });
  if (byId("searched")) search(JSON.parse(byId("searched").textContent));
}
// The page of a release that the reader chooses.
const yours = byId("yours");
if (yours) {
  const field = yours.querySelector("select");
  addEventListener("pageshow", () => { field.value = ""; yours.hidden = false; });
  field.addEventListener("change", () => { if (field.value) location.href = field.value; });
}
all(".chart").forEach((chart) => { chart.scrollLeft = chart.scrollWidth; }); // the newest releases
const filters = document.querySelector(".filters");
// After the first paint, which a large table would delay.
if (filters) requestAnimationFrame(() => setTimeout(() => setUpTable(document.querySelector("#table table"), filters)));
reveal();
