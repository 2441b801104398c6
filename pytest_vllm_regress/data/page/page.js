"use strict";
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
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
  location.hash = "cell-" + body.id;
  document.getElementById("cell-" + body.id).focus();
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
document.querySelectorAll(".copy button").forEach((button) => {
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
reveal();
