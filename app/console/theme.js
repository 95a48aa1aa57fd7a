// Loaded before the page is drawn, so that a chosen theme does not flash. Without a choice the system's holds.
(() => {
  try {
    const chosen = localStorage.getItem("trillm.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // No storage in this browser: the system's theme holds.
  }
})();
