// A browser that follows a link from another site does not send its cookie, though it may have one:
// check the login from this page, and again when the user returns to this tab.

async function look() {
  try {
    if ((await fetch("/api/me")).ok) location.replace("/");
  } catch {
    // the controller does not answer
  }
}

look();
document.addEventListener("visibilitychange", () => document.hidden || look());
