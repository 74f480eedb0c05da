// Sorting and filtering. Without it the tables are in the order of the audit, whole.
"use strict";
(() => {
  // Numbers by data-value, what is not known last whichever way; texts as people order them.
  const compare = (one, other, number, sign) => {
    if (number) {
      const a = one.dataset.value, b = other.dataset.value;
      const lost = (a ? 0 : 1) - (b ? 0 : 1);
      return lost || sign * (Number(a) - Number(b));
    }
    return sign * one.textContent.localeCompare(other.textContent, undefined, { numeric: true });
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
      row.hidden = !row.textContent.toLocaleLowerCase().includes(wanted);
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
