// Draws a LiveTable. Values are set as text, never as markup.

function render({ model, el }) {
  const table = document.createElement("table");
  table.className = "penstock-table";
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  const foot = document.createElement("div");
  el.append(table, foot);

  function cells(row, tag, texts) {
    row.replaceChildren(
      ...texts.map((text) => {
        const cell = document.createElement(tag);
        cell.textContent = text;
        return cell;
      }),
    );
  }

  function draw() {
    const rows = model.get("rows");
    cells(head, "th", model.get("columns"));
    while (body.rows.length > rows.length) body.deleteRow(-1);
    while (body.rows.length < rows.length) body.insertRow();
    rows.forEach((texts, index) => cells(body.rows[index], "td", texts));
    foot.textContent = [model.get("note"), model.get("state")].filter((text) => text).join(" · ");
  }

  for (const name of ["columns", "rows", "note", "state"]) model.on(`change:${name}`, draw);
  draw();
}

export default { render };
