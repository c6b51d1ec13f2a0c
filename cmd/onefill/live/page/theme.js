// Runs before the page is drawn, so that it does not begin in the other theme. What was chosen
// by hand goes before what the system prefers.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = () => {
    let chosen = null;
    try { chosen = localStorage.getItem("onefill-theme"); } catch { /* storage may be off */ }
    document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : dark.matches ? "dark" : "light";
  };
  set();
  dark.addEventListener("change", set); // before those of the page, which comes later
})();
