/* ---- filters of the table of samples ---- */
for (const box of document.querySelectorAll(".filters")) {
  const table = document.getElementById(box.dataset.table);
  const choices = [...box.querySelectorAll("select")];
  const told = box.querySelector("output");
  const apply = () => {
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const fits = choices.every((choice) => !choice.value || row.dataset[choice.name] === choice.value);
      row.hidden = !fits;
      shown += fits;
    }
    told.textContent = `${shown} shown`;
  };
  choices.forEach((choice) => choice.addEventListener("change", apply));
  apply();
}
