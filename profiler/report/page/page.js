// Sorting and filtering. Without it the tables are in the order of the audit, whole.
"use strict";
(() => {
  // Numbers by data-value, texts as people order them; what is not known, an empty data-value, last whichever way.
  const compare = (one, other, number, sign) => {
    const a = one.dataset.value, b = other.dataset.value;
    const lost = (a === "") - (b === "");
    if (lost) return lost;
    return sign * (number ? Number(a) - Number(b) : one.textContent.localeCompare(other.textContent, undefined, { numeric: true }));
  };

  const sort = (table, head) => {
    const number = head.classList.contains("number");
    const before = head.getAttribute("aria-sort");
    const way = before ? (before === "ascending" ? "descending" : "ascending") : number ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", way);
    const sign = way === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    rows.sort((a, b) => compare(a.cells[head.cellIndex], b.cells[head.cellIndex], number, sign));
    body.append(...rows);
  };

  const filter = (table, input, told) => {
    const wanted = input.value.trim().toLocaleLowerCase();
    const rows = table.tBodies[0].rows;
    let shown = 0;
    for (const row of rows) {
      // The space: what stands at the end of one cell and the start of the next is no word
      const text = Array.from(row.cells, (cell) => cell.textContent).join(" ");
      row.hidden = !text.toLocaleLowerCase().includes(wanted);
      if (!row.hidden) shown += 1;
    }
    told.textContent = wanted ? `${shown} of ${rows.length} rows` : "";
  };

  for (const table of document.querySelectorAll("table")) {
    for (const head of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, head));
    }
    const box = table.closest("section").querySelector(".filter");
    if (table.tBodies[0].rows.length > 12) {
      const input = box.querySelector("input");
      input.addEventListener("input", () => filter(table, input, box.querySelector("[role=status]")));
      box.hidden = false;
    }
  }
})();
