// The pointer's read-out over the curves. Without scripts the pictures are complete, only silent.
const readout = document.getElementById("readout");
for (const svg of document.querySelectorAll("svg[data-lines]")) {
  const data = JSON.parse(svg.dataset.lines);
  const [left, top, right, bottom] = data.box;
  const cross = svg.querySelector(".cross");
  const hide = () => { readout.style.display = "none"; cross.style.visibility = "hidden"; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const at = (event.clientX - frame.left) * svg.viewBox.baseVal.width / frame.width;
    if (at < left - 8 || at > right + 8) return hide();
    let nearest = null;
    for (const line of data.lines) for (const point of line.points)
      if (nearest === null || Math.abs(point[0] - at) < Math.abs(nearest[0] - at)) nearest = point;
    if (nearest === null) return hide();
    const rows = [];
    for (const line of data.lines) {
      const point = line.points.find((candidate) => Math.abs(candidate[0] - nearest[0]) < 0.06);
      if (point) rows.push([line, point]);
    }
    readout.replaceChildren(document.createTextNode(`${data.x} ${nearest[1]}`));
    for (const [line, point] of rows) {
      const row = document.createElement("div"), dot = document.createElement("i"), value = document.createElement("b");
      dot.className = line.colour;
      value.textContent = point[2];
      row.append(dot, line.name, value);
      readout.append(row);
    }
    cross.setAttribute("x1", nearest[0]); cross.setAttribute("x2", nearest[0]);
    cross.setAttribute("y1", top); cross.setAttribute("y2", bottom);
    cross.style.visibility = "visible";
    readout.style.display = "block";
    const beyond = event.pageX + 16 + readout.offsetWidth > document.documentElement.clientWidth;
    readout.style.left = `${beyond ? event.pageX - 16 - readout.offsetWidth : event.pageX + 16}px`;
    readout.style.top = `${event.pageY - 12}px`;
  });
}
