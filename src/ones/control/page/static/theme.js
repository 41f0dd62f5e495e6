// Before anything is drawn: the theme that was chosen by hand, if one was. Not a module: it must not wait.
(function () {
  "use strict";
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem("ones-theme") || "auto";
  } catch {
    // a browser that keeps nothing: the system's choice holds
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
        // it holds until the page is left
      }
      apply();
      name();
      document.dispatchEvent(new CustomEvent("themechange"));
    });
  });
})();
