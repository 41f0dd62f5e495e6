// Applies the theme that the user chose before the page is drawn. Not a module, because modules are deferred.
(function () {
  "use strict";
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem("ones-theme") || "auto";
  } catch {
    // the browser stores nothing: use the system's theme
  }
  function apply() {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }
  if (!themes.includes(theme)) theme = "auto";
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    function name() {
      button.textContent = `Theme: ${theme}`;
    }
    name();
    button.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      try {
        localStorage.setItem("ones-theme", theme);
      } catch {
        // not stored: the choice is valid until the page is closed
      }
      apply();
      name();
      document.dispatchEvent(new CustomEvent("themechange"));
    });
  });
})();
